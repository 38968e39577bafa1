/* form_avx512.c - the codecs for x86-64 with AVX-512 (F, BW, DQ, VL) */
#if defined(__x86_64__)

#include <immintrin.h>

#define GW_FORM_BYTES  64
#define GW_FORM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "simd/lanes.h"

GW_INLINE gw_vu32_t min_u32(gw_vu32_t a, gw_vu32_t b) {
    return (gw_vu32_t)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

GW_INLINE gw_vu32_t max_u32(gw_vu32_t a, gw_vu32_t b) {
    return (gw_vu32_t)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

GW_INLINE uint32_t top_u32(gw_vu32_t v) {
    return _mm512_reduce_max_epu32((__m512i)v);
}

GW_INLINE gw_vf32_t widen_f16(gw_vu16_t half) {
    return (gw_vf32_t)_mm512_cvtph_ps((__m256i)half);
}

GW_INLINE gw_vu16_t narrow_f16(gw_vf32_t v) {
    /* The masked form with every lane on: gcc's macro for the other one, at -O0, warns about its own mask. */
    return (gw_vu16_t)_mm512_maskz_cvtps_ph((__mmask16)0xffff, (__m512)v,
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static bool usable_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define GW_FORM_F16C
#define GW_FORM_NAME   "avx512"
#define GW_FORM_USABLE usable_avx512
#define GW_FORM_ROW    gw_codec_form_avx512
#include "simd/form.h"

#else
typedef int gw_codec_form_avx512_is_for_x86_64;
#endif
