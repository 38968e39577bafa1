/* test_codec.c - the codecs, bit for bit, and what their errors may be
 *
 * Every SIMD form of this build that the CPU can run must give the bits of gw_codec_reference_*, for every codec, count,
 * alignment and kind of number, and write nothing else. What codec.h promises beyond that (error bounds, residuals,
 * that cuts do not matter, that stochastic rounding is right on average) is computed here from x and the decoded x.
 */
#include "codec.h"

#include <CUnit/Basic.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simd/isa.h"

enum { MAX_COUNT = 4099, GUARD = 64, ROOM = MAX_COUNT * 4 + 2 * GUARD + 16 };

static const size_t counts[] = {0,  1,   2,   3,   4,   7,   8,   9,   15,  16,  17,  31,   32,   33,   63,       64,
                                65, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 1000, 1024, 1025, MAX_COUNT};
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static float source[MAX_COUNT], rests[MAX_COUNT], base[MAX_COUNT];
static _Alignas(64) unsigned char wire[ROOM], floats[ROOM], residuals[ROOM];

static uint64_t random_state;

static uint32_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state * UINT64_C(0x2545f4914f6cdd1d)) >> 32);
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* ---- kinds of numbers ----------------------------------------------------------------------------- */

enum kind { EVEN_SPREAD, ALL_EXPONENTS, ZEROS, SUBNORMAL, NEARLY_SUBNORMAL, HUGE_NUMBERS, TIES, FINITE_KINDS };
enum { ANY_BITS = FINITE_KINDS, RARE_SPECIAL, KINDS };

static float number_of(int kind) {
    uint32_t bits = random_bits();
    float signed_unit = (float)(int32_t)bits * 0x1p-31f;
    switch (kind) {
    case ALL_EXPONENTS:
        return isfinite(from_bits(bits)) ? from_bits(bits) : 1.0f;
    case ZEROS:
        return bits & 1 ? -0.0f : 0.0f;
    case SUBNORMAL:
        return from_bits(bits & 0x807fffff);
    case NEARLY_SUBNORMAL: /* scales of blocks are subnormal */
        return signed_unit * 0x1p-122f;
    case HUGE_NUMBERS:
        return signed_unit * FLT_MAX;
    case TIES: /* halves of whole numbers up to 127: half-way between numbers of int8, or such numbers */
        return (float)((int)(bits >> 8) % 255 - 127) * (bits & 2 ? 0.5f : 1.0f);
    case ANY_BITS:
        return from_bits(bits);
    case RARE_SPECIAL:
        return bits % 300 == 0 ? (bits & 1024 ? INFINITY : from_bits(0xff812345)) : signed_unit;
    default:
        return signed_unit;
    }
}

static void fill(float *p, size_t count, int kind) {
    for (size_t i = 0; i < count; i++)
        p[i] = number_of(kind);
    if (kind == TIES && count > 100)
        p[100] = 127.0f;
}

/* ---- against the reference ------------------------------------------------------------------------ */

typedef struct expectation {
    unsigned char wire[MAX_COUNT * 4];
    float residual[MAX_COUNT], decoded[MAX_COUNT], sum[MAX_COUNT];
} expectation_t;
static expectation_t expected;

static void expect(gw_codec_t codec, const gw_codec_round_t *round, bool residual, size_t count) {
    memcpy(expected.residual, rests, sizeof(rests));
    memcpy(expected.sum, base, sizeof(base));
    gw_codec_reference_encode(codec, source, round, residual ? expected.residual : NULL, expected.wire, count);
    gw_codec_reference_decode(codec, expected.wire, expected.decoded, count, false);
    gw_codec_reference_decode(codec, expected.wire, expected.sum, count, true);
}

/* 0 if a room holds exactly this at `offset`, and untouched bytes around it. */
static unsigned differs(const unsigned char *room, size_t offset, const void *content, size_t bytes) {
    for (size_t i = 0; i < GUARD; i++)
        if (room[offset - GUARD + i] != 0xa5 || room[offset + bytes + i] != 0xa5)
            return 1;
    return memcmp(room + offset, content, bytes) != 0;
}

static void *placed(unsigned char *room, size_t offset, const void *content, size_t bytes) {
    memset(room, 0xa5, bytes + 2 * GUARD + 16);
    if (content)
        memcpy(room + offset, content, bytes);
    return room + offset;
}

/* One encoding and two decodings by the form in use; how many of the four results are not as expected. */
static unsigned wrong_results(gw_codec_t codec, const gw_codec_round_t *round, bool residual, size_t count,
                              size_t skew) {
    size_t bytes = count * sizeof(float), offset = GUARD + skew;
    size_t wire_bytes = gw_codec_bytes(codec, count);
    float *in = placed(floats, offset, source, bytes);
    float *rest = placed(residuals, offset, rests, bytes);
    void *to = placed(wire, offset, NULL, wire_bytes);
    gw_codec_encode(codec, in, round, residual ? rest : NULL, to, count);
    unsigned wrong = differs(floats, offset, source, bytes) + differs(wire, offset, expected.wire, wire_bytes) +
                     differs(residuals, offset, residual ? expected.residual : rests, bytes);
    memcpy(to, expected.wire, wire_bytes);
    gw_codec_decode(codec, to, placed(floats, offset, NULL, bytes), count, false);
    wrong += differs(floats, offset, expected.decoded, bytes);
    gw_codec_decode(codec, to, placed(floats, offset, base, bytes), count, true);
    return wrong + differs(floats, offset, expected.sum, bytes);
}

static unsigned wrong_in_forms(gw_codec_t codec, const gw_codec_round_t *round, bool residual, size_t count) {
    unsigned wrong = 0;
    expect(codec, round, residual, count);
    for (const gw_codec_form_t *const *form = gw_codec_forms(); *form; form++) {
        if (!gw_codec_force_isa((*form)->name))
            continue;
        unsigned more = wrong_results(codec, round, residual, count, count % 4 * 4);
        if (more)
            printf("\n  %s: %s, %s, residual %d, %zu numbers: %u wrong", (*form)->name, gw_codec_name(codec),
                   round ? "stochastic" : "nearest", residual, count, more);
        wrong += more;
    }
    CU_ASSERT_TRUE(gw_codec_force_isa(NULL));
    return wrong;
}

static void test_sweep(void) {
    random_state = 1;
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++) {
        for (int kind = 0; kind < KINDS; kind++) {
            fill(source, MAX_COUNT, kind);
            fill(base, MAX_COUNT, kind == ZEROS ? EVEN_SPREAD : kind);
            fill(rests, MAX_COUNT, kind);
            gw_codec_round_t round = {random_bits(), UINT64_C(0xfffff000) + (uint64_t)kind};
            for (size_t c = 0; c < LENGTH(counts); c++)
                for (unsigned way = 0; way < 4; way++)
                    CU_ASSERT_EQUAL(
                        wrong_in_forms((gw_codec_t)codec, way & 1 ? &round : NULL, (way & 2) != 0, counts[c]), 0);
        }
    }
}

/* What others send is read alike, too: codes that are never written, scales that are none. */
static void test_any_bytes(void) {
    random_state = 11;
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++)
        for (size_t c = 0; c < LENGTH(counts); c++) {
            size_t bytes = counts[c] * sizeof(float), wrong = 0;
            for (size_t i = 0; i < sizeof(wire); i++)
                wire[i] = (unsigned char)random_bits();
            fill(base, MAX_COUNT, ANY_BITS);
            for (unsigned add = 0; add < 2; add++) {
                memcpy(expected.sum, base, bytes);
                gw_codec_reference_decode((gw_codec_t)codec, wire, expected.sum, counts[c], add);
                for (const gw_codec_form_t *const *form = gw_codec_forms(); *form; form++) {
                    if (!gw_codec_force_isa((*form)->name))
                        continue;
                    gw_codec_decode((gw_codec_t)codec, wire, placed(floats, GUARD, base, bytes), counts[c], add);
                    wrong += differs(floats, GUARD, expected.sum, bytes);
                }
            }
            CU_ASSERT_EQUAL(wrong, 0);
        }
    CU_ASSERT_TRUE(gw_codec_force_isa(NULL));
}

/* A check that cannot fail proves nothing. */
static void test_flipped_bit_is_seen(void) {
    random_state = 2;
    fill(source, MAX_COUNT, EVEN_SPREAD);
    fill(base, MAX_COUNT, EVEN_SPREAD);
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++) {
        expect((gw_codec_t)codec, NULL, false, 1000);
        CU_ASSERT_EQUAL(wrong_results((gw_codec_t)codec, NULL, false, 1000, 0), 0);
        expected.wire[gw_codec_bytes((gw_codec_t)codec, 1000) - 1] ^= 1; /* it is decoded, too */
        CU_ASSERT_EQUAL(wrong_results((gw_codec_t)codec, NULL, false, 1000, 0), 3);
    }
}

/* Every fp16, bf16 and fp8 number is read; those half-way between two, and their neighbours, are rounded. */
static void test_all_small_floats(void) {
    for (gw_codec_t codec = GW_CODEC_FP16; codec <= GW_CODEC_BF16; codec++) {
        static uint16_t all[65536];
        static float numbers[65536], want[65536], halves[4 * 65536];
        static uint16_t coded[4 * 65536], coded_want[4 * 65536];
        for (size_t i = 0; i < LENGTH(all); i++)
            all[i] = (uint16_t)i;
        gw_codec_reference_decode(codec, all, want, LENGTH(all), false);
        for (size_t i = 0; i < LENGTH(all); i++) {
            uint32_t middle = to_bits(want[i]) + (i & 1 ? 0x1000u : 0x8000u); /* of fp16, of bf16 */
            for (uint32_t j = 0; j < 3; j++)
                halves[4 * i + j] = from_bits(middle + j - 1);
            halves[4 * i + 3] = want[i];
        }
        gw_codec_reference_encode(codec, halves, NULL, NULL, coded_want, LENGTH(halves));
        for (const gw_codec_form_t *const *form = gw_codec_forms(); *form; form++) {
            if (!gw_codec_force_isa((*form)->name))
                continue;
            gw_codec_decode(codec, all, numbers, LENGTH(all), false);
            CU_ASSERT_EQUAL(memcmp(numbers, want, sizeof(want)), 0);
            gw_codec_encode(codec, halves, NULL, NULL, coded, LENGTH(halves));
            CU_ASSERT_EQUAL(memcmp(coded, coded_want, sizeof(coded)), 0);
            gw_codec_encode(codec, want, &(gw_codec_round_t){9, 9}, NULL, coded, LENGTH(all));
            size_t changed = 0; /* a number that the codec has stays, but a NaN becomes the canonical one */
            for (size_t i = 0; i < LENGTH(all); i++)
                changed += !isnan(want[i]) && coded[i] != i;
            CU_ASSERT_EQUAL(changed, 0);
        }
        CU_ASSERT_TRUE(gw_codec_force_isa(NULL));
    }
}

static uint16_t one_16(gw_codec_t codec, float x) {
    uint16_t bits;
    gw_codec_encode(codec, &x, NULL, NULL, &bits, 1);
    return bits;
}

/* From the formats' definitions, by hand. */
static void test_known_values(void) {
    static const struct {
        float x;
        uint16_t fp16, bf16;
    } t[] = {
        {1.0f, 0x3c00, 0x3f80},     {-2.0f, 0xc000, 0xc000},
        {65504.0f, 0x7bff, 0x4780}, {65536.0f, 0x7bff, 0x4780},
        {FLT_MAX, 0x7bff, 0x7f7f},  {-FLT_MAX, 0xfbff, 0xff7f},
        {INFINITY, 0x7c00, 0x7f80}, {-INFINITY, 0xfc00, 0xff80},
        {0x1p-24f, 0x0001, 0x3380}, {0x1p-25f, 0x0000, 0x3300},
        {-0.0f, 0x8000, 0x8000},    {0x1p-133f, 0x0000, 0x0001},
        {0x1p-14f, 0x0400, 0x3880}, {1.00390625f, 0x3c04, 0x3f80},
        {0x1p-149f, 0, 0},          {0x3p-25f, 0x0002, 0x3840 - 0x480},
    };
    for (size_t i = 0; i < LENGTH(t); i++) {
        CU_ASSERT_EQUAL(one_16(GW_CODEC_FP16, t[i].x), t[i].fp16);
        CU_ASSERT_EQUAL(one_16(GW_CODEC_BF16, t[i].x), t[i].bf16);
    }
    CU_ASSERT_EQUAL(one_16(GW_CODEC_FP16, from_bits(0xff800001)), 0x7e00);
    CU_ASSERT_EQUAL(one_16(GW_CODEC_BF16, from_bits(0xff800001)), 0x7fc0);
    static const float in[] = {127.0f, -127.0f, 0.5f, 1.5f, -2.5f, 3.0f};
    static const unsigned char int8[] = {0, 0, 0x80, 0x3f, 127, 0, 0xfe, 0, 0x81, 2, 3, 0}; /* words of 2 columns */
    static const unsigned char int4[] = {0, 0, 0x80, 0x3f, 0x97, 0x20, 0x3e, 0};
    static const float fours[] = {7.0f, -7.0f, 0.5f, 1.5f, -2.5f, 3.0f};
    static const float eights[] = {448.0f, -1.0f, 0x1p-9f, 0x1p-10f};
    static const unsigned char fp8[] = {0, 0, 0x80, 0x3f, 0x7e, 0xb8, 0x01, 0x00};
    unsigned char out[sizeof(int8)];
    gw_codec_encode(GW_CODEC_INT8, in, NULL, NULL, out, LENGTH(in));
    CU_ASSERT_EQUAL(memcmp(out, int8, sizeof(int8)), 0);
    gw_codec_encode(GW_CODEC_INT4, fours, NULL, NULL, out, LENGTH(fours));
    CU_ASSERT_EQUAL(memcmp(out, int4, sizeof(int4)), 0);
    gw_codec_encode(GW_CODEC_FP8, eights, NULL, NULL, out, LENGTH(eights));
    CU_ASSERT_EQUAL(memcmp(out, fp8, sizeof(fp8)), 0);
}

/* ---- error bounds --------------------------------------------------------------------------------- */

/* What codec.h allows for x in a block whose largest magnitude is `largest`; infinite where it saturates. */
static double bound_of(gw_codec_t codec, double x, double largest, bool stochastic) {
    double twice = stochastic ? 2 : 1;
    double top = codec == GW_CODEC_FP8 ? 448 : codec == GW_CODEC_INT8 ? 127 : 7;
    double s = (double)((float)largest / (float)top);
    if (largest > 0 && s < (double)FLT_MIN)
        s += 0x1p-149;
    switch (codec) {
    case GW_CODEC_NONE:
        return 0;
    case GW_CODEC_FP16:
        return fabs(x) > 65504 ? (double)INFINITY : twice * fmax(fabs(x) * 0x1p-11, 0x1p-25);
    case GW_CODEC_BF16:
        return fabs(x) > 0x1.fep127 ? (double)INFINITY : twice * fmax(fabs(x) * 0x1p-8, 0x1p-134);
    case GW_CODEC_FP8:
        return twice * fmax(fabs(x) * 0x1p-4, s * 0x1p-10) + fabs(x) * 0x1p-21 + s * 0x1p-15 + 0x1p-150;
    default:
        return s * (twice / 2 + 0x1p-15);
    }
}

/* Of `count` numbers of `source`: those that are decoded too far away, if block scales on the way are multiplied. */
static size_t out_of_bound(gw_codec_t codec, const gw_codec_round_t *round, size_t count, float wrong_scale) {
    static float decoded[MAX_COUNT];
    size_t wrong = 0;
    gw_codec_encode(codec, source, round, NULL, wire, count);
    for (size_t at = 0; gw_codec_pattern(codec) == GW_CODEC_SHARDED && at < count; at += GW_CODEC_BLOCK) {
        float scale;
        memcpy(&scale, wire + gw_codec_bytes(codec, at), sizeof(scale));
        scale *= wrong_scale;
        memcpy(wire + gw_codec_bytes(codec, at), &scale, sizeof(scale));
    }
    gw_codec_decode(codec, wire, decoded, count, false);
    for (size_t at = 0; at < count; at += GW_CODEC_BLOCK) {
        size_t end = at + GW_CODEC_BLOCK < count ? at + GW_CODEC_BLOCK : count;
        double largest = 0;
        for (size_t i = at; i < end; i++)
            largest = fmax(largest, fabs((double)source[i]));
        for (size_t i = at; i < end; i++) {
            double bound = bound_of(codec, (double)source[i], largest, round != NULL);
            wrong += !(fabs((double)source[i] - (double)decoded[i]) <= bound) || (source[i] > 0 && decoded[i] < 0) ||
                     (source[i] < 0 && decoded[i] > 0);
        }
    }
    return wrong;
}

static void test_error_bounds(void) {
    random_state = 3;
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++)
        for (int kind = 0; kind < FINITE_KINDS; kind++)
            for (size_t c = 0; c < LENGTH(counts); c++) {
                gw_codec_round_t round = {random_bits(), random_bits()};
                fill(source, counts[c], kind);
                CU_ASSERT_EQUAL(out_of_bound((gw_codec_t)codec, NULL, counts[c], 1.0f), 0);
                CU_ASSERT_EQUAL(out_of_bound((gw_codec_t)codec, &round, counts[c], 1.0f), 0);
            }
}

static void test_wrong_scale_is_seen(void) {
    random_state = 4;
    fill(source, MAX_COUNT, EVEN_SPREAD);
    for (gw_codec_t codec = GW_CODEC_FP8; codec <= GW_CODEC_INT4; codec++) {
        CU_ASSERT_EQUAL(out_of_bound(codec, NULL, MAX_COUNT, 1.0f), 0);
        CU_ASSERT_TRUE(out_of_bound(codec, NULL, MAX_COUNT, 1.1f) > MAX_COUNT / 4);
        CU_ASSERT_TRUE(out_of_bound(codec, NULL, MAX_COUNT, 0.9f) > MAX_COUNT / 4);
    }
}

/* The largest number of a block, whatever its fraction, never wraps round to the other sign. */
static void test_largest_never_wraps(void) {
    random_state = 5;
    for (unsigned round = 0; round < 300; round++) {
        for (size_t i = 0; i < 4096; i++) /* in each block, many times one number of any exponent */
            source[i] = i % GW_CODEC_BLOCK ? source[i - 1] : number_of(ALL_EXPONENTS);
        for (gw_codec_t codec = GW_CODEC_FP8; codec <= GW_CODEC_INT4; codec++)
            CU_ASSERT_EQUAL(out_of_bound(codec, &(gw_codec_round_t){round, 0}, 4096, 1.0f), 0);
    }
}

/* A number that comes out above 448 by roundings, to which random bits are added: it must not become fp8's NaN. */
static void test_fp8_has_no_nan(void) {
    static const unsigned char nan_codes[] = {0x7f, 0xff};
    float largest;
    random_state = 12;
    do {
        largest = 1.0f + (float)(random_bits() >> 9) * 0x1p-23f;
    } while (largest * (1.0f / (largest / 448.0f)) <= 448.0f); /* of one fraction in five it is larger */
    for (size_t i = 0; i < 4096; i++)
        source[i] = largest;
    size_t found = 0;
    for (uint64_t seed = 0; seed < 2000; seed++) { /* the chance to miss it is exp(-2000 / 2^8) */
        gw_codec_encode(GW_CODEC_FP8, source, &(gw_codec_round_t){seed, 0}, NULL, wire, 4096);
        for (size_t at = 0; at < 4096; at += GW_CODEC_BLOCK)
            for (size_t i = 0; i < LENGTH(nan_codes); i++)
                found += memchr(wire + gw_codec_bytes(GW_CODEC_FP8, at) + 4, nan_codes[i], GW_CODEC_BLOCK) != NULL;
    }
    CU_ASSERT_EQUAL(found, 0);
}

/* ---- residuals ------------------------------------------------------------------------------------ */

static void test_residual_identity(void) {
    static float v[MAX_COUNT], decoded[MAX_COUNT], rest[MAX_COUNT];
    random_state = 6;
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++)
        for (int kind = 0; kind < FINITE_KINDS; kind++)
            for (unsigned way = 0; way < 2; way++) {
                gw_codec_round_t round = {random_bits(), 0};
                size_t wrong = 0, too_long = 0;
                fill(source, MAX_COUNT, kind);
                for (size_t i = 0; i < MAX_COUNT; i++) {
                    rest[i] = copysignf(source[(i * 7) % MAX_COUNT], -source[i]); /* so that no sum is out of range */
                    v[i] = source[i] + rest[i];
                }
                gw_codec_encode((gw_codec_t)codec, source, way ? &round : NULL, rest, wire, MAX_COUNT);
                gw_codec_decode((gw_codec_t)codec, wire, decoded, MAX_COUNT, false);
                for (size_t i = 0; i < MAX_COUNT; i++) {
                    wrong += to_bits(rest[i]) != to_bits(v[i] - decoded[i]);
                    too_long +=
                        fabs((double)v[i] - (double)decoded[i] - (double)rest[i]) > fabs((double)rest[i]) * 0x1p-24;
                }
                CU_ASSERT_EQUAL(wrong, 0);
                CU_ASSERT_EQUAL(too_long, 0);
            }
}

/* The same numbers step after step: with the residual the sum of what was sent stays within two errors of the sum of
 * what should have been; without it, it does not. */
static void test_error_feedback(void) {
    enum { STEPS = 100, COUNT = 512 };
    static float rest[COUNT], sum[COUNT], plain[COUNT];
    random_state = 7;
    for (gw_codec_t codec = GW_CODEC_FP16; codec <= GW_CODEC_INT4; codec++) {
        double worst = 0, worst_plain = 0;
        fill(source, COUNT, EVEN_SPREAD);
        memset(rest, 0, sizeof(rest));
        memset(sum, 0, sizeof(sum));
        for (unsigned step = 0; step < STEPS; step++) {
            gw_codec_encode(codec, source, NULL, rest, wire, COUNT);
            gw_codec_decode(codec, wire, sum, COUNT, true);
        }
        gw_codec_encode(codec, source, NULL, NULL, wire, COUNT);
        gw_codec_decode(codec, wire, plain, COUNT, false);
        for (size_t i = 0; i < COUNT; i++) {
            double bound = 2 * bound_of(codec, 1.0, 1.0, false) + STEPS * 0x1p-18; /* the sum's own roundings */
            worst = fmax(worst, fabs((double)sum[i] - STEPS * (double)source[i]) / bound);
            worst_plain = fmax(worst_plain, STEPS * fabs((double)plain[i] - (double)source[i]) / bound);
        }
        CU_ASSERT_TRUE(worst <= 1);
        CU_ASSERT_TRUE(worst_plain > 4);
    }
}

static void test_not_finite(void) {
    static float decoded[3 * GW_CODEC_BLOCK], rest[3 * GW_CODEC_BLOCK];
    random_state = 8;
    for (gw_codec_t codec = GW_CODEC_FP8; codec <= GW_CODEC_INT4; codec++) {
        fill(source, LENGTH(rest), EVEN_SPREAD);
        for (size_t i = 0; i < LENGTH(rest); i++)
            rest[i] = 0.125f;
        source[GW_CODEC_BLOCK + 77] = INFINITY;
        gw_codec_encode(codec, source, NULL, rest, wire, LENGTH(rest));
        gw_codec_decode(codec, wire, decoded, LENGTH(rest), false);
        size_t wrong = 0;
        for (size_t i = 0; i < LENGTH(rest); i++)
            wrong += i / GW_CODEC_BLOCK == 1 ? to_bits(decoded[i]) != 0x7fc00000 || rest[i] != 0.125f
                                             : !isfinite(decoded[i]) || rest[i] == 0.125f;
        CU_ASSERT_EQUAL(wrong, 0);
    }
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (const gw_codec_form_t *const *form = gw_codec_forms(); *form; form++) {
        if (!gw_codec_force_isa((*form)->name))
            continue;
        fill(source, MAX_COUNT, HUGE_NUMBERS);
        source[0] = FLT_MAX;
        for (size_t c = 0; c < LENGTH(counts); c++)
            CU_ASSERT_TRUE(gw_codec_is_finite(source, counts[c]));
        for (size_t i = 0; i < 1100; i++) {
            float good = source[i];
            source[i] = bad[i % 3];
            CU_ASSERT_FALSE(gw_codec_is_finite(source, 1100));
            CU_ASSERT_TRUE(gw_codec_is_finite(source, i)); /* what is behind is not looked at */
            source[i] = good;
        }
    }
    CU_ASSERT_TRUE(gw_codec_force_isa(NULL));
}

/* ---- cuts and chance ------------------------------------------------------------------------------ */

static void test_cuts_do_not_matter(void) {
    static unsigned char whole[MAX_COUNT * 4];
    static float rest[MAX_COUNT], rest_whole[MAX_COUNT];
    random_state = 9;
    for (int c = GW_CODEC_NONE; c < GW_CODECS; c++)
        for (unsigned way = 0; way < 20; way++) {
            gw_codec_t codec = (gw_codec_t)c;
            gw_codec_round_t round = {way, UINT64_C(0xfffffe01)}; /* passes 2^32 on the way */
            fill(source, MAX_COUNT, EVEN_SPREAD);
            memcpy(rest, source, sizeof(rest));
            memcpy(rest_whole, source, sizeof(rest));
            gw_codec_encode(codec, source, way & 1 ? &round : NULL, rest_whole, whole, MAX_COUNT);
            for (size_t at = 0, n; at < MAX_COUNT; at += n, round.first += n) {
                n = (1 + random_bits() % 5) * GW_CODEC_BLOCK;
                n = at + n < MAX_COUNT ? n : MAX_COUNT - at;
                gw_codec_encode(codec, source + at, way & 1 ? &round : NULL, rest + at,
                                wire + gw_codec_bytes(codec, at), n);
            }
            CU_ASSERT_EQUAL(memcmp(wire, whole, gw_codec_bytes(codec, MAX_COUNT)), 0);
            CU_ASSERT_EQUAL(memcmp(rest, rest_whole, sizeof(rest)), 0);
        }
}

/* The mean over many seeds is x, within five standard deviations of a mean of such chances; the nearest is not. */
static void test_stochastic_mean(void) {
    enum { SEEDS = 4000, COUNT = 300 };
    static float decoded[COUNT], nearest[COUNT];
    static double sum[COUNT];
    random_state = 10;
    for (gw_codec_t codec = GW_CODEC_FP16; codec <= GW_CODEC_INT4; codec++) {
        size_t wrong = 0, wrong_nearest = 0;
        fill(source, COUNT, EVEN_SPREAD);
        memset(sum, 0, sizeof(sum));
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            gw_codec_encode(codec, source, &(gw_codec_round_t){seed, 5}, NULL, wire, COUNT);
            gw_codec_decode(codec, wire, decoded, COUNT, false);
            for (size_t i = 0; i < COUNT; i++)
                sum[i] += (double)decoded[i];
        }
        gw_codec_encode(codec, source, NULL, NULL, wire, COUNT);
        gw_codec_decode(codec, wire, nearest, COUNT, false);
        for (size_t i = 0; i < COUNT; i++) {
            double distance = 2 * bound_of(codec, (double)source[i], 1.0, false); /* of two neighbours, or more */
            double deviation = distance / 2 / sqrt(SEEDS) * 5 + distance * 0x1p-13;
            wrong += fabs(sum[i] / SEEDS - (double)source[i]) > deviation;
            wrong_nearest += fabs((double)nearest[i] - (double)source[i]) > deviation;
        }
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT_TRUE(wrong_nearest > COUNT / 2);
    }
}

/* ---- what there is -------------------------------------------------------------------------------- */

static void test_table(void) {
    gw_codec_t codec = GW_CODEC_INT4;
    for (int i = GW_CODEC_NONE; i < GW_CODECS; i++) {
        CU_ASSERT_TRUE(gw_codec_by_name(gw_codec_name((gw_codec_t)i), &codec));
        CU_ASSERT_EQUAL(codec, (gw_codec_t)i);
        CU_ASSERT_EQUAL(gw_codec_pattern(codec), i < GW_CODEC_FP8 ? GW_CODEC_LINEAR : GW_CODEC_SHARDED);
        CU_ASSERT_EQUAL(gw_codec_bytes(codec, 0), 0);
        for (uint64_t a = 0; a <= 4; a++)
            for (uint64_t b = 0; b < 600; b++)
                CU_ASSERT_EQUAL(gw_codec_bytes(codec, a * GW_CODEC_BLOCK + b),
                                gw_codec_bytes(codec, a * GW_CODEC_BLOCK) + gw_codec_bytes(codec, b));
    }
    CU_ASSERT_FALSE(gw_codec_by_name("int", &codec));
    CU_ASSERT_FALSE(gw_codec_by_name("default", &codec));
    CU_ASSERT_FALSE(gw_codec_by_name("", &codec));
    CU_ASSERT_EQUAL(codec, GW_CODEC_INT4);
    CU_ASSERT_EQUAL(gw_codec_bytes(GW_CODEC_NONE, 1000), 4000);
    CU_ASSERT_EQUAL(gw_codec_bytes(GW_CODEC_BF16, 1000), 2000);
    CU_ASSERT_EQUAL(gw_codec_bytes(GW_CODEC_INT8, 256), 260);
    CU_ASSERT_EQUAL(gw_codec_bytes(GW_CODEC_FP8, 257), 268);
    CU_ASSERT_EQUAL(gw_codec_bytes(GW_CODEC_INT4, 1000), 3 * 132 + 4 + 29 * 4);
    CU_ASSERT_EQUAL(gw_codec_bytes(GW_CODEC_INT4, UINT64_C(1) << 40), (UINT64_C(1) << 32) * 132);
    CU_ASSERT_TRUE(4.0 * 1e6 / (double)gw_codec_bytes(GW_CODEC_INT4, 1000000) > 6.8);
}

static void test_forms(void) {
    size_t n_usable = 0;
    CU_ASSERT_FALSE(gw_codec_force_isa("no such form"));
    for (const gw_codec_form_t *const *form = gw_codec_forms(); *form; form++) {
        if (n_usable == 0 && (*form)->usable())
            CU_ASSERT_STRING_EQUAL(gw_codec_isa(), (*form)->name); /* the first that works is the one in use */
        n_usable += (*form)->usable();
    }
    CU_ASSERT_TRUE(n_usable >= 1);
    printf("(%zu forms, best %s) ", n_usable, gw_codec_isa());
}

int main(void) {
    CU_TestInfo tests[] = {
        {"forms", test_forms},
        {"names, patterns and bytes", test_table},
        {"values known by hand", test_known_values},
        {"every codec, kind of number, count and alignment", test_sweep},
        {"any bytes are decoded", test_any_bytes},
        {"a flipped bit is seen", test_flipped_bit_is_seen},
        {"all 16-bit values", test_all_small_floats},
        {"error bounds", test_error_bounds},
        {"a wrong scale is seen", test_wrong_scale_is_seen},
        {"the largest never wraps", test_largest_never_wraps},
        {"fp8 has no NaN", test_fp8_has_no_nan},
        {"residuals are what was left out", test_residual_identity},
        {"error feedback", test_error_feedback},
        {"infinities and NaN", test_not_finite},
        {"cuts do not matter", test_cuts_do_not_matter},
        {"stochastic rounding is right on average", test_stochastic_mean},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "codec", .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return EXIT_FAILURE;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
