/* ref.c - gw_codec_reference_*: what the codecs are tested against, slow and plain
 *
 * It shares no code with codec/simd: numbers are taken apart and put together with ldexp and rint in binary64, which
 * holds all of it exactly. Only where codec.h says that arithmetic is binary32 are there floats.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "codec.h"

typedef struct gw_small_format {
    int fraction_bits;
    int min_exponent; /* the smallest subnormal number is 2^min_exponent */
    double max;       /* what is finite and larger becomes this */
    bool dithered;    /* stochastic rounding of subnormal numbers is as that of int8 */
} gw_small_format_t;

static const gw_small_format_t binary16 = {10, -24, 65504.0, true};
static const gw_small_format_t bfloat16 = {7, -133, 0x1.fep127, false};
static const gw_small_format_t e4m3 = {3, -9, 448.0, true};

static float canonical_nan(void) {
    const uint32_t bits = 0x7fc00000;
    float nan;
    memcpy(&nan, &bits, sizeof(nan));
    return nan;
}

/* ---- randomness ----------------------------------------------------------------------------------- */

static uint32_t random_number(const gw_codec_round_t *round, uint64_t i) {
    uint64_t key = round->seed + UINT64_C(0x9e3779b97f4a7c15);
    key = (key ^ (key >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    key = (key ^ (key >> 27)) * UINT64_C(0x94d049bb133111eb);
    key ^= key >> 31;
    uint32_t x = (uint32_t)(round->first + i + key);
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15) ^ (uint32_t)(key >> 32)) * 0x735a2d97u;
    return x;
}

/* Of 13 bits, the middles of 2^13 equal parts of (-1/2, 1/2). */
static float dither(uint32_t random) {
    return (float)(ldexp((double)(random >> 19) + 0.5, -13) - 0.5);
}

/* ---- small floats --------------------------------------------------------------------------------- */

/* Sign, exponent, fraction of a finite value; `random` is NULL for the nearest. */
static unsigned encode_small(const gw_small_format_t *format, float value, const uint32_t *random) {
    double magnitude = fmin(fabs((double)value), format->max);
    int unit = magnitude > 0 ? ilogb(magnitude) - format->fraction_bits : format->min_exponent;
    bool subnormal = magnitude < ldexp(1, format->min_exponent + format->fraction_bits);
    if (subnormal)
        unit = format->min_exponent;
    double units = ldexp(magnitude, -unit);
    int cut = 23 - format->fraction_bits;
    if (!random)
        units = rint(units);
    else if (!subnormal || !format->dithered)
        units = floor(units + ldexp(*random >> (32 - cut), -cut));
    else
        units = rint(ldexp((double)((float)magnitude + ldexpf(dither(*random), unit)), -unit));
    /* Counted in units, a number's bits follow one another across exponents. */
    return (unsigned)(ldexp(unit - format->min_exponent, format->fraction_bits) + units);
}

static double decode_small(const gw_small_format_t *format, unsigned magnitude) {
    int exponent = (int)(magnitude >> format->fraction_bits);
    int fraction = (int)(magnitude & ((1u << format->fraction_bits) - 1));
    if (exponent == 0)
        return ldexp(fraction, format->min_exponent);
    return ldexp(fraction + (1 << format->fraction_bits), format->min_exponent + exponent - 1);
}

static uint16_t encode_16(const gw_small_format_t *format, float value, const uint32_t *random) {
    unsigned infinity = 0x7fffu >> format->fraction_bits << format->fraction_bits;
    unsigned sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return (uint16_t)(infinity | 1u << (format->fraction_bits - 1));
    return (uint16_t)(sign | (isinf(value) ? infinity : encode_small(format, value, random)));
}

static float decode_16(const gw_small_format_t *format, uint16_t bits) {
    unsigned infinity = 0x7fffu >> format->fraction_bits << format->fraction_bits;
    unsigned magnitude = bits & 0x7fffu;
    double value = magnitude > infinity    ? (double)NAN
                   : magnitude == infinity ? (double)INFINITY
                                           : decode_small(format, magnitude);
    return (float)(bits & 0x8000 ? -value : value);
}

/* ---- one number and one block --------------------------------------------------------------------- */

static unsigned code_bits(gw_codec_t codec) {
    return codec == GW_CODEC_INT4 ? 4 : 8;
}

static float decode_code(gw_codec_t codec, unsigned code, float scale) {
    int half = 1 << (code_bits(codec) - 1);
    if (codec == GW_CODEC_FP8) {
        float magnitude = (float)decode_small(&e4m3, code & 0x7f);
        return (code & 0x80 ? -magnitude : magnitude) * scale;
    }
    return (float)((int)code >= half ? (int)code - 2 * half : (int)code) * scale;
}

static float block_scale(gw_codec_t codec, const float *v, size_t count) {
    float largest = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(v[i]))
            return canonical_nan();
        largest = fmaxf(largest, fabsf(v[i]));
    }
    float scale = largest / (codec == GW_CODEC_FP8 ? 448.0f : codec == GW_CODEC_INT8 ? 127.0f : 7.0f);
    return largest > 0 && scale < FLT_MIN ? nextafterf(scale, INFINITY) : scale;
}

/* Whether numbers are that small that they are multiplied by 2^64 first. */
static bool is_tiny(const float *v, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (fabsf(v[i]) >= 0x1p-64f)
            return false;
    return true;
}

static void encode_block(gw_codec_t codec, const float *v, const gw_codec_round_t *round, uint64_t index,
                         unsigned char *out, float *residual, size_t count) {
    unsigned bits = code_bits(codec);
    size_t n_words = (count * bits + 31) / 32;
    uint32_t words[GW_CODEC_BLOCK / 4] = {0};
    float scale = block_scale(codec, v, count);
    float lift = is_tiny(v, count) ? 0x1p64f : 1.0f;
    memcpy(out, &scale, sizeof(scale));
    for (size_t i = 0; i < count && !isnan(scale); i++) {
        float lifted = v[i] * lift;
        float y = scale > 0 ? lifted * (1.0f / (scale * lift)) : lifted * 0.0f;
        uint32_t random = round ? random_number(round, index + i) : 0;
        unsigned code;
        if (codec == GW_CODEC_FP8)
            code = (signbit(y) ? 0x80u : 0u) | encode_small(&e4m3, y, round ? &random : NULL);
        else
            code = (unsigned)(int)rintf(round ? y + dither(random) : y) & ((1u << bits) - 1);
        words[i % n_words] |= (uint32_t)code << (bits * (i / n_words));
        if (residual)
            residual[i] = v[i] - decode_code(codec, code, scale);
    }
    memcpy(out + sizeof(scale), words, n_words * sizeof(uint32_t));
}

static void decode_block(gw_codec_t codec, const unsigned char *in, float *out, size_t count) {
    unsigned bits = code_bits(codec);
    size_t n_words = (count * bits + 31) / 32;
    uint32_t words[GW_CODEC_BLOCK / 4] = {0};
    float scale;
    memcpy(&scale, in, sizeof(scale));
    memcpy(words, in + sizeof(scale), n_words * sizeof(uint32_t));
    for (size_t i = 0; i < count; i++)
        out[i] = decode_code(codec, (words[i % n_words] >> (bits * (i / n_words))) & ((1u << bits) - 1), scale);
}

static void encode_linear(gw_codec_t codec, float v, const gw_codec_round_t *round, uint64_t index, unsigned char *out,
                          float *residual) {
    const gw_small_format_t *format = codec == GW_CODEC_FP16 ? &binary16 : &bfloat16;
    uint32_t random = round ? random_number(round, index) : 0;
    float decoded = v;
    if (codec == GW_CODEC_NONE) {
        memcpy(out, &v, sizeof(v));
    } else {
        uint16_t bits = encode_16(format, v, round ? &random : NULL);
        memcpy(out, &bits, sizeof(bits));
        decoded = decode_16(format, bits);
    }
    if (residual)
        *residual = isfinite(v) ? v - decoded : 0.0f;
}

/* ---- whole calls ---------------------------------------------------------------------------------- */

static size_t span_of(gw_codec_t codec, size_t left) {
    size_t most = gw_codec_pattern(codec) == GW_CODEC_LINEAR ? 1 : GW_CODEC_BLOCK;
    return left < most ? left : most;
}

void gw_codec_reference_encode(gw_codec_t codec, const float *in, const gw_codec_round_t *round, float *residual,
                               void *out, size_t count) {
    float v[GW_CODEC_BLOCK];
    unsigned char *to = out;
    for (size_t at = 0, n; at < count; at += n) {
        n = span_of(codec, count - at);
        float *rest = residual ? residual + at : NULL;
        memcpy(v, in + at, n * sizeof(float));
        for (size_t i = 0; rest && i < n; i++)
            v[i] = isnan(v[i] + rest[i]) ? canonical_nan() : v[i] + rest[i];
        if (gw_codec_pattern(codec) == GW_CODEC_LINEAR)
            encode_linear(codec, v[0], round, at, to, rest);
        else
            encode_block(codec, v, round, at, to, rest, n);
        to += gw_codec_bytes(codec, n);
    }
}

void gw_codec_reference_decode(gw_codec_t codec, const void *in, float *out, size_t count, bool add) {
    float v[GW_CODEC_BLOCK];
    const unsigned char *from = in;
    for (size_t at = 0, n; at < count; at += n) {
        n = span_of(codec, count - at);
        if (gw_codec_pattern(codec) == GW_CODEC_SHARDED) {
            decode_block(codec, from, v, n);
        } else if (codec == GW_CODEC_NONE) {
            memcpy(v, from, sizeof(float));
        } else {
            uint16_t bits;
            memcpy(&bits, from, sizeof(bits));
            v[0] = decode_16(codec == GW_CODEC_FP16 ? &binary16 : &bfloat16, bits);
        }
        for (size_t i = 0; i < n; i++) {
            float sum = add ? out[at + i] + v[i] : v[i];
            bool copied = codec == GW_CODEC_NONE && !add; /* its bits are not touched */
            memcpy(out + at + i, isnan(sum) && !copied ? &(float){canonical_nan()} : &sum, sizeof(float));
        }
        from += gw_codec_bytes(codec, n);
    }
}
