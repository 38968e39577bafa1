/* pair.h - two ranks with buckets on devices: what the tests of streams share
 *
 * Each rank is a process, as trainers are: streams of one process can hold each other up where they share a queue of
 * the device. Both run the same tests; where it matters who comes first, they meet. The daemon is named by
 * GRADWIRE_SOCKET. GW_TEST_IMPORT=0 says that it cannot open device memory. A program takes the devices of the two
 * ranks as arguments, else 0 and 1, counted round.
 */
#ifndef PAIR_H
#define PAIR_H

#include <cuda.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cunit_main.h"
#include "devmem.h"
#include "gradwire.h"

#define OK(call)        CU_ASSERT_EQUAL((call), CUDA_SUCCESS)
#define MUST(call)      CU_ASSERT_EQUAL_FATAL((call), CUDA_SUCCESS)
#define GOOD(call)      CU_ASSERT(pair_good(call))
#define MUST_GOOD(call) CU_ASSERT_FATAL(pair_good(call))

enum {
    SMALL = 1000, /* elements of 4 bytes: below and above what goes by the stream in any case */
    LARGE = 300000,
    MEETING_MS = 30000, /* until the other rank must have come */
};

typedef struct pair_shared {
    _Atomic unsigned arrived;
    gw_unique_id_t id;
} pair_shared_t;

static pair_shared_t *pair_shared;
static int rank;
static gw_context_t *context;
static gw_group_t *group;
static CUstream stream, other;

/* Prints what the library says when a call fails that should not. */
static inline bool pair_good(gw_status_t status) {
    if (status != GW_OK)
        printf("\n    rank %d: %s\n    ", rank, gw_last_error());
    return status == GW_OK;
}

static inline CUdeviceptr pair_address(const void *at) {
    return (CUdeviceptr)(uintptr_t)at;
}

/* Waits until the other rank has come here, too. A test that failed it may have left: then all ends. */
static inline void pair_meet(void) {
    const struct timespec pause = {.tv_nsec = 100000};
    unsigned wanted = atomic_fetch_add(&pair_shared->arrived, 1) / 2 * 2 + 2;

    for (int n = 0; atomic_load(&pair_shared->arrived) < wanted; n++) {
        if (n >= MEETING_MS * 10) {
            printf("\n    rank %d: the other rank does not come\n", rank);
            fflush(NULL);
            _exit(3);
        }
        nanosleep(&pause, NULL);
    }
}

static inline void pair_begin(void) {
    MUST_GOOD(gw_connect(NULL, &context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    if (rank == 0)
        MUST_GOOD(gw_get_unique_id(context, &pair_shared->id));
    pair_meet();
    MUST_GOOD(gw_group_init(context, &pair_shared->id, 2, rank, &group));
}

static inline void pair_leave(void) {
    gw_group_free(group);
    gw_disconnect(context);
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
}

/* With a last word on whether all went well. */
static inline void pair_end(void) {
    GOOD(gw_group_check(group, NULL));
    pair_meet();
    pair_leave();
}

/* A rank's bucket, in place, with the memory it lies in: all of the buffer, or part of it. */
typedef struct pair_bucket {
    devmem_t memory;
    gw_buffer_t *buffer;
    gw_bucket_t *bucket;
    int32_t *at;
    uint64_t count;
} pair_bucket_t;

/* How the daemon gets at memory that it can open. */
static inline const char *pair_path(const char *path) {
    const char *import = getenv("GW_TEST_IMPORT");
    return import != NULL && strcmp(import, "0") == 0 ? "stream" : path;
}

static inline gw_status_t pair_declare(pair_bucket_t *b, int priority) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;

    desc.name = "bucket";
    desc.type = GW_I32;
    desc.count = b->count;
    desc.send = desc.recv = b->at;
    desc.priority = priority;
    return gw_bucket_create(group, &desc, &b->bucket);
}

/* `offset` elements into memory of the kind. */
static inline pair_bucket_t pair_make(devmem_kind_t kind, uint64_t count, uint64_t offset) {
    uint64_t bytes = (offset + count) * sizeof(int32_t);
    pair_bucket_t b = {.memory = devmem_alloc(kind, bytes), .count = count};

    b.at = (int32_t *)b.memory.at + offset;
    MUST_GOOD(gw_buffer_register(context, b.memory.at, bytes, &b.buffer));
    MUST_GOOD(pair_declare(&b, 0));
    return b;
}

static inline void pair_drop(pair_bucket_t *b) {
    GOOD(gw_bucket_free(b->bucket));
    GOOD(gw_buffer_release(b->buffer));
    devmem_free(&b->memory);
}

/* Every element of rank r gets value + r: the sum is 2 * value + 1. */
static inline void pair_fill(const pair_bucket_t *b, int32_t value, CUstream on) {
    OK(cuMemsetD32Async(pair_address(b->at), (unsigned)(value + rank), b->count, on));
}

static inline gw_op_t pair_submit(pair_bucket_t *b, CUstream on) {
    gw_op_t op = 0;

    GOOD(gw_submit(b->bucket, on, &op));
    return op;
}

/* How many elements are not as they should be, as far as the stream sees. */
static inline uint64_t pair_wrong(const pair_bucket_t *b, int32_t wanted, CUstream on) {
    int32_t *copy = malloc(b->count * sizeof(*copy));
    uint64_t wrong = 0;

    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    devmem_download(copy, b->at, b->count * sizeof(*copy), on);
    for (uint64_t i = 0; i < b->count; i++)
        wrong += copy[i] != wanted;
    free(copy);
    return wrong;
}

/* The usual round: filled, submitted, awaited and read on one stream. */
static inline void pair_round(pair_bucket_t *b, int32_t value) {
    pair_fill(b, value, stream);
    gw_op_t op = pair_submit(b, stream);
    GOOD(gw_stream_wait(group, op, stream));
    CU_ASSERT_EQUAL(pair_wrong(b, 2 * value + 1, stream), 0);
}

static const uint64_t pair_counts[] = {SMALL, LARGE};

/* Runs a test for a small and a large bucket. */
static inline void pair_for_both(void (*test)(pair_bucket_t *b)) {
    for (int i = 0; i < 2; i++) {
        pair_begin();
        pair_bucket_t b = pair_make(DEVMEM_MALLOC, pair_counts[i], 0);
        test(&b);
        pair_drop(&b);
        pair_end();
    }
}

/* ---- the program -------------------------------------------------------------------------------------- */

static inline int pair_run_rank(int argc, char **argv, const char *name, CU_TestInfo *tests) {
    if (devmem_count() == 0) {
        fprintf(stderr, "%s: there is no device\n", name);
        return 2;
    }
    devmem_open(argc > rank + 1 ? (unsigned)atoi(argv[rank + 1]) : (unsigned)rank);
    return cunit_run(name, tests);
}

/* What rank 1 says is shown only if it fails. */
static inline int pair_show(FILE *said, int status) {
    char line[512];

    if (status == 0)
        return 0;
    printf("---- rank 1 ended with status %#x:\n", (unsigned)status);
    rewind(said);
    while (fgets(line, sizeof(line), said) != NULL)
        fputs(line, stdout);
    return 1;
}

/* The driver is first used after the fork: it does not survive one. */
static inline int pair_run(int argc, char **argv, const char *name, CU_TestInfo *tests) {
    FILE *said = tmpfile();
    int status = -1, result;

    pair_shared = mmap(NULL, sizeof(*pair_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pair_shared == MAP_FAILED || said == NULL)
        return 2;
    pid_t child = fork();
    if (child < 0)
        return 2;
    if (child == 0) {
        rank = 1;
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        dup2(fileno(said), STDOUT_FILENO);
        dup2(fileno(said), STDERR_FILENO);
        exit(pair_run_rank(argc, argv, name, tests));
    }
    result = pair_run_rank(argc, argv, name, tests);
    waitpid(child, &status, 0);
    result |= pair_show(said, status);
    fclose(said);
    return result;
}

#endif
