/* seconds.h - what the benches of one core measure with: a clock, and the median of a few times */
#ifndef BENCH_SECONDS_H
#define BENCH_SECONDS_H

#include <stdlib.h>
#include <time.h>

static inline double bench_now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int bench_by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts them. */
static inline double bench_median(double *seconds, size_t n) {
    qsort(seconds, n, sizeof(seconds[0]), bench_by_value);
    return seconds[n / 2];
}

#endif
