/* stats.h - what the daemon counts
 *
 * stats.def is the one list. Each thread that counts has a gwd_stats_t of its own, which only it writes, with plain
 * loads and stores that are atomic but lock nothing; whoever asks adds them up. Always compiled in.
 */
#ifndef GWD_STATS_H
#define GWD_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include <cjson/cJSON.h>

/* Bucket i holds values from 2^i up to 2^(i+1) - 1 ns, the first also 0, the last all above (9 minutes). */
#define GWD_STATS_BUCKETS 40

typedef struct gwd_histogram {
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
    _Atomic uint64_t buckets[GWD_STATS_BUCKETS];
} gwd_histogram_t;

typedef struct gwd_stats {
#define GWD_STAT_counter(name)           _Atomic uint64_t name;
#define GWD_STAT_gauge(name)             _Atomic uint64_t name;
#define GWD_STAT_histogram(name)         gwd_histogram_t name;
#define GWD_STAT(name, kind, unit, help) GWD_STAT_##kind(name)
#include "stats.def"
#undef GWD_STAT
} gwd_stats_t;

/* Adds to a counter or gauge. Thread: the owner of the gwd_stats_t. */
static inline void gwd_stats_add(_Atomic uint64_t *stat, uint64_t amount) {
    atomic_store_explicit(stat, atomic_load_explicit(stat, memory_order_relaxed) + amount, memory_order_relaxed);
}

/* Subtracts from a gauge, which may pass below 0 here if another thread counts it up. Thread: the owner. */
static inline void gwd_stats_subtract(_Atomic uint64_t *stat, uint64_t amount) {
    gwd_stats_add(stat, UINT64_C(0) - amount);
}

/* Enters one value into a histogram. Thread: the owner. */
static inline void gwd_stats_observe(gwd_histogram_t *histogram, uint64_t value) {
    int place = 63 - __builtin_clzll(value | 1);
    gwd_stats_add(&histogram->buckets[place < GWD_STATS_BUCKETS ? place : GWD_STATS_BUCKETS - 1], 1);
    gwd_stats_add(&histogram->sum, value);
    gwd_stats_add(&histogram->count, 1);
}

/* Adds `stats` to `sum`, which belongs to the caller. Thread: any; values that are being written are seen before
 * or after. */
void gwd_stats_sum(gwd_stats_t *sum, const gwd_stats_t *stats);

/* The value below which `fraction` of the values lie, interpolated inside its bucket; 0 when there are none. */
double gwd_histogram_quantile(const gwd_histogram_t *histogram, double fraction);

/* An array, in the order of stats.def, of {"name", "kind", "unit", "help"} and
 *   counter, gauge  "value"
 *   histogram       "count", "sum", "p50", "p99", and "buckets": the count of each bucket; empty ones at the end
 *                   are left out
 * NULL when out of memory. */
cJSON *gwd_stats_json(const gwd_stats_t *sum);

#endif
