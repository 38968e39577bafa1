/* memory.c - device memory of every kind: how the daemon gets at it, and what becomes of it; see pair.h */
#include "pair.h"

#include <stdio.h>

static void check_kind(devmem_kind_t kind, const char *path, uint64_t offset) {
    static const uint64_t counts[] = {SMALL, LARGE, 1500000};

    pair_begin();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        pair_bucket_t b = pair_make(kind, counts[i], offset);

        CU_ASSERT_STRING_EQUAL(gw_buffer_path(b.buffer), path);
        for (int round = 0; round < 3; round++)
            pair_round(&b, round * 1000 + 7);
        pair_drop(&b);
    }
    pair_end();
}

static void memory_of_cuMemAlloc(void) {
    check_kind(DEVMEM_MALLOC, pair_path("ipc"), 0);
}

static void a_part_of_an_allocation(void) {
    check_kind(DEVMEM_MALLOC, pair_path("ipc"), 12345);
}

static void memory_of_the_default_pool(void) {
    check_kind(DEVMEM_ASYNC, "stream", 0);
}

static void memory_of_a_pool_that_can_be_shared(void) {
    check_kind(DEVMEM_POOL, pair_path("pool"), 3);
}

static void mapped_memory_of_several_handles(void) {
    check_kind(DEVMEM_VMM, pair_path("vmm"), 5);
}

static void mapped_memory_that_cannot_be_shared(void) {
    check_kind(DEVMEM_PRIVATE, "stream", 0);
}

static void managed_memory(void) {
    check_kind(DEVMEM_MANAGED, "stream", 0);
}

/* A buffer that begins inside an allocation, as a framework's allocator hands them out. */
static void a_buffer_inside_an_allocation(void) {
    pair_bucket_t b = {.count = LARGE};

    pair_begin();
    b.memory = devmem_alloc(DEVMEM_MALLOC, 16 << 20);
    b.at = (int32_t *)b.memory.at + 1000003 + 64;
    MUST_GOOD(gw_buffer_register(context, (int32_t *)b.memory.at + 1000003, (LARGE + 64) * 4, &b.buffer));
    MUST_GOOD(pair_declare(&b, 0));
    pair_round(&b, 11);
    pair_drop(&b);
    pair_end();
}

static void host_memory_stays_host_memory(void) {
    float *plain = calloc(1, 8192);
    gw_buffer_t *buffer;
    gw_bucket_t *bucket;
    gw_op_t op;
    void *pinned;

    pair_begin();
    MUST(cuMemHostAlloc(&pinned, 8192, CU_MEMHOSTALLOC_PORTABLE));
    MUST_GOOD(gw_buffer_register(context, plain, 8192, &buffer));
    CU_ASSERT_STRING_EQUAL(gw_buffer_path(buffer), "copied");
    GOOD(gw_buffer_release(buffer));
    MUST_GOOD(gw_buffer_alloc(context, 8192, &buffer));
    CU_ASSERT_STRING_EQUAL(gw_buffer_path(buffer), "shared");
    GOOD(gw_buffer_release(buffer));
    MUST_GOOD(gw_buffer_register(context, pinned, 8192, &buffer));
    CU_ASSERT_STRING_EQUAL(gw_buffer_path(buffer), "copied");

    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.count = 100;
    desc.send = desc.recv = pinned;
    MUST_GOOD(gw_bucket_create(group, &desc, &bucket));
    CU_ASSERT_EQUAL(gw_submit(bucket, stream, &op), GW_ERR_UNSUPPORTED);
    GOOD(gw_submit(bucket, NULL, &op));
    CU_ASSERT_EQUAL(gw_stream_wait(group, op, stream), GW_ERR_UNSUPPORTED);
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
    GOOD(gw_bucket_free(bucket));
    GOOD(gw_buffer_release(buffer));
    pair_end();
    OK(cuMemFreeHost(pinned));
    free(plain);
}

static void send_and_recv_are_in_one_place(void) {
    gw_buffer_t *host;
    gw_bucket_t *bucket;

    pair_begin();
    pair_bucket_t b = pair_make(DEVMEM_MALLOC, SMALL, 0);
    MUST_GOOD(gw_buffer_alloc(context, SMALL * 4, &host));
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.count = SMALL;
    desc.send = b.at;
    desc.recv = gw_buffer_data(host);
    CU_ASSERT_EQUAL(gw_bucket_create(group, &desc, &bucket), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(gw_last_error(), "the host"));
    GOOD(gw_buffer_release(host));
    pair_drop(&b);
    pair_end();
}

/* No stream could wait for it, so any will do. */
static void an_operation_without_memory(void) {
    pair_bucket_t b = {.count = 0};

    pair_begin();
    MUST_GOOD(pair_declare(&b, 0));
    gw_op_t op = pair_submit(&b, stream);
    GOOD(gw_stream_wait(group, op, stream));
    GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
    GOOD(gw_bucket_free(b.bucket));
    pair_end();
}

/* A buffer that is longer than its allocation. */
static void memory_that_is_not_there_is_refused(void) {
    devmem_t memory = devmem_alloc(DEVMEM_MALLOC, 4096);
    gw_buffer_t *buffer;

    pair_begin();
    CU_ASSERT_EQUAL(gw_buffer_register(context, memory.at, (uint64_t)1 << 28, &buffer), GW_ERR_INVALID_ARGUMENT);
    pair_end();
    devmem_free(&memory);
}

/* Frees the memory of rank 0 and takes as much again: drivers give the same address. The other rank notices nothing. */
static void check_stale(devmem_kind_t kind, uint64_t count) {
    gw_op_t op;

    pair_begin();
    pair_bucket_t b = pair_make(kind, count, 0);
    pair_round(&b, 1);
    if (rank == 0) {
        const void *before = b.memory.at;

        devmem_free(&b.memory);
        b.memory = devmem_alloc(kind, count * 4);
        if (b.memory.at != before)
            printf("\n    (the driver gave another address)\n    ");
        CU_ASSERT_EQUAL(gw_submit(b.bucket, stream, &op), GW_ERR_BUFFER_STALE);
        CU_ASSERT_PTR_NOT_NULL(strstr(gw_last_error(), "bucket"));

        GOOD(gw_bucket_free(b.bucket));
        GOOD(gw_buffer_release(b.buffer));
        b.at = b.memory.at;
        MUST_GOOD(gw_buffer_register(context, b.at, count * 4, &b.buffer));
        MUST_GOOD(pair_declare(&b, 0));
    }
    pair_round(&b, 2);
    pair_drop(&b);
    pair_end();
}

static void memory_that_was_freed_is_refused(void) {
    check_stale(DEVMEM_MALLOC, LARGE);
    check_stale(DEVMEM_MALLOC, SMALL);
}

/* That of a pool that is shared must not be freed before it is released. */
static void pooled_memory_that_was_freed_is_refused(void) {
    check_stale(DEVMEM_ASYNC, LARGE);
}

static void mapped_memory_that_was_replaced_is_refused(void) {
    check_stale(DEVMEM_VMM, LARGE);
}

/* The other order: the buffer first, then its buckets, which are refused from then on. */
static void a_buffer_is_released_before_its_buckets(void) {
    static const uint64_t counts[] = {SMALL, LARGE};
    gw_op_t op;

    pair_begin();
    for (int i = 0; i < 2; i++) {
        pair_bucket_t b = pair_make(DEVMEM_MALLOC, counts[i], 0);

        if (rank == 1)
            pair_meet();
        op = pair_submit(&b, stream);
        if (rank == 0) {
            CU_ASSERT_EQUAL(gw_buffer_release(b.buffer), GW_ERR_BUSY);
            CU_ASSERT_EQUAL(gw_bucket_free(b.bucket), GW_ERR_BUSY);
            pair_meet();
        }
        GOOD(gw_wait(group, op, GW_NO_TIMEOUT));
        GOOD(gw_buffer_release(b.buffer));
        CU_ASSERT_EQUAL(gw_submit(b.bucket, stream, &op), GW_ERR_NOT_FOUND);
        GOOD(gw_bucket_free(b.bucket));
        devmem_free(&b.memory);
    }
    pair_end();
}

/* A bucket on each of two devices, in every rank. */
static void two_devices_in_one_process(void) {
    pair_bucket_t c = {.count = LARGE};
    CUcontext first, second;
    CUdevice device;
    CUdeviceptr at;
    CUstream its_stream;

    if (devmem_count() < 2) {
        printf("\n    (there is one device only)\n    ");
        return;
    }
    pair_begin();
    pair_bucket_t b = pair_make(DEVMEM_MALLOC, LARGE, 0);
    MUST(cuCtxGetCurrent(&first));
    MUST(cuCtxGetDevice(&device));
    MUST(cuDevicePrimaryCtxRetain(&second, device == 0 ? 1 : 0));
    MUST(cuCtxSetCurrent(second));
    MUST(cuMemAlloc(&at, LARGE * 4));
    MUST(cuStreamCreate(&its_stream, CU_STREAM_NON_BLOCKING));
    c.at = (int32_t *)(uintptr_t)at;
    MUST_GOOD(gw_buffer_register(context, c.at, LARGE * 4, &c.buffer));
    MUST_GOOD(pair_declare(&c, 0));
    pair_fill(&c, 20, its_stream);
    gw_op_t op = pair_submit(&c, its_stream);
    CU_ASSERT_EQUAL(gw_stream_wait(group, op, stream), GW_ERR_INVALID_ARGUMENT); /* the other's */
    GOOD(gw_stream_wait(group, op, its_stream));
    CU_ASSERT_EQUAL(pair_wrong(&c, 41, its_stream), 0);

    MUST(cuCtxSetCurrent(first));
    pair_round(&b, 30);
    GOOD(gw_bucket_free(c.bucket));
    GOOD(gw_buffer_release(c.buffer));
    pair_drop(&b);
    pair_end();
    MUST(cuCtxSetCurrent(second));
    OK(cuMemFree(at));
    OK(cuStreamDestroy(its_stream));
    MUST(cuCtxSetCurrent(first)); /* the library keeps its streams in the second one, so it stays */
}

/* A child has neither the driver nor the watchdog: it may only let go. */
static void a_forked_child_is_refused(void) {
    gw_op_t op;
    int status = -1;

    pair_begin();
    pair_bucket_t b = pair_make(DEVMEM_MALLOC, SMALL, 0);
    pair_round(&b, 5);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        bool refused = gw_submit(b.bucket, stream, &op) == GW_ERR_FORKED &&
                       gw_stream_wait(group, 1, stream) == GW_ERR_FORKED &&
                       gw_buffer_release(b.buffer) == GW_ERR_FORKED;
        gw_disconnect(context);
        _exit(refused ? 0 : 1);
    }
    CU_ASSERT_FATAL(child > 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    pair_round(&b, 6); /* the parent goes on */
    pair_drop(&b);
    pair_end();
}

int main(int argc, char **argv) {
    CU_TestInfo tests[] = {
        {"memory of cuMemAlloc", memory_of_cuMemAlloc},
        {"a part of an allocation", a_part_of_an_allocation},
        {"a buffer inside an allocation", a_buffer_inside_an_allocation},
        {"memory of the default pool", memory_of_the_default_pool},
        {"memory of a pool that can be shared", memory_of_a_pool_that_can_be_shared},
        {"mapped memory of several handles", mapped_memory_of_several_handles},
        {"mapped memory that cannot be shared", mapped_memory_that_cannot_be_shared},
        {"managed memory", managed_memory},
        {"host memory stays host memory", host_memory_stays_host_memory},
        {"send and recv are in one place", send_and_recv_are_in_one_place},
        {"an operation without memory", an_operation_without_memory},
        {"memory that is not there is refused", memory_that_is_not_there_is_refused},
        {"memory that was freed is refused", memory_that_was_freed_is_refused},
        {"pooled memory that was freed is refused", pooled_memory_that_was_freed_is_refused},
        {"mapped memory that was replaced is refused", mapped_memory_that_was_replaced_is_refused},
        {"a buffer is released before its buckets", a_buffer_is_released_before_its_buckets},
        {"two devices in one process", two_devices_in_one_process},
        {"a forked child is refused", a_forked_child_is_refused},
        CU_TEST_INFO_NULL,
    };

    return pair_run(argc, argv, "device memory", tests);
}
