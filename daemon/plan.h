/* plan.h - how a group exchanges buckets of each size
 *
 * A plan is made once, when the group is, from the configuration (and, with more nodes, from measured
 * links), and does not change while the group lives: bits are a function of placement and plan. It is a
 * short table by bucket size; the first row that is large enough applies. Its hash is shown to users; it
 * differs between nodes that are configured differently.
 */
#ifndef GWD_PLAN_H
#define GWD_PLAN_H

#include <stdint.h>

#include "codec_choice.h"
#include "gradwire.h"

typedef struct gwd_plan_row {
    uint64_t max_bytes;   /* of one rank's bucket; UINT64_MAX in the last row */
    uint64_t chunk_bytes; /* reduced by the reduce threads in chunks of this size; 0: by the lane, at once */
} gwd_plan_row_t;

enum { GWD_PLAN_ROWS = 2 };

typedef struct gwd_plan {
    gwd_plan_row_t rows[GWD_PLAN_ROWS];
    uint64_t inline_bytes;       /* what the lane does itself, all ranks together */
    uint64_t device_chunk_bytes; /* of a device's bucket, at most */
    uint64_t device_piece_bytes; /* of a chunk, that one thread reduces */
    uint32_t device_window;      /* chunks of one operation under way */
    uint64_t wire_chunk_bytes;   /* of a bucket that goes to other nodes */
    uint32_t wire_window;
    uint32_t wire_window_raw;
    gw_codec_t codecs[GWD_SIZE_CLASSES]; /* between nodes, of buckets that leave it to the group */
    bool is_stochastic;                  /* how codecs round */
    bool is_complete;                    /* the codecs have been set */
    uint64_t hash;
} gwd_plan_t;

/* What the configuration says. */
typedef struct gwd_plan_config {
    uint64_t inline_bytes, chunk_bytes, device_chunk_bytes;
    uint32_t device_window;
    uint64_t wire_chunk_bytes;
    uint32_t wire_window;
    uint32_t wire_window_raw;
    bool is_stochastic;
} gwd_plan_config_t;

/* All of it but the codecs. */
void gwd_plan_make(gwd_plan_t *plan_out, uint32_t nranks, const gwd_plan_config_t *config);

/* Completes it, once. */
void gwd_plan_set_codecs(gwd_plan_t *plan, const gw_codec_t codecs[GWD_SIZE_CLASSES]);

/* The size of the chunks that a bucket goes to other nodes in, at most `most_bytes`: what a node does last, when there
 * is nothing else to send meanwhile, takes as long as a shard. */
uint64_t gwd_plan_wire_chunk(uint64_t most_bytes, uint32_t n_nodes);

/* How many chunks each of a group's rails has under way, when wire.window is `most`: chunks grow with the number of
 * nodes, and take as much memory with any. */
uint32_t gwd_plan_wire_window(uint32_t most, uint32_t n_nodes, uint32_t n_rails);

/* How many of these may be of buckets without a codec: what one node sends, and what comes to one from all others at
 * once, is as much with any number of nodes, so that switches can hold it. What is coded is less. Several rails fill
 * each other's gaps, so they have half as many: they do not end at the same time, and the last ones only as fast as
 * they go alone. */
uint32_t gwd_plan_wire_window_raw(uint32_t most, uint32_t n_nodes, uint32_t n_rails);

/* The size that a device's bucket of `bytes` is copied in: small enough that its parts overlap. */
uint64_t gwd_plan_device_chunk(const gwd_plan_t *plan, uint64_t bytes);

/* The row for buckets of `bytes`. */
const gwd_plan_row_t *gwd_plan_row(const gwd_plan_t *plan, uint64_t bytes);

#endif
