/* submit.h - the two messages of a channel, as plain values
 *
 * Keeps protobuf out of the lane, and malloc out of the hot path.
 */
#ifndef GWD_SUBMIT_H
#define GWD_SUBMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

typedef struct gwd_submit {
    uint32_t bucket;
    uint32_t epoch;
    uint64_t sequence;
    uint64_t queue;
    bool notify;
} gwd_submit_t;

typedef struct gwd_complete {
    uint64_t sequence;
    gw_status_t status;
    uint64_t matched_ns, reduce_ns;
    uint32_t last_rank;
} gwd_complete_t;

enum { GWD_COMPLETE_BYTES = 64 };

/* False when the body is not a Submit. */
bool gwd_submit_unpack(const uint8_t *body, size_t body_bytes, gwd_submit_t *submit_out);

/* Returns the bytes used, at most GWD_COMPLETE_BYTES. */
size_t gwd_complete_pack(const gwd_complete_t *complete, uint8_t *body_out);

#endif
