/* pool_share.c - pools between processes: a descriptor for the pool, and a small record for each allocation of it */
#include <string.h>
#include <unistd.h>

#include "pool.h"

static const char magic[8] = "simpool";

struct record {
    char magic[8];
    uint64_t offset;
    uint64_t bytes;
};
_Static_assert(sizeof(struct record) <= sizeof(CUmemPoolPtrExportData), "the record fits");

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    int fd = -1;

    if (result != CUDA_SUCCESS)
        return result;
    if (!handle_out || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_map_lock);
    if (fake_pool_is(pool) && (pool->handle_types & handleType) != 0)
        fd = fake_dup(pool->fd);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fake_map_lock);
    if (result != CUDA_SUCCESS)
        return result;
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(handle_out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

/* The descriptor stays the caller's. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct fake_label label;
    int given = (int)(intptr_t)handle, fd, device;

    if (result != CUDA_SUCCESS)
        return result;
    if (!pool_out || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 ||
        !fake_memfd_label(given, &label) || label.kind != 'P' || label.bytes != FAKE_POOL_SPAN)
        return CUDA_ERROR_INVALID_VALUE;
    device = fake_device_ordinal(label.physical);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    fd = fake_dup(given);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_rwlock_wrlock(&fake_map_lock);
    *pool_out = fake_pool_new(fd, device, label.handle_types, true);
    pthread_rwlock_unlock(&fake_map_lock);
    if (*pool_out)
        return CUDA_SUCCESS;
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    struct record record = {.offset = 0};
    const struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    if (!shareData_out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_map_lock);
    range = fake_range_find(ptr);
    if (range && range->kind == FAKE_POOL && !range->pool->imported && range->pool->handle_types != 0) {
        memcpy(record.magic, magic, sizeof(magic));
        record.offset = (uint64_t)range->offset;
        record.bytes = range->bytes;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    if (result == CUDA_SUCCESS) {
        memset(shareData_out, 0, sizeof(*shareData_out));
        memcpy(shareData_out->reserved, &record, sizeof(record));
    }
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct fake_range range = {.kind = FAKE_POOL};
    struct record record;

    if (result != CUDA_SUCCESS)
        return result;
    if (!ptr_out || !shareData)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&record, shareData->reserved, sizeof(record));
    if (memcmp(record.magic, magic, sizeof(magic)) != 0 || record.bytes == 0 || record.bytes > FAKE_MEMORY_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    range.bytes = record.bytes;
    range.mapped_bytes = fake_round(record.bytes, FAKE_PAGE_BYTES);
    pthread_rwlock_wrlock(&fake_map_lock);
    if (fake_pool_is(pool) && pool->imported)
        result = fake_pool_add(pool, &range, record.offset);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fake_map_lock);
    if (result == CUDA_SUCCESS)
        *ptr_out = range.base;
    return result;
}
