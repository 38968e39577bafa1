/* test_stats.c - counting, adding up over threads, quantiles, JSON */
#include "stats.h"

#include <pthread.h>
#include <string.h>

#include "cunit_main.h"

static const cJSON *find(const cJSON *array, const char *name) {
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        const char *its = cJSON_GetStringValue(cJSON_GetObjectItem(item, "name"));
        if (its != NULL && strcmp(its, name) == 0)
            return item;
    }
    return NULL;
}

static double number(const cJSON *item, const char *field) {
    return cJSON_GetNumberValue(cJSON_GetObjectItem(item, field));
}

static void threads_are_added_up(void) {
    static gwd_stats_t lane, loop, sum;
    gwd_stats_add(&lane.ops_completed, 3);
    gwd_stats_add(&lane.ops_completed, 1);
    gwd_stats_add(&loop.ops_completed, 10);
    gwd_stats_add(&loop.ops_in_flight, 5);
    gwd_stats_subtract(&lane.ops_in_flight, 7); /* opened by one thread, closed by the other */
    gwd_stats_observe(&lane.submit_to_done_ns, 100);
    gwd_stats_observe(&loop.submit_to_done_ns, 200);
    gwd_stats_sum(&sum, &lane);
    gwd_stats_sum(&sum, &loop);
    CU_ASSERT_EQUAL(sum.ops_completed, 14);
    CU_ASSERT_EQUAL((int64_t)sum.ops_in_flight, -2);
    CU_ASSERT_EQUAL(sum.submit_to_done_ns.count, 2);
    CU_ASSERT_EQUAL(sum.submit_to_done_ns.sum, 300);
    CU_ASSERT_EQUAL(sum.submit_to_done_ns.buckets[6], 1);
    CU_ASSERT_EQUAL(sum.submit_to_done_ns.buckets[7], 1);
    CU_ASSERT_EQUAL(lane.ops_completed, 4);
    CU_ASSERT_EQUAL(sum.groups_made, 0);
}

static void values_find_their_buckets(void) {
    static gwd_histogram_t histogram;
    static const struct {
        uint64_t value;
        int bucket;
    } rows[] = {{0, 0},
                {1, 0},
                {2, 1},
                {3, 1},
                {4, 2},
                {1023, 9},
                {1024, 10},
                {UINT64_C(1) << 38, 38},
                {(UINT64_C(1) << 40) - 1, 39},
                {UINT64_C(1) << 40, 39},
                {UINT64_MAX / 2, 39}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t before = histogram.buckets[rows[i].bucket];
        gwd_stats_observe(&histogram, rows[i].value);
        CU_ASSERT_EQUAL(histogram.buckets[rows[i].bucket], before + 1);
        CU_ASSERT_EQUAL(histogram.count, i + 1);
    }
}

static void quantiles_lie_in_the_right_bucket(void) {
    static gwd_histogram_t histogram;
    CU_ASSERT_EQUAL(gwd_histogram_quantile(&histogram, 0.5), 0);
    for (int i = 0; i < 98; i++)
        gwd_stats_observe(&histogram, 1500);
    gwd_stats_observe(&histogram, 1000000);
    gwd_stats_observe(&histogram, 1000000);
    double p50 = gwd_histogram_quantile(&histogram, 0.50);
    double p99 = gwd_histogram_quantile(&histogram, 0.99);
    double all = gwd_histogram_quantile(&histogram, 1.0);
    CU_ASSERT(p50 >= 1024 && p50 < 2048);
    CU_ASSERT(p99 >= 524288 && p99 < 1048576);
    CU_ASSERT(all > p99 && all <= 1048576);
}

static void json_has_every_statistic_with_its_words(void) {
    static gwd_stats_t sum;
    int listed = 0;
    gwd_stats_add(&sum.bytes_reduced, UINT64_C(1) << 50);
    gwd_stats_subtract(&sum.ops_in_flight, 1);
    gwd_stats_observe(&sum.submit_to_matched_ns, 5);
    cJSON *array = gwd_stats_json(&sum);
    CU_ASSERT_PTR_NOT_NULL_FATAL(array);
#define GWD_STAT(stat, stat_kind, stat_unit, stat_help)                                                                \
    {                                                                                                                  \
        const cJSON *item = cJSON_GetArrayItem(array, listed++);                                                       \
        CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "name")), #stat);                        \
        CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "kind")), #stat_kind);                   \
        CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "unit")), stat_unit);                    \
        CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "help")), stat_help);                    \
    }
#include "stats.def"
#undef GWD_STAT
    CU_ASSERT_EQUAL(cJSON_GetArraySize(array), listed);
    CU_ASSERT_EQUAL(number(find(array, "bytes_reduced"), "value"), (double)(UINT64_C(1) << 50));
    CU_ASSERT_EQUAL(number(find(array, "ops_in_flight"), "value"), -1);
    const cJSON *histogram = find(array, "submit_to_matched_ns");
    CU_ASSERT_EQUAL(number(histogram, "count"), 1);
    CU_ASSERT_EQUAL(number(histogram, "sum"), 5);
    CU_ASSERT_EQUAL(cJSON_GetArraySize(cJSON_GetObjectItem(histogram, "buckets")), 3);
    CU_ASSERT_EQUAL(cJSON_GetArraySize(cJSON_GetObjectItem(find(array, "submit_to_done_ns"), "buckets")), 0);
    cJSON_Delete(array);
}

static void *count_many(void *context) {
    gwd_stats_t *stats = context;
    for (int i = 0; i < 100000; i++) {
        gwd_stats_add(&stats->lane_wakeups, 1);
        gwd_stats_observe(&stats->submit_to_done_ns, (uint64_t)i);
    }
    return NULL;
}

/* The reader never sees a value go back, and misses none in the end. */
static void reading_while_counting_is_safe(void) {
    static gwd_stats_t lane;
    pthread_t thread;
    uint64_t last = 0;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, count_many, &lane), 0);
    for (int i = 0; i < 200; i++) {
        static gwd_stats_t sum;
        memset(&sum, 0, sizeof(sum));
        gwd_stats_sum(&sum, &lane);
        CU_ASSERT(sum.lane_wakeups >= last);
        last = sum.lane_wakeups;
    }
    pthread_join(thread, NULL);
    CU_ASSERT_EQUAL(lane.lane_wakeups, 100000);
    CU_ASSERT_EQUAL(lane.submit_to_done_ns.count, 100000);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"threads are added up", threads_are_added_up},
        {"values find their buckets", values_find_their_buckets},
        {"quantiles lie in the right bucket", quantiles_lie_in_the_right_bucket},
        {"json has every statistic with its words", json_has_every_statistic_with_its_words},
        {"reading while counting is safe", reading_while_counting_is_safe},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("stats", tests);
}
