/* memory.c - cuMemAlloc and managed memory */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/* Files behind memory that anybody may open, addresses, and a row in the table; the map lock is held. */
static CUresult add_device(struct fake_range *range) {
    int fd = fake_file_create(range->mapped_bytes, range->name);
    void *at = fd < 0 ? NULL : fake_place(range->mapped_bytes, FAKE_PAGE_BYTES);
    bool backed = at && fake_back(at, range->mapped_bytes, fd, 0, PROT_READ | PROT_WRITE);

    if (fd >= 0)
        close(fd);
    range->base = (uintptr_t)at;
    if (backed && fake_range_add(range))
        return CUDA_SUCCESS;
    if (at)
        fake_unplace(at, range->mapped_bytes);
    if (fd >= 0)
        fake_file_remove(range->name);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nobody opens managed memory, and the CPU may use it. */
static CUresult add_managed(struct fake_range *range) {
    void *at = fake_place(range->mapped_bytes, FAKE_PAGE_BYTES);

    if (!at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->base = (uintptr_t)at;
    if (mmap(at, range->mapped_bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at &&
        fake_range_add(range))
        return CUDA_SUCCESS;
    fake_unplace(at, range->mapped_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(enum fake_kind kind, size_t bytes, CUdeviceptr *at_out) {
    CUcontext context = fake_context_current();
    struct fake_range range = {.bytes = bytes, .kind = kind, .device = context->device, .context = context};
    CUresult result;

    if (!at_out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > FAKE_MEMORY_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range.mapped_bytes = fake_round(bytes, FAKE_PAGE_BYTES);
    result = fake_account_take(range.device, range.mapped_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    result = kind == FAKE_DEVICE ? add_device(&range) : add_managed(&range);
    pthread_rwlock_unlock(&fake_map_lock);
    if (result == CUDA_SUCCESS)
        *at_out = range.base;
    else
        fake_account_give(range.device, range.mapped_bytes);
    return result;
}

CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    return result != CUDA_SUCCESS ? result : allocate(FAKE_DEVICE, bytesize, dptr);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(FAKE_MANAGED, bytesize, dptr);
}

static bool may_free(const struct fake_range *range, CUdeviceptr at) {
    return range && range->base == at && !range->freeing &&
           (range->kind == FAKE_DEVICE || range->kind == FAKE_MANAGED || range->kind == FAKE_POOL);
}

/* Like the real call, it waits for all work of the context. */
CUresult cuMemFree(CUdeviceptr dptr) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct fake_range *range;
    CUcontext context;
    bool valid;

    if (result != CUDA_SUCCESS || dptr == 0)
        return result;
    context = fake_context_current();
    pthread_rwlock_rdlock(&fake_map_lock);
    range = fake_range_find(dptr);
    valid = may_free(range, dptr);
    if (valid && range->context)
        context = range->context;
    pthread_rwlock_unlock(&fake_map_lock);
    if (!valid)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_context_await(context);
    pthread_mutex_unlock(&fake_engine_lock);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find(dptr);
    valid = may_free(range, dptr);
    if (valid)
        fake_range_destroy(range);
    pthread_rwlock_unlock(&fake_map_lock);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    if (result != CUDA_SUCCESS)
        return result;
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = fake_account_free_bytes(fake_context_current()->device);
    *total = FAKE_MEMORY_BYTES;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    const struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_rdlock(&fake_map_lock);
    range = fake_range_find(dptr);
    if (range && range->kind != FAKE_REGISTERED) {
        if (pbase)
            *pbase = range->base;
        if (psize)
            *psize = range->bytes;
    } else {
        result = CUDA_ERROR_NOT_FOUND;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}
