/* average.c - GW_AVG of integers: the exact sum, divided and rounded half to even
 *
 * Sums are held in 64 bits for types up to 32 bits and in 128 bits for 64: exact for any number of ranks.
 * Block by block, all inputs before any output, since an output may be an input.
 */
#include <string.h>

#include "host/isa.h"

__extension__ typedef __int128 gw_int128_t;

enum { GW_BLOCK_ELEMENTS = 512 };

static int64_t half_even_i64(int64_t sum, int64_t n) {
    int64_t quotient = sum / n;
    int64_t twice = 2 * (sum % n);
    if (twice > n || (twice == n && quotient % 2 != 0))
        return quotient + 1;
    if (twice < -n || (twice == -n && quotient % 2 != 0))
        return quotient - 1;
    return quotient;
}

static int64_t half_even_i128(gw_int128_t sum, int64_t n) {
    gw_int128_t quotient = sum / n;
    int64_t twice = 2 * (int64_t)(sum % n);
    if (twice > n || (twice == n && quotient % 2 != 0))
        quotient++;
    if (twice < -n || (twice == -n && quotient % 2 != 0))
        quotient--;
    return (int64_t)quotient;
}

static void add_block(gw_type_t type, int64_t *sum, const void *in, size_t at, size_t count) {
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

static void store_block(gw_type_t type, const int64_t *value, void *out, size_t at, size_t count) {
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
    int64_t sum[GW_BLOCK_ELEMENTS] = {0};
    for (unsigned r = 0; r < job->n_in; r++)
        add_block(type, sum, job->in[r], at, count);
    for (size_t i = 0; i < count; i++)
        sum[i] = half_even_i64(sum[i], job->n_in);
    for (unsigned j = 0; j < job->n_out; j++)
        store_block(type, sum, job->out[j], at, count);
}

static void average_i64_block(const gw_kernel_job_t *job, size_t at, size_t count) {
    gw_int128_t sum[GW_BLOCK_ELEMENTS] = {0};
    for (unsigned r = 0; r < job->n_in; r++)
        for (size_t i = 0; i < count; i++)
            sum[i] += ((const int64_t *)job->in[r])[at + i];
    int64_t average[GW_BLOCK_ELEMENTS];
    for (size_t i = 0; i < count; i++)
        average[i] = half_even_i128(sum[i], job->n_in);
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
