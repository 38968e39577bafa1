/* plan.c - see plan.h */
#include "plan.h"

#include <stddef.h>

/* A chunk is so much of every rank, and nobody else's turn comes before it is done. */
enum { CHUNK_BYTES_MAX = 8 << 20 };

/* FNV-1a: the hash only has to tell plans apart, nobody attacks it. */
static uint64_t mix(uint64_t hash, uint64_t value) {
    for (int i = 0; i < 8; i++) {
        hash ^= (value >> (8 * i)) & 0xff;
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}

void gwd_plan_make(gwd_plan_t *plan_out, uint32_t nranks, uint64_t inline_bytes, uint64_t chunk_bytes) {
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), nranks);
    uint64_t most = CHUNK_BYTES_MAX / nranks;

    chunk_bytes = chunk_bytes < most ? chunk_bytes : most;
    plan_out->nranks = nranks;
    plan_out->rows[0] = (gwd_plan_row_t){inline_bytes / nranks, GWD_ENGINE_HOST, GWD_MOVER_SHARED, GWD_CODEC_NONE, 0};
    plan_out->rows[1] = (gwd_plan_row_t){UINT64_MAX, GWD_ENGINE_HOST, GWD_MOVER_SHARED, GWD_CODEC_NONE, chunk_bytes};
    for (size_t i = 0; i < GWD_PLAN_ROWS; i++) {
        const gwd_plan_row_t *row = &plan_out->rows[i];

        hash = mix(hash, row->max_bytes);
        hash = mix(hash, (uint64_t)row->engine << 32 | (uint64_t)row->mover << 16 | (uint64_t)row->codec);
        hash = mix(hash, row->chunk_bytes);
    }
    plan_out->hash = hash;
}

const gwd_plan_row_t *gwd_plan_row(const gwd_plan_t *plan, uint64_t bytes) {
    const gwd_plan_row_t *row = plan->rows;

    while (bytes > row->max_bytes)
        row++;
    return row;
}

const char *gwd_engine_name(gwd_engine_t engine) {
    static const char *const names[] = {[GWD_ENGINE_HOST] = "host"};
    return names[engine];
}

const char *gwd_mover_name(gwd_mover_t mover) {
    static const char *const names[] = {[GWD_MOVER_SHARED] = "shared"};
    return names[mover];
}

const char *gwd_codec_name(gwd_codec_t codec) {
    static const char *const names[] = {[GWD_CODEC_NONE] = "none"};
    return names[codec];
}
