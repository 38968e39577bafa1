/* codec.c - what there is to know about each codec, and the choice of the form for this CPU */
#include <stdatomic.h>
#include <string.h>

#include "simd/isa.h"

typedef struct gw_codec_row {
    const char *name;
    gw_codec_pattern_t pattern;
    unsigned bits; /* of one number */
    bool blocks;
} gw_codec_row_t;

static const gw_codec_row_t rows[GW_CODECS] = {
    [GW_CODEC_DEFAULT] = {"default", GW_CODEC_LINEAR, 32, false},
    [GW_CODEC_NONE] = {"none", GW_CODEC_LINEAR, 32, false},
    [GW_CODEC_FP16] = {"fp16", GW_CODEC_LINEAR, 16, false},
    [GW_CODEC_BF16] = {"bf16", GW_CODEC_LINEAR, 16, false},
    [GW_CODEC_FP8] = {"fp8", GW_CODEC_SHARDED, 8, true},
    [GW_CODEC_INT8] = {"int8", GW_CODEC_SHARDED, 8, true},
    [GW_CODEC_INT4] = {"int4", GW_CODEC_SHARDED, 4, true},
};

static _Atomic(const gw_codec_form_t *) chosen; /* NULL: not chosen yet */

const char *gw_codec_name(gw_codec_t codec) {
    return rows[codec].name;
}

bool gw_codec_by_name(const char *name, gw_codec_t *codec_out) {
    for (int i = GW_CODEC_NONE; i < GW_CODECS; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *codec_out = (gw_codec_t)i;
            return true;
        }
    }
    return false;
}

gw_codec_pattern_t gw_codec_pattern(gw_codec_t codec) {
    return rows[codec].pattern;
}

/* Scale and words of `count` numbers, at most a block. */
static uint64_t block_bytes(unsigned bits, uint64_t count) {
    return sizeof(float) + (count * bits + 31) / 32 * sizeof(uint32_t);
}

uint64_t gw_codec_bytes(gw_codec_t codec, uint64_t count) {
    const gw_codec_row_t *row = &rows[codec];
    if (!row->blocks)
        return count * (row->bits / 8);
    uint64_t rest = count % GW_CODEC_BLOCK;
    return count / GW_CODEC_BLOCK * block_bytes(row->bits, GW_CODEC_BLOCK) + (rest ? block_bytes(row->bits, rest) : 0);
}

const gw_codec_form_t *const *gw_codec_forms(void) {
    static const gw_codec_form_t *const forms[] = {
#if defined(__x86_64__)
        &gw_codec_form_avx512,
        &gw_codec_form_avx2,
#endif
        &gw_codec_form_base,
        NULL,
    };
    return forms;
}

/* Two threads may both choose at the first call: they choose the same. */
static const gw_codec_form_t *current_form(void) {
    const gw_codec_form_t *form = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (form)
        return form;
    const gw_codec_form_t *const *next = gw_codec_forms();
    while (!(*next)->usable())
        next++;
    atomic_store_explicit(&chosen, *next, memory_order_relaxed);
    return *next;
}

bool gw_codec_force_isa(const char *name) {
    const gw_codec_form_t *found = NULL;
    for (const gw_codec_form_t *const *form = gw_codec_forms(); name && *form; form++)
        if (strcmp((*form)->name, name) == 0 && (*form)->usable())
            found = *form;
    if (name && !found)
        return false;
    atomic_store_explicit(&chosen, found, memory_order_relaxed);
    return true;
}

const char *gw_codec_isa(void) {
    return current_form()->name;
}

/* Seeds that differ in one bit get keys that differ in half of theirs (the finaliser of SplitMix64, Steele et al. 2014). */
static gw_codec_random_t random_of(const gw_codec_round_t *round) {
    uint64_t x = round->seed + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (gw_codec_random_t){.keys = {(uint32_t)x, (uint32_t)(x >> 32)}, .first = (uint32_t)round->first};
}

void gw_codec_encode(gw_codec_t codec, const float *in, const gw_codec_round_t *round, float *residual, void *out,
                     size_t count) {
    gw_codec_random_t random = {{0}, 0};
    if (count == 0)
        return;
    if (round)
        random = random_of(round);
    current_form()->encode[codec](&(gw_codec_encoding_t){
        .in = in, .residual = residual, .random = round ? &random : NULL, .out = out, .count = count});
}

void gw_codec_decode(gw_codec_t codec, const void *in, float *out, size_t count, bool add) {
    if (count == 0)
        return;
    current_form()->decode[codec](&(gw_codec_decoding_t){.in = in, .out = out, .count = count, .add = add});
}

bool gw_codec_is_finite(const float *in, size_t count) {
    return current_form()->is_finite(in, count);
}
