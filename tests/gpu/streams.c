/* streams.c - submitting and waiting on streams: what comes before what; see pair.h
 *
 * Both paths are tested: small buckets, whose streams copy them, and large ones, which the daemon reads and writes
 * itself if it can.
 */
#include "pair.h"

#include <pthread.h>
#include <stdio.h>

enum { ROUNDS = 1100, BUCKETS = 16 }; /* more rounds than the tests have credits */

/* As pair_for_both, where the test ends the group. */
static void for_both_groups(void (*test)(pair_bucket_t *b)) {
    for (int i = 0; i < 2; i++) {
        pair_begin();
        pair_bucket_t b = pair_make(DEVMEM_MALLOC, pair_counts[i], 0);
        test(&b);
        pair_meet();
        pair_drop(&b);
        pair_leave();
    }
}

static void cross(pair_bucket_t *b) {
    CUevent filled;

    MUST(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
    pair_fill(b, 21, stream);
    OK(cuEventRecord(filled, stream));
    OK(cuStreamWaitEvent(other, filled, CU_EVENT_WAIT_DEFAULT));
    gw_op_t op = pair_submit(b, other);
    GOOD(gw_stream_wait(group, op, other)); /* two streams wait for one operation */
    GOOD(gw_stream_wait(group, op, stream));
    CU_ASSERT_EQUAL(pair_wrong(b, 43, stream), 0);
    CU_ASSERT_EQUAL(pair_wrong(b, 43, other), 0);
    OK(cuEventDestroy(filled));
}

static void produced_on_one_stream_and_reduced_on_another(void) {
    pair_for_both(cross);
}

static void vanish(pair_bucket_t *b) {
    CUstream short_lived;

    for (int round = 0; round < 20; round++) {
        MUST(cuStreamCreate(&short_lived, CU_STREAM_NON_BLOCKING));
        pair_fill(b, round, short_lived);
        gw_op_t op = pair_submit(b, short_lived);
        OK(cuStreamDestroy(short_lived));
        GOOD(gw_stream_wait(group, op, stream));
        CU_ASSERT_EQUAL(pair_wrong(b, 2 * round + 1, stream), 0);
    }
}

static void a_stream_is_destroyed_right_after_submit(void) {
    pair_for_both(vanish);
}

static void defaults(pair_bucket_t *b) {
    const CUstream streams[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

    for (int i = 0; i < 3; i++) {
        pair_fill(b, 30 + i, streams[i]);
        gw_op_t op = pair_submit(b, streams[i]);
        GOOD(gw_stream_wait(group, op, streams[i]));
        CU_ASSERT_EQUAL(pair_wrong(b, 61 + 2 * i, streams[i]), 0);
    }
}

/* What one stream waits for before its bucket is ready is of no matter to another. Streams of the device that share a
 * queue do hold each other up, so with one queue nothing is shown. */
static void gated(pair_bucket_t *b) {
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    pair_bucket_t later = pair_make(DEVMEM_MALLOC, b->count, 0);
    uint32_t *gate;

    MUST(cuMemHostAlloc((void **)&gate, sizeof(*gate), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    pair_fill(b, 10, stream);
    pair_fill(&later, 20, other);
    OK(cuStreamSynchronize(other));
    OK(cuStreamWaitValue32(stream, pair_address(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
    gw_op_t op = pair_submit(b, stream), later_op = pair_submit(&later, other);
    if (queues == NULL || strcmp(queues, "1") != 0)
        GOOD(gw_wait(group, later_op, INT64_C(10000000000)));
    CU_ASSERT_EQUAL(gw_test(group, op), GW_IN_PROGRESS);
    pair_meet();
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
    GOOD(gw_wait(group, later_op, GW_NO_TIMEOUT));
    CU_ASSERT_EQUAL(pair_wrong(b, 21, stream), 0);
    CU_ASSERT_EQUAL(pair_wrong(&later, 41, other), 0);
    pair_drop(&later);
    OK(cuMemFreeHost(gate));
}

static void a_stream_that_waits_holds_up_no_other(void) {
    pair_for_both(gated);
}

/* More streams at once than the library keeps a follower for. */
static void stream_by_stream(pair_bucket_t *b) {
    enum { STREAMS = 24 };
    CUstream many[STREAMS];

    for (int i = 0; i < STREAMS; i++)
        MUST(cuStreamCreate(&many[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2 * STREAMS; i++) {
        CUstream on = many[i % STREAMS];
        pair_fill(b, i, on);
        gw_op_t op = pair_submit(b, on);
        GOOD(gw_stream_wait(group, op, on));
        CU_ASSERT_EQUAL(pair_wrong(b, 2 * i + 1, on), 0);
    }
    for (int i = 0; i < STREAMS; i++)
        OK(cuStreamDestroy(many[i]));
}

static void many_streams(void) {
    pair_for_both(stream_by_stream);
}

static void the_default_streams(void) {
    pair_for_both(defaults);
}

static void several_buckets_are_in_flight(void) {
    pair_bucket_t b[BUCKETS];
    gw_op_t op[BUCKETS];

    pair_begin();
    for (int i = 0; i < BUCKETS; i++)
        b[i] = pair_make(DEVMEM_MALLOC, pair_counts[i % 2] + (uint64_t)i, 0);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < BUCKETS; i++) {
            pair_fill(&b[i], 100 * round + i, stream);
            op[i] = pair_submit(&b[i], stream);
        }
        for (int i = 0; i < BUCKETS; i++)
            GOOD(gw_stream_wait(group, op[i], stream));
        for (int i = 0; i < BUCKETS; i++)
            CU_ASSERT_EQUAL(pair_wrong(&b[i], 200 * round + 2 * i + 1, stream), 0);
    }
    for (int i = 0; i < BUCKETS; i++)
        pair_drop(&b[i]);
    pair_end();
}

/* The CPU never waits for the device: results are collected on the way, and looked at when all is over. */
static void resubmit(pair_bucket_t *b) {
    int32_t *seen[2]; /* the first and the last element of each round */
    unsigned wrong = 0;
    CUevent event;

    for (int k = 0; k < 2; k++)
        MUST(cuMemHostAlloc((void **)&seen[k], ROUNDS * 4, CU_MEMHOSTALLOC_PORTABLE));
    for (int round = 0; round < ROUNDS; round++) {
        pair_fill(b, round, stream);
        gw_op_t op = pair_submit(b, stream);
        GOOD(gw_stream_wait(group, op, stream));
        OK(cuMemcpyDtoHAsync(&seen[0][round], pair_address(b->at), 4, stream));
        OK(cuMemcpyDtoHAsync(&seen[1][round], pair_address(b->at + b->count - 1), 4, stream));
    }
    OK(cuStreamSynchronize(stream));
    for (int round = 0; round < ROUNDS; round++)
        wrong += seen[0][round] != 2 * round + 1 || seen[1][round] != 2 * round + 1;
    for (int k = 0; k < 2; k++)
        OK(cuMemFreeHost(seen[k]));
    CU_ASSERT_EQUAL(wrong, 0);
    GOOD(gw_stream_wait(group, 1, stream)); /* ended long ago */
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU_ASSERT_EQUAL(gw_event_record(group, 1, event), GW_ERR_NOT_FOUND);
    OK(cuEventDestroy(event));
}

static void submitted_again_and_again_without_a_host_wait(void) {
    pair_for_both(resubmit);
}

static void wait_on_host(pair_bucket_t *b) {
    for (int round = 0; round < 50; round++) {
        pair_fill(b, round, stream);
        gw_op_t op = pair_submit(b, stream);
        if (round % 2 == 0) {
            GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
        }
        while (gw_test(group, op) == GW_IN_PROGRESS)
            ;
        GOOD(gw_test(group, op));
        CU_ASSERT_EQUAL(pair_wrong(b, 2 * round + 1, other), 0); /* of a stream that has waited for nothing */
    }
}

static void gw_wait_and_gw_test_see_the_result(void) {
    pair_for_both(wait_on_host);
}

static void not_awaited(pair_bucket_t *b) {
    gw_op_t op, again;

    if (rank == 1)
        pair_meet();
    op = pair_submit(b, stream);
    if (rank == 0) {
        CU_ASSERT_EQUAL(gw_submit(b->bucket, stream, &again), GW_ERR_BUSY);
        CU_ASSERT_EQUAL(gw_test(group, op), GW_IN_PROGRESS);
        CU_ASSERT_EQUAL(gw_wait(group, op, 1000000), GW_ERR_TIMEOUT);
        CU_ASSERT_EQUAL(gw_stream_wait(group, op + 1, stream), GW_ERR_NOT_FOUND);
        GOOD(gw_stream_wait(group, op, stream));
        CU_ASSERT_EQUAL(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        pair_meet();
        OK(cuStreamSynchronize(stream));
    }
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
}

static void a_bucket_in_flight_is_busy(void) {
    pair_for_both(not_awaited);
}

static void record(pair_bucket_t *b) {
    gw_bucket_t *ordinary = b->bucket;
    CUevent event;

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int priority = 0; priority < 2; priority++) {
        MUST_GOOD(pair_declare(b, priority));
        pair_fill(b, 50 + priority, stream);
        if (rank == 1)
            pair_meet();
        gw_op_t op = pair_submit(b, stream);
        GOOD(gw_event_record(group, op, event));
        if (rank == 0) {
            CU_ASSERT_EQUAL(cuEventQuery(event), CUDA_ERROR_NOT_READY);
            pair_meet();
            OK(cuEventSynchronize(event));
        }
        OK(cuStreamWaitEvent(other, event, CU_EVENT_WAIT_DEFAULT));
        CU_ASSERT_EQUAL(pair_wrong(b, 101 + 2 * priority, other), 0);
        GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
        GOOD(gw_event_record(group, op, event)); /* of an operation that is over */
        OK(cuEventSynchronize(event));
        GOOD(gw_bucket_free(b->bucket));
        b->bucket = ordinary;
    }
    OK(cuEventDestroy(event));
}

static void events_of_the_callers_own(void) {
    pair_for_both(record);
}

/* An event of an operation that goes on does not hold up what the CPU waits for. */
static void record_and_wait(pair_bucket_t *b) {
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    gw_group_t *first = group, *second;
    pair_bucket_t late = pair_make(DEVMEM_MALLOC, b->count, 0);
    CUevent event;
    gw_op_t op, late_op;

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST_GOOD(gw_group_split(first, 0, rank, &second));
    GOOD(gw_bucket_free(late.bucket));
    group = second;
    MUST_GOOD(pair_declare(&late, 0));
    pair_fill(&late, 60, stream);
    if (rank == 0) {
        late_op = pair_submit(&late, stream);
        GOOD(gw_event_record(group, late_op, event));
    }
    group = first;
    pair_fill(b, 40, stream);
    op = pair_submit(b, stream);
    if (queues == NULL || strcmp(queues, "1") != 0) /* with one queue it does, whatever we do */
        GOOD(gw_wait(group, op, INT64_C(10000000000)));
    pair_meet();
    group = second;
    if (rank == 1) {
        late_op = pair_submit(&late, stream);
        GOOD(gw_event_record(group, late_op, event));
    }
    OK(cuEventSynchronize(event));
    CU_ASSERT_EQUAL(pair_wrong(&late, 121, stream), 0);
    group = first;
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
    CU_ASSERT_EQUAL(pair_wrong(b, 81, stream), 0);
    pair_meet();
    gw_group_free(second);
    GOOD(gw_buffer_release(late.buffer));
    devmem_free(&late.memory);
    OK(cuEventDestroy(event));
}

static void an_event_holds_nobody_up(void) {
    pair_for_both(record_and_wait);
}

/* An operation that fails alone is over only when the stream has come past its input, which is in use until then. */
static void differ(pair_bucket_t *b) {
    gw_bucket_t *ordinary = b->bucket;
    uint32_t *gate;

    MUST(cuMemHostAlloc((void **)&gate, sizeof(*gate), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    if (rank == 1) {
        b->count--;
        MUST_GOOD(pair_declare(b, 0));
        b->count++;
    } else {
        OK(cuStreamWaitValue32(stream, pair_address(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    gw_op_t op = pair_submit(b, stream);
    pair_meet();
    if (rank == 0) {
        CU_ASSERT_EQUAL(gw_wait(group, op, 100000000), GW_ERR_TIMEOUT);
        CU_ASSERT_EQUAL(gw_submit(b->bucket, other, &op), GW_ERR_BUSY);
        __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    }
    CU_ASSERT_EQUAL(gw_wait(group, op, GW_NO_TIMEOUT), GW_ERR_MISMATCH);
    if (rank == 1)
        GOOD(gw_bucket_free(b->bucket));
    b->bucket = ordinary;
    pair_round(b, 5);
    CU_ASSERT_EQUAL(gw_group_check(group, NULL), GW_ERR_MISMATCH); /* it has failed once since */
    OK(cuMemFreeHost(gate));
}

static void a_failed_operation_is_over_when_its_stream_has_passed(void) {
    pair_for_both(differ);
}

/* All collectives in one call, on memory with room for both ranks' parts. */
static void joined(pair_bucket_t *b) {
    uint64_t half = b->count / 2;
    int32_t *mine = b->at + (uint64_t)rank * half;

    for (int round = 0; round < 100; round++) { /* the CPU is far ahead: the same bucket is in flight several times */
        pair_fill(b, round, stream);
        GOOD(gw_all_reduce(b->at, b->at, b->count, GW_I32, GW_SUM, group, stream));
    }
    CU_ASSERT_EQUAL(pair_wrong(b, 199, stream), 0);

    pair_fill(b, 7, stream); /* rank 0 has 7s, rank 1 has 8s */
    GOOD(gw_reduce_scatter(b->at, mine, half, GW_I32, GW_SUM, group, stream));
    GOOD(gw_all_gather(mine, b->at, half, GW_I32, group, stream));
    GOOD(gw_reduce(b->at, b->at, b->count, GW_I32, GW_MAX, 1, group, stream));
    CU_ASSERT_EQUAL(pair_wrong(b, 15, stream), 0);

    pair_fill(b, 90, stream);
    GOOD(gw_broadcast(rank == 1 ? b->at : NULL, b->at, b->count, GW_I32, 1, group, stream));
    CU_ASSERT_EQUAL(pair_wrong(b, 91, stream), 0);
    CU_ASSERT_EQUAL(gw_barrier(group, stream), GW_ERR_UNSUPPORTED);
    GOOD(gw_barrier(group, NULL));
}

static void collectives_in_one_call(void) {
    pair_for_both(joined);
}

/* More different calls than buckets are kept for: with enough credits all of these may be under way. */
static void more_collectives_than_are_kept(void) {
    const struct timespec pause = {.tv_nsec = 300000000};
    unsigned wrong = 0;

    pair_begin();
    pair_bucket_t b = pair_make(DEVMEM_MALLOC, SMALL, 0);
    if (rank == 1)
        nanosleep(&pause, NULL);
    for (int round = 0; round < 2; round++) {
        pair_fill(&b, round, stream);
        for (int i = 0; i < 300; i++)
            wrong += gw_all_reduce(b.at + i, b.at + i, 1, GW_I32, GW_SUM, group, stream) != GW_OK;
        for (int i = 300; i < SMALL; i += 100)
            wrong += gw_all_reduce(b.at + i, b.at + i, 100, GW_I32, GW_SUM, group, stream) != GW_OK;
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT_EQUAL(pair_wrong(&b, 2 * round + 1, stream), 0);
    }
    pair_end(); /* while the group lives, its buckets keep the buffer */
    devmem_free(&b.memory);
}

/* Results go to other memory than inputs come from. */
static void apart(pair_bucket_t *b) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    pair_bucket_t to = {.memory = devmem_alloc(DEVMEM_MALLOC, b->count * 4), .count = b->count};

    to.at = to.memory.at;
    MUST_GOOD(gw_buffer_register(context, to.at, to.count * 4, &to.buffer));
    desc.type = GW_I32;
    desc.count = b->count;
    desc.send = b->at;
    desc.recv = to.at;
    MUST_GOOD(gw_bucket_create(group, &desc, &to.bucket));
    pair_fill(b, 70, stream);
    gw_op_t op = pair_submit(&to, stream);
    GOOD(gw_stream_wait(group, op, stream));
    CU_ASSERT_EQUAL(pair_wrong(&to, 141, stream), 0);
    CU_ASSERT_EQUAL(pair_wrong(b, 70 + rank, stream), 0);
    pair_drop(&to);
}

static void input_and_result_apart(void) {
    pair_for_both(apart);
}

/* The group's status, once it has failed: soon. */
static gw_status_t failure(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    gw_status_t status = GW_OK;

    for (int ms = 0; ms < 2000 && status == GW_OK; ms++) {
        nanosleep(&pause, NULL);
        status = gw_group_check(group, NULL);
    }
    return status;
}

/* A group that ends while its streams wait sets them free, and waits until they have passed. */
static void abandon(pair_bucket_t *b) {
    gw_op_t op;

    if (rank == 0) {
        op = pair_submit(b, stream);
        GOOD(gw_stream_wait(group, op, stream));
        gw_group_free(group);
        group = NULL;
        b->bucket = NULL; /* it went with the group */
        OK(cuStreamSynchronize(stream));
        pair_meet();
        return;
    }
    pair_meet();
    gw_status_t status = gw_submit(b->bucket, stream, &op); /* before the daemon has seen it, perhaps */
    CU_ASSERT_NOT_EQUAL(failure(), GW_OK);
    CU_ASSERT(status == GW_OK || status == failure());
}

static void a_group_is_freed_while_streams_wait(void) {
    for_both_groups(abandon);
}

/* Failing sets streams free as well: that is the daemon's part. */
static void fail(pair_bucket_t *b) {
    gw_op_t op = 0;

    if (rank == 0) {
        op = pair_submit(b, stream);
        GOOD(gw_stream_wait(group, op, stream));
        pair_meet();
        OK(cuStreamSynchronize(stream));
        CU_ASSERT_EQUAL(failure(), GW_ERR_ABORTED);
        CU_ASSERT_EQUAL(gw_stream_wait(group, op, stream), GW_ERR_ABORTED);
        CU_ASSERT_EQUAL(gw_wait(group, op, GW_NO_TIMEOUT), GW_ERR_ABORTED);
    } else {
        pair_meet();
        GOOD(gw_group_abort(group, "a test"));
    }
    CU_ASSERT_EQUAL(failure(), GW_ERR_ABORTED);
    CU_ASSERT_EQUAL(gw_submit(b->bucket, stream, &op), GW_ERR_ABORTED);
}

static void a_group_is_aborted_while_streams_wait(void) {
    for_both_groups(fail);
}

/* The result of what has ended well can be had when the group has failed, by streams that did not wait before. */
static void ended_before(pair_bucket_t *b) {
    gw_report_t report = {.status = GW_OK};
    gw_op_t again;

    pair_fill(b, 70, stream);
    gw_op_t op = pair_submit(b, stream);
    while (report.last_completed < op && report.status == GW_OK)
        (void)gw_group_check(group, &report);
    pair_meet();
    if (rank == 1)
        GOOD(gw_group_abort(group, "enough"));
    while (gw_group_check(group, &report) == GW_OK)
        ;
    CU_ASSERT_EQUAL(report.last_completed, op);
    GOOD(gw_stream_wait(group, op, other));
    CU_ASSERT_EQUAL(pair_wrong(b, 141, other), 0);
    CU_ASSERT_EQUAL(gw_submit(b->bucket, stream, &again), GW_ERR_ABORTED);
    CU_ASSERT_EQUAL(gw_stream_wait(group, op + 1, other), GW_ERR_ABORTED);
}

static void what_ended_before_a_failure_can_be_had(void) {
    for_both_groups(ended_before);
}

/* One thread submits, and another waits for the same operations. */
typedef struct watcher {
    _Atomic uint64_t op;
    _Atomic bool over;
    unsigned wrong;
} watcher_t;

static void *watch(void *argument) {
    watcher_t *watcher = argument;

    devmem_enter();
    while (!atomic_load(&watcher->over)) {
        uint64_t op = atomic_load(&watcher->op);
        gw_status_t status = op > 0 ? gw_wait(group, op, GW_NO_TIMEOUT) : GW_OK;
        watcher->wrong += status != GW_OK; /* also when the first thread is far ahead */
    }
    return NULL;
}

static void two_threads(pair_bucket_t *b) {
    watcher_t watcher = {.wrong = 0};
    unsigned wrong = 0;
    pthread_t thread;

    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, watch, &watcher), 0);
    for (int round = 0; round < ROUNDS / 5; round++) {
        int32_t seen = 0;
        pair_fill(b, round, stream);
        gw_op_t op = pair_submit(b, stream);
        atomic_store(&watcher.op, op);
        GOOD(gw_stream_wait(group, op, stream));
        devmem_download(&seen, b->at + b->count - 1, sizeof(seen), stream);
        wrong += seen != 2 * round + 1;
    }
    atomic_store(&watcher.over, true);
    pthread_join(thread, NULL);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(watcher.wrong, 0);
}

static void a_second_thread_waits(void) {
    pair_for_both(two_threads);
}

int main(int argc, char **argv) {
    CU_TestInfo tests[] = {
        {"produced on one stream and reduced on another", produced_on_one_stream_and_reduced_on_another},
        {"a stream is destroyed right after submit", a_stream_is_destroyed_right_after_submit},
        {"a stream that waits holds up no other", a_stream_that_waits_holds_up_no_other},
        {"many streams", many_streams},
        {"the default streams", the_default_streams},
        {"several buckets are in flight", several_buckets_are_in_flight},
        {"submitted again and again without a host wait", submitted_again_and_again_without_a_host_wait},
        {"gw_wait and gw_test see the result", gw_wait_and_gw_test_see_the_result},
        {"a bucket in flight is busy", a_bucket_in_flight_is_busy},
        {"events of the caller's own", events_of_the_callers_own},
        {"an event holds nobody up", an_event_holds_nobody_up},
        {"a failed operation is over when its stream has passed",
         a_failed_operation_is_over_when_its_stream_has_passed},
        {"collectives in one call", collectives_in_one_call},
        {"more collectives than are kept", more_collectives_than_are_kept},
        {"input and result apart", input_and_result_apart},
        {"a group is freed while streams wait", a_group_is_freed_while_streams_wait},
        {"a group is aborted while streams wait", a_group_is_aborted_while_streams_wait},
        {"what ended before a failure can be had", what_ended_before_a_failure_can_be_had},
        {"a second thread waits", a_second_thread_waits},
        CU_TEST_INFO_NULL,
    };

    return pair_run(argc, argv, "streams", tests);
}
