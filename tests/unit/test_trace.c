/* test_trace.c - the ring keeps the last events, and a reader never sees half of one */
#include "trace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cunit_main.h"

static void the_last_events_are_kept(void) {
    gwd_trace_t *trace = gwd_trace_new(64);
    gwd_trace_event_t event;
    uint64_t first, end;

    CU_ASSERT_PTR_NOT_NULL_FATAL(trace);
    gwd_trace_range(trace, &first, &end);
    CU_ASSERT_EQUAL(first, end);
    for (uint64_t i = 0; i < 100; i++)
        gwd_trace_add(trace, &(gwd_trace_event_t){.time_ns = i,
                                                  .kind = GWD_TRACE_SUBMIT,
                                                  .group = 7,
                                                  .index = 3,
                                                  .codec = 5,
                                                  .sequence = i * 2,
                                                  .bytes = i * 3,
                                                  .name = "fc1.weight"});
    gwd_trace_range(trace, &first, &end);
    CU_ASSERT_EQUAL(first, 36);
    CU_ASSERT_EQUAL(end, 100);
    CU_ASSERT_FALSE(gwd_trace_read(trace, 35, &event));
    CU_ASSERT_FALSE(gwd_trace_read(trace, 100, &event));
    CU_ASSERT_TRUE_FATAL(gwd_trace_read(trace, 99, &event));
    CU_ASSERT_EQUAL(event.time_ns, 99);
    CU_ASSERT_EQUAL(event.kind, GWD_TRACE_SUBMIT);
    CU_ASSERT_EQUAL(event.group, 7);
    CU_ASSERT_EQUAL(event.index, 3);
    CU_ASSERT_EQUAL(event.codec, 5);
    CU_ASSERT_EQUAL(event.duration_ns, 0);
    CU_ASSERT_EQUAL(event.sequence, 198);
    CU_ASSERT_EQUAL(event.bytes, 297);
    CU_ASSERT_STRING_EQUAL(event.name, "fc1.weight");
    gwd_trace_free(trace);
}

/* The place of a Submit is taken by an event without a name, and that by one with a name that fills its room. */
static void an_entry_is_used_again(void) {
    gwd_trace_t *trace = gwd_trace_new(1);
    gwd_trace_event_t event, full = {.kind = GWD_TRACE_SUBMIT};

    CU_ASSERT_PTR_NOT_NULL_FATAL(trace);
    memset(full.name, 'x', sizeof(full.name)); /* no end */
    gwd_trace_add(trace, &(gwd_trace_event_t){.kind = GWD_TRACE_SUBMIT, .codec = 2, .name = "first"});
    gwd_trace_add(trace, &(gwd_trace_event_t){.time_ns = 5, .duration_ns = 7, .kind = GWD_TRACE_SENT, .index = 1});
    CU_ASSERT_FALSE(gwd_trace_read(trace, 0, &event));
    CU_ASSERT_TRUE_FATAL(gwd_trace_read(trace, 1, &event));
    CU_ASSERT_STRING_EQUAL(event.name, "");
    CU_ASSERT_EQUAL(event.codec, 0);
    CU_ASSERT_EQUAL(event.duration_ns, 7);
    gwd_trace_add(trace, &full);
    CU_ASSERT_TRUE_FATAL(gwd_trace_read(trace, 2, &event));
    CU_ASSERT_EQUAL(strlen(event.name), GWD_TRACE_NAME_BYTES - 1);
    gwd_trace_free(trace);
}

static void every_kind_has_a_name(void) {
    for (int kind = GWD_TRACE_SUBMIT; kind <= GWD_TRACE_RECEIVED; kind++)
        CU_ASSERT_PTR_NOT_NULL_FATAL(gwd_trace_kind_name((gwd_trace_kind_t)kind));
    CU_ASSERT_STRING_EQUAL(gwd_trace_kind_name(GWD_TRACE_RECEIVED), "received");
    CU_ASSERT_FALSE(gwd_trace_takes_time(GWD_TRACE_FAILED));
    CU_ASSERT_TRUE(gwd_trace_takes_time(GWD_TRACE_COPY_IN));
}

static _Atomic int stop;

static void *write_events(void *argument) {
    for (uint64_t i = 0; !stop; i++) {
        gwd_trace_event_t event = {i, i, GWD_TRACE_SUBMIT, (uint32_t)i, (uint32_t)i, 0, i, i, ""};

        snprintf(event.name, sizeof(event.name), "%040llu", (unsigned long long)i);
        gwd_trace_add(argument, &event);
    }
    return NULL;
}

static bool is_whole(const gwd_trace_event_t *event, uint64_t at) {
    return event->time_ns == at && event->duration_ns == at && event->sequence == at && event->bytes == at &&
           event->group == (uint32_t)at && event->index == (uint32_t)at && strtoull(event->name, NULL, 10) == at;
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
            torn += !is_whole(&event, at);
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
        {"an entry is used again", an_entry_is_used_again},
        {"every kind has a name", every_kind_has_a_name},
        {"a reader sees whole events", a_reader_sees_whole_events},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("trace", tests);
}
