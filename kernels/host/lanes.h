/* lanes.h - vectors of one form's width, and the steps that all forms share
 *
 * Included by each form_*.c after it has set GW_FORM_BYTES (width of a vector) and GW_FORM_TARGET (the
 * attribute that allows the instructions). Written in the compilers' vector extension, so that speed does
 * not depend on what the auto-vectoriser makes of a loop at some optimisation level.
 */
#ifndef GW_KERNELS_HOST_LANES_H
#define GW_KERNELS_HOST_LANES_H

#include <stdint.h>
#include <string.h>

#include "host/isa.h"

#define GW_INLINE static inline __attribute__((always_inline)) GW_FORM_TARGET
#define GW_VECTOR __attribute__((vector_size(GW_FORM_BYTES)))

/* Loops with a small constant number of rounds, to be unrolled in full at any optimisation level. */
#if defined(__clang__)
#define GW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GW_UNROLL _Pragma("GCC unroll 4")
#endif

typedef float gw_vf32_t GW_VECTOR;
typedef double gw_vf64_t GW_VECTOR;
typedef int8_t gw_vi8_t GW_VECTOR;
typedef uint8_t gw_vu8_t GW_VECTOR;
typedef int32_t gw_vi32_t GW_VECTOR;
typedef uint32_t gw_vu32_t GW_VECTOR;
typedef int64_t gw_vi64_t GW_VECTOR;
typedef uint64_t gw_vu64_t GW_VECTOR;

/* Two vectors of binary32 for one vector of 16-bit elements. Which element sits where is load's and store's
 * affair: arithmetic does not care. */
typedef struct gw_vpair {
    gw_vf32_t a;
    gw_vf32_t b;
} gw_vpair_t;

/* binary32 to bf16 in the upper half of each lane, half to even; the lower half is rubbish. NaN must be
 * canonical: then no carry leaves the fraction. (The instruction for it, vcvtneps2bf16, takes subnormal
 * numbers for zero.) */
GW_INLINE gw_vu32_t gw_round_bf16(gw_vf32_t v) {
    gw_vu32_t bits = (gw_vu32_t)v;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

/* Even elements in a, odd ones in b: nothing is moved between lanes, and all in one register. */
GW_INLINE gw_vpair_t load_bf16(const uint16_t *p) {
    gw_vu32_t both;
    memcpy(&both, p, sizeof(both));
    return (gw_vpair_t){(gw_vf32_t)(both << 16), (gw_vf32_t)(both & 0xffff0000u)};
}

GW_INLINE void store_bf16(uint16_t *p, gw_vpair_t v) {
    gw_vu32_t both = (gw_round_bf16(v.a) >> 16) | (gw_round_bf16(v.b) & 0xffff0000u);
    memcpy(p, &both, sizeof(both));
}

#endif
