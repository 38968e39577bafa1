/* vmm.c - cuMemCreate: memory apart from its addresses, shared by descriptors */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

struct fake_handle {
    struct fake_handle *next;
    unsigned owned; /* cuMemCreate, import, retain */
    unsigned mapped;
    int fd;
    int device;
    bool imported;
    unsigned handle_types;
    size_t bytes;
};

struct reservation {
    struct reservation *next;
    uintptr_t base;
    size_t bytes;
};

static struct fake_handle *handles; /* these are guarded by the map lock */
static struct reservation *reservations;

static struct fake_handle *find(CUmemGenericAllocationHandle number) {
    struct fake_handle *handle = handles;

    while (handle && (uintptr_t)handle != number)
        handle = handle->next;
    return handle && handle->owned > 0 ? handle : NULL;
}

static void end_if_unused(struct fake_handle *handle) {
    struct fake_handle **at = &handles;

    if (handle->owned > 0 || handle->mapped > 0)
        return;
    while (*at != handle)
        at = &(*at)->next;
    *at = handle->next;
    close(handle->fd);
    if (!handle->imported)
        fake_account_give(handle->device, handle->bytes);
    free(handle);
}

void fake_handle_drop(struct fake_handle *handle) {
    handle->mapped--;
    end_if_unused(handle);
}

CUresult fake_handle_map(CUmemGenericAllocationHandle number, struct fake_range *range) {
    struct fake_handle *handle = find(number);

    if (!handle || handle->bytes < range->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    range->handle = handle;
    range->device = handle->device;
    if (!fake_back((void *)range->base, range->bytes, handle->fd, 0, PROT_NONE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!fake_range_add(range)) {
        fake_blank((void *)range->base, range->bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->mapped++;
    return CUDA_SUCCESS;
}

unsigned fake_handle_types(const struct fake_handle *handle) {
    return handle->handle_types;
}

bool fake_reservation_find(uintptr_t at, uintptr_t *base_out, size_t *bytes_out) {
    for (const struct reservation *row = reservations; row; row = row->next)
        if (at >= row->base && at - row->base < row->bytes) {
            *base_out = row->base;
            *bytes_out = row->bytes;
            return true;
        }
    return false;
}

static bool is_device_prop(const CUmemAllocationProp *prop) {
    return prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < fake.n_devices &&
           (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    (void)option;
    if (result != CUDA_SUCCESS)
        return result;
    if (!granularity || !is_device_prop(prop))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = FAKE_GRANULARITY;
    return CUDA_SUCCESS;
}

/* Takes the descriptor when it succeeds. */
static CUresult add_handle(const struct fake_handle *model, CUmemGenericAllocationHandle *handle_out) {
    struct fake_handle *handle = malloc(sizeof(*handle));

    if (!handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = *model;
    handle->owned = 1;
    pthread_rwlock_wrlock(&fake_map_lock);
    handle->next = handles;
    handles = handle;
    pthread_rwlock_unlock(&fake_map_lock);
    *handle_out = (uintptr_t)handle;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct fake_label label = {.kind = 'V'};
    struct fake_handle model = {.bytes = size};

    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || size == 0 || size % FAKE_GRANULARITY != 0 || !is_device_prop(prop) || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    model.device = prop->location.id;
    model.handle_types = prop->requestedHandleTypes;
    label.handle_types = model.handle_types;
    label.physical = fake.physical[model.device];
    label.bytes = size;
    result = fake_account_take(model.device, size);
    if (result != CUDA_SUCCESS)
        return result;
    model.fd = fake_memfd(&label);
    result = model.fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : add_handle(&model, handle);
    if (result != CUDA_SUCCESS) {
        if (model.fd >= 0)
            close(model.fd);
        fake_account_give(model.device, size);
    }
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct fake_handle *found;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    found = find(handle);
    if (found) {
        found->owned--;
        end_if_unused(found);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    const struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find((uintptr_t)addr);
    if (range && range->kind == FAKE_MAPPED) {
        range->handle->owned++;
        *handle = (uintptr_t)range->handle;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    const struct fake_handle *found;

    if (result != CUDA_SUCCESS)
        return result;
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_map_lock);
    found = find(handle);
    if (found) {
        memset(prop, 0, sizeof(*prop));
        prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop->requestedHandleTypes = (CUmemAllocationHandleType)found->handle_types;
        prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop->location.id = found->device;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    const struct fake_handle *found;
    int fd = -1;

    if (result != CUDA_SUCCESS)
        return result;
    if (!shareableHandle || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_map_lock);
    found = find(handle);
    if (found && (found->handle_types & handleType) != 0)
        fd = fake_dup(found->fd);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fake_map_lock);
    if (result != CUDA_SUCCESS)
        return result;
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(shareableHandle, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

/* The descriptor stays the caller's. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct fake_handle model = {.imported = true};
    struct fake_label label;
    int fd = (int)(intptr_t)osHandle;

    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !fake_memfd_label(fd, &label) ||
        label.kind != 'V')
        return CUDA_ERROR_INVALID_VALUE;
    model.device = fake_device_ordinal(label.physical);
    model.handle_types = label.handle_types;
    model.bytes = label.bytes;
    if (model.device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    model.fd = fake_dup(fd);
    if (model.fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    result = add_handle(&model, handle);
    if (result != CUDA_SUCCESS)
        close(model.fd);
    return result;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct reservation *row;
    size_t unit = alignment > FAKE_GRANULARITY ? alignment : FAKE_GRANULARITY;

    (void)addr; /* a wish, which need not be granted */
    if (result != CUDA_SUCCESS)
        return result;
    if (!ptr || size == 0 || size % FAKE_GRANULARITY != 0 || (alignment & (alignment - 1)) != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    row = malloc(sizeof(*row));
    if (!row)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&fake_map_lock);
    row->base = (uintptr_t)fake_place(size, unit);
    row->bytes = size;
    if (row->base) {
        row->next = reservations;
        reservations = row;
        *ptr = row->base;
    } else {
        free(row);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);
    struct reservation **at = &reservations, *row;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    while (*at && ((*at)->base != ptr || (*at)->bytes != size))
        at = &(*at)->next;
    row = *at;
    if (row && !fake_range_overlaps(ptr, size)) {
        *at = row->next;
        fake_unplace((void *)row->base, row->bytes);
        free(row);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}
