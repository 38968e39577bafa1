/* test_fake_cuda_environment.c - what the environment does to the simulated CUDA driver, and what a fork does */
#include "cuda_peer.h"

enum { BYTES = 3 * PAGE, COPY_BYTES = 8 << 20 };

static int see_devices_turned_round(void) {
    CUuuid first, second;

    return cuDeviceGetUuid(&first, 0) != CUDA_SUCCESS || cuDeviceGetUuid(&second, 1) != CUDA_SUCCESS ||
           first.bytes[15] != '1' || second.bytes[15] != '0';
}

static int see_one_device(void) {
    CUuuid uuid;
    int count = 0;

    return cuDeviceGetCount(&count) != CUDA_SUCCESS || count != 1 || cuDeviceGetUuid(&uuid, 0) != CUDA_SUCCESS ||
           uuid.bytes[15] != '1';
}

static int fail_the_second_time(void) {
    CUdeviceptr at;

    return cuMemAlloc(&at, BYTES) != CUDA_SUCCESS || cuMemAlloc(&at, BYTES) != CUDA_ERROR_UNKNOWN ||
           cuMemAlloc(&at, BYTES) != CUDA_SUCCESS;
}

static int fail_for_good(void) {
    CUdeviceptr at, other;

    return cuMemAlloc(&at, BYTES) != CUDA_SUCCESS || cuMemAlloc(&other, BYTES) != CUDA_ERROR_ILLEGAL_ADDRESS ||
           cuMemFree(at) != CUDA_ERROR_ILLEGAL_ADDRESS || cuCtxSynchronize() != CUDA_ERROR_ILLEGAL_ADDRESS;
}

static int have_no_handles(void) {
    CUipcMemHandle handle;
    CUdeviceptr at;

    return cuMemAlloc(&at, BYTES) != CUDA_SUCCESS || cuIpcGetMemHandle(&handle, at) != CUDA_ERROR_NOT_SUPPORTED;
}

/* 8 MiB at 0.1 GB/s take 84 ms, in pieces. */
static int copy_slowly(void) {
    CUevent begin, end;
    CUdeviceptr at;
    float ms = 0;

    return cuMemAlloc(&at, 2 * COPY_BYTES) != CUDA_SUCCESS || cuEventCreate(&begin, 0) != CUDA_SUCCESS ||
           cuEventCreate(&end, 0) != CUDA_SUCCESS || cuEventRecord(begin, NULL) != CUDA_SUCCESS ||
           cuMemcpyDtoDAsync(at, at + COPY_BYTES, COPY_BYTES, NULL) != CUDA_SUCCESS ||
           cuEventRecord(end, NULL) != CUDA_SUCCESS || cuEventSynchronize(end) != CUDA_SUCCESS ||
           cuEventElapsedTime(&ms, begin, end) != CUDA_SUCCESS || ms < 80 || cuEventDestroy(begin) != CUDA_SUCCESS ||
           cuEventDestroy(end) != CUDA_SUCCESS;
}

enum { TURNED_ROUND, ONLY_ONE, FAILS_ONCE, FAILS_FOR_GOOD, NO_HANDLES, SLOW };

static const peer_role_t roles[] = {{"turned round", see_devices_turned_round, "CUDA_VISIBLE_DEVICES", "1,0"},
                                    {"only one", see_one_device, "CUDA_VISIBLE_DEVICES", "1,-1,0"},
                                    {"fails once", fail_the_second_time, "FAKE_CUDA_FAIL", "cuMemAlloc:2"},
                                    {"fails for good", fail_for_good, "FAKE_CUDA_FAIL", "cuMemAlloc:2:sticky"},
                                    {"no handles", have_no_handles, "FAKE_CUDA_NO_IPC", "1"},
                                    {"slow", copy_slowly, "FAKE_CUDA_COPY_GBPS", "0.1"},
                                    {0}};

static void play(int role) {
    int channel;
    pid_t peer = peer_start(&roles[role], &channel);

    peer_expect(peer, channel, 0);
}

static void devices_are_those_that_are_visible(void) {
    play(TURNED_ROUND);
    play(ONLY_ONE);
}

static void a_call_fails_when_it_is_told_to(void) {
    play(FAILS_ONCE);
    play(FAILS_FOR_GOOD);
}

static void handles_can_be_refused(void) {
    play(NO_HANDLES);
}

static void copies_take_their_time(void) {
    play(SLOW);
}

static void a_fork_cannot_use_the_driver(void) {
    pid_t process = fork();
    CUcontext context;
    int status = -1;

    CU_ASSERT_FATAL(process >= 0);
    if (process == 0)
        _exit(cuInit(0) != CUDA_ERROR_NOT_INITIALIZED || cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED);
    CU_ASSERT_EQUAL(waitpid(process, &status, 0), process);
    CU_ASSERT_EQUAL(status, 0);
}

int main(int argc, char **argv) {
    static CU_TestInfo tests[] = {{"devices are those that are visible", devices_are_those_that_are_visible},
                                  {"a call fails when it is told to", a_call_fails_when_it_is_told_to},
                                  {"handles can be refused", handles_can_be_refused},
                                  {"copies take their time", copies_take_their_time},
                                  {"a fork cannot use the driver", a_fork_cannot_use_the_driver},
                                  CU_TEST_INFO_NULL};

    return peer_test_run("fake_cuda_environment", tests, roles, argc, argv);
}
