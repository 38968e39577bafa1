/* lane_code.c - the numbers of a chunk under way: partial results, their encoding, and the result. See lane_flight.h
 *
 * Without a codec the partial result of a single rank is its input, and results arrive in the first output: nothing is
 * copied. With one, what a node encodes of its partial result and of the shard it owns leaves a residual each; all
 * ranks, the owner's too, get what the encoded result decodes to, so that they all hold the same.
 */
#include <string.h>

#include "clock.h"
#include "kernels.h"
#include "lane_flight.h"

bool gwd_code_is_coded(const gwd_wire_flight_t *flight) {
    return flight->codec != GW_CODEC_NONE;
}

static uint64_t raw_bytes(const gwd_wire_flight_t *flight, uint64_t count) {
    return count * flight->partial_bytes;
}

static const float *floats(const void *memory) {
    return memory;
}

/* The first number of a shard in what is kept of its bucket. */
static uint64_t place(const gwd_wire_flight_t *flight, const gwd_shard_t *shard) {
    return flight->chunk * gwd_flight_exchange(flight)->chunk_count + shard->first;
}

static unsigned char *output(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, uint32_t i) {
    return (unsigned char *)flight->out[i] + shard->first * gw_type_bytes(gwd_flight_exchange(flight)->type);
}

/* ---- what travels --------------------------------------------------------------------------------------- */

gwd_load_t gwd_code_part_out(const gwd_wire_flight_t *flight, const gwd_shard_t *shard) {
    uint64_t at = raw_bytes(flight, shard->first);

    if (gwd_code_is_coded(flight) && !shard->part_out.raw)
        return (gwd_load_t){flight->codes + at, gw_codec_bytes(flight->codec, shard->count)};
    return (gwd_load_t){(unsigned char *)(uintptr_t)flight->mine + at, raw_bytes(flight, shard->count)};
}

gwd_load_t gwd_code_part_in(const gwd_wire_flight_t *flight, uint32_t node, bool raw) {
    const gwd_shard_t *own = gwd_flight_own(flight);
    uint64_t each =
        (raw_bytes(flight, own->count) + 63) / 64 * 64 + 64; /* a code of few numbers is longer than they are */

    return (gwd_load_t){flight->parts + node * each, raw || !gwd_code_is_coded(flight)
                                                         ? raw_bytes(flight, own->count)
                                                         : gw_codec_bytes(flight->codec, own->count)};
}

gwd_load_t gwd_code_result_out(const gwd_wire_flight_t *flight, bool raw) {
    const gwd_shard_t *own = gwd_flight_own(flight);

    if (!gwd_code_is_coded(flight))
        return (gwd_load_t){output(flight, own, 0), own->count * gw_type_bytes(gwd_flight_exchange(flight)->type)};
    if (raw)
        return (gwd_load_t){flight->sum, raw_bytes(flight, own->count)};
    return (gwd_load_t){flight->results + raw_bytes(flight, own->first), gw_codec_bytes(flight->codec, own->count)};
}

gwd_load_t gwd_code_result_in(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, bool raw) {
    if (!gwd_code_is_coded(flight))
        return (gwd_load_t){output(flight, shard, 0), shard->count * gw_type_bytes(gwd_flight_exchange(flight)->type)};
    return (gwd_load_t){flight->results + raw_bytes(flight, shard->first),
                        raw ? raw_bytes(flight, shard->count) : gw_codec_bytes(flight->codec, shard->count)};
}

/* ---- partial -------------------------------------------------------------------------------------------- */

/* SplitMix64's finaliser (Steele et al. 2014), once for each number. */
static uint64_t mix(uint64_t hash, uint64_t number) {
    hash += number + UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    hash = (hash ^ (hash >> 27)) * UINT64_C(0x94d049bb133111eb);
    return hash ^ (hash >> 31);
}

/* Stochastic rounding of a shard: its random bits are a function of the bucket, of how many operations it has had, of
 * which node encodes, of whether it is a result, and of each number's place in the bucket: nothing that differs when the
 * same is run again. NULL: to nearest. */
static const gw_codec_round_t *rounding(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, bool is_result,
                                        gw_codec_round_t *round) {
    const gwd_op_t *op = flight->op;
    uint64_t node = op->group->wire->map->own_node;

    if (!op->group->plan.is_stochastic)
        return NULL;
    round->seed = mix(mix(op->parts[0].bucket->fingerprint, op->wire_round), node << 1 | is_result);
    round->first = place(flight, shard);
    return round;
}

static float *residual(float *numbers, const gwd_wire_flight_t *flight, const gwd_shard_t *shard) {
    return numbers ? numbers + place(flight, shard) : NULL;
}

static void encode_part(gwd_wire_flight_t *flight, gwd_shard_t *shard, const float *values) {
    const struct gwd_residual *kept = flight->residual;
    gw_codec_round_t round;

    shard->part_out.raw = !gw_codec_is_finite(values, shard->count);
    if (!shard->part_out.raw)
        gw_codec_encode(flight->codec, values, rounding(flight, shard, false, &round),
                        residual(kept ? kept->parts : NULL, flight, shard),
                        flight->codes + raw_bytes(flight, shard->first), shard->count);
}

void gwd_code_partial(gwd_wire_flight_t *flight, gwd_shard_t *shard) {
    const gwd_exchange_t *x = gwd_flight_exchange(flight);
    const void *in[GWD_RANKS_MAX], *values;
    unsigned char *to = flight->partials + raw_bytes(flight, shard->first);

    if (shard->count == 0)
        return;
    shard->marks = (gwd_marks_t){.reduce_ns = gwd_now_ns()};
    for (uint32_t i = 0; i < flight->n_in; i++)
        in[i] = (const unsigned char *)flight->in[i] + shard->first * gw_type_bytes(x->type);
    values = (const unsigned char *)flight->in[0] + shard->first * gw_type_bytes(x->type);
    if (flight->n_in > 1 || !gw_kernel_partial_is_input(x->type, x->redop)) {
        gw_kernel_partial(x->type, x->redop, in, flight->n_in, to, shard->count);
        values = to;
    } else {
        shard->marks.reduce_ns = 0; /* there is nothing to add */
    }
    if (gwd_code_is_coded(flight) && shard != gwd_flight_own(flight)) {
        shard->marks.encode_ns = gwd_now_ns();
        encode_part(flight, shard, floats(values));
    }
    shard->marks.end_ns = gwd_now_ns();
}

/* ---- final ---------------------------------------------------------------------------------------------- */

static const unsigned char *own_part(const gwd_wire_flight_t *flight, const gwd_shard_t *own) {
    return flight->mine + raw_bytes(flight, own->first);
}

/* Sums in node order, then divides. */
static void sum_parts(const gwd_wire_flight_t *flight, const gwd_shard_t *own) {
    const gwd_exchange_t *x = gwd_flight_exchange(flight);
    void *sum = flight->sum;
    const void *in[2] = {sum, NULL};

    for (uint32_t i = 0; i < gwd_flight_nodes(flight); i++) {
        bool raw = i == own->node || flight->shards[i].part_in.raw;

        in[1] = i == own->node ? own_part(flight, own) : gwd_code_part_in(flight, i, raw).data;
        if (!raw)
            gw_codec_decode(flight->codec, in[1], sum, own->count, i > 0);
        else if (i > 0)
            gw_kernel_reduce(GW_F32, GW_SUM, in, 2, &sum, 1, own->count);
        else
            memcpy(sum, in[1], raw_bytes(flight, own->count));
    }
    gw_kernel_final(GW_F32, x->redop, in, 1, flight->op->group->nranks_all, &sum, 1, own->count);
}

/* Numbers in binary32 into all outputs of this node, in the bucket's type. */
static void store(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, const void *values) {
    void *out[GWD_RANKS_MAX];

    for (uint32_t i = 0; i < flight->n_out; i++)
        out[i] = output(flight, shard, i);
    gw_kernel_final(gwd_flight_exchange(flight)->type, GW_SUM, &values, 1, 1, out, flight->n_out, shard->count);
}

/* What is encoded to the outputs; `raw`: as it is. */
static void decode_result(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, bool raw) {
    const unsigned char *code = flight->results + raw_bytes(flight, shard->first);
    enum { BLOCK = 16 * GW_CODEC_BLOCK };
    float values[BLOCK];
    gwd_shard_t piece = {0}; /* no copy: the shard's transfers go on meanwhile */

    if (raw) {
        store(flight, shard, code);
        return;
    }
    for (uint64_t at = 0; at < shard->count; at += BLOCK) {
        piece.first = shard->first + at;
        piece.count = shard->count - at < BLOCK ? shard->count - at : BLOCK;
        gw_codec_decode(flight->codec, code + gw_codec_bytes(flight->codec, at), values, piece.count, false);
        store(flight, &piece, values);
    }
}

static void final_coded(gwd_wire_flight_t *flight, gwd_shard_t *own) {
    const struct gwd_residual *kept = flight->residual;
    gw_codec_round_t round;
    float *sum = (float *)(void *)flight->sum;

    sum_parts(flight, own);
    own->marks.encode_ns = gwd_now_ns();
    own->result_out.raw = !gw_codec_is_finite(sum, own->count);
    if (own->result_out.raw) {
        store(flight, own, sum);
        return;
    }
    gw_codec_encode(flight->codec, sum, rounding(flight, own, true, &round),
                    residual(kept ? kept->results : NULL, flight, own), flight->results + raw_bytes(flight, own->first),
                    own->count);
    own->marks.decode_ns = gwd_now_ns();
    decode_result(flight, own, false);
}

/* Not encoded. */
static void final_plain(const gwd_wire_flight_t *flight, const gwd_shard_t *own) {
    const gwd_exchange_t *x = gwd_flight_exchange(flight);
    uint32_t n = gwd_flight_nodes(flight);
    const void *in[GWD_RANKS_MAX];
    void *out[GWD_RANKS_MAX];

    for (uint32_t i = 0; i < flight->n_out; i++)
        out[i] = output(flight, own, i);
    if (!flight->combines) {
        in[0] = (const unsigned char *)flight->in[0] + own->first * gw_type_bytes(x->type);
        gw_kernel_reduce(x->type, x->redop, in, 1, out, flight->n_out, own->count);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        in[i] = i == own->node ? own_part(flight, own) : gwd_code_part_in(flight, i, true).data;
    gw_kernel_final(x->type, x->redop, in, n, flight->op->group->nranks_all, out, flight->n_out, own->count);
}

void gwd_code_final(gwd_wire_flight_t *flight, gwd_shard_t *own) {
    if (gwd_code_is_coded(flight))
        final_coded(flight, own);
    else
        final_plain(flight, own);
    own->marks.end_ns = gwd_now_ns();
}

void gwd_code_spread(gwd_wire_flight_t *flight, gwd_shard_t *shard) {
    uint64_t bytes = shard->count * gw_type_bytes(gwd_flight_exchange(flight)->type);

    if (gwd_code_is_coded(flight))
        decode_result(flight, shard, shard->result_in.raw);
    else
        for (uint32_t i = 1; i < flight->n_out; i++)
            memcpy(output(flight, shard, i), output(flight, shard, 0), bytes);
    shard->marks.end_ns = gwd_now_ns();
}
