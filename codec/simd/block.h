/* block.h - fp8, int8 and int4: a scale for each block; included once by form.h
 *
 * Why the errors are what codec.h says. u = 2^-24, t = 448, 127 or 7; each operation is off by at most u of its result.
 *  1. s >= largest / t * (1 - u), also where it is subnormal, by the step up. With y = x * (1 / s) in two roundings,
 *     |y - x / s| <= |x / s| * 2.1u, and |y| <= t * (1 + 3.1u): for int8, 127 and 3 units of its last place.
 *  2. To the nearest whole number q: |q - y| <= 1/2, and |q| <= t. Dithered, y + d is rounded once (2^-18 at most) and
 *     |d| <= 1/2 - 2^-14, so |q - y| < 1 + 2^-18; and 127 + 2^-15 + d is less than 127.5, so that |q| <= t again, and
 *     a byte never wraps round. No clamp is needed.
 *  3. q * s is off by |q| * s * u; not at all if it is subnormal, for then s is a multiple of 2^-149.
 *  In all |x - q * s| <= s * (1/2, or 1) + s * 127 * 3.2u + s * 2^-18 < s * (1/2, or 1) + s / 2^15.
 *  fp8 is the same but for step 2: |q - y| is at most |y| / 2^4, or half of 2^-9 below 2^-6, and twice that with dither
 *  or random bits; y is clamped to 448 first, since random bits are added to all of them. In step 3 q has a fraction: a
 *  subnormal product is rounded, by 2^-150 at most.
 */

/* A block's scale, and what numbers are multiplied by, one after the other: for tiny numbers 1 / scale overflows. */
typedef struct scale {
    float scale;
    float lift;
    float inverse;
} scale_t;

GW_INLINE unsigned code_bits(gw_codec_t codec) {
    return codec == GW_CODEC_INT4 ? 4 : 8;
}

/* Words of `count` numbers. */
GW_INLINE size_t block_words(gw_codec_t codec, size_t count) {
    return (count * code_bits(codec) + 31) / 32;
}

GW_INLINE scale_t scale_of(gw_codec_t codec, uint32_t largest_bits) {
    const float top = codec == GW_CODEC_FP8 ? 448.0f : codec == GW_CODEC_INT8 ? 127.0f : 7.0f;
    scale_t s = {0.0f, 1.0f, 0.0f};
    float largest;
    memcpy(&largest, &largest_bits, sizeof(largest));
    if (largest_bits == 0)
        return s;
    s.scale = largest / top;
    if (s.scale < 0x1p-126f)
        s.scale += 0x1p-149f;
    if (largest < 0x1p-64f)
        s.lift = 0x1p64f;
    s.inverse = 1.0f / (s.scale * s.lift);
    return s;
}

/* Below 2^-6 the sum with 1.5 * 2^14 rounds to multiples of 2^-9, the smallest subnormal number. */
GW_INLINE gw_vu32_t encode_fp8(gw_vf32_t y, bool stochastic, gw_vu32_t random) {
    gw_vu32_t magnitude = min_u32(MAGNITUDE(y), SPLAT(0x43e00000)); /* 448 */
    gw_vu32_t normal = (magnitude - 0x3c000000u + increment(magnitude, 20, stochastic, random)) >> 20;
    gw_vf32_t small = (gw_vf32_t)magnitude;
    if (stochastic)
        small += dither(random) * 0x1p-9f;
    gw_vu32_t subnormal = (gw_vu32_t)(small + 0x1.8p14f) - 0x46c00000u;
    return select_u32(less(magnitude, SPLAT(0x3c800000)), subnormal, normal) | (SIGN(y) >> 24);
}

/* A subnormal number is read as if a 1 led its fraction, which is then taken off. */
GW_INLINE gw_vf32_t decode_fp8(gw_vu32_t code) {
    gw_vu32_t magnitude = code & 0x7fu;
    gw_vu32_t subnormal = (gw_vu32_t)less(magnitude, SPLAT(8));
    gw_vu32_t bits = (magnitude << 20) + 0x3c000000u + (subnormal & 0x00800000u);
    gw_vf32_t value = (gw_vf32_t)bits - (gw_vf32_t)(subnormal & 0x3c800000u);
    return (gw_vf32_t)((gw_vu32_t)value | ((code & 0x80u) << 24));
}

/* The code of v in the low bits of each lane. Adding 1.5 * 2^23 rounds to whole numbers. */
GW_INLINE gw_vu32_t encode_lanes(gw_codec_t codec, gw_vf32_t v, const scale_t *s, bool stochastic, gw_vu32_t random) {
    gw_vf32_t y = v * s->lift * s->inverse;
    if (codec == GW_CODEC_FP8)
        return encode_fp8(y, stochastic, random);
    if (stochastic)
        y += dither(random);
    return (gw_vu32_t)(y + 0x1.8p23f) & ((1u << code_bits(codec)) - 1);
}

/* The number in place `place` of each word. */
GW_INLINE gw_vf32_t decode_lanes(gw_codec_t codec, gw_vu32_t words, unsigned place, float scale) {
    const unsigned bits = code_bits(codec), above = 32 - bits * (place + 1);
    if (codec == GW_CODEC_FP8)
        return decode_fp8((words << above) >> 24) * scale;
    return __builtin_convertvector((gw_vi32_t)(words << above) >> (32 - bits), gw_vf32_t) * scale;
}

/* The largest magnitude of a block, as bits; with a residual, in + residual goes to `sum`. */
GW_INLINE uint32_t largest_of(const float *in, const float *residual, float *sum) {
    gw_vu32_t largest[4] = {{0}};
    for (size_t at = 0; at < GW_CODEC_BLOCK; at += 4 * LANES) {
        GW_UNROLL
        for (size_t i = 0; i < 4; i++) {
            gw_vf32_t v = load(in + at + i * LANES);
            if (residual) {
                v += load(residual + at + i * LANES);
                store(sum + at + i * LANES, v);
            }
            largest[i] = max_u32(largest[i], MAGNITUDE(v));
        }
    }
    return top_u32(max_u32(max_u32(largest[0], largest[1]), max_u32(largest[2], largest[3])));
}

/* A whole block. `stride` is how many indexes lie between the numbers of one word. */
GW_INLINE void block_encode(gw_codec_t codec, const float *in, float *residual, const gw_codec_random_t *random,
                            uint32_t index, uint32_t stride, unsigned char *out) {
    const size_t n_words = block_words(codec, GW_CODEC_BLOCK);
    const unsigned n_places = 32 / code_bits(codec);
    float sum[GW_CODEC_BLOCK];
    uint32_t largest = largest_of(in, residual, sum);
    if (largest >= INFINITY_BITS) {
        memcpy(out, &(uint32_t){NAN_BITS}, sizeof(float));
        memset(out + sizeof(float), 0, n_words * sizeof(uint32_t));
        return;
    }
    scale_t s = scale_of(codec, largest);
    const float *from = residual ? sum : in;
    memcpy(out, &s.scale, sizeof(s.scale));
    for (size_t word = 0; word < n_words; word += LANES) {
        gw_vu32_t words = {0};
        GW_UNROLL
        for (unsigned place = 0; place < n_places; place++) {
            size_t at = place * n_words + word;
            gw_vf32_t v = load(from + at);
            gw_vu32_t bits = {0};
            if (random)
                bits = random_bits(random, index + place * stride + (uint32_t)word);
            gw_vu32_t code = encode_lanes(codec, v, &s, random != NULL, bits);
            words |= code << (place * code_bits(codec));
            if (residual)
                store(residual + at, v - decode_lanes(codec, code, 0, s.scale));
        }
        memcpy(out + sizeof(float) + word * sizeof(uint32_t), &words, sizeof(words));
    }
}

/* The last block, shorter: spread out as a whole one, so that each number has its place in the words that count. */
GW_INLINE void rest_encode(gw_codec_t codec, const float *in, float *residual, const gw_codec_random_t *random,
                           size_t index, size_t count, unsigned char *out) {
    const size_t n_words = block_words(codec, GW_CODEC_BLOCK), words = block_words(codec, count);
    float part[GW_CODEC_BLOCK] = {0}, part_residual[GW_CODEC_BLOCK] = {0};
    unsigned char part_out[sizeof(float) + GW_CODEC_BLOCK];
    for (size_t i = 0; i < count; i++) {
        part[i / words * n_words + i % words] = in[i];
        if (residual)
            part_residual[i / words * n_words + i % words] = residual[i];
    }
    block_encode(codec, part, residual ? part_residual : NULL, random, (uint32_t)index, (uint32_t)words, part_out);
    for (size_t i = 0; residual && i < count; i++)
        residual[i] = part_residual[i / words * n_words + i % words];
    memcpy(out, part_out, sizeof(float) + words * sizeof(uint32_t));
}

/* `residual` and `random` are NULL or not in each place where this is inlined. */
GW_INLINE void block_loop(gw_codec_t codec, const gw_codec_encoding_t *job, float *residual,
                          const gw_codec_random_t *random) {
    const size_t n_words = block_words(codec, GW_CODEC_BLOCK);
    unsigned char *out = job->out;
    size_t at = 0;
    for (; at + GW_CODEC_BLOCK <= job->count; at += GW_CODEC_BLOCK) {
        block_encode(codec, job->in + at, residual ? residual + at : NULL, random, (uint32_t)at, (uint32_t)n_words,
                     out);
        out += sizeof(float) + n_words * sizeof(uint32_t);
    }
    if (at < job->count)
        rest_encode(codec, job->in + at, residual ? residual + at : NULL, random, at, job->count - at, out);
}

GW_INLINE void blocks_encode(gw_codec_t codec, const gw_codec_encoding_t *job) {
    if (job->residual && job->random)
        block_loop(codec, job, job->residual, job->random);
    else if (job->residual)
        block_loop(codec, job, job->residual, NULL);
    else if (job->random)
        block_loop(codec, job, NULL, job->random);
    else
        block_loop(codec, job, NULL, NULL);
}

GW_INLINE void block_decode(gw_codec_t codec, const unsigned char *in, float *out, bool add) {
    const size_t n_words = block_words(codec, GW_CODEC_BLOCK);
    const unsigned n_places = 32 / code_bits(codec);
    float scale;
    memcpy(&scale, in, sizeof(scale));
    for (size_t word = 0; word < n_words; word += LANES) {
        gw_vu32_t words;
        memcpy(&words, in + sizeof(float) + word * sizeof(uint32_t), sizeof(words));
        GW_UNROLL
        for (unsigned place = 0; place < n_places; place++) {
            float *to = out + place * n_words + word;
            gw_vf32_t v = decode_lanes(codec, words, place, scale);
            store(to, canonical(add ? load(to) + v : v));
        }
    }
}

GW_INLINE void rest_decode(gw_codec_t codec, const unsigned char *in, float *out, size_t count, bool add) {
    const size_t n_words = block_words(codec, GW_CODEC_BLOCK), words = block_words(codec, count);
    unsigned char part_in[sizeof(float) + GW_CODEC_BLOCK] = {0};
    float part[GW_CODEC_BLOCK] = {0};
    memcpy(part_in, in, sizeof(float) + words * sizeof(uint32_t));
    for (size_t i = 0; add && i < count; i++)
        part[i / words * n_words + i % words] = out[i];
    block_decode(codec, part_in, part, add);
    for (size_t i = 0; i < count; i++)
        out[i] = part[i / words * n_words + i % words];
}

GW_INLINE void blocks_decode_loop(gw_codec_t codec, const gw_codec_decoding_t *job, bool add) {
    const unsigned char *in = job->in;
    size_t at = 0;
    for (; at + GW_CODEC_BLOCK <= job->count; at += GW_CODEC_BLOCK) {
        block_decode(codec, in, job->out + at, add);
        in += sizeof(float) + block_words(codec, GW_CODEC_BLOCK) * sizeof(uint32_t);
    }
    if (at < job->count)
        rest_decode(codec, in, job->out + at, job->count - at, add);
}

GW_INLINE void blocks_decode(gw_codec_t codec, const gw_codec_decoding_t *job) {
    if (job->add)
        blocks_decode_loop(codec, job, true);
    else
        blocks_decode_loop(codec, job, false);
}
