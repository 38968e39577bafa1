/* exchange.h - one operation of a group on one node, as chunks that any thread can do
 *
 * The exchange is the pure part of a collective: given the spans of every rank it says into how many
 * chunks the work falls, and does one chunk. Chunks are independent and may be done in any order by any
 * thread: the result's bits do not depend on it.
 *
 * Every collective is a list of segments, each "combine these inputs, store to these outputs":
 *   all_reduce      one segment: all send spans -> all recv spans
 *   reduce          one segment: all send spans -> the root's recv span
 *   reduce_scatter  segment r: part r of all send spans -> recv span of rank r
 *   all_gather      segment r: send span of rank r -> part r of all recv spans
 *   broadcast       one segment: the root's send span -> all recv spans
 *   barrier         none
 */
#ifndef GWD_EXCHANGE_H
#define GWD_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "gradwire.h"

enum { GWD_RANKS_MAX = 1024 };

typedef struct gwd_exchange {
    gw_collective_t collective;
    gw_type_t type;
    gw_redop_t redop;
    uint32_t root;
    uint32_t nranks; /* spans in `send` */
    uint32_t n_recv; /* spans in `recv`: nranks, but for a piece of an all_reduce whose result is needed less often */
    uint64_t count;  /* elements of one segment */
    uint64_t chunk_count; /* elements of one chunk, at least 1 */
    uint64_t chunks_per_segment;
    bool for_device;   /* a device has written what is read, and reads what is written: see exchange.c */
    const void **send; /* owned by the caller */
    void **recv;
} gwd_exchange_t;

/* A chunk: the elements at these bytes of those ranks' spans, combined. */
typedef struct gwd_chunk {
    uint32_t first_in, n_in;      /* ranks whose send spans are read */
    uint32_t first_out, n_out;    /* ranks whose recv spans are written */
    uint64_t in_bytes, out_bytes; /* where in the spans */
    uint64_t count;
} gwd_chunk_t;

/* Fixes chunk_count from the size wanted in bytes (0: one chunk a segment). Returns the number of chunks
 * in all; 0 when there is nothing to do. */
uint64_t gwd_exchange_plan(gwd_exchange_t *exchange, uint64_t chunk_bytes);

/* The same with chunks of nearly one size, none larger than wanted: for copy engines, slow on a small rest. */
uint64_t gwd_exchange_plan_even(gwd_exchange_t *exchange, uint64_t chunk_bytes);

void gwd_exchange_chunk_at(const gwd_exchange_t *exchange, uint64_t index, gwd_chunk_t *chunk_out);

/* Does chunk `index`. Thread: any, at once for different chunks. Blocking: never. */
void gwd_exchange_chunk(const gwd_exchange_t *exchange, uint64_t index);

#endif
