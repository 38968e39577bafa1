/* share.c - device memory that another process opens, by a legacy IPC handle and by a file descriptor */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_cuda.h"

_Static_assert(sizeof(CUipcMemHandle) <= GWCTL_HANDLE_BYTES, "a handle fits into gwctl_share_t");
#define SHARED_BYTES (UINT64_C(2) << 20)

static CUmemAllocationProp describe(CUdevice device) {
    CUmemAllocationProp what;
    memset(&what, 0, sizeof(what));
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = device;
    return what;
}

/* Gives an allocation an address, for this device. */
static gwctl_outcome_t map(CUdevice device, CUmemGenericAllocationHandle allocation, uint64_t bytes,
                           CUdeviceptr *address_out, char *why) {
    CUdeviceptr address;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    gwctl_outcome_t outcome = gwctl_cuda_say(cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = gwctl_cuda_say(cuMemMap(address, bytes, 0, allocation, 0), "cuMemMap", why);
    if (outcome != GWCTL_WORKS)
        goto err_free;
    outcome = gwctl_cuda_say(cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess", why);
    if (outcome != GWCTL_WORKS)
        goto err_unmap;
    *address_out = address;
    return GWCTL_WORKS;

err_unmap:
    cuMemUnmap(address, bytes);
err_free:
    cuMemAddressFree(address, bytes);
    return outcome;
}

static void unmap(CUdeviceptr address, uint64_t bytes) {
    cuMemUnmap(address, bytes);
    cuMemAddressFree(address, bytes);
}

/* ---- the exporter ------------------------------------------------------------------------------- */

static gwctl_outcome_t share_handle(gwctl_share_t *share, char *why) {
    CUdeviceptr address;
    CUipcMemHandle handle;
    gwctl_outcome_t outcome = gwctl_cuda_say(cuMemAlloc(&address, share->bytes), "cuMemAlloc", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = gwctl_cuda_say(cuIpcGetMemHandle(&handle, address), "cuIpcGetMemHandle", why);
    if (outcome != GWCTL_WORKS) {
        cuMemFree(address);
        return outcome;
    }
    memcpy(share->handle, &handle, sizeof(handle));
    share->address = address;
    return GWCTL_WORKS;
}

static gwctl_outcome_t share_fd(const gwctl_device_t *device, gwctl_share_t *share, char *why) {
    CUmemAllocationProp what = describe(device->device);
    CUmemGenericAllocationHandle allocation;
    CUdeviceptr address;
    size_t step = 0;
    gwctl_outcome_t outcome =
        gwctl_cuda_say(cuMemGetAllocationGranularity(&step, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                       "cuMemGetAllocationGranularity", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    if (step != 0)
        share->bytes = (share->bytes + step - 1) / step * step;
    outcome = gwctl_cuda_say(cuMemCreate(&allocation, share->bytes, &what, 0), "cuMemCreate", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = map(device->device, allocation, share->bytes, &address, why);
    if (outcome != GWCTL_WORKS)
        goto err_release;
    outcome = gwctl_cuda_say(
        cuMemExportToShareableHandle(&share->fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle", why);
    if (outcome != GWCTL_WORKS)
        goto err_unmap;
    share->address = address;
    share->allocation = allocation;
    return GWCTL_WORKS;

err_unmap:
    unmap(address, share->bytes);
err_release:
    cuMemRelease(allocation);
    return outcome;
}

gwctl_outcome_t gwctl_cuda_share(gwctl_device_t *device, gwctl_share_kind_t kind, uint64_t seed,
                                 gwctl_share_t *share_out, char *why) {
    gwctl_share_t share = {.kind = kind, .bytes = SHARED_BYTES, .seed = seed, .fd = -1};
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    if (outcome == GWCTL_WORKS)
        outcome = kind == GWCTL_SHARE_FD ? share_fd(device, &share, why) : share_handle(&share, why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = gwctl_cuda_fill(device, share.address, share.bytes, seed, why);
    if (outcome != GWCTL_WORKS) {
        gwctl_cuda_share_free(device, &share);
        return outcome;
    }
    *share_out = share;
    return GWCTL_WORKS;
}

gwctl_outcome_t gwctl_cuda_share_verify(gwctl_device_t *device, const gwctl_share_t *share, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_compare(device, share->address, share->bytes, share->seed + 1, why);
    return outcome;
}

void gwctl_cuda_share_free(gwctl_device_t *device, gwctl_share_t *share) {
    cuCtxSetCurrent(device->context);
    if (share->kind == GWCTL_SHARE_HANDLE) {
        cuMemFree(share->address);
        return;
    }
    close(share->fd);
    unmap(share->address, share->bytes);
    cuMemRelease(share->allocation);
}

/* ---- the importer ------------------------------------------------------------------------------- */

static gwctl_outcome_t exchange(const gwctl_device_t *device, CUdeviceptr address, const gwctl_share_t *share,
                                char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_compare(device, address, share->bytes, share->seed, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_fill(device, address, share->bytes, share->seed + 1, why);
    return outcome;
}

static gwctl_outcome_t use_handle(const gwctl_device_t *device, const gwctl_share_t *share, char *why) {
    CUipcMemHandle handle;
    CUdeviceptr address;
    memcpy(&handle, share->handle, sizeof(handle));
    gwctl_outcome_t outcome = gwctl_cuda_say(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                                             "cuIpcOpenMemHandle", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = exchange(device, address, share, why);
    cuIpcCloseMemHandle(address);
    return outcome;
}

static gwctl_outcome_t use_fd(const gwctl_device_t *device, const gwctl_share_t *share, char *why) {
    CUmemGenericAllocationHandle allocation;
    CUdeviceptr address;
    gwctl_outcome_t outcome = gwctl_cuda_say(cuMemImportFromShareableHandle(&allocation, (void *)(intptr_t)share->fd,
                                                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                             "cuMemImportFromShareableHandle", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = map(device->device, allocation, share->bytes, &address, why);
    if (outcome == GWCTL_WORKS) {
        outcome = exchange(device, address, share, why);
        unmap(address, share->bytes);
    }
    cuMemRelease(allocation);
    return outcome;
}

gwctl_outcome_t gwctl_cuda_share_use(gwctl_device_t *device, const gwctl_share_t *share, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    return share->kind == GWCTL_SHARE_FD ? use_fd(device, share, why) : use_handle(device, share, why);
}
