/* form_base.c - the kernels for what every CPU of the architecture has, conversions in integer arithmetic */
#define GW_FORM_BYTES 16
#define GW_FORM_TARGET
#include "host/lanes.h"

GW_INLINE gw_vu32_t select_u32(gw_vi32_t mask, gw_vu32_t a, gw_vu32_t b) {
    return ((gw_vu32_t)mask & a) | (~(gw_vu32_t)mask & b);
}

/* binary16 in the lower half of each lane. Moved into place, exponent and fraction mean a number 2^112 times
 * too small, subnormal or not. */
GW_INLINE gw_vf32_t widen_f16(gw_vu32_t h) {
    gw_vu32_t sign = (h & 0x8000u) << 16;
    gw_vu32_t magnitude = (h & 0x7fffu) << 13;
    gw_vu32_t finite = (gw_vu32_t)((gw_vf32_t)magnitude * 0x1p112f);
    gw_vu32_t special = magnitude | 0x7f800000u;
    return (gw_vf32_t)(sign | select_u32(magnitude >= (0x7c00u << 13), special, finite));
}

/* Half to even; NaN becomes canonical. Below 2^-14 the sum with 0.5 rounds to multiples of 2^-24, the smallest
 * subnormal. */
GW_INLINE gw_vu32_t narrow_f16(gw_vf32_t v) {
    gw_vu32_t bits = (gw_vu32_t)v;
    gw_vu32_t magnitude = bits & 0x7fffffffu;
    gw_vu32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    gw_vu32_t small = (gw_vu32_t)((gw_vf32_t)magnitude + 0.5f) - 0x3f000000u;
    gw_vu32_t special = ((gw_vu32_t)(magnitude > 0x7f800000u) & 0x200u) | 0x7c00u;
    gw_vu32_t h = select_u32(magnitude < 0x38800000u, small, normal);
    h = select_u32(magnitude >= 0x47800000u, special, h);
    return h | ((bits >> 16) & 0x8000u);
}

GW_INLINE gw_vpair_t load_f16(const uint16_t *p) {
    gw_vu32_t both;
    memcpy(&both, p, sizeof(both));
    return (gw_vpair_t){widen_f16(both & 0xffffu), widen_f16(both >> 16)};
}

GW_INLINE void store_f16(uint16_t *p, gw_vpair_t v) {
    gw_vu32_t both = narrow_f16(v.a) | (narrow_f16(v.b) << 16);
    memcpy(p, &both, sizeof(both));
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
#define GW_FORM_ROW    gw_kernel_form_base
#include "host/form.h"
