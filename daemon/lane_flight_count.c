/* lane_flight_count.c - what operations between nodes take: all_reduces by size and codec, for `gwctl groups`; and each
 * step of all, for `gwctl trace`. See lane_flight.h */
#include "clock.h"
#include "lane_flight.h"

void gwd_flight_count_begin(gwd_op_t *op) {
    const gwd_bucket_t *bucket = op->parts[0].bucket;
    uint64_t bytes = bucket->desc.count * sizeof(float);

    op->wire_counters = NULL;
    op->wire_begin_ns = gwd_now_ns();
    gwd_lane_trace_moment(op, GWD_TRACE_MET, 0, 0, op->wire_begin_ns);
    if (bucket->desc.collective == GW_ALL_REDUCE)
        op->wire_counters = &op->group->counters->wire[gwd_size_class(bytes)][op->wire_codec];
}

void gwd_flight_count_end(const gwd_op_t *op) {
    gwd_wire_counters_t *counters = op->wire_counters;

    if (!counters || op->group->status != GW_OK)
        return;
    gwd_stats_add(&counters->ns, gwd_now_ns() - op->wire_begin_ns);
    gwd_stats_add(&counters->bytes, op->parts[0].bucket->desc.count * sizeof(float));
    gwd_stats_add(&counters->ops, 1);
}

static void begin(gwd_transfer_t *transfer, uint64_t bytes) {
    transfer->begin_ns = gwd_now_ns();
    transfer->bytes = bytes;
}

void gwd_flight_count_received(gwd_transfer_t *transfer, uint64_t bytes) {
    gwd_stats_add(&transfer->shard->flight->op->group->lane->stats.wire_bytes_received, bytes);
    begin(transfer, bytes);
}

void gwd_flight_count_sent(gwd_transfer_t *transfer, gwd_wire_kind_t kind, uint64_t bytes) {
    const gwd_shard_t *shard = transfer->shard;
    const gwd_op_t *op = shard->flight->op;
    uint64_t before;

    begin(transfer, bytes);
    gwd_stats_add(&op->group->lane->stats.wire_bytes_sent, bytes);
    if (!op->wire_counters)
        return;
    before = kind == GWD_WIRE_PART
                 ? shard->count * shard->flight->partial_bytes
                 : gwd_flight_own(shard->flight)->count * gw_type_bytes(gwd_flight_exchange(shard->flight)->type);
    /* Several lanes may carry the operation. */
    atomic_fetch_add_explicit(&op->wire_counters->sent, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&op->wire_counters->bytes_before, before, memory_order_relaxed);
}

void gwd_flight_count_ended(const gwd_transfer_t *transfer) {
    const gwd_shard_t *shard = transfer->shard;
    bool is_out = transfer == &shard->part_out || transfer == &shard->result_out;

    gwd_lane_trace_span(shard->flight->op, is_out ? GWD_TRACE_SENT : GWD_TRACE_RECEIVED, shard->node, transfer->bytes,
                        transfer->begin_ns, gwd_now_ns());
}

void gwd_flight_count_job(const gwd_shard_t *shard) {
    if (shard->count > 0 && shard->marks.end_ns > 0) /* else it did not open */
        gwd_lane_trace_marks(shard->flight->op, &shard->marks, gwd_flight_shard_bytes(shard));
}
