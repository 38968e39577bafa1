/* form_avx512.c - the kernels for x86-64 with AVX-512 (F, BW, DQ, VL) */
#if defined(__x86_64__)

#include <immintrin.h>

#define GW_FORM_BYTES  64
#define GW_FORM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "host/lanes.h"

GW_INLINE gw_vpair_t load_f16(const uint16_t *p) {
    const __m256i *half = (const __m256i *)(const void *)p;
    return (gw_vpair_t){(gw_vf32_t)_mm512_cvtph_ps(_mm256_loadu_si256(half)),
                        (gw_vf32_t)_mm512_cvtph_ps(_mm256_loadu_si256(half + 1))};
}

GW_INLINE void store_f16(uint16_t *p, gw_vpair_t v) {
    /* The masked form with every lane on: gcc's macro for the other one, at -O0, warns about its own mask. */
    const __mmask16 all = 0xffff;
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    __m256i *half = (__m256i *)(void *)p;
    _mm256_storeu_si256(half, _mm512_maskz_cvtps_ph(all, (__m512)v.a, NEAREST));
    _mm256_storeu_si256(half + 1, _mm512_maskz_cvtps_ph(all, (__m512)v.b, NEAREST));
}

static bool usable_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define GW_FORM_NAME   "avx512"
#define GW_FORM_USABLE usable_avx512
#define GW_FORM_ROW    gw_kernel_form_avx512
#include "host/form.h"

#else
typedef int gw_kernel_form_avx512_is_for_x86_64;
#endif
