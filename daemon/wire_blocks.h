/* wire_blocks.h - what a rank of a group on several nodes has of the wire arena of a device
 *
 * A chunk that travels between nodes goes through a block for each rank whose memory is a device's. A rank has blocks
 * for all chunks that can be under way, from its first bucket on the device to the end of its last: a node that took
 * them when a chunk comes could hold those that another group waits for, whose blocks on another node wait for this.
 */
#ifndef GWD_WIRE_BLOCKS_H
#define GWD_WIRE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

struct gwd_bucket;
struct gwd_device;

typedef struct gwd_wire_blocks {
    struct gwd_wire_blocks *next; /* of the same rank, on another device */
    struct gwd_device *device;
    uint32_t refs; /* buckets */
    uint32_t n;
    void *blocks[];
} gwd_wire_blocks_t;

/* Gives the bucket, whose buffers keep its devices open, `n` blocks; none if its memory is the host's. The rank's are
 * in `list`. Thread: the loop. Errors, with text: GW_ERR_QUOTA (the arena has no room), GW_ERR_UNSUPPORTED
 * (there is none), GW_ERR_NO_MEMORY. */
gw_status_t gwd_wire_blocks_take(gwd_wire_blocks_t **list, struct gwd_bucket *bucket, uint32_t n, char *text,
                                 size_t text_bytes);
void gwd_wire_blocks_give(gwd_wire_blocks_t **list, struct gwd_bucket *bucket);

#endif
