/* form_avx2.c - the codecs for x86-64 with AVX2 and F16C */
#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define GW_FORM_BYTES  32
#define GW_FORM_TARGET __attribute__((target("avx2,f16c")))
#include "simd/lanes.h"

GW_INLINE gw_vu32_t min_u32(gw_vu32_t a, gw_vu32_t b) {
    return (gw_vu32_t)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

GW_INLINE gw_vu32_t max_u32(gw_vu32_t a, gw_vu32_t b) {
    return (gw_vu32_t)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

GW_INLINE uint32_t top_u32(gw_vu32_t v) {
    __m128i top = _mm_max_epu32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    top = _mm_max_epu32(top, _mm_shuffle_epi32(top, 0x4e));
    top = _mm_max_epu32(top, _mm_shuffle_epi32(top, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(top);
}

GW_INLINE gw_vf32_t widen_f16(gw_vu16_t half) {
    return (gw_vf32_t)_mm256_cvtph_ps((__m128i)half);
}

GW_INLINE gw_vu16_t narrow_f16(gw_vf32_t v) {
    return (gw_vu16_t)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Asked of the CPU itself: not every compiler's __builtin_cpu_supports knows "f16c". AVX2 implies that the system saves
 * the registers. */
static bool usable_avx2(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

#define GW_FORM_F16C
#define GW_FORM_NAME   "avx2"
#define GW_FORM_USABLE usable_avx2
#define GW_FORM_ROW    gw_codec_form_avx2
#include "simd/form.h"

#else
typedef int gw_codec_form_avx2_is_for_x86_64;
#endif
