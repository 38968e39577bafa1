/* times.c - how long a step took on the GPUs, and what the daemon took meanwhile. See run.h. */
#include "run.h"

#include <stdlib.h>

enum { SAMPLES = ROUNDS * (ROUND_STEPS - WARM_UP_STEPS) };

int64_t daemon_cpu_ns(const struct run *run) {
    clockid_t clock;
    struct timespec t;
    if (!run->daemon_pid || clock_getcpuclockid(run->daemon_pid, &clock) || clock_gettime(clock, &t))
        return 0;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *value) {
    qsort(value, SAMPLES, sizeof *value, compare);
    return value[SAMPLES / 2];
}

/* The mean over ranks of a part of a step. */
static double mean_ms(const struct run *run, int round, enum mode mode, int step, int part) {
    double sum = 0.0;
    for (int r = 0; r < run->ranks; r++)
        sum += (double)run->results->part_ms[r][round][mode][step][part];
    return sum / run->ranks;
}

void times_of(const struct run *run, enum mode mode, struct times *times_out) {
    double part[PARTS][SAMPLES], whole[SAMPLES];
    int n = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int s = WARM_UP_STEPS; s < ROUND_STEPS; s++, n++) {
            whole[n] = 0.0;
            for (int p = 0; p < PARTS; p++)
                whole[n] += part[p][n] = mean_ms(run, round, mode, s, p);
        }
    for (int p = 0; p < PARTS; p++)
        times_out->part[p] = median(part[p]);
    times_out->step = median(whole);
}
