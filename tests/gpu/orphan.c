/* orphan.c - a trainer whose daemon is killed while its streams wait; see pair.h
 *
 * Says "waiting" once streams wait for operations that never end, and reads a byte from standard input when the daemon
 * has been killed. Then it prints how long the streams took to come free, and checks that the group says why and the
 * device can be used.
 */
#include "pair.h"

#include <stdio.h>

enum { FREED_WITHIN_MS = 2000 };

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Rank 0 is the one whose operations wait; the other never comes. */
static void wait_for_ever(pair_bucket_t *small, pair_bucket_t *large, CUevent event) {
    char byte;

    gw_op_t op = pair_submit(small, stream);
    GOOD(gw_stream_wait(group, op, stream));
    op = pair_submit(large, other);
    GOOD(gw_stream_wait(group, op, other));
    GOOD(gw_event_record(group, op, event));
    printf("\nwaiting\n");
    fflush(stdout);
    CU_ASSERT_EQUAL_FATAL(read(STDIN_FILENO, &byte, 1), 1);

    int64_t start_ms = now_ms();
    CU_ASSERT_FATAL(devmem_stream_wait(stream, 4 * FREED_WITHIN_MS)); /* else nothing below would end */
    CU_ASSERT_FATAL(devmem_stream_wait(other, 4 * FREED_WITHIN_MS));
    OK(cuEventSynchronize(event));
    int64_t took_ms = now_ms() - start_ms;
    printf("freed after %lld ms\n", (long long)took_ms);
    CU_ASSERT(took_ms <= FREED_WITHIN_MS);
    CU_ASSERT_EQUAL(gw_stream_wait(group, op, stream), GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(gw_wait(group, op, GW_NO_TIMEOUT), GW_ERR_DAEMON_GONE);
    GOOD(gw_stream_wait(group, 1, stream)); /* these had ended before */
    GOOD(gw_stream_wait(group, 2, other));
    GOOD(gw_wait(group, 2, GW_NO_TIMEOUT));
}

static void streams_come_free(void) {
    gw_report_t report;
    CUevent event;
    gw_op_t op;

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    pair_begin();
    pair_bucket_t small = pair_make(DEVMEM_MALLOC, SMALL, 0), large = pair_make(DEVMEM_MALLOC, LARGE, 0);
    pair_round(&small, 1);
    pair_round(&large, 2);
    if (rank == 0)
        wait_for_ever(&small, &large, event);
    pair_meet();
    CU_ASSERT_EQUAL(gw_group_check(group, &report), GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(report.status, GW_ERR_DAEMON_GONE);
    printf("%s\n", report.message);
    CU_ASSERT_EQUAL(gw_submit(large.bucket, stream, &op), GW_ERR_DAEMON_GONE);
    gw_group_free(group);
    gw_disconnect(context);

    /* The device, and the memory that the daemon had opened. */
    pair_fill(&large, 77, stream);
    CU_ASSERT_EQUAL(pair_wrong(&large, 77 + rank, stream), 0);
    devmem_t fresh = devmem_alloc(DEVMEM_MALLOC, LARGE * 4);
    devmem_free(&fresh);
    devmem_free(&small.memory);
    devmem_free(&large.memory);
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
    OK(cuEventDestroy(event));
}

int main(int argc, char **argv) {
    CU_TestInfo tests[] = {{"streams come free", streams_come_free}, CU_TEST_INFO_NULL};

    return pair_run(argc, argv, "orphan", tests);
}
