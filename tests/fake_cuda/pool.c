/* pool.c - stream-ordered memory and its pools
 *
 * A pool is one long sparse memfd. Each allocation takes the next part of it, and its end gives the pages back.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

static CUmemoryPool pools; /* these are guarded by the map lock */
static CUmemoryPool defaults[FAKE_DEVICES_MAX];

bool fake_pool_is(CUmemoryPool handle) {
    const struct CUmemPoolHandle_st *pool = pools;

    while (pool && pool != handle)
        pool = pool->next;
    return pool && pool->open;
}

static void end_if_unused(CUmemoryPool pool) {
    CUmemoryPool *at = &pools;

    if (pool->open || pool->live > 0)
        return;
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    close(pool->fd);
    free(pool);
}

unsigned fake_pool_types(const struct CUmemPoolHandle_st *pool) {
    return pool->handle_types;
}

bool fake_pool_allows(const struct CUmemPoolHandle_st *pool, int device) {
    return (pool->access >> device & 1) != 0;
}

void fake_pool_return(const struct fake_range *range) {
    CUmemoryPool pool = range->pool;

    if (!pool->imported) {
        fake_account_give(range->device, range->mapped_bytes);
        /* Fails only where pages cannot be given back one by one; then they stay till the pool's end. */
        (void)fallocate(pool->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, range->offset,
                        (off_t)range->mapped_bytes);
    }
    pool->live--;
    end_if_unused(pool);
}

CUmemoryPool fake_pool_new(int fd, int device, unsigned handle_types, bool imported) {
    CUmemoryPool pool = calloc(1, sizeof(*pool));

    if (!pool)
        return NULL;
    pool->open = true;
    pool->imported = imported;
    pool->fd = fd;
    pool->device = device;
    pool->handle_types = handle_types;
    pool->access = 1U << device;
    pool->next = pools;
    pools = pool;
    return pool;
}

static CUresult create_locked(int device, unsigned handle_types, CUmemoryPool *pool_out) {
    struct fake_label label = {
        .kind = 'P', .handle_types = handle_types, .physical = fake.physical[device], .bytes = FAKE_POOL_SPAN};
    int fd = fake_memfd(&label);
    CUmemoryPool pool = fd < 0 ? NULL : fake_pool_new(fd, device, handle_types, false);

    if (pool) {
        *pool_out = pool;
        return CUDA_SUCCESS;
    }
    if (fd >= 0)
        close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE || poolProps->location.id < 0 ||
        poolProps->location.id >= fake.n_devices ||
        (poolProps->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_map_lock);
    result = create_locked(poolProps->location.id, poolProps->handleTypes, pool);
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

static CUresult default_pool(int device, CUmemoryPool *pool_out) {
    CUresult result = CUDA_SUCCESS;

    pthread_rwlock_wrlock(&fake_map_lock);
    if (!defaults[device])
        result = create_locked(device, 0, &defaults[device]);
    *pool_out = defaults[device];
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (dev < 0 || dev >= fake.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    return pool_out ? default_pool(dev, pool_out) : CUDA_ERROR_INVALID_VALUE;
}

/* The pool lives on, without its handle, while memory of it is in use. */
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    if (fake_pool_is(pool) && pool != defaults[pool->device]) {
        pool->open = false;
        end_if_unused(pool);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    if (!fake_pool_is(pool) || (count > 0 && !map))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        int device = map[i].location.id;
        bool allow = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= fake.n_devices ||
            (device == pool->device && !allow))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            pool->access = (pool->access & ~(1U << device)) | (unsigned)allow << device;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

/* Memory that is freed goes back at once, so there is no threshold to keep. */
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    bool valid;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_rdlock(&fake_map_lock);
    valid = fake_pool_is(pool) && value != NULL && attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
            attr <= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    pthread_rwlock_unlock(&fake_map_lock);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    bool valid;

    (void)minBytesToKeep;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_rdlock(&fake_map_lock);
    valid = fake_pool_is(pool);
    pthread_rwlock_unlock(&fake_map_lock);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fake_pool_add(CUmemoryPool pool, struct fake_range *range, uint64_t offset) {
    void *at;

    range->base = 0;
    if (offset % FAKE_PAGE_BYTES != 0 || offset > FAKE_POOL_SPAN || range->mapped_bytes > FAKE_POOL_SPAN - offset)
        return CUDA_ERROR_INVALID_VALUE;
    at = fake_place(range->mapped_bytes, FAKE_PAGE_BYTES);
    if (!at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->base = (uintptr_t)at;
    range->kind = FAKE_POOL;
    range->device = pool->device;
    range->pool = pool;
    range->offset = (off_t)offset;
    if (!fake_back(at, range->mapped_bytes, pool->fd, range->offset, PROT_READ | PROT_WRITE) ||
        !fake_range_add(range)) {
        fake_unplace(at, range->mapped_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->live++;
    return CUDA_SUCCESS;
}

static CUresult allocate_locked(CUmemoryPool pool, struct fake_range *range) {
    CUresult result;

    if (!fake_pool_is(pool) || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    result = fake_account_take(pool->device, range->mapped_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = fake_pool_add(pool, range, pool->end);
    if (result == CUDA_SUCCESS)
        pool->end += range->mapped_bytes;
    else
        fake_account_give(pool->device, range->mapped_bytes);
    return result;
}

/* The memory is there at once, which is sooner than the stream's order asks for. */
static CUresult allocate(CUdeviceptr *at_out, size_t bytes, CUmemoryPool pool, CUstream stream) {
    struct fake_range range = {.bytes = bytes, .mapped_bytes = fake_round(bytes, FAKE_PAGE_BYTES)};
    CUresult result;

    if (!at_out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > FAKE_MEMORY_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = fake_stream_no_capture(stream);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    result = allocate_locked(pool, &range);
    pthread_rwlock_unlock(&fake_map_lock);
    if (result == CUDA_SUCCESS)
        *at_out = range.base;
    return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result : allocate(dptr, bytesize, pool, hStream);
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    CUmemoryPool pool;
    CUcontext context;

    if (result != CUDA_SUCCESS)
        return result;
    result = fake_stream_context(hStream, &context);
    if (result == CUDA_SUCCESS)
        result = default_pool(context->device, &pool);
    return result != CUDA_SUCCESS ? result : allocate(dptr, bytesize, pool, hStream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    struct fake_op op = {.kind = FAKE_OP_FREE, .to = {.at = dptr}};
    struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    result = fake_stream_no_capture(hStream);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find(dptr);
    if (range && range->base == dptr && range->kind == FAKE_POOL && !range->freeing) {
        range->freeing = true;
        op.to.id = range->id;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result != CUDA_SUCCESS ? result : fake_enqueue(hStream, &op, false);
}

void fake_pool_free(uintptr_t at, uint64_t id) {
    struct fake_range *range;

    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find(at);
    if (range && range->id == id)
        fake_range_destroy(range);
    pthread_rwlock_unlock(&fake_map_lock);
}
