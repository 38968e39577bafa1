/* cuda_test.h - what tests that use the CUDA driver API share: two contexts, and words that streams write and await */
#ifndef CUDA_TEST_H
#define CUDA_TEST_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#include "cunit_main.h"

#define OK(call)   CU_ASSERT_EQUAL((call), CUDA_SUCCESS)
#define MUST(call) CU_ASSERT_EQUAL_FATAL((call), CUDA_SUCCESS)

enum { PAGE = 4096 };

static CUcontext contexts[2];
static uint32_t *words; /* registered with all contexts */

static inline CUdeviceptr device_address(const void *at) {
    return (CUdeviceptr)(uintptr_t)at;
}

static inline void set_word(unsigned index, uint32_t value) {
    __atomic_store_n(&words[index], value, __ATOMIC_RELEASE);
}

static inline uint32_t get_word(unsigned index) {
    return __atomic_load_n(&words[index], __ATOMIC_ACQUIRE);
}

static inline CUstream new_stream(unsigned flags) {
    CUstream stream = NULL;

    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

static inline CUdeviceptr new_memory(size_t bytes) {
    CUdeviceptr at = 0;

    MUST(cuMemAlloc(&at, bytes));
    return at;
}

/* The contexts and the page of words are there throughout. */
static inline bool prepare(void) {
    words = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED || cuInit(0) != CUDA_SUCCESS)
        return false;
    for (int i = 0; i < 2; i++)
        if (cuDevicePrimaryCtxRetain(&contexts[i], i) != CUDA_SUCCESS)
            return false;
    return cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS &&
           cuMemHostRegister(words, PAGE, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
}

static inline int cuda_test_run(const char *name, CU_TestInfo *tests) {
    if (!prepare()) {
        fprintf(stderr,
                "%s: there are no two simulated devices: LD_LIBRARY_PATH must name the folder of the "
                "simulated driver\n",
                name);
        return 1;
    }
    return cunit_run(name, tests);
}

#endif
