/* lanes.h - vectors of one form's width, and the steps that all codecs share
 *
 * Included by each form_*.c after it has set GW_FORM_BYTES (width of a vector) and GW_FORM_TARGET (the attribute that
 * allows the instructions). Written in the compilers' vector extension, so that speed does not depend on what the
 * auto-vectoriser makes of a loop.
 */
#ifndef GW_CODEC_SIMD_LANES_H
#define GW_CODEC_SIMD_LANES_H

#include <string.h>

#include "simd/isa.h"

#define GW_INLINE static inline __attribute__((always_inline)) GW_FORM_TARGET

/* Loops with a small constant number of rounds, to be unrolled in full at any optimisation level. */
#if defined(__clang__)
#define GW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GW_UNROLL _Pragma("GCC unroll 8")
#endif

enum { LANES = GW_FORM_BYTES / 4 };

typedef float gw_vf32_t __attribute__((vector_size(GW_FORM_BYTES)));
typedef int32_t gw_vi32_t __attribute__((vector_size(GW_FORM_BYTES)));
typedef uint32_t gw_vu32_t __attribute__((vector_size(GW_FORM_BYTES)));
typedef uint16_t gw_vu16_t __attribute__((vector_size(GW_FORM_BYTES / 2))); /* as many lanes, half as wide */

#define SPLAT(x)     ((gw_vu32_t){0} + (uint32_t)(x))
#define MAGNITUDE(v) ((gw_vu32_t)(v)&0x7fffffffu)
#define SIGN(v)      ((gw_vu32_t)(v)&0x80000000u)

enum { INFINITY_BITS = 0x7f800000, NAN_BITS = 0x7fc00000 };

GW_INLINE gw_vf32_t load(const float *p) {
    gw_vf32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

GW_INLINE void store(float *p, gw_vf32_t v) {
    memcpy(p, &v, sizeof(v));
}

GW_INLINE gw_vu32_t select_u32(gw_vi32_t mask, gw_vu32_t a, gw_vu32_t b) {
    return ((gw_vu32_t)mask & a) | (~(gw_vu32_t)mask & b);
}

/* Of magnitudes, whose top bit is 0: signed comparison is all that SSE2 has. */
GW_INLINE gw_vi32_t less(gw_vu32_t a, gw_vu32_t b) {
    return (gw_vi32_t)a < (gw_vi32_t)b;
}

GW_INLINE gw_vf32_t canonical(gw_vf32_t v) {
    return (gw_vf32_t)select_u32(v != v, SPLAT(NAN_BITS), (gw_vu32_t)v);
}

GW_INLINE gw_vu32_t lane_numbers(void) {
    gw_vu32_t v = {0};
    for (unsigned i = 0; i < LANES; i++)
        v[i] = i;
    return v;
}

/* 32 random bits for the number `index` and those after it; the upper ones are the good ones. Two rounds of multiplying
 * by constants that Wellons' search for integer hashes (2018) found, a key before each. */
GW_INLINE gw_vu32_t random_bits(const gw_codec_random_t *random, uint32_t index) {
    gw_vu32_t x = lane_numbers() + (random->first + index + random->keys[0]);
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x ^= random->keys[1];
    return x * 0x735a2d97u;
}

/* The upper 13 of the bits as a number between -1/2 and 1/2, both excluded. So a whole number of up to 10 bits to which
 * it is added, exactly, is still the nearest; and so is 127 if it is a few roundings too large. */
GW_INLINE gw_vf32_t dither(gw_vu32_t bits) {
    return (gw_vf32_t)((bits >> 19 << 10) | 0x3f800000u) - (1.5f - 0x1p-14f);
}

/* What is added to a magnitude before its `cut` low bits are cut off: random, or what rounds half to even. */
GW_INLINE gw_vu32_t increment(gw_vu32_t magnitude, unsigned cut, bool stochastic, gw_vu32_t random) {
    if (stochastic)
        return random >> (32 - cut);
    return ((magnitude >> cut) & 1u) + ((1u << (cut - 1)) - 1);
}

#endif
