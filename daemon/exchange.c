/* exchange.c - see exchange.h */
#include "exchange.h"

#include <stddef.h>

#include "kernels.h"

static uint64_t segments(const gwd_exchange_t *x) {
    switch (x->collective) {
    case GW_ALL_REDUCE:
    case GW_BROADCAST:
    case GW_REDUCE:
        return 1;
    case GW_REDUCE_SCATTER:
    case GW_ALL_GATHER:
        return x->nranks;
    case GW_BARRIER:
        break;
    }
    return 0;
}

uint64_t gwd_exchange_plan(gwd_exchange_t *x, uint64_t chunk_bytes) {
    size_t type_bytes = gw_type_bytes(x->type);

    if (x->count == 0 || x->collective == GW_BARRIER)
        return 0;
    x->chunk_count = chunk_bytes ? chunk_bytes / type_bytes : x->count;
    if (x->chunk_count == 0)
        x->chunk_count = 1;
    x->chunks_per_segment = (x->count - 1) / x->chunk_count + 1;
    return segments(x) * x->chunks_per_segment;
}

uint64_t gwd_exchange_plan_even(gwd_exchange_t *x, uint64_t chunk_bytes) {
    enum { ROUND = 16 }; /* elements, so that chunks start where wide accesses may */
    uint64_t most, each;

    if (gwd_exchange_plan(x, chunk_bytes) == 0)
        return 0;
    most = x->chunk_count;
    each = (x->count - 1) / x->chunks_per_segment + 1;
    each = (each + ROUND - 1) / ROUND * ROUND;
    x->chunk_count = each < most ? each : most;
    x->chunks_per_segment = (x->count - 1) / x->chunk_count + 1;
    return segments(x) * x->chunks_per_segment;
}

void gwd_exchange_chunk_at(const gwd_exchange_t *x, uint64_t index, gwd_chunk_t *chunk_out) {
    size_t type_bytes = gw_type_bytes(x->type);
    uint32_t segment = (uint32_t)(index / x->chunks_per_segment);
    uint64_t first = index % x->chunks_per_segment * x->chunk_count;
    uint64_t left = x->count - first;
    uint64_t within = first * type_bytes;                         /* of the chunk in its segment */
    uint64_t of_part = (segment * x->count + first) * type_bytes; /* of the chunk in a span of n segments */
    gwd_chunk_t chunk = {0, x->nranks, 0, x->n_recv, within, within, left < x->chunk_count ? left : x->chunk_count};

    switch (x->collective) {
    case GW_ALL_REDUCE:
    case GW_BARRIER: /* has no chunks */
        break;
    case GW_REDUCE:
        chunk.first_out = x->root;
        chunk.n_out = 1;
        break;
    case GW_REDUCE_SCATTER:
        chunk.in_bytes = of_part;
        chunk.first_out = segment;
        chunk.n_out = 1;
        break;
    case GW_ALL_GATHER:
        chunk.first_in = segment;
        chunk.n_in = 1;
        chunk.out_bytes = of_part;
        break;
    case GW_BROADCAST:
        chunk.first_in = x->root;
        chunk.n_in = 1;
        break;
    }
    *chunk_out = chunk;
}

static void advance(const void **in, unsigned n_in, void **out, unsigned n_out, uint64_t bytes) {
    for (unsigned i = 0; i < n_in; i++)
        in[i] = (const unsigned char *)in[i] + bytes;
    for (unsigned i = 0; i < n_out; i++)
        out[i] = (unsigned char *)out[i] + bytes;
}

/* What a core's own cache still holds, a device reads and writes slowly: each line must be asked for first. So pieces
 * that just fit into that cache are given back to the one that all cores share, while they are there. */
static void reduce_for_device(const gwd_exchange_t *x, const void **in, unsigned n_in, void **out, unsigned n_out,
                              uint64_t count) {
    enum { PIECE_BYTES = 16384 };
    uint64_t type_bytes = gw_type_bytes(x->type), piece = PIECE_BYTES / type_bytes;

    for (; count > 0; count -= piece) {
        piece = piece < count ? piece : count;
        gw_kernel_reduce(x->type, x->redop, in, n_in, out, n_out, piece);
        for (unsigned i = 0; i < n_in; i++)
            gw_kernel_demote(in[i], piece * type_bytes);
        for (unsigned i = 0; i < n_out; i++)
            gw_kernel_demote(out[i], piece * type_bytes);
        advance(in, n_in, out, n_out, piece * type_bytes);
    }
}

void gwd_exchange_chunk(const gwd_exchange_t *x, uint64_t index) {
    const void *in[GWD_RANKS_MAX];
    void *out[GWD_RANKS_MAX];
    gwd_chunk_t chunk;

    gwd_exchange_chunk_at(x, index, &chunk);
    for (uint32_t i = 0; i < chunk.n_in; i++)
        in[i] = (const unsigned char *)x->send[chunk.first_in + i] + chunk.in_bytes;
    for (uint32_t i = 0; i < chunk.n_out; i++)
        out[i] = (unsigned char *)x->recv[chunk.first_out + i] + chunk.out_bytes;
    if (x->for_device)
        reduce_for_device(x, in, chunk.n_in, out, chunk.n_out, chunk.count);
    else
        gw_kernel_reduce(x->type, x->redop, in, chunk.n_in, out, chunk.n_out, chunk.count);
}
