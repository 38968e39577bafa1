/* test_kernels.c - the arithmetic, bit for bit
 *
 * Expected results come from a plain scalar loop here (floats, in rank order) or from gw_kernel_reference
 * (integers, and the error bounds of floats). 16-bit floats are decoded by ldexp and encoded by searching the
 * table of all their values, so that no code is shared with the kernels. Every SIMD form of this build that the
 * CPU can run must give these bits, in every shape, at every alignment, and write nothing else.
 */
#include "kernels.h"

#include <CUnit/Basic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/isa.h"

enum { MAX_RANKS = 16, MAX_COUNT = 4099, GUARD_BYTES = 64, ROOM_BYTES = MAX_COUNT * 8 + 4 * GUARD_BYTES };

static const unsigned rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 16};
static const size_t counts[] = {0, 1, 2, 7, 31, 63, 1000, MAX_COUNT};
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static _Alignas(64) unsigned char source[MAX_RANKS][ROOM_BYTES];   /* what the ranks bring */
static _Alignas(64) unsigned char room[2 * MAX_RANKS][ROOM_BYTES]; /* inputs, then outputs, of the kernel */
static unsigned char expected[MAX_COUNT * 8];
static float values_f16[0x7c01], values_bf16[0x7f81]; /* by their bits, up to the first one out of range */

static const size_t type_bytes[] = {
    [GW_F32] = 4, [GW_F64] = 8, [GW_F16] = 2, [GW_BF16] = 2, [GW_I8] = 1, [GW_U8] = 1, [GW_I32] = 4, [GW_I64] = 8,
};

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * UINT64_C(0x2545f4914f6cdd1d);
}

/* ---- 16-bit floats ------------------------------------------------------------------------------- */

static float magnitude_16(unsigned bits, int fraction_bits, int min_exponent) {
    int exponent = (int)(bits >> fraction_bits);
    int fraction = (int)(bits & ((1u << fraction_bits) - 1));
    if (exponent == 0)
        return ldexpf((float)fraction, min_exponent);
    return ldexpf((float)(fraction + (1 << fraction_bits)), min_exponent + exponent - 1);
}

static int fill_tables(void) {
    for (unsigned i = 0; i < LENGTH(values_f16); i++)
        values_f16[i] = magnitude_16(i, 10, -24);
    for (unsigned i = 0; i < LENGTH(values_bf16); i++)
        values_bf16[i] = magnitude_16(i, 7, -133); /* the last one, 2^128, becomes infinite */
    return 0;
}

static float decode(const float *values, size_t n_values, uint16_t bits) {
    unsigned magnitude = bits & 0x7fffu;
    float value = magnitude > n_values - 1 ? NAN : magnitude == n_values - 1 ? INFINITY : values[magnitude];
    return bits & 0x8000 ? -value : value;
}

static uint16_t encode(const float *values, size_t n_values, float value) {
    uint16_t infinity = (uint16_t)(n_values - 1);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    if (isnan(value))
        return n_values == LENGTH(values_f16) ? 0x7e00 : 0x7fc0;
    size_t low = 0, high = n_values - 1; /* values[low] <= magnitude < values[high], which is out of range */
    double out_of_range = 2.0 * (double)values[high - (n_values == LENGTH(values_f16) ? 1024 : 128)];
    if (magnitude >= out_of_range)
        return sign | infinity;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if ((double)values[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double above = high == n_values - 1 ? out_of_range : (double)values[high];
    double down = magnitude - (double)values[low], up = above - magnitude;
    if (up < down || (up == down && low % 2 != 0))
        low = high;
    return (uint16_t)(sign | low);
}

static float get_float(gw_type_t type, const void *p, size_t i) {
    if (type == GW_F16)
        return decode(values_f16, LENGTH(values_f16), ((const uint16_t *)p)[i]);
    if (type == GW_BF16)
        return decode(values_bf16, LENGTH(values_bf16), ((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

static void put_float(gw_type_t type, void *p, size_t i, float value) {
    static const uint32_t nan_bits = 0x7fc00000;
    if (type == GW_F16)
        ((uint16_t *)p)[i] = encode(values_f16, LENGTH(values_f16), value);
    else if (type == GW_BF16)
        ((uint16_t *)p)[i] = encode(values_bf16, LENGTH(values_bf16), value);
    else
        memcpy((char *)p + 4 * i, isnan(value) ? (const void *)&nan_bits : &value, 4);
}

/* ---- what should come out ------------------------------------------------------------------------ */

/* One step in double: exact for min and max. */
static double lesser(double a, double b) {
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return signbit(a) ? a : b;
    return a < b ? a : b;
}

static void expect_f32(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out, size_t i) {
    float value = get_float(type, in[0], i);
    for (unsigned r = 1; r < n_in; r++) {
        float x = get_float(type, in[r], i);
        if (op == GW_MIN)
            value = (float)lesser((double)value, (double)x);
        else if (op == GW_MAX)
            value = (float)-lesser(-(double)value, -(double)x);
        else
            value = op == GW_PROD ? value * x : value + x;
    }
    put_float(type, out, i, op == GW_AVG ? value / (float)n_in : value);
}

static void expect_f64(gw_redop_t op, const void *const *in, unsigned n_in, void *out, size_t i) {
    static const uint64_t nan_bits = UINT64_C(0x7ff8000000000000);
    double value = ((const double *)in[0])[i];
    for (unsigned r = 1; r < n_in; r++) {
        double x = ((const double *)in[r])[i];
        if (op == GW_MIN)
            value = lesser(value, x);
        else if (op == GW_MAX)
            value = -lesser(-value, -x);
        else
            value = op == GW_PROD ? value * x : value + x;
    }
    if (op == GW_AVG)
        value /= n_in;
    memcpy((char *)out + 8 * i, isnan(value) ? (const void *)&nan_bits : &value, 8);
}

static void expect(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out, size_t count) {
    if (n_in == 1 || type >= GW_I8) {
        gw_kernel_reference(type, op, in, n_in, out, NULL, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (type == GW_F64)
            expect_f64(op, in, n_in, out, i);
        else
            expect_f32(type, op, in, n_in, out, i);
}

/* Numbers of one magnitude, or any bits at all: NaN, infinities and subnormal numbers included. */
static void fill(gw_type_t type, void *p, size_t count, bool any_bits) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits();
        double number = ((double)(bits >> 11) * 0x1p-52 - 1.0) * 2.0;
        if (any_bits || type >= GW_I8)
            memcpy((char *)p + i * type_bytes[type], &bits, type_bytes[type]);
        else if (type == GW_F64)
            ((double *)p)[i] = number;
        else
            put_float(type, p, i, (float)number);
    }
}

/* ---- the sweep ----------------------------------------------------------------------------------- */

enum shape { IN_PLACE, REVERSED, OUT_OF_PLACE, REDUCE, REDUCE_TO_LAST, MIXED, N_SHAPES };

/* The output `j` of a shape as an index of room[], or -1 if there are fewer. */
static int output_room(enum shape shape, unsigned n_in, unsigned j) {
    static const unsigned single[N_SHAPES] = {[REDUCE] = 1, [REDUCE_TO_LAST] = 1, [MIXED] = 2};
    if (j >= (single[shape] ? single[shape] : n_in))
        return -1;
    switch (shape) {
    case IN_PLACE:
        return (int)j;
    case REVERSED:
        return (int)(n_in - 1 - j);
    case REDUCE_TO_LAST:
        return (int)n_in - 1;
    case MIXED:
        return j == 0 ? (int)n_in - 1 : MAX_RANKS;
    default:
        return (int)(MAX_RANKS + j);
    }
}

/* Where the span of room r begins: each at another alignment if `skewed`, never at less than an element's. */
static unsigned char *span(unsigned r, gw_type_t type, bool skewed) {
    return room[r] + GUARD_BYTES + (skewed ? (r * 5 + 1) % 16 * type_bytes[type] : 0);
}

/* Runs one call and counts the rooms that do not hold exactly what they should. */
static unsigned wrong_rooms(gw_type_t type, gw_redop_t op, enum shape shape, unsigned n_in, size_t count, bool skewed) {
    static unsigned char clean[ROOM_BYTES];
    const void *in[MAX_RANKS];
    void *out[MAX_RANKS];
    bool written[2 * MAX_RANKS] = {false};
    size_t bytes = count * type_bytes[type];
    unsigned n_out = 0, wrong = 0;
    memset(clean, 0xa5, sizeof(clean));
    for (unsigned r = 0; r < 2 * MAX_RANKS; r++)
        memset(room[r], 0xa5, bytes + 5 * GUARD_BYTES < ROOM_BYTES ? bytes + 5 * GUARD_BYTES : ROOM_BYTES);
    for (unsigned r = 0; r < n_in; r++) {
        memcpy(span(r, type, skewed), source[r], bytes);
        in[r] = span(r, type, skewed);
    }
    for (int index; n_out < MAX_RANKS && (index = output_room(shape, n_in, n_out)) >= 0; n_out++) {
        out[n_out] = span((unsigned)index, type, skewed);
        written[index] = true;
    }
    gw_kernel_reduce(type, op, in, n_in, out, n_out, count);
    for (unsigned r = 0; r < 2 * MAX_RANKS; r++) {
        unsigned char *begin = span(r, type, skewed);
        const unsigned char *content = written[r] ? expected : r < n_in ? source[r] : clean;
        wrong += memcmp(begin, content, bytes) != 0 || memcmp(begin - GUARD_BYTES, clean, GUARD_BYTES) != 0 ||
                 memcmp(begin + bytes, clean, GUARD_BYTES) != 0;
    }
    return wrong;
}

static void check_all_forms(gw_type_t type, gw_redop_t op, unsigned n_in, size_t count, bool skewed) {
    for (const gw_kernel_form_t *const *form = gw_kernel_forms(); *form; form++) {
        if (!gw_kernel_force_isa((*form)->name))
            continue;
        for (enum shape shape = 0; shape < N_SHAPES; shape++) {
            unsigned wrong = wrong_rooms(type, op, shape, n_in, count, skewed);
            CU_ASSERT_EQUAL(wrong, 0);
            if (wrong)
                printf("\n  %s: type %d op %d shape %d, %u ranks, %zu elements: %u wrong", (*form)->name, (int)type,
                       (int)op, (int)shape, n_in, count, wrong);
        }
    }
    CU_ASSERT_TRUE(gw_kernel_force_isa(NULL));
}

static void sweep(gw_type_t type, gw_redop_t op, unsigned n_in, bool any_bits) {
    const void *in[MAX_RANKS];
    for (unsigned r = 0; r < n_in; r++) {
        fill(type, source[r], MAX_COUNT, any_bits);
        in[r] = source[r];
    }
    expect(type, op, in, n_in, expected, MAX_COUNT);
    for (size_t c = 0; c < LENGTH(counts); c++)
        check_all_forms(type, op, n_in, counts[c], any_bits);
}

static void test_sweep(void) {
    random_state = 1;
    for (gw_type_t type = GW_F32; type <= GW_I64; type++)
        for (gw_redop_t op = GW_SUM; op <= GW_PROD; op++)
            for (size_t n = 0; n < LENGTH(rank_counts); n++) {
                sweep(type, op, rank_counts[n], false);
                sweep(type, op, rank_counts[n], true);
            }
}

/* A check that cannot fail proves nothing: one bit of the expected result is turned over. */
static void test_flipped_bit_is_seen(void) {
    random_state = 2;
    sweep(GW_F32, GW_SUM, 4, false);
    for (size_t bit = 0; bit < 32; bit++) {
        expected[500 * 4 + bit / 8] ^= (unsigned char)(1u << bit % 8);
        CU_ASSERT_EQUAL(wrong_rooms(GW_F32, GW_SUM, IN_PLACE, 4, 1000, false), 4);
        CU_ASSERT_EQUAL(wrong_rooms(GW_F32, GW_SUM, REDUCE, 4, 1000, true), 1);
        expected[500 * 4 + bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    CU_ASSERT_EQUAL(wrong_rooms(GW_F32, GW_SUM, IN_PLACE, 4, 1000, false), 0);
}

/* ---- against the reference ------------------------------------------------------------------------ */

static double get_any(gw_type_t type, const void *p, size_t i) {
    return type == GW_F64 ? ((const double *)p)[i] : (double)get_float(type, p, i);
}

/* Elements whose kernel result is further from the reference than its bound, after adding `shift` bounds. */
static size_t out_of_bound(gw_type_t type, gw_redop_t op, unsigned n_in, bool any_bits, double shift) {
    static double bound[1000];
    static _Alignas(8) unsigned char result[8 * LENGTH(bound)], reference[8 * LENGTH(bound)];
    const void *in[MAX_RANKS];
    void *out = result;
    size_t wrong = 0;
    for (unsigned r = 0; r < n_in; r++) {
        fill(type, source[r], LENGTH(bound), any_bits);
        in[r] = source[r];
    }
    gw_kernel_reduce(type, op, in, n_in, &out, 1, LENGTH(bound));
    gw_kernel_reference(type, op, in, n_in, reference, bound, LENGTH(bound));
    for (size_t i = 0; i < LENGTH(bound); i++) {
        double a = get_any(type, result, i) + shift * bound[i], b = get_any(type, reference, i);
        bool same = memcmp(result + i * type_bytes[type], reference + i * type_bytes[type], type_bytes[type]) == 0;
        wrong += (shift != 0 || !same) && !isinf(bound[i]) && !(fabs(a - b) <= bound[i]);
    }
    return wrong;
}

static void test_reference_bound(void) {
    random_state = 3;
    for (gw_type_t type = GW_F32; type <= GW_BF16; type++)
        for (gw_redop_t op = GW_SUM; op <= GW_PROD; op++)
            for (size_t n = 1; n < LENGTH(rank_counts); n++) {
                CU_ASSERT_EQUAL(out_of_bound(type, op, rank_counts[n], false, 0), 0);
                CU_ASSERT_EQUAL(out_of_bound(type, op, rank_counts[n], true, 0), 0);
                if (op != GW_MIN && op != GW_MAX)
                    CU_ASSERT_EQUAL(out_of_bound(type, op, rank_counts[n], false, 2.5), 1000);
            }
}

/* ---- conversions and special values --------------------------------------------------------------- */

/* op over two arrays of 16-bit numbers: x, and y repeated; all forms, all 65536 values of x. */
static void check_all_16(gw_type_t type, gw_redop_t op, uint16_t y) {
    static uint16_t x[65536], other[65536], want[65536], got[65536];
    const void *in[] = {x, other};
    void *out = got;
    for (size_t i = 0; i < LENGTH(x); i++) {
        x[i] = (uint16_t)i;
        other[i] = y;
    }
    expect(type, op, in, 2, want, LENGTH(x));
    for (const gw_kernel_form_t *const *form = gw_kernel_forms(); *form; form++) {
        if (!gw_kernel_force_isa((*form)->name))
            continue;
        memset(got, 0, sizeof(got));
        gw_kernel_reduce(type, op, in, 2, &out, 1, LENGTH(x));
        CU_ASSERT_EQUAL(memcmp(got, want, sizeof(got)), 0);
    }
    CU_ASSERT_TRUE(gw_kernel_force_isa(NULL));
    gw_kernel_reference(type, op, in, 2, got, NULL, LENGTH(x));
    if (op == GW_PROD) /* a product of two fits binary32 but for subnormal ones, which round to 0 either way */
        CU_ASSERT_EQUAL(memcmp(got, want, sizeof(got)), 0);
}

static void test_all_16_bit_values(void) {
    static const uint16_t factors[] = {0x3c00, 0x3c01, 0x3555, 0x0001, 0x1400, 0x37ff, 0x83ff, 0x7bff, 0x3f80, 0x3f81};
    for (gw_type_t type = GW_F16; type <= GW_BF16; type++) {
        check_all_16(type, GW_SUM, 0x8000); /* x + -0 is x */
        check_all_16(type, GW_AVG, 0x3c01);
        for (size_t i = 0; i < LENGTH(factors); i++)
            check_all_16(type, GW_PROD, factors[i]);
    }
}

/* One result of up to four one-element inputs, given and returned as bits, the same in every form. */
static uint64_t one(gw_type_t type, gw_redop_t op, unsigned n_in, const uint64_t *bits) {
    uint64_t best = 0, result = 0;
    const void *in[4];
    void *best_out = &best, *out = &result;
    for (unsigned r = 0; r < n_in; r++)
        in[r] = &bits[r];
    gw_kernel_reduce(type, op, in, n_in, &best_out, 1, 1);
    for (const gw_kernel_form_t *const *form = gw_kernel_forms(); *form; form++) {
        if (!gw_kernel_force_isa((*form)->name))
            continue;
        gw_kernel_reduce(type, op, in, n_in, &out, 1, 1);
        CU_ASSERT_EQUAL(result, best);
    }
    CU_ASSERT_TRUE(gw_kernel_force_isa(NULL));
    return best;
}
#define ONE(type, op, ...) one(type, op, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})

static void test_special_floats(void) {
    static const struct {
        gw_type_t type;
        uint64_t nan, payload, negative_nan, infinity, one, sign, smallest;
    } t[] = {
        {GW_F32, 0x7fc00000, 0x7f812345, 0xffc00001, 0x7f800000, 0x3f800000, 0x80000000, 1},
        {GW_F64, 0x7ff8000000000000, 0x7ff0000000000007, 0xfff8000000000123, 0x7ff0000000000000, 0x3ff0000000000000,
         0x8000000000000000, 1},
        {GW_F16, 0x7e00, 0x7c01, 0xfe17, 0x7c00, 0x3c00, 0x8000, 1},
        {GW_BF16, 0x7fc0, 0x7f81, 0xffc5, 0x7f80, 0x3f80, 0x8000, 1},
    };
    for (size_t i = 0; i < LENGTH(t); i++) {
        for (gw_redop_t op = GW_SUM; op <= GW_PROD; op++) {
            CU_ASSERT_EQUAL(ONE(t[i].type, op, t[i].payload, t[i].one), t[i].nan);
            CU_ASSERT_EQUAL(ONE(t[i].type, op, t[i].one, t[i].negative_nan), t[i].nan);
            CU_ASSERT_EQUAL(ONE(t[i].type, op, t[i].one, t[i].negative_nan, t[i].infinity), t[i].nan);
            CU_ASSERT_EQUAL(ONE(t[i].type, op, t[i].payload), t[i].payload); /* one rank: bits are copied */
        }
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_SUM, t[i].infinity, t[i].infinity | t[i].sign), t[i].nan);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_SUM, t[i].one, t[i].infinity), t[i].infinity);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_PROD, t[i].infinity, 0), t[i].nan);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_MIN, 0, t[i].sign), t[i].sign);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_MIN, t[i].sign, 0), t[i].sign);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_MAX, 0, t[i].sign), 0);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_MAX, t[i].sign, 0), 0);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_SUM, t[i].sign, t[i].sign), t[i].sign);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_SUM, t[i].smallest, t[i].smallest), 2);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_AVG, t[i].smallest, t[i].smallest), 1);
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_AVG, t[i].smallest, 0), 0); /* half of it: to even */
        CU_ASSERT_EQUAL(ONE(t[i].type, GW_AVG, 3, 0), 2);
    }
    CU_ASSERT_EQUAL(ONE(GW_F16, GW_AVG, 0x7bff, 0x7bff, 0x7bff, 0x7bff), 0x7bff); /* 65504: the sum is fp32 */
    CU_ASSERT_EQUAL(ONE(GW_F16, GW_SUM, 0x7bff, 0x7bff), 0x7c00);
    CU_ASSERT_EQUAL(ONE(GW_F16, GW_SUM, 0x7bff, 0x4b80), 0x7bff); /* + 15: below the half */
    CU_ASSERT_EQUAL(ONE(GW_F16, GW_SUM, 0x7bff, 0x4c00), 0x7c00); /* + 16: the half, to even */
}

static void test_special_integers(void) {
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_SUM, 127, 1), 0x80);
    CU_ASSERT_EQUAL(ONE(GW_U8, GW_SUM, 255, 2), 1);
    CU_ASSERT_EQUAL(ONE(GW_U8, GW_PROD, 16, 17), 16);
    CU_ASSERT_EQUAL(ONE(GW_I32, GW_SUM, 0x7fffffff, 1), 0x80000000);
    CU_ASSERT_EQUAL(ONE(GW_I64, GW_SUM, INT64_MAX, 1), (uint64_t)INT64_MIN);
    CU_ASSERT_EQUAL(ONE(GW_I64, GW_PROD, INT64_MAX, 2), (uint64_t)-2);
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_MIN, 0xff, 1), 0xff);
    CU_ASSERT_EQUAL(ONE(GW_U8, GW_MIN, 0xff, 1), 1);
    CU_ASSERT_EQUAL(ONE(GW_U8, GW_AVG, 255, 255, 255, 255), 255);
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 0x80, 0x80, 0x80, 0x80), 0x80);
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 1, 0), 0);                                /* 0.5 */
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 1, 2), 2);                                /* 1.5 */
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 2, 3), 2);                                /* 2.5 */
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 0xff, 0), 0);                             /* -0.5 */
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 0xff, 0xfe), 0xfe);                       /* -1.5 */
    CU_ASSERT_EQUAL(ONE(GW_I8, GW_AVG, 0xfe, 0xfd), 0xfe);                       /* -2.5 */
    CU_ASSERT_EQUAL(ONE(GW_I32, GW_AVG, 2, 2, 1), 2);                            /* 1.67 */
    CU_ASSERT_EQUAL(ONE(GW_I32, GW_AVG, 0xffffffff, 0xffffffff, 0), 0xffffffff); /* -0.67 */
    CU_ASSERT_EQUAL(ONE(GW_I32, GW_AVG, 0x7fffffff, 0x7fffffff, 0x7ffffffe, 0x7ffffffe), 0x7ffffffe);
    CU_ASSERT_EQUAL(ONE(GW_I64, GW_AVG, INT64_MAX, INT64_MAX, INT64_MAX), INT64_MAX);
    CU_ASSERT_EQUAL(ONE(GW_I64, GW_AVG, (uint64_t)INT64_MIN, (uint64_t)INT64_MIN), (uint64_t)INT64_MIN);
    CU_ASSERT_EQUAL(ONE(GW_I64, GW_AVG, INT64_MAX, INT64_MAX - 1), INT64_MAX - 1);
}

/* More ranks than a sum of bytes or of 16-bit numbers could hold. */
static void test_many_ranks(void) {
    enum { RANKS = 1024, COUNT = 333 };
    static _Alignas(8) unsigned char result[COUNT * 8];
    const void *in[RANKS];
    void *out = result;
    random_state = 4;
    for (gw_type_t type = GW_F32; type <= GW_I64; type++) {
        for (unsigned r = 0; r < RANKS; r++)
            in[r] = source[r % MAX_RANKS];
        for (unsigned r = 0; r < MAX_RANKS; r++) {
            fill(type, source[r], COUNT, false);
            memset(source[r], type == GW_U8 || type == GW_I8 ? 0x80 : 0, type_bytes[type]);
        }
        for (gw_redop_t op = GW_SUM; op <= GW_PROD; op++) {
            expect(type, op, in, RANKS, expected, COUNT);
            gw_kernel_reduce(type, op, in, RANKS, &out, 1, COUNT);
            CU_ASSERT_EQUAL(memcmp(result, expected, COUNT * type_bytes[type]), 0);
        }
    }
}

static void test_forms(void) {
    size_t n_usable = 0;
    CU_ASSERT_FALSE(gw_kernel_force_isa("no such form"));
    for (const gw_kernel_form_t *const *form = gw_kernel_forms(); *form; form++) {
        if (n_usable == 0 && (*form)->usable())
            CU_ASSERT_STRING_EQUAL(gw_kernel_isa(), (*form)->name); /* the first that works is the one in use */
        n_usable += (*form)->usable();
    }
    CU_ASSERT_TRUE(n_usable >= 1);
    printf("(%zu forms, best %s) ", n_usable, gw_kernel_isa());
}

int main(void) {
    CU_TestInfo tests[] = {
        {"forms", test_forms},
        {"every type, operation, shape, count and alignment", test_sweep},
        {"a flipped bit is seen", test_flipped_bit_is_seen},
        {"error bounds of the reference", test_reference_bound},
        {"all 16-bit values", test_all_16_bit_values},
        {"special floats", test_special_floats},
        {"special integers", test_special_integers},
        {"1024 ranks", test_many_ranks},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "kernels", .pInitFunc = fill_tables, .pTests = tests},
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
