/* demote.c - see gw_kernel_demote in kernels.h */
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { LINE_BYTES = 64 };

__attribute__((target("cldemote"))) void gw_kernel_demote(const void *data, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += LINE_BYTES)
        _cldemote((unsigned char *)(uintptr_t)data + at); /* its argument should be const, and is not */
}

#else

void gw_kernel_demote(const void *data, uint64_t bytes) {
    (void)data;
    (void)bytes;
}

#endif
