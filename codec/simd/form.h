/* form.h - one SIMD form: the loops of every codec, and the form's row of the table
 *
 * Included last by each form_*.c, which has set GW_FORM_NAME, GW_FORM_USABLE and GW_FORM_ROW (the row's name), and has
 * defined, on magnitudes, min_u32, max_u32 and top_u32 (the largest lane), and widen_f16; with GW_FORM_F16C also
 * narrow_f16.
 */
#include "simd/block.h"
#include "simd/linear.h"

#define GW_CODEC_LOOPS(kind, codec, name)                                                                              \
    static GW_FORM_TARGET void name##_encode(const gw_codec_encoding_t *job) {                                         \
        kind##_encode(codec, job);                                                                                     \
    }                                                                                                                  \
    static GW_FORM_TARGET void name##_decode(const gw_codec_decoding_t *job) {                                         \
        kind##_decode(codec, job);                                                                                     \
    }

GW_CODEC_LOOPS(linear, GW_CODEC_NONE, none)
GW_CODEC_LOOPS(linear, GW_CODEC_FP16, fp16)
GW_CODEC_LOOPS(linear, GW_CODEC_BF16, bf16)
GW_CODEC_LOOPS(blocks, GW_CODEC_FP8, fp8)
GW_CODEC_LOOPS(blocks, GW_CODEC_INT8, int8)
GW_CODEC_LOOPS(blocks, GW_CODEC_INT4, int4)

static GW_FORM_TARGET bool is_finite(const float *in, size_t count) {
    float part[GW_CODEC_BLOCK] = {0};
    size_t at = 0;
    for (; at + GW_CODEC_BLOCK <= count; at += GW_CODEC_BLOCK)
        if (largest_of(in + at, NULL, NULL) >= INFINITY_BITS)
            return false;
    memcpy(part, in + at, (count - at) * sizeof(float));
    return largest_of(part, NULL, NULL) < INFINITY_BITS;
}

const gw_codec_form_t GW_FORM_ROW = {
    .name = GW_FORM_NAME,
    .usable = GW_FORM_USABLE,
    .encode = {NULL, none_encode, fp16_encode, bf16_encode, fp8_encode, int8_encode, int4_encode},
    .decode = {NULL, none_decode, fp16_decode, bf16_decode, fp8_decode, int8_decode, int4_decode},
    .is_finite = is_finite,
};
