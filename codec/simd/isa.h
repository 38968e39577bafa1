/* isa.h - the SIMD forms of the codecs (internal to codec/ and its tests)
 *
 * As in kernels/host: a form is the same source compiled for another instruction set, one row of a table, and the best
 * one that the CPU can run is chosen at the first call. All forms give the same bits.
 */
#ifndef GW_CODEC_SIMD_ISA_H
#define GW_CODEC_SIMD_ISA_H

#include "codec.h"

/* What stochastic rounding draws its bits from. */
typedef struct gw_codec_random {
    uint32_t keys[2];
    uint32_t first;
} gw_codec_random_t;

/* One call of gw_codec_encode with count >= 1. */
typedef struct gw_codec_encoding {
    const float *in;
    float *residual;                 /* or NULL */
    const gw_codec_random_t *random; /* NULL: to nearest */
    void *out;
    size_t count;
} gw_codec_encoding_t;

/* One call of gw_codec_decode with count >= 1. */
typedef struct gw_codec_decoding {
    const void *in;
    float *out;
    size_t count;
    bool add;
} gw_codec_decoding_t;

typedef struct gw_codec_form {
    const char *name;
    bool (*usable)(void);
    void (*encode[GW_CODECS])(const gw_codec_encoding_t *job);
    void (*decode[GW_CODECS])(const gw_codec_decoding_t *job);
    bool (*is_finite)(const float *in, size_t count);
} gw_codec_form_t;

#if defined(__x86_64__)
extern const gw_codec_form_t gw_codec_form_avx512;
extern const gw_codec_form_t gw_codec_form_avx2;
#endif
extern const gw_codec_form_t gw_codec_form_base;

/* For tests: the forms of this build, best first, ended by NULL. */
const gw_codec_form_t *const *gw_codec_forms(void);

#endif
