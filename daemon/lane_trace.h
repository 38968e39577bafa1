/* lane_trace.h - what a lane writes into its ring
 *
 * Inner header of the files that drive operations. Threads that compute leave the times in what they work on; the lane
 * alone writes the ring.
 */
#ifndef GWD_LANE_TRACE_H
#define GWD_LANE_TRACE_H

#include "lane_group.h"
#include "trace.h"

/* Adds a moment; what `index` and `bytes` are depends on the kind. */
void gwd_lane_trace_moment(const gwd_op_t *op, gwd_trace_kind_t kind, uint32_t index, uint64_t bytes, uint64_t now_ns);

/* Adds the Submit of a rank, with its bucket. */
void gwd_lane_trace_submit(const gwd_op_t *op, const gwd_lane_rank_t *rank, const gwd_bucket_t *bucket,
                           uint64_t now_ns);

/* Adds what took time, from begin_ns to end_ns; nothing if begin_ns is 0. */
void gwd_lane_trace_span(const gwd_op_t *op, gwd_trace_kind_t kind, uint32_t index, uint64_t bytes, uint64_t begin_ns,
                         uint64_t end_ns);

/* When a thread began what it did to a shard, one after the other; 0: it did not. */
typedef struct gwd_marks {
    uint64_t reduce_ns, encode_ns, decode_ns, end_ns;
} gwd_marks_t;

/* Adds what the marks say of a shard of `bytes`, not encoded. */
void gwd_lane_trace_marks(const gwd_op_t *op, const gwd_marks_t *marks, uint64_t bytes);

#endif
