/* words.c - whether a stream writes and awaits words in shared host memory, as every operation does to be ordered */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu_cuda.h"

/* Two words on cache lines of their own, as `ready` and `done` of a slot are. */
typedef struct slot {
    _Atomic uint32_t ready;
    char apart[124];
    _Atomic uint32_t done;
} slot_t;

enum { MAPPED_BYTES = 4096 };
#define PATIENCE_S 5.0
#define PAUSE_S    0.02 /* a stream that does not wait writes long before */

static gwctl_outcome_t map_memfd(slot_t **slot_out, char *why) {
    int fd = memfd_create("gwctl-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, MAPPED_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        memory = mmap(NULL, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        snprintf(why, GWCTL_WHY_BYTES, "a sealed memfd: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    if (memory == MAP_FAILED)
        return GWCTL_BROKEN;
    *slot_out = memory;
    return GWCTL_WORKS;
}

/* Whether the word reaches the value in time; a stream may be beyond it by then. */
static bool await(const _Atomic uint32_t *word, uint32_t value, double seconds) {
    double end_s = gwctl_cuda_now_s() + seconds;
    while (atomic_load(word) < value) {
        if (gwctl_cuda_now_s() > end_s)
            return false;
        sched_yield();
    }
    return true;
}

/* The stream writes 1, waits for `done`, then writes 2. */
static gwctl_outcome_t enqueue(CUstream stream, CUdeviceptr address, char *why) {
    CUdeviceptr ready = address + offsetof(slot_t, ready);
    CUdeviceptr done = address + offsetof(slot_t, done);
    gwctl_outcome_t outcome = gwctl_cuda_say(cuStreamWriteValue32(stream, ready, 1, CU_STREAM_WRITE_VALUE_DEFAULT),
                                             "cuStreamWriteValue32", why);
    if (outcome == GWCTL_WORKS)
        outcome =
            gwctl_cuda_say(cuStreamWaitValue32(stream, done, 7, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuStreamWriteValue32(stream, ready, 2, CU_STREAM_WRITE_VALUE_DEFAULT),
                                 "cuStreamWriteValue32", why);
    return outcome;
}

static gwctl_outcome_t watch(CUstream stream, slot_t *slot, char *why) {
    const char *wrong = NULL;
    if (!await(&slot->ready, 1, PATIENCE_S))
        wrong = "a word that a stream wrote was not seen";
    atomic_store(&slot->done, 6);
    if (wrong == NULL && await(&slot->ready, 2, PAUSE_S))
        wrong = "a stream did not wait for its word";
    atomic_store(&slot->done, 7);
    if (wrong == NULL && !await(&slot->ready, 2, PATIENCE_S))
        wrong = "a stream was not freed by its word";
    if (wrong != NULL) {
        snprintf(why, GWCTL_WHY_BYTES, "%s", wrong);
        return GWCTL_BROKEN;
    }
    return gwctl_cuda_wait(stream, why);
}

gwctl_outcome_t gwctl_cuda_words(gwctl_device_t *device, char *why) {
    CUdeviceptr address;
    slot_t *slot = NULL;
    CUstream stream = device->stream[1];
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    if (outcome == GWCTL_WORKS)
        outcome = map_memfd(&slot, why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = gwctl_cuda_say(
        cuMemHostRegister(slot, MAPPED_BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "cuMemHostRegister of a memfd", why);
    if (outcome != GWCTL_WORKS)
        goto err_unmap;
    outcome = gwctl_cuda_say(cuMemHostGetDevicePointer(&address, slot, 0), "cuMemHostGetDevicePointer", why);
    if (outcome == GWCTL_WORKS)
        outcome = enqueue(stream, address, why);
    if (outcome == GWCTL_WORKS)
        outcome = watch(stream, slot, why);
    else
        atomic_store(&slot->done, 7); /* what was enqueued must end before the memory goes */
    if (outcome != GWCTL_WORKS) {
        char ignored[GWCTL_WHY_BYTES];
        if (gwctl_cuda_wait(stream, ignored) != GWCTL_WORKS)
            return outcome; /* the stream still looks at the memory, so it stays until this process ends */
    }
    cuMemHostUnregister(slot);
err_unmap:
    munmap(slot, MAPPED_BYTES);
    return outcome;
}
