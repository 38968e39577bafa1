/* exchange.c - see exchange.h */
#include "exchange.h"

#include <stdbool.h>
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

static const void *at(const void *base, uint64_t bytes) {
    return (const unsigned char *)base + bytes;
}
static void *at_mutable(void *base, uint64_t bytes) {
    return (unsigned char *)base + bytes;
}

/* All ranks' send spans from `bytes` on. */
static unsigned all_sends(const gwd_exchange_t *x, uint64_t bytes, const void **in) {
    for (uint32_t r = 0; r < x->nranks; r++)
        in[r] = at(x->send[r], bytes);
    return x->nranks;
}

static unsigned all_recvs(const gwd_exchange_t *x, uint64_t bytes, void **out) {
    for (uint32_t r = 0; r < x->nranks; r++)
        out[r] = at_mutable(x->recv[r], bytes);
    return x->nranks;
}

void gwd_exchange_chunk(const gwd_exchange_t *x, uint64_t index) {
    const void *in[GWD_RANKS_MAX];
    void *out[GWD_RANKS_MAX];
    unsigned n_in = 1, n_out = 1;
    size_t type_bytes = gw_type_bytes(x->type);
    uint64_t segment = index / x->chunks_per_segment;
    uint64_t first = index % x->chunks_per_segment * x->chunk_count;
    uint64_t left = x->count - first;
    uint64_t count = left < x->chunk_count ? left : x->chunk_count;
    uint64_t within = first * type_bytes;                         /* of the chunk in its segment */
    uint64_t of_part = (segment * x->count + first) * type_bytes; /* of the chunk in a span of n segments */

    switch (x->collective) {
    case GW_ALL_REDUCE:
        n_in = all_sends(x, within, in);
        n_out = all_recvs(x, within, out);
        break;
    case GW_REDUCE:
        n_in = all_sends(x, within, in);
        out[0] = at_mutable(x->recv[x->root], within);
        break;
    case GW_REDUCE_SCATTER:
        n_in = all_sends(x, of_part, in);
        out[0] = at_mutable(x->recv[segment], within);
        break;
    case GW_ALL_GATHER:
        in[0] = at(x->send[segment], within);
        n_out = all_recvs(x, of_part, out);
        break;
    case GW_BROADCAST:
        in[0] = at(x->send[x->root], within);
        n_out = all_recvs(x, within, out);
        break;
    case GW_BARRIER:
        return;
    }
    gw_kernel_reduce(x->type, x->redop, in, n_in, out, n_out, count);
}
