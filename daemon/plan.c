/* plan.c - see plan.h */
#include "plan.h"

#include <stddef.h>

/* A chunk is so much of every rank, and nobody else's turn comes before it is done. */
enum { CHUNK_BYTES_MAX = 8 << 20 };

/* A device's bucket is copied in so many pieces, unless they would be too small for copy engines. */
enum { DEVICE_PIECES = 8, DEVICE_CHUNK_BYTES_MIN = 256 << 10 };

/* So small that even one chunk occupies several threads: it is on its way, and everybody waits for it. */
enum { DEVICE_PIECE_BYTES = 128 << 10 };

/* Of a chunk between nodes, one node's part. */
enum { WIRE_SHARD_BYTES = 128 << 10 };

/* FNV-1a: the hash only has to tell plans apart, nobody attacks it. */
static uint64_t mix(uint64_t hash, uint64_t value) {
    for (int i = 0; i < 8; i++) {
        hash ^= (value >> (8 * i)) & 0xff;
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}

void gwd_plan_make(gwd_plan_t *plan_out, uint32_t nranks, const gwd_plan_config_t *config) {
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), nranks);
    uint64_t most = CHUNK_BYTES_MAX / nranks;
    uint64_t chunk_bytes = config->chunk_bytes < most ? config->chunk_bytes : most;

    plan_out->inline_bytes = config->inline_bytes;
    plan_out->device_chunk_bytes = config->device_chunk_bytes;
    plan_out->device_piece_bytes = chunk_bytes < DEVICE_PIECE_BYTES ? chunk_bytes : DEVICE_PIECE_BYTES;
    plan_out->device_window = config->device_window;
    plan_out->wire_chunk_bytes = config->wire_chunk_bytes;
    plan_out->wire_window = config->wire_window;
    plan_out->wire_window_raw = config->wire_window_raw;
    plan_out->is_stochastic = config->is_stochastic;
    plan_out->is_complete = false;
    plan_out->rows[0] = (gwd_plan_row_t){config->inline_bytes / nranks, 0};
    plan_out->rows[1] = (gwd_plan_row_t){UINT64_MAX, chunk_bytes};
    for (size_t i = 0; i < GWD_PLAN_ROWS; i++) {
        const gwd_plan_row_t *row = &plan_out->rows[i];

        hash = mix(hash, row->max_bytes);
        hash = mix(hash, row->chunk_bytes);
    }
    hash = mix(hash, plan_out->device_chunk_bytes);
    hash = mix(hash, plan_out->device_window);
    hash = mix(hash, plan_out->wire_chunk_bytes);
    hash = mix(hash, plan_out->wire_window);
    plan_out->hash = mix(hash, plan_out->is_stochastic);
}

void gwd_plan_set_codecs(gwd_plan_t *plan, const gw_codec_t codecs[GWD_SIZE_CLASSES]) {
    plan->is_complete = true;
    for (size_t i = 0; i < GWD_SIZE_CLASSES; i++) {
        plan->codecs[i] = codecs[i];
        plan->hash = mix(plan->hash, (uint64_t)codecs[i]);
    }
}

uint64_t gwd_plan_wire_chunk(uint64_t most_bytes, uint32_t n_nodes) {
    uint64_t bytes = (uint64_t)WIRE_SHARD_BYTES * n_nodes;

    return bytes < most_bytes ? bytes : most_bytes;
}

static uint32_t at_least_two(uint32_t n, uint32_t most) {
    uint32_t least = most < 2 ? most : 2;

    return n > least ? n : least;
}

uint32_t gwd_plan_wire_window(uint32_t most, uint32_t n_nodes, uint32_t n_rails) {
    return at_least_two(2 * most / n_nodes / n_rails, most);
}

uint32_t gwd_plan_wire_window_raw(uint32_t most, uint32_t n_nodes, uint32_t n_rails) {
    uint32_t all = most / (n_nodes > 1 ? n_nodes - 1 : 1);

    return at_least_two(n_rails > 1 ? all / 2 / n_rails : all, most);
}

uint64_t gwd_plan_device_chunk(const gwd_plan_t *plan, uint64_t bytes) {
    uint64_t piece = bytes / DEVICE_PIECES;

    piece = piece > DEVICE_CHUNK_BYTES_MIN ? piece : DEVICE_CHUNK_BYTES_MIN;
    return piece < plan->device_chunk_bytes ? piece : plan->device_chunk_bytes;
}

const gwd_plan_row_t *gwd_plan_row(const gwd_plan_t *plan, uint64_t bytes) {
    const gwd_plan_row_t *row = plan->rows;

    while (bytes > row->max_bytes)
        row++;
    return row;
}
