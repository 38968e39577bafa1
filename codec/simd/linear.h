/* linear.h - none, fp16 and bf16: number by number; included once by form.h */

/* Finite magnitudes of at most 65504 to binary16. Below 2^-14 the sum with 0.75 rounds to multiples of 2^-24, the
 * smallest subnormal number. */
GW_INLINE gw_vu32_t magnitude_f16(gw_vu32_t magnitude, bool stochastic, gw_vu32_t random) {
    gw_vu32_t normal = (magnitude - 0x38000000u + increment(magnitude, 13, stochastic, random)) >> 13;
    gw_vf32_t small = (gw_vf32_t)magnitude;
    if (stochastic)
        small += dither(random) * 0x1p-24f;
    return select_u32(less(magnitude, SPLAT(0x38800000)), (gw_vu32_t)(small + 0.75f) - 0x3f400000u, normal);
}

GW_INLINE gw_vu16_t encode_f16(gw_vf32_t v, bool stochastic, gw_vu32_t random) {
    gw_vu32_t magnitude = MAGNITUDE(v), sign = SIGN(v);
    gw_vu32_t finite = min_u32(magnitude, SPLAT(0x477fe000));
    gw_vi32_t special = less(SPLAT(INFINITY_BITS - 1), magnitude);
#ifdef GW_FORM_F16C
    if (!stochastic)
        return narrow_f16(canonical((gw_vf32_t)(sign | select_u32(special, magnitude, finite))));
#endif
    gw_vu32_t half = magnitude_f16(finite, stochastic, random) | (sign >> 16);
    half = select_u32(special, (sign >> 16) | 0x7c00u, half);
    return __builtin_convertvector(select_u32(v != v, SPLAT(0x7e00), half), gw_vu16_t);
}

GW_INLINE gw_vu16_t encode_bf16(gw_vf32_t v, bool stochastic, gw_vu32_t random) {
    gw_vu32_t magnitude = MAGNITUDE(v);
    gw_vu32_t rounded = magnitude + increment(magnitude, 16, stochastic, random);
    gw_vi32_t special = less(SPLAT(INFINITY_BITS - 1), magnitude);
    rounded = SIGN(v) | select_u32(special, magnitude, min_u32(rounded, SPLAT(INFINITY_BITS - 1)));
    return __builtin_convertvector((gw_vu32_t)canonical((gw_vf32_t)rounded) >> 16, gw_vu16_t);
}

GW_INLINE gw_vf32_t decode_bf16(gw_vu16_t half) {
    return (gw_vf32_t)(__builtin_convertvector(half, gw_vu32_t) << 16);
}

GW_INLINE unsigned linear_bytes(gw_codec_t codec) {
    return codec == GW_CODEC_NONE ? 4 : 2;
}

/* One vector at `at` of the wire. */
GW_INLINE gw_vf32_t linear_load(gw_codec_t codec, const unsigned char *at) {
    gw_vf32_t v;
    gw_vu16_t half;
    if (codec == GW_CODEC_NONE) {
        memcpy(&v, at, sizeof(v));
        return v;
    }
    memcpy(&half, at, sizeof(half));
    return codec == GW_CODEC_FP16 ? widen_f16(half) : decode_bf16(half);
}

/* Writes it, and returns what a decoder will read. */
GW_INLINE gw_vf32_t linear_store(gw_codec_t codec, gw_vf32_t v, bool stochastic, gw_vu32_t random, unsigned char *at) {
    if (codec == GW_CODEC_NONE) {
        memcpy(at, &v, sizeof(v));
        return v;
    }
    gw_vu16_t half = codec == GW_CODEC_FP16 ? encode_f16(v, stochastic, random) : encode_bf16(v, stochastic, random);
    memcpy(at, &half, sizeof(half));
    return codec == GW_CODEC_FP16 ? widen_f16(half) : decode_bf16(half);
}

GW_INLINE void linear_step(gw_codec_t codec, const float *in, float *residual, const gw_codec_random_t *random,
                           size_t index, unsigned char *out) {
    gw_vf32_t v = load(in);
    gw_vu32_t bits = {0};
    if (residual)
        v = canonical(v + load(residual));
    if (random)
        bits = random_bits(random, (uint32_t)index);
    gw_vf32_t decoded = linear_store(codec, v, random != NULL, bits, out);
    if (residual) {
        gw_vf32_t rest = v - decoded; /* NaN for what is not finite */
        store(residual, (gw_vf32_t)((gw_vu32_t)rest & (gw_vu32_t)(rest == rest)));
    }
}

/* `residual` and `random` are NULL or not in each place where this is inlined. */
GW_INLINE void linear_loop(gw_codec_t codec, const gw_codec_encoding_t *job, float *residual,
                           const gw_codec_random_t *random) {
    unsigned char *out = job->out;
    size_t bytes = linear_bytes(codec), at = 0;
    for (; at + LANES <= job->count; at += LANES)
        linear_step(codec, job->in + at, residual ? residual + at : NULL, random, at, out + at * bytes);
    size_t rest = job->count - at;
    if (rest == 0)
        return;
    float part[LANES] = {0}, part_residual[LANES] = {0};
    unsigned char part_out[sizeof(part)];
    memcpy(part, job->in + at, rest * sizeof(float));
    if (residual)
        memcpy(part_residual, residual + at, rest * sizeof(float));
    linear_step(codec, part, residual ? part_residual : NULL, random, at, part_out);
    if (residual)
        memcpy(residual + at, part_residual, rest * sizeof(float));
    memcpy(out + at * bytes, part_out, rest * bytes);
}

GW_INLINE void linear_encode(gw_codec_t codec, const gw_codec_encoding_t *job) {
    if (job->residual && job->random)
        linear_loop(codec, job, job->residual, job->random);
    else if (job->residual)
        linear_loop(codec, job, job->residual, NULL);
    else if (codec == GW_CODEC_NONE)
        memcpy(job->out, job->in, job->count * sizeof(float));
    else if (job->random)
        linear_loop(codec, job, NULL, job->random);
    else
        linear_loop(codec, job, NULL, NULL);
}

GW_INLINE void linear_decode_loop(gw_codec_t codec, const gw_codec_decoding_t *job, bool add) {
    const unsigned char *in = job->in;
    size_t bytes = linear_bytes(codec), at = 0;
    for (; at + LANES <= job->count; at += LANES) {
        gw_vf32_t v = linear_load(codec, in + at * bytes);
        store(job->out + at, canonical(add ? load(job->out + at) + v : v));
    }
    size_t rest = job->count - at;
    float part[LANES] = {0};
    unsigned char part_in[sizeof(part)] = {0};
    memcpy(part_in, in + at * bytes, rest * bytes);
    memcpy(part, job->out + at, rest * sizeof(float));
    gw_vf32_t v = linear_load(codec, part_in);
    store(part, canonical(add ? load(part) + v : v));
    memcpy(job->out + at, part, rest * sizeof(float));
}

GW_INLINE void linear_decode(gw_codec_t codec, const gw_codec_decoding_t *job) {
    if (job->add)
        linear_decode_loop(codec, job, true);
    else if (codec == GW_CODEC_NONE)
        memcpy(job->out, job->in, job->count * sizeof(float));
    else
        linear_decode_loop(codec, job, false);
}
