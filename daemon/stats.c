/* stats.c - what the daemon counts: adding up, and JSON */
#include "stats.h"

#include <stdbool.h>

static uint64_t load(const _Atomic uint64_t *stat) {
    return atomic_load_explicit(stat, memory_order_relaxed);
}

static void sum_counter(_Atomic uint64_t *sum, const _Atomic uint64_t *stat) {
    gwd_stats_add(sum, load(stat));
}

static void sum_histogram(gwd_histogram_t *sum, const gwd_histogram_t *histogram) {
    gwd_stats_add(&sum->count, load(&histogram->count));
    gwd_stats_add(&sum->sum, load(&histogram->sum));
    for (int i = 0; i < GWD_STATS_BUCKETS; i++)
        gwd_stats_add(&sum->buckets[i], load(&histogram->buckets[i]));
}

void gwd_stats_sum(gwd_stats_t *sum, const gwd_stats_t *stats) {
#define sum_gauge                        sum_counter
#define GWD_STAT(name, kind, unit, help) sum_##kind(&sum->name, &stats->name);
#include "stats.def"
#undef GWD_STAT
#undef sum_gauge
}

double gwd_histogram_quantile(const gwd_histogram_t *histogram, double fraction) {
    /* The buckets are counted, not `count` asked: the two may be a value apart while a thread writes. */
    uint64_t count = 0;
    for (int i = 0; i < GWD_STATS_BUCKETS; i++)
        count += load(&histogram->buckets[i]);
    double target = fraction * (double)count;
    double below = 0;
    for (int i = 0; i < GWD_STATS_BUCKETS; i++) {
        double here = (double)load(&histogram->buckets[i]);
        if (here > 0 && below + here >= target) {
            double low = i == 0 ? 0 : (double)(UINT64_C(1) << i);
            double high = (double)(UINT64_C(2) << i);
            return low + (high - low) * (target - below) / here;
        }
        below += here;
    }
    return 0;
}

static cJSON *add_stat(cJSON *array, const char *name, const char *kind, const char *unit, const char *help) {
    cJSON *item = cJSON_CreateObject();
    if (item == NULL || !cJSON_AddItemToArray(array, item)) {
        cJSON_Delete(item);
        return NULL;
    }
    bool good =
        cJSON_AddStringToObject(item, "name", name) != NULL && cJSON_AddStringToObject(item, "kind", kind) != NULL &&
        cJSON_AddStringToObject(item, "unit", unit) != NULL && cJSON_AddStringToObject(item, "help", help) != NULL;
    return good ? item : NULL;
}

static bool fill_counter(cJSON *item, const _Atomic uint64_t *stat) {
    return cJSON_AddNumberToObject(item, "value", (double)load(stat)) != NULL;
}

static bool fill_gauge(cJSON *item, const _Atomic uint64_t *stat) {
    return cJSON_AddNumberToObject(item, "value", (double)(int64_t)load(stat)) != NULL;
}

static bool fill_histogram(cJSON *item, const gwd_histogram_t *histogram) {
    cJSON *buckets = NULL;
    if (cJSON_AddNumberToObject(item, "count", (double)load(&histogram->count)) == NULL ||
        cJSON_AddNumberToObject(item, "sum", (double)load(&histogram->sum)) == NULL ||
        cJSON_AddNumberToObject(item, "p50", gwd_histogram_quantile(histogram, 0.50)) == NULL ||
        cJSON_AddNumberToObject(item, "p99", gwd_histogram_quantile(histogram, 0.99)) == NULL ||
        (buckets = cJSON_AddArrayToObject(item, "buckets")) == NULL)
        return false;
    int used = GWD_STATS_BUCKETS;
    while (used > 0 && load(&histogram->buckets[used - 1]) == 0)
        used--;
    for (int i = 0; i < used; i++) {
        cJSON *number = cJSON_CreateNumber((double)load(&histogram->buckets[i]));
        if (number == NULL || !cJSON_AddItemToArray(buckets, number)) {
            cJSON_Delete(number);
            return false;
        }
    }
    return true;
}

cJSON *gwd_stats_json(const gwd_stats_t *sum) {
    cJSON *array = cJSON_CreateArray();
    bool good = array != NULL;
    cJSON *item = NULL;
#define GWD_STAT(name, kind, unit, help)                                                                               \
    good = good && (item = add_stat(array, #name, #kind, unit, help)) != NULL && fill_##kind(item, &sum->name);
#include "stats.def"
#undef GWD_STAT
    if (good)
        return array;
    cJSON_Delete(array);
    return NULL;
}
