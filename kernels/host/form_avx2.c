/* form_avx2.c - the kernels for x86-64 with AVX2 and F16C */
#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define GW_FORM_BYTES  32
#define GW_FORM_TARGET __attribute__((target("avx2,f16c")))
#include "host/lanes.h"

GW_INLINE gw_vpair_t load_f16(const uint16_t *p) {
    const __m128i *half = (const __m128i *)(const void *)p;
    return (gw_vpair_t){(gw_vf32_t)_mm256_cvtph_ps(_mm_loadu_si128(half)),
                        (gw_vf32_t)_mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}

GW_INLINE void store_f16(uint16_t *p, gw_vpair_t v) {
    __m128i *half = (__m128i *)(void *)p;
    _mm_storeu_si128(half, _mm256_cvtps_ph((__m256)v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph((__m256)v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Asked of the CPU itself: not every compiler's __builtin_cpu_supports knows "f16c". AVX2 implies that the
 * system saves the registers. */
static bool usable_avx2(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

#define GW_FORM_NAME   "avx2"
#define GW_FORM_USABLE usable_avx2
#define GW_FORM_ROW    gw_kernel_form_avx2
#include "host/form.h"

#else
typedef int gw_kernel_form_avx2_is_for_x86_64;
#endif
