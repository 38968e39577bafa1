/* lane_trace.c - see lane_trace.h */
#include "lane_trace.h"

#include <stdio.h>

void gwd_lane_trace_moment(const gwd_op_t *op, gwd_trace_kind_t kind, uint32_t index, uint64_t bytes, uint64_t now_ns) {
    gwd_trace_add(op->group->lane->trace, &(gwd_trace_event_t){.time_ns = now_ns,
                                                               .kind = kind,
                                                               .group = op->group->id,
                                                               .index = index,
                                                               .sequence = gwd_op_number(op),
                                                               .bytes = bytes});
}

void gwd_lane_trace_submit(const gwd_op_t *op, const gwd_lane_rank_t *rank, const gwd_bucket_t *bucket,
                           uint64_t now_ns) {
    gwd_trace_event_t event = {.time_ns = now_ns,
                               .kind = GWD_TRACE_SUBMIT,
                               .group = op->group->id,
                               .index = rank->info.rank,
                               .codec = (uint32_t)bucket->codec,
                               .sequence = gwd_op_number(op),
                               .bytes = bucket->bytes};

    snprintf(event.name, sizeof(event.name), "%.*s", (int)sizeof(event.name) - 1, bucket->desc.name);
    gwd_trace_add(op->group->lane->trace, &event);
}

void gwd_lane_trace_span(const gwd_op_t *op, gwd_trace_kind_t kind, uint32_t index, uint64_t bytes, uint64_t begin_ns,
                         uint64_t end_ns) {
    if (begin_ns == 0)
        return;
    gwd_trace_add(op->group->lane->trace, &(gwd_trace_event_t){.time_ns = begin_ns,
                                                               .duration_ns = end_ns - begin_ns,
                                                               .kind = kind,
                                                               .group = op->group->id,
                                                               .index = index,
                                                               .sequence = gwd_op_number(op),
                                                               .bytes = bytes});
}

void gwd_lane_trace_marks(const gwd_op_t *op, const gwd_marks_t *marks, uint64_t bytes) {
    uint64_t decode_ns = marks->decode_ns ? marks->decode_ns : marks->end_ns;
    uint64_t encode_ns = marks->encode_ns ? marks->encode_ns : decode_ns;

    gwd_lane_trace_span(op, GWD_TRACE_REDUCE, 0, bytes, marks->reduce_ns, encode_ns);
    gwd_lane_trace_span(op, GWD_TRACE_ENCODE, 0, bytes, marks->encode_ns, decode_ns);
    gwd_lane_trace_span(op, GWD_TRACE_DECODE, 0, bytes, marks->decode_ns, marks->end_ns);
}
