/* test_fake_cuda_streams.c - the simulated CUDA driver keeps the real one's promises: streams, events, captures */
#include <pthread.h>
#include <unistd.h>

#include "cuda_test.h"

static void note_call(void *argument) {
    /* As with the real driver, a host function may make no call. */
    if (cuCtxSynchronize() == CUDA_ERROR_NOT_PERMITTED)
        __atomic_store_n((uint32_t *)argument, get_word(0) + 100, __ATOMIC_RELEASE);
}

static void a_stream_keeps_its_order(void) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);

    set_word(0, 0), set_word(1, 0), set_word(2, 0);
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 7, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuLaunchHostFunc(stream, note_call, &words[1]));
    OK(cuStreamWriteValue32(stream, device_address(&words[2]), 5, 0));
    usleep(20000);
    CU_ASSERT_EQUAL(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    set_word(0, 6);
    usleep(5000);
    CU_ASSERT_EQUAL(get_word(2), 0);
    set_word(0, 8);
    OK(cuStreamSynchronize(stream));
    CU_ASSERT_EQUAL(get_word(1), 108);
    CU_ASSERT_EQUAL(get_word(2), 5);
    /* GEQ goes round: 2^32 - 1 was before 3. */
    set_word(0, 3);
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), UINT32_MAX, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 3, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamSynchronize(stream));
    CU_ASSERT_EQUAL(cuStreamWriteValue32(stream, device_address(&stream), 1, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamDestroy(stream));
    CU_ASSERT_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
}

static void a_destroyed_stream_ends_its_work(void) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), other = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event;

    set_word(0, 0), set_word(1, 0);
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32(stream, device_address(&words[1]), 9, 0));
    OK(cuEventRecord(event, stream));
    OK(cuStreamDestroy(stream));
    CU_ASSERT_EQUAL(get_word(1), 0);
    OK(cuStreamWaitEvent(other, event, 0));
    CU_ASSERT_EQUAL(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    set_word(0, 1);
    OK(cuStreamSynchronize(other));
    CU_ASSERT_EQUAL(get_word(1), 9);
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(other));
}

/* The other streams wait for the first, whose word nobody has written yet. */
static void the_default_stream_waits_for_blocking_ones(void) {
    CUstream blocking = new_stream(CU_STREAM_DEFAULT), later = new_stream(CU_STREAM_DEFAULT);
    CUstream apart = new_stream(CU_STREAM_NON_BLOCKING);

    set_word(0, 0), set_word(1, 0), set_word(2, 0), set_word(3, 0);
    OK(cuStreamWaitValue32(blocking, device_address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32(CU_STREAM_LEGACY, device_address(&words[1]), 1, 0));
    OK(cuStreamWriteValue32(later, device_address(&words[2]), 1, 0));
    OK(cuStreamWriteValue32(apart, device_address(&words[3]), 1, 0));
    OK(cuStreamSynchronize(apart));
    CU_ASSERT_EQUAL(get_word(3), 1);
    usleep(20000);
    CU_ASSERT(get_word(1) == 0 && get_word(2) == 0);
    set_word(0, 1);
    OK(cuStreamSynchronize(later));
    CU_ASSERT(get_word(1) == 1 && get_word(2) == 1);
    OK(cuStreamWriteValue32(CU_STREAM_PER_THREAD, device_address(&words[1]), 2, 0));
    OK(cuStreamSynchronize(NULL));
    CU_ASSERT_EQUAL(get_word(1), 2);
    OK(cuStreamDestroy(blocking));
    OK(cuStreamDestroy(later));
    OK(cuStreamDestroy(apart));
}

static void events_tell_where_a_stream_is(void) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), other = new_stream(CU_STREAM_NON_BLOCKING);
    float ms = -1;
    CUevent begin, end;

    set_word(0, 0), set_word(1, 0);
    MUST(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    MUST(cuEventCreate(&end, CU_EVENT_DEFAULT));
    OK(cuEventQuery(begin)); /* never recorded: nothing to wait for */
    OK(cuEventRecord(begin, stream));
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuEventRecord(end, stream));
    OK(cuEventSynchronize(begin));
    CU_ASSERT_EQUAL(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    CU_ASSERT_EQUAL(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent(other, end, 0));
    OK(cuStreamWriteValue32(other, device_address(&words[1]), 1, 0));
    usleep(20000);
    CU_ASSERT_EQUAL(get_word(1), 0);
    set_word(0, 1);
    OK(cuStreamSynchronize(other));
    CU_ASSERT_EQUAL(get_word(1), 1);
    OK(cuEventQuery(end));
    OK(cuEventElapsedTime(&ms, begin, end));
    CU_ASSERT(ms >= 15 && ms < 60000);
    OK(cuEventDestroy(begin));
    OK(cuEventDestroy(end));
    CU_ASSERT_EQUAL(cuEventQuery(end), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
}

static CUstreamCaptureStatus capture_of(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

static void a_capture_takes_work_and_stays_valid(void) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), joined = new_stream(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraph graph = NULL;
    CUdeviceptr memory;
    CUevent event;

    set_word(0, 0);
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU_ASSERT_EQUAL(capture_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamWriteValue32(stream, device_address(&words[0]), 1, 0));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(joined, event, 0));
    CU_ASSERT_EQUAL(capture_of(joined), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    /* A thread that says so may do what the capture cannot see. */
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CU_ASSERT_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    memory = new_memory(PAGE);
    OK(cuMemFree(memory));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CU_ASSERT_EQUAL(capture_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture(stream, &graph));
    CU_ASSERT_PTR_NOT_NULL(graph);
    OK(cuGraphDestroy(graph));
    CU_ASSERT_EQUAL(capture_of(joined), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuStreamSynchronize(stream));
    CU_ASSERT_EQUAL(get_word(0), 0);
    CU_ASSERT_EQUAL(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(joined));
}

static CUresult register_words_again(CUstream stream) {
    static char at[2 * PAGE];
    CUresult result = cuMemHostRegister(at, sizeof(at), 0);

    (void)stream;
    if (result == CUDA_SUCCESS)
        OK(cuMemHostUnregister(at));
    return result;
}

static CUresult allocate_and_free(CUstream stream) {
    CUdeviceptr at;
    CUresult result = cuMemAlloc(&at, PAGE);

    (void)stream;
    if (result == CUDA_SUCCESS)
        OK(cuMemFree(at));
    return result;
}

static CUresult write_default(CUstream stream) {
    (void)stream;
    return cuStreamWriteValue32(NULL, device_address(&words[3]), 1, 0);
}

static void a_capture_is_spoiled_by_what_it_cannot_see(void) {
    static const struct {
        CUresult (*call)(CUstream stream);
        CUresult error;
    } spoilers[] = {{register_words_again, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
                    {allocate_and_free, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
                    {cuStreamSynchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
                    {cuStreamQuery, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
                    {write_default, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT}};
    CUstream stream = new_stream(CU_STREAM_DEFAULT);

    for (unsigned i = 0; i < sizeof(spoilers) / sizeof(spoilers[0]); i++) {
        CUgraph graph;

        MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CU_ASSERT_EQUAL(spoilers[i].call(stream), spoilers[i].error);
        CU_ASSERT_EQUAL(capture_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CU_ASSERT_EQUAL(cuStreamWriteValue32(stream, device_address(&words[0]), 1, 0),
                        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        CU_ASSERT_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        OK(spoilers[i].call(stream));
    }
    OK(cuStreamDestroy(stream));
}

static void *query_elsewhere(void *event) {
    static CUresult result;

    result = cuEventQuery(event);
    return &result;
}

/* A global capture forbids other threads' calls too, a thread's own capture does not. */
static void captures_reach_other_threads_by_their_mode(void) {
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL};
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event;

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 2; i++) {
        CUgraph graph = NULL;
        pthread_t thread;
        void *result;

        MUST(cuStreamBeginCapture(stream, modes[i]));
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, query_elsewhere, event), 0);
        pthread_join(thread, &result);
        CU_ASSERT_EQUAL(*(CUresult *)result, i == 0 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        CU_ASSERT_EQUAL(cuStreamEndCapture(stream, &graph),
                        i == 0 ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
        if (graph)
            OK(cuGraphDestroy(graph));
    }
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a stream keeps its order", a_stream_keeps_its_order},
        {"a destroyed stream ends its work", a_destroyed_stream_ends_its_work},
        {"the default stream waits for blocking ones", the_default_stream_waits_for_blocking_ones},
        {"events tell where a stream is", events_tell_where_a_stream_is},
        {"a capture takes work and stays valid", a_capture_takes_work_and_stays_valid},
        {"a capture is spoiled by what it cannot see", a_capture_is_spoiled_by_what_it_cannot_see},
        {"captures reach other threads by their mode", captures_reach_other_threads_by_their_mode},
        CU_TEST_INFO_NULL};

    return cuda_test_run("fake_cuda_streams", tests);
}
