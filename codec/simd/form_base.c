/* form_base.c - the codecs for what every CPU of the architecture has */
#define GW_FORM_BYTES 16
#define GW_FORM_TARGET
#include "simd/lanes.h"

GW_INLINE gw_vu32_t min_u32(gw_vu32_t a, gw_vu32_t b) {
    return select_u32(less(a, b), a, b);
}

GW_INLINE gw_vu32_t max_u32(gw_vu32_t a, gw_vu32_t b) {
    return select_u32(less(a, b), b, a);
}

GW_INLINE uint32_t top_u32(gw_vu32_t v) {
    uint32_t a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

/* Moved into place, exponent and fraction mean a number 2^112 times too small, subnormal or not. */
GW_INLINE gw_vf32_t widen_f16(gw_vu16_t half) {
    gw_vu32_t h = __builtin_convertvector(half, gw_vu32_t);
    gw_vu32_t sign = (h & 0x8000u) << 16, magnitude = (h & 0x7fffu) << 13;
    gw_vu32_t finite = (gw_vu32_t)((gw_vf32_t)magnitude * 0x1p112f);
    return (gw_vf32_t)(sign | select_u32(less(magnitude, SPLAT(0x0f800000)), finite, magnitude | INFINITY_BITS));
}

static bool usable_base(void) {
    return true;
}

#if defined(__x86_64__)
#define GW_FORM_NAME "sse2"
#elif defined(__aarch64__)
#define GW_FORM_NAME "neon"
#else
#define GW_FORM_NAME "generic"
#endif
#define GW_FORM_USABLE usable_base
#define GW_FORM_ROW    gw_codec_form_base
#include "simd/form.h"
