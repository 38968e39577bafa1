/* average.c - GW_AVG of integers: the exact sum, divided and rounded half to even
 *
 * Sums of types up to 32 bits are held in binary64, which is exact up to 2^21 ranks and divides fast; those of
 * 64 bits in 128-bit integers. Block by block, all inputs before any output, since an output may be an input.
 */
#include <string.h>

#include "host/isa.h"

enum { GW_BLOCK_ELEMENTS = 512 };

static void add_block(gw_type_t type, double *sum, const void *in, size_t at, size_t count) {
    if (type == GW_I8)
        for (size_t i = 0; i < count; i++)
            sum[i] += ((const int8_t *)in)[at + i];
    else if (type == GW_U8)
        for (size_t i = 0; i < count; i++)
            sum[i] += ((const uint8_t *)in)[at + i];
    else
        for (size_t i = 0; i < count; i++)
            sum[i] += ((const int32_t *)in)[at + i];
}

/* Adding 1.5 * 2^52 leaves no bits below 1, and rounds half to even. The quotient itself was rounded, but not
 * across or onto a half: halves are binary64 numbers, and another quotient is at least 2^-22 away from one,
 * which is a whole unit of the largest quotient's last place. */
static void divide_block(double *sum, double n, size_t count) {
    for (size_t i = 0; i < count; i++)
        sum[i] = sum[i] / n + 0x1.8p52 - 0x1.8p52;
}

static void store_block(gw_type_t type, const double *value, void *out, size_t at, size_t count) {
    if (type == GW_I8)
        for (size_t i = 0; i < count; i++)
            ((int8_t *)out)[at + i] = (int8_t)value[i];
    else if (type == GW_U8)
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)out)[at + i] = (uint8_t)value[i];
    else
        for (size_t i = 0; i < count; i++)
            ((int32_t *)out)[at + i] = (int32_t)value[i];
}

static void average_small_block(gw_type_t type, const gw_kernel_job_t *job, size_t at, size_t count) {
    double sum[GW_BLOCK_ELEMENTS] = {0};
    for (unsigned r = 0; r < job->n_in; r++)
        add_block(type, sum, job->in[r], at, count);
    divide_block(sum, job->n_in, count);
    for (unsigned j = 0; j < job->n_out; j++)
        store_block(type, sum, job->out[j], at, count);
}

int64_t gw_kernel_half_even(gw_int128_t sum, int64_t n) {
    gw_int128_t quotient = sum / n;
    int64_t twice = 2 * (int64_t)(sum % n);
    if (twice > n || (twice == n && quotient % 2 != 0))
        quotient++;
    if (twice < -n || (twice == -n && quotient % 2 != 0))
        quotient--;
    return (int64_t)quotient;
}

static void average_i64_block(const gw_kernel_job_t *job, size_t at, size_t count) {
    gw_int128_t sum[GW_BLOCK_ELEMENTS] = {0};
    for (unsigned r = 0; r < job->n_in; r++)
        for (size_t i = 0; i < count; i++)
            sum[i] += ((const int64_t *)job->in[r])[at + i];
    int64_t average[GW_BLOCK_ELEMENTS];
    for (size_t i = 0; i < count; i++)
        average[i] = gw_kernel_half_even(sum[i], job->n_in);
    for (unsigned j = 0; j < job->n_out; j++)
        memcpy((int64_t *)job->out[j] + at, average, count * sizeof(average[0]));
}

void gw_kernel_average_integers(gw_type_t type, const gw_kernel_job_t *job) {
    for (size_t at = 0; at < job->count; at += GW_BLOCK_ELEMENTS) {
        size_t count = job->count - at < GW_BLOCK_ELEMENTS ? job->count - at : GW_BLOCK_ELEMENTS;
        if (type == GW_I64)
            average_i64_block(job, at, count);
        else
            average_small_block(type, job, at, count);
    }
}
