/* map.c - memory of cuMemCreate at addresses, and who may use it */
#include <sys/mman.h>

#include "fake.h"

/* Whether one reservation holds all of it. */
static bool is_reserved(uintptr_t at, size_t bytes) {
    uintptr_t base;
    size_t held;

    return fake_reservation_find(at, &base, &held) && bytes <= held - (at - base);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct fake_range range = {.base = ptr, .bytes = size, .mapped_bytes = size, .kind = FAKE_MAPPED};

    if (result != CUDA_SUCCESS)
        return result;
    if (ptr % FAKE_GRANULARITY != 0 || size == 0 || size % FAKE_GRANULARITY != 0 || offset != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_map_lock);
    if (!is_reserved(ptr, size) || fake_range_overlaps(ptr, size))
        result = CUDA_ERROR_INVALID_VALUE;
    else
        result = fake_handle_map(handle, &range);
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

/* Whether mappings, each of them whole, fill the addresses. */
static bool are_whole_mappings(uintptr_t at, size_t bytes) {
    uintptr_t end = at + bytes;

    while (at < end) {
        const struct fake_range *range = fake_range_find(at);

        if (!range || range->kind != FAKE_MAPPED || range->base != at || range->bytes > end - at)
            return false;
        at += range->bytes;
    }
    return true;
}

/* Unlike cuMemFree it waits for nothing. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    if (size == 0 || ptr + size < ptr)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_map_lock);
    if (are_whole_mappings(ptr, size)) {
        for (uintptr_t at = ptr; at < ptr + size;) {
            struct fake_range *range = fake_range_find(at);

            at += range->bytes;
            fake_blank((void *)range->base, range->bytes);
            fake_handle_drop(range->handle);
            fake_range_remove(range);
        }
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

static bool is_access(const CUmemAccessDesc *desc) {
    return desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE && desc->location.id >= 0 &&
           desc->location.id < fake.n_devices &&
           (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    unsigned allowed = 0, named = 0;

    if (result != CUDA_SUCCESS)
        return result;
    if (size == 0 || ptr + size < ptr || !desc || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!is_access(&desc[i]))
            return CUDA_ERROR_INVALID_VALUE;
        named |= 1U << desc[i].location.id;
        if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            allowed |= 1U << desc[i].location.id;
    }
    pthread_rwlock_wrlock(&fake_map_lock);
    if (are_whole_mappings(ptr, size)) {
        for (uintptr_t at = ptr; at < ptr + size;) {
            struct fake_range *range = fake_range_find(at);

            at += range->bytes;
            range->access = (range->access & ~named) | allowed;
            if (mprotect((void *)range->base, range->bytes, range->access ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
                result = CUDA_ERROR_OPERATING_SYSTEM;
        }
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}
