/* test_copies.c - tags come back in order, as copies end, and all of them when a device breaks */
#include "copies.h"

#include <stdio.h>
#include <string.h>

#include "cunit_main.h"

/* A stream whose copies end when the test says so. */
struct gwd_stream {
    uint64_t started, ended;
    bool broken;
};

static gw_status_t copy(gwd_stream_t *stream, void *to, const void *from, uint64_t bytes, char *text,
                        size_t text_bytes) {
    if (stream->broken) {
        snprintf(text, text_bytes, "broken");
        return GW_ERR_DEVICE;
    }
    memcpy(to, from, bytes);
    stream->started++;
    return GW_OK;
}

static gw_status_t ended(gwd_stream_t *stream, uint64_t *n_out, char *text, size_t text_bytes) {
    if (stream->broken) {
        snprintf(text, text_bytes, "broken");
        return GW_ERR_DEVICE;
    }
    *n_out = stream->ended;
    return GW_OK;
}

static const gwd_device_backend_t backend = {.copy = copy, .ended = ended};

static struct gwd_device { int unused; } some_device;

static int came[2 * GWD_STREAM_DEPTH], n_came;

static void on_end(void *tag) {
    came[n_came++] = *(int *)tag;
}

static void on_lost(struct gwd_device *device, void *tag) {
    CU_ASSERT_PTR_EQUAL(device, &some_device);
    on_end(tag);
}

static void start(gwd_copies_t *copies, int *tags, int n) {
    char text[64];
    int to = 0;

    for (int i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(gwd_copies_start(copies, &to, &tags[i], sizeof(to), &tags[i], text, sizeof(text)), GW_OK);
        CU_ASSERT_EQUAL(to, tags[i]);
    }
}

static void tags_come_in_order(void) {
    struct gwd_stream stream = {0};
    gwd_copies_t copies = {.backend = &backend, .stream = &stream};
    int tags[2 * GWD_STREAM_DEPTH];
    char text[64];

    for (int i = 0; i < 2 * GWD_STREAM_DEPTH; i++)
        tags[i] = i;
    n_came = 0;
    for (int round = 0; round < 2; round++) { /* the second goes around the ring */
        start(&copies, tags + round * GWD_STREAM_DEPTH, GWD_STREAM_DEPTH);
        stream.ended += 3;
        CU_ASSERT_EQUAL(gwd_copies_poll(&copies, on_end, text, sizeof(text)), GW_OK);
        CU_ASSERT_EQUAL(n_came, round * GWD_STREAM_DEPTH + 3);
        CU_ASSERT_EQUAL(gwd_copies_poll(&copies, on_end, text, sizeof(text)), GW_OK);
        CU_ASSERT_EQUAL(n_came, round * GWD_STREAM_DEPTH + 3);
        stream.ended = stream.started;
        CU_ASSERT_EQUAL(gwd_copies_poll(&copies, on_end, text, sizeof(text)), GW_OK);
    }
    CU_ASSERT_EQUAL(n_came, 2 * GWD_STREAM_DEPTH);
    for (int i = 0; i < n_came; i++)
        CU_ASSERT_EQUAL(came[i], i);
}

static void a_broken_device_gives_all_back(void) {
    struct gwd_stream stream = {0};
    gwd_copies_t copies = {.backend = &backend, .stream = &stream, .device = &some_device};
    int tags[4] = {0, 1, 2, 3}, to;
    char text[64] = "";

    n_came = 0;
    start(&copies, tags, 3);
    stream.broken = true;
    CU_ASSERT_EQUAL(gwd_copies_poll(&copies, on_end, text, sizeof(text)), GW_ERR_DEVICE);
    CU_ASSERT_STRING_EQUAL(text, "broken");
    CU_ASSERT_EQUAL(n_came, 0);
    CU_ASSERT_EQUAL(gwd_copies_start(&copies, &to, &tags[3], sizeof(to), &tags[3], text, sizeof(text)), GW_ERR_DEVICE);
    gwd_copies_abandon(&copies, on_lost);
    CU_ASSERT_EQUAL(n_came, 3);                                                   /* and not what was never started */
    CU_ASSERT_EQUAL(gwd_copies_poll(&copies, on_end, text, sizeof(text)), GW_OK); /* nothing is under way */
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"tags come in order", tags_come_in_order},
        {"a broken device gives all back", a_broken_device_gives_all_back},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("copies", tests);
}
