/* ref.c - gw_kernel_reference: what the kernels are tested against, slow and plain
 *
 * It shares no code with kernels/host: 16-bit types are decoded and encoded with ldexp and rint, sums are
 * long double or 128-bit integers. Beside each value runs the largest difference that the kernels' roundings
 * can have made so far (running error analysis): each operation in a format with unit roundoff u and smallest
 * number eta adds at most u times its result, and eta / 2 where it may underflow. Where an intermediate
 * result may have overflowed, any result is within the rules, and the bound is infinite.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

__extension__ typedef __int128 gw_int128_t;

typedef struct gw_format {
    int digits;       /* of the significand, the leading 1 included */
    int min_exponent; /* eta is 2^min_exponent */
    long double max;
} gw_format_t;

static const gw_format_t binary64 = {53, -1074, DBL_MAX};
static const gw_format_t binary32 = {24, -149, FLT_MAX};
static const gw_format_t binary16 = {11, -24, 65504.0L};
static const gw_format_t bfloat16 = {8, -133, 0x1.fep127L};

typedef struct gw_bounded {
    long double value;
    long double error;
    bool unknown; /* an intermediate result may have overflowed: nothing can be said */
} gw_bounded_t;

static const gw_format_t *format_of(gw_type_t type) {
    switch (type) {
    case GW_F64:
        return &binary64;
    case GW_F16:
        return &binary16;
    case GW_BF16:
        return &bfloat16;
    default:
        return &binary32;
    }
}

static long double decode_16(uint16_t bits, int fraction_bits) {
    int exponent_bits = 15 - fraction_bits;
    int exponent = (bits & 0x7fff) >> fraction_bits;
    int fraction = bits & ((1 << fraction_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    long double magnitude;
    if (exponent == (1 << exponent_bits) - 1)
        magnitude = fraction ? (long double)NAN : (long double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexpl(fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexpl(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static uint16_t encode_16(long double value, const gw_format_t *format) {
    int fraction_bits = format->digits - 1;
    unsigned infinity = 0x7fffu >> fraction_bits << fraction_bits;
    if (isnan(value))
        return (uint16_t)(infinity | 1u << (fraction_bits - 1));
    unsigned sign = signbit(value) ? 0x8000u : 0;
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    long double magnitude = fabsl(value);
    int unit = magnitude > 0 ? ilogbl(magnitude) + 1 - format->digits : format->min_exponent;
    if (unit < format->min_exponent)
        unit = format->min_exponent;
    long double units = rintl(ldexpl(magnitude, -unit));
    if (ldexpl(units, unit) > format->max)
        return (uint16_t)(sign | infinity);
    /* Counted in units, a number's bits follow one another across exponents. */
    return (uint16_t)(sign | (((unsigned)(unit - format->min_exponent) << fraction_bits) + (unsigned)units));
}

static long double read_float(gw_type_t type, const void *p, size_t i) {
    switch (type) {
    case GW_F64:
        return ((const double *)p)[i];
    case GW_F16:
        return decode_16(((const uint16_t *)p)[i], 10);
    case GW_BF16:
        return decode_16(((const uint16_t *)p)[i], 7);
    default:
        return ((const float *)p)[i];
    }
}

static void write_float(gw_type_t type, void *p, size_t i, long double value) {
    static const uint32_t nan_32 = 0x7fc00000;
    static const uint64_t nan_64 = UINT64_C(0x7ff8000000000000);
    if (type == GW_F16 || type == GW_BF16) {
        ((uint16_t *)p)[i] = encode_16(value, format_of(type));
    } else if (type == GW_F64) {
        ((double *)p)[i] = (double)value;
        if (isnan(value))
            memcpy((double *)p + i, &nan_64, sizeof(nan_64));
    } else {
        ((float *)p)[i] = (float)value;
        if (isnan(value))
            memcpy((float *)p + i, &nan_32, sizeof(nan_32));
    }
}

/* The rounding of b->value to a format: what it can add to the error. The second term is for long double's own. */
static void add_rounding(gw_bounded_t *b, const gw_format_t *format, bool may_underflow) {
    if (!isfinite(b->value))
        return;
    long double magnitude = fabsl(b->value) + b->error;
    b->error += ldexpl(magnitude, -format->digits) + ldexpl(magnitude, 1 - LDBL_MANT_DIG);
    if (may_underflow)
        b->error += ldexpl(1, format->min_exponent - 1);
    if (!(fabsl(b->value) + b->error <= format->max))
        b->unknown = true;
}

static long double lesser(long double a, long double b) {
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return signbit(a) ? a : b;
    return a < b ? a : b;
}

static void combine_float(gw_bounded_t *b, gw_redop_t op, long double x, const gw_format_t *accumulator) {
    switch (op) {
    case GW_SUM:
    case GW_AVG:
        b->value += x;
        add_rounding(b, accumulator, false);
        break;
    case GW_PROD:
        if (isfinite(x))
            b->error *= fabsl(x);
        else if (b->error > 0 && fabsl(b->value) <= b->error)
            b->unknown = true; /* Inf times what may have become 0 */
        b->value *= x;
        add_rounding(b, accumulator, true);
        break;
    case GW_MIN:
        b->value = lesser(b->value, x);
        break;
    case GW_MAX:
        b->value = -lesser(-b->value, -x);
        break;
    }
}

static double reference_float(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out,
                              size_t i) {
    const gw_format_t *format = format_of(type);
    const gw_format_t *accumulator = type == GW_F64 ? &binary64 : &binary32;
    gw_bounded_t b = {.value = read_float(type, in[0], i)};
    for (unsigned r = 1; r < n_in; r++)
        combine_float(&b, op, read_float(type, in[r], i), accumulator);
    if (op == GW_AVG) {
        b.value /= n_in;
        b.error /= n_in;
        add_rounding(&b, accumulator, true);
    }
    write_float(type, out, i, b.value);
    if (op == GW_MIN || op == GW_MAX)
        return 0;
    /* Once for the rounding of the kernels, once for that of `out`. */
    if (format != accumulator)
        add_rounding(&b, format, true);
    add_rounding(&b, format, true);
    if (b.unknown || b.error > DBL_MAX)
        return INFINITY;
    return isfinite(b.value) ? nextafter((double)b.error, INFINITY) : 0;
}

static gw_int128_t read_integer(gw_type_t type, const void *p, size_t i) {
    switch (type) {
    case GW_I8:
        return ((const int8_t *)p)[i];
    case GW_U8:
        return ((const uint8_t *)p)[i];
    case GW_I32:
        return ((const int32_t *)p)[i];
    default:
        return ((const int64_t *)p)[i];
    }
}

static void write_integer(gw_type_t type, void *p, size_t i, uint64_t bits) {
    switch (type) {
    case GW_I8:
    case GW_U8:
        ((uint8_t *)p)[i] = (uint8_t)bits;
        return;
    case GW_I32:
        ((uint32_t *)p)[i] = (uint32_t)bits;
        return;
    default:
        ((uint64_t *)p)[i] = bits;
        return;
    }
}

/* Floor, then up if past the half, or at the half and odd. */
static gw_int128_t divide_half_even(gw_int128_t sum, gw_int128_t n) {
    gw_int128_t floor_quotient = sum / n - (sum % n < 0);
    gw_int128_t twice_rest = 2 * (sum - floor_quotient * n);
    return floor_quotient + (twice_rest > n || (twice_rest == n && floor_quotient % 2 != 0));
}

static void reference_integer(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out,
                              size_t i) {
    gw_int128_t value = read_integer(type, in[0], i);
    for (unsigned r = 1; r < n_in; r++) {
        gw_int128_t x = read_integer(type, in[r], i);
        switch (op) {
        case GW_SUM:
        case GW_AVG:
            value += x;
            break;
        case GW_PROD:
            value = (gw_int128_t)((uint64_t)value * (uint64_t)x);
            break;
        case GW_MIN:
            value = x < value ? x : value;
            break;
        case GW_MAX:
            value = x > value ? x : value;
            break;
        }
    }
    if (op == GW_AVG)
        value = divide_half_even(value, n_in);
    write_integer(type, out, i, (uint64_t)value);
}

static void copy_element(gw_type_t type, const void *in, void *out, size_t i) {
    static const size_t bytes[] = {
        [GW_F32] = 4, [GW_F64] = 8, [GW_F16] = 2, [GW_BF16] = 2, [GW_I8] = 1, [GW_U8] = 1, [GW_I32] = 4, [GW_I64] = 8,
    };
    memmove((char *)out + i * bytes[type], (const char *)in + i * bytes[type], bytes[type]);
}

void gw_kernel_reference(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out,
                         double *error_bound_out, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double error_bound = 0;
        if (n_in == 1)
            copy_element(type, in[0], out, i);
        else if (type >= GW_I8)
            reference_integer(type, op, in, n_in, out, i);
        else
            error_bound = reference_float(type, op, in, n_in, out, i);
        if (error_bound_out)
            error_bound_out[i] = error_bound;
    }
}
