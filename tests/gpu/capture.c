/* capture.c - streams that are being captured into a graph, which no bucket can be part of; see pair.h */
#include "pair.h"

static void capture(pair_bucket_t *b, CUstreamCaptureMode mode) {
    CUgraph graph = NULL;
    gw_op_t op, refused;

    if (rank == 1) { /* its part comes while the other captures */
        pair_meet();
        op = pair_submit(b, stream);
        GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
        pair_meet();
        op = pair_submit(b, stream);
        GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
        return;
    }
    op = pair_submit(b, stream);
    MUST(cuStreamBeginCapture(other, mode));
    OK(cuMemsetD32Async(pair_address(b->at), 1, 1, other));
    CU_ASSERT_EQUAL(gw_stream_wait(group, op, other), GW_ERR_CAPTURE);
    pair_meet();
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT)); /* elsewhere all goes on, whatever it takes of the driver */
    CU_ASSERT_EQUAL(gw_submit(b->bucket, other, &refused), GW_ERR_CAPTURE);
    op = pair_submit(b, stream);
    pair_meet();
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
    OK(cuStreamEndCapture(other, &graph));
    CU_ASSERT_PTR_NOT_NULL(graph);
    if (graph != NULL)
        OK(cuGraphDestroy(graph));
}

static void under_capture(pair_bucket_t *b) {
    capture(b, CU_STREAM_CAPTURE_MODE_RELAXED);
    capture(b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    capture(b, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void a_capture_is_refused_and_stays_valid(void) {
    pair_for_both(under_capture);
}

/* Registering, declaring and releasing while another stream is captured. */
static void a_capture_survives_all_other_calls(void) {
    pair_bucket_t b = {.count = SMALL};
    CUgraph graph = NULL;

    pair_begin();
    b.memory = devmem_alloc(DEVMEM_MALLOC, SMALL * 4);
    b.at = b.memory.at;
    MUST(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST_GOOD(gw_buffer_register(context, b.at, SMALL * 4, &b.buffer));
    MUST_GOOD(pair_declare(&b, 0));
    gw_op_t op = pair_submit(&b, stream);
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
    GOOD(gw_bucket_free(b.bucket));
    GOOD(gw_buffer_release(b.buffer));
    OK(cuStreamEndCapture(other, &graph));
    CU_ASSERT_PTR_NOT_NULL(graph);
    if (graph != NULL)
        OK(cuGraphDestroy(graph));
    devmem_free(&b.memory);
    pair_end();
}

int main(int argc, char **argv) {
    CU_TestInfo tests[] = {
        {"a capture is refused and stays valid", a_capture_is_refused_and_stays_valid},
        {"a capture survives all other calls", a_capture_survives_all_other_calls},
        CU_TEST_INFO_NULL,
    };

    return pair_run(argc, argv, "capture", tests);
}
