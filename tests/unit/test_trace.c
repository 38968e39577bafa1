/* test_trace.c - the ring keeps the last events, and a reader never sees half of one */
#include "trace.h"

#include <pthread.h>

#include "cunit_main.h"

static void the_last_events_are_kept(void) {
    gwd_trace_t *trace = gwd_trace_new(64);
    gwd_trace_event_t event;
    uint64_t first, end;

    CU_ASSERT_PTR_NOT_NULL_FATAL(trace);
    gwd_trace_range(trace, &first, &end);
    CU_ASSERT_EQUAL(first, end);
    for (uint64_t i = 0; i < 100; i++)
        gwd_trace_add(trace, &(gwd_trace_event_t){i, GWD_TRACE_SUBMIT, 7, 3, i * 2, i * 3});
    gwd_trace_range(trace, &first, &end);
    CU_ASSERT_EQUAL(first, 36);
    CU_ASSERT_EQUAL(end, 100);
    CU_ASSERT_FALSE(gwd_trace_read(trace, 35, &event));
    CU_ASSERT_FALSE(gwd_trace_read(trace, 100, &event));
    CU_ASSERT_TRUE_FATAL(gwd_trace_read(trace, 99, &event));
    CU_ASSERT_EQUAL(event.time_ns, 99);
    CU_ASSERT_EQUAL(event.kind, GWD_TRACE_SUBMIT);
    CU_ASSERT_EQUAL(event.group, 7);
    CU_ASSERT_EQUAL(event.rank, 3);
    CU_ASSERT_EQUAL(event.sequence, 198);
    CU_ASSERT_EQUAL(event.bytes, 297);
    gwd_trace_free(trace);
}

static _Atomic int stop;

static void *write_events(void *argument) {
    for (uint64_t i = 0; !stop; i++)
        gwd_trace_add(argument, &(gwd_trace_event_t){i, GWD_TRACE_DONE, (uint32_t)i, 0, i, i});
    return NULL;
}

static void a_reader_sees_whole_events(void) {
    gwd_trace_t *trace = gwd_trace_new(64);
    pthread_t writer;
    uint64_t torn = 0, seen = 0;

    CU_ASSERT_PTR_NOT_NULL_FATAL(trace);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&writer, NULL, write_events, trace), 0);
    do {
        uint64_t at, end;

        gwd_trace_range(trace, &at, &end);
        for (; at < end; at++) {
            gwd_trace_event_t event;

            if (!gwd_trace_read(trace, at, &event))
                continue;
            seen++;
            torn += event.time_ns != at || event.sequence != at || event.bytes != at || event.group != (uint32_t)at;
        }
    } while (seen < 100000);
    stop = 1;
    pthread_join(writer, NULL);
    CU_ASSERT_EQUAL(torn, 0);
    gwd_trace_free(trace);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"the last events are kept", the_last_events_are_kept},
        {"a reader sees whole events", a_reader_sees_whole_events},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("trace", tests);
}
