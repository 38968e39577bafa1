/* partial.c - reductions in two steps: the ranks of a node, then the nodes. See kernels.h
 *
 * Block by block, so that what is widened stays in the first-level cache.
 */
#include <string.h>

#include "host/isa.h"

enum { BLOCK = 1024 }; /* elements */

static bool is_half(gw_type_t type) {
    return type == GW_F16 || type == GW_BF16;
}

/* Minimum and maximum need no more bits than the type has. */
static bool widens(gw_type_t type, gw_redop_t op) {
    return is_half(type) && op != GW_MIN && op != GW_MAX;
}

static bool averages_integers(gw_type_t type, gw_redop_t op) {
    return op == GW_AVG && type >= GW_I8;
}

size_t gw_kernel_partial_bytes(gw_type_t type, gw_redop_t op) {
    if (averages_integers(type, op))
        return type == GW_I64 ? sizeof(gw_int128_t) : sizeof(int64_t);
    return widens(type, op) ? sizeof(float) : gw_type_bytes(type);
}

bool gw_kernel_partial_is_input(gw_type_t type, gw_redop_t op) {
    return !widens(type, op) && !averages_integers(type, op);
}

/* ---- 16-bit types ------------------------------------------------------------------------------------- */

static float as_float(uint32_t bits) {
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t as_bits(float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* As form_base.c does it: moved into place, exponent and fraction mean a number 2^112 times too small. */
static float widen_f16(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    uint32_t finite = as_bits(as_float(magnitude) * 0x1p112f);
    uint32_t bits = magnitude >= (UINT32_C(0x7c00) << 13) ? magnitude | 0x7f800000u : finite;

    return as_float(bits | (uint32_t)(half & 0x8000) << 16);
}

static uint16_t narrow_f16(float value) {
    uint32_t bits = as_bits(value), magnitude = bits & 0x7fffffffu, half;

    if (magnitude > 0x7f800000u)
        return 0x7e00;
    if (magnitude >= 0x47800000u)
        half = 0x7c00;
    else if (magnitude < 0x38800000u)
        half = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;
    else
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    return (uint16_t)(half | ((bits >> 16) & 0x8000u));
}

static uint16_t narrow_bf16(float value) {
    uint32_t bits = as_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static void widen(gw_type_t type, const uint16_t *in, float *out, size_t count) {
    if (type == GW_BF16)
        for (size_t i = 0; i < count; i++)
            out[i] = as_float((uint32_t)in[i] << 16);
    else
        for (size_t i = 0; i < count; i++)
            out[i] = widen_f16(in[i]);
}

static void narrow(gw_type_t type, const float *in, uint16_t *out, size_t count) {
    if (type == GW_BF16)
        for (size_t i = 0; i < count; i++)
            out[i] = narrow_bf16(in[i]);
    else
        for (size_t i = 0; i < count; i++)
            out[i] = narrow_f16(in[i]);
}

static void widen_block(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, float *out, size_t at,
                        size_t count) {
    float next[BLOCK];
    const void *both[2] = {out, next};
    void *to = out;

    widen(type, (const uint16_t *)in[0] + at, out, count);
    for (unsigned r = 1; r < n_in; r++) {
        widen(type, (const uint16_t *)in[r] + at, next, count);
        gw_kernel_reduce(GW_F32, op, both, 2, &to, 1, count);
    }
}

/* ---- averages of integers ------------------------------------------------------------------------------- */

static int64_t integer_at(gw_type_t type, const void *in, size_t at) {
    switch (type) {
    case GW_I8:
        return ((const int8_t *)in)[at];
    case GW_U8:
        return ((const uint8_t *)in)[at];
    case GW_I32:
        return ((const int32_t *)in)[at];
    default:
        return ((const int64_t *)in)[at];
    }
}

static void sum_integers(gw_type_t type, const void *const *in, unsigned n_in, void *out, size_t count) {
    for (size_t i = 0; i < count; i++) {
        gw_int128_t sum = 0;

        for (unsigned r = 0; r < n_in; r++)
            sum += integer_at(type, in[r], i);
        if (type == GW_I64)
            memcpy((gw_int128_t *)out + i, &sum, sizeof(sum));
        else
            ((int64_t *)out)[i] = (int64_t)sum;
    }
}

static void average_integers(gw_type_t type, const void *const *in, unsigned n_in, unsigned n_ranks, void *const *out,
                             unsigned n_out, size_t count) {
    size_t bytes = gw_type_bytes(type);

    for (size_t i = 0; i < count; i++) {
        gw_int128_t sum = 0, part;
        int64_t average;

        for (unsigned r = 0; r < n_in; r++) {
            if (type == GW_I64)
                memcpy(&part, (const gw_int128_t *)in[r] + i, sizeof(part));
            else
                part = ((const int64_t *)in[r])[i];
            sum += part;
        }
        average = gw_kernel_half_even(sum, n_ranks);
        for (unsigned j = 0; j < n_out; j++) /* the low bytes come first: little endian */
            memcpy((unsigned char *)out[j] + i * bytes, &average, bytes);
    }
}

/* ---- the two steps -------------------------------------------------------------------------------------- */

void gw_kernel_partial(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out, size_t count) {
    if (averages_integers(type, op)) {
        sum_integers(type, in, n_in, out, count);
        return;
    }
    op = op == GW_AVG ? GW_SUM : op;
    if (!widens(type, op)) {
        gw_kernel_reduce(type, op, in, n_in, &out, 1, count);
        return;
    }
    for (size_t at = 0; at < count; at += BLOCK)
        widen_block(type, op, in, n_in, (float *)out + at, at, count - at < BLOCK ? count - at : BLOCK);
}

static void divide(gw_type_t type, void *values, unsigned n_ranks, size_t count) {
    if (type == GW_F64)
        for (size_t i = 0; i < count; i++)
            ((double *)values)[i] /= n_ranks;
    else
        for (size_t i = 0; i < count; i++)
            ((float *)values)[i] /= (float)n_ranks;
}

/* A block of floating-point partial results; `n_out` at least 1. */
static void final_block(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, unsigned n_ranks,
                        void *const *out, unsigned n_out, size_t at, size_t count) {
    double block[BLOCK];
    const void *both[2] = {block, NULL};
    void *to = block;
    gw_type_t wide = widens(type, op) ? GW_F32 : type;
    size_t bytes = gw_type_bytes(type), wide_bytes = gw_type_bytes(wide);

    memcpy(block, (const unsigned char *)in[0] + at * wide_bytes, count * wide_bytes);
    for (unsigned r = 1; r < n_in; r++) {
        both[1] = (const unsigned char *)in[r] + at * wide_bytes;
        gw_kernel_reduce(wide, op == GW_AVG ? GW_SUM : op, both, 2, &to, 1, count);
    }
    if (op == GW_AVG)
        divide(wide, block, n_ranks, count);
    for (unsigned j = 0; j < n_out; j++) {
        void *place = (unsigned char *)out[j] + at * bytes;

        if (wide != type && j == 0)
            narrow(type, (const float *)(const void *)block, place, count);
        else
            memcpy(place, wide != type ? (unsigned char *)out[0] + at * bytes : (const void *)block, count * bytes);
    }
}

void gw_kernel_final(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, unsigned n_ranks,
                     void *const *out, unsigned n_out, size_t count) {
    if (n_out == 0)
        return;
    if (averages_integers(type, op)) {
        average_integers(type, in, n_in, n_ranks, out, n_out, count);
        return;
    }
    if (op != GW_AVG && !widens(type, op)) {
        gw_kernel_reduce(type, op, in, n_in, out, n_out, count);
        return;
    }
    for (size_t at = 0; at < count; at += BLOCK)
        final_block(type, op, in, n_in, n_ranks, out, n_out, at, count - at < BLOCK ? count - at : BLOCK);
}
