/* host.c - host memory that devices may use: allocated by the driver, or registered with it */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "fake.h"

static CUresult add(CUcontext context, size_t bytes, void **at_out) {
    struct fake_range range = {.bytes = bytes,
                               .mapped_bytes = fake_round(bytes, FAKE_PAGE_BYTES),
                               .kind = FAKE_HOST,
                               .device = context->device,
                               .context = context};
    void *at = fake_place(range.mapped_bytes, FAKE_PAGE_BYTES);

    if (!at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range.base = (uintptr_t)at;
    if (mmap(at, range.mapped_bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != at ||
        !fake_range_add(&range)) {
        fake_unplace(at, range.mapped_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *at_out = at;
    return CUDA_SUCCESS;
}

static CUresult allocate(size_t bytes, void **at_out) {
    CUresult result;

    if (!at_out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > SIZE_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&fake_map_lock);
    result = add(fake_context_current(), bytes, at_out);
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;

    if (result != CUDA_SUCCESS)
        return result;
    return Flags & ~known ? CUDA_ERROR_INVALID_VALUE : allocate(bytesize, pp);
}

CUresult cuMemAllocHost(void **pp, size_t bytesize) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    return result != CUDA_SUCCESS ? result : allocate(bytesize, pp);
}

/* Like the real call, it waits for all work of the context. */
CUresult cuMemFreeHost(void *p) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_context_await(fake_context_current());
    pthread_mutex_unlock(&fake_engine_lock);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find((uintptr_t)p);
    if (range && range->base == (uintptr_t)p && range->kind == FAKE_HOST)
        fake_range_destroy(range);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

/* Memory that is not there cannot be pinned. */
static bool is_mapped(uintptr_t at, size_t bytes) {
    uintptr_t begin = at / FAKE_PAGE_BYTES * FAKE_PAGE_BYTES;
    size_t whole = fake_round(at + bytes, FAKE_PAGE_BYTES) - begin;
    unsigned char *pages = malloc(whole / FAKE_PAGE_BYTES);
    bool mapped = pages && mincore((void *)begin, whole, pages) == 0;

    free(pages);
    return mapped;
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    struct fake_range range = {
        .base = (uintptr_t)p, .bytes = bytesize, .mapped_bytes = bytesize, .kind = FAKE_REGISTERED, .flags = Flags};

    if (result != CUDA_SUCCESS)
        return result;
    if (!p || bytesize == 0 || range.base + bytesize < range.base || Flags & ~known || !is_mapped(range.base, bytesize))
        return CUDA_ERROR_INVALID_VALUE;
    range.context = fake_context_current();
    range.device = range.context->device;
    pthread_rwlock_wrlock(&fake_map_lock);
    if (fake_range_overlaps(range.base, bytesize))
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if (!fake_range_add(&range))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemHostUnregister(void *p) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find((uintptr_t)p);
    if (range && range->base == (uintptr_t)p && range->kind == FAKE_REGISTERED)
        fake_range_destroy(range);
    else
        result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    const struct fake_range *range;
    struct fake_spot spot;

    if (result != CUDA_SUCCESS)
        return result;
    if (!pdptr || Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = fake_spot_take((uintptr_t)p, 1, fake_context_current(), &spot);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_rdlock(&fake_map_lock);
    range = spot.id == 0 ? NULL : fake_range_find((uintptr_t)p);
    if (range && (range->kind == FAKE_HOST || range->kind == FAKE_REGISTERED))
        *pdptr = (uintptr_t)p;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}
