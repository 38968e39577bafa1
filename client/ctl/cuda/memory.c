/* memory.c - pinned host memory near a GPU, and patterns that show where bytes went astray */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gpu_cuda.h"

enum { POLICY_PREFERRED = 1 }; /* MPOL_PREFERRED of the kernel; its header comes with libnuma only */

double gwctl_cuda_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- host memory -------------------------------------------------------------------------------- */

/* Best effort: sandboxes forbid mbind, and a copy from the other node is slower but right. */
static void place(void *memory, uint64_t bytes, int node) {
    unsigned long nodes[16] = {0};
    const int bits = 8 * (int)sizeof(nodes[0]);
    if (node < 0 || node >= 16 * bits)
        return;
    nodes[node / bits] = 1UL << (node % bits);
    (void)syscall(SYS_mbind, memory, bytes, POLICY_PREFERRED, nodes, 16UL * (unsigned long)bits + 1, 0);
}

gwctl_outcome_t gwctl_cuda_host_alloc(const gwctl_device_t *device, uint64_t bytes, void **memory_out, char *why) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        snprintf(why, GWCTL_WHY_BYTES, "%" PRIu64 " MiB of host memory: %s", bytes >> 20, strerror(errno));
        return GWCTL_FULL;
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    place(memory, bytes, device->numa_node);
    memset(memory, 1, bytes);
    gwctl_outcome_t outcome =
        gwctl_cuda_say(cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister", why);
    if (outcome != GWCTL_WORKS) {
        munmap(memory, bytes);
        return outcome;
    }
    *memory_out = memory;
    return GWCTL_WORKS;
}

void gwctl_cuda_host_free(void *memory, uint64_t bytes) {
    /* Pages that the driver still holds must not be given to anybody else. */
    if (cuMemHostUnregister(memory) == CUDA_SUCCESS)
        munmap(memory, bytes);
}

gwctl_outcome_t gwctl_cuda_pin(gwctl_device_t *device, uint64_t bytes, char *why) {
    void *memory;
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_host_alloc(device, bytes, &memory, why);
    if (outcome == GWCTL_WORKS)
        gwctl_cuda_host_free(memory, bytes);
    return outcome;
}

/* ---- patterns ----------------------------------------------------------------------------------- */

/* Mixes a number, so that neighbours have nothing in common and no wrong byte is right by accident. */
static uint64_t mix(uint64_t x) {
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15); /* 2^64 divided by the golden ratio */
    x = (x ^ x >> 31) * odd;
    x = (x ^ x >> 29) * odd;
    return x ^ x >> 32;
}

static uint64_t word_at(uint64_t seed, uint64_t place_words) {
    return mix(mix(seed) + place_words + 1);
}

gwctl_outcome_t gwctl_cuda_fill(const gwctl_device_t *device, CUdeviceptr memory, uint64_t bytes, uint64_t seed,
                                char *why) {
    uint64_t *words = malloc(bytes);
    if (words == NULL) {
        snprintf(why, GWCTL_WHY_BYTES, "out of host memory");
        return GWCTL_FULL;
    }
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = word_at(seed, i);
    gwctl_outcome_t outcome =
        gwctl_cuda_say(cuMemcpyHtoDAsync(memory, words, bytes, device->stream[0]), "cuMemcpyHtoDAsync", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_wait(device->stream[0], why);
    free(words);
    return outcome;
}

gwctl_outcome_t gwctl_cuda_compare(const gwctl_device_t *device, CUdeviceptr memory, uint64_t bytes, uint64_t seed,
                                   char *why) {
    uint64_t *words = calloc(1, bytes);
    uint64_t n_wrong = 0;
    uint64_t first = 0;
    if (words == NULL) {
        snprintf(why, GWCTL_WHY_BYTES, "out of host memory");
        return GWCTL_FULL;
    }
    gwctl_outcome_t outcome =
        gwctl_cuda_say(cuMemcpyDtoHAsync(words, memory, bytes, device->stream[0]), "cuMemcpyDtoHAsync", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_wait(device->stream[0], why);
    for (uint64_t i = bytes / 8; i > 0 && outcome == GWCTL_WORKS; i--) {
        if (words[i - 1] != word_at(seed, i - 1)) {
            n_wrong++;
            first = i - 1;
        }
    }
    free(words);
    if (n_wrong > 0) {
        snprintf(why, GWCTL_WHY_BYTES, "%" PRIu64 " of %" PRIu64 " bytes are wrong, the first at byte %" PRIu64,
                 8 * n_wrong, bytes, 8 * first);
        return GWCTL_WRONG;
    }
    return outcome;
}
