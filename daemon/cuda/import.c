/* import.c - memory of clients, by what their driver gave them. See backend.h
 *
 * A client says where its part of a handle lies; what counts is what the driver knows of the memory once it is open. So
 * no copy can leave it, whatever a client says.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "gradwire.pb-c.h"

typedef struct import_state {
    uint32_t kind;
    CUdeviceptr base;      /* what was opened, or the reserved range */
    CUmemoryPool pool;     /* of a pool's pointer */
    uint64_t range_bytes;  /* of the reserved range */
    uint64_t mapped_bytes; /* of it, from its start on, mapped so far */
    size_t n_mapped;       /* parts mapped */
    uint64_t part_bytes[]; /* of each handle */
} import_state_t;

static gw_status_t invalid(char *text, size_t text_bytes, size_t index, const char *what) {
    snprintf(text, text_bytes, "part %zu: %s", index, what);
    return GW_ERR_INVALID_ARGUMENT;
}

/* The span must lie in what the driver opened. (It does not say whose device that is on: memory of another is opened
 * through peer access, and then called this one's. Copies are right, but slow.) */
static gw_status_t check_span(CUdeviceptr opened, const gwd_handle_t *part, char *text, size_t text_bytes) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    uint64_t end;
    CUresult result = cuMemGetAddressRange(&base, &bytes, opened);

    if (result != CUDA_SUCCESS)
        return gwd_cuda_fail(result, "cuMemGetAddressRange", GW_ERR_BUFFER_IMPORT, text, text_bytes);
    if (__builtin_add_overflow(part->offset, part->bytes, &end) || end > bytes - (opened - base)) {
        snprintf(text, text_bytes, "part 0: %llu bytes from byte %llu on leave an allocation of %llu bytes",
                 (unsigned long long)part->bytes, (unsigned long long)part->offset,
                 (unsigned long long)(bytes - (opened - base)));
        return GW_ERR_BUFFER_SHORT;
    }
    return GW_OK;
}

/* ---- legacy handles ---------------------------------------------------------------------------------- */

static gw_status_t import_ipc(import_state_t *state, const gwd_handle_t *part, char *text, size_t text_bytes) {
    CUipcMemHandle handle;
    gw_status_t status;
    CUresult result;

    if (part->data_bytes != sizeof(handle))
        return invalid(text, text_bytes, 0, "the size of the IPC handle is wrong");
    memcpy(&handle, part->data, sizeof(handle));
    result = cuIpcOpenMemHandle(&state->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS)
        return gwd_cuda_fail(result, "cuIpcOpenMemHandle", GW_ERR_BUFFER_IMPORT, text, text_bytes);
    status = check_span(state->base, part, text, text_bytes);
    if (status != GW_OK)
        (void)cuIpcCloseMemHandle(state->base);
    return status;
}

/* ---- pools ------------------------------------------------------------------------------------------- */

static gw_status_t import_pool(import_state_t *state, const gwd_handle_t *part, char *text, size_t text_bytes) {
    CUmemPoolPtrExportData data;
    const char *call = "cuMemPoolImportFromShareableHandle";
    gw_status_t status;
    CUresult result;

    if (part->data_bytes != sizeof(data) || part->fd < 0)
        return invalid(text, text_bytes, 0, "a pool's pointer needs the pool's fd and the exported pointer");
    memcpy(&data, part->data, sizeof(data));
    result = cuMemPoolImportFromShareableHandle(&state->pool, (void *)(intptr_t)part->fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        return gwd_cuda_fail(result, call, GW_ERR_BUFFER_IMPORT, text, text_bytes);
    result = cuMemPoolImportPointer(&state->base, state->pool, &data);
    if (result != CUDA_SUCCESS) {
        status = gwd_cuda_fail(result, "cuMemPoolImportPointer", GW_ERR_BUFFER_IMPORT, text, text_bytes);
        goto err_pool;
    }
    status = check_span(state->base, part, text, text_bytes);
    if (status != GW_OK)
        goto err_pointer;
    return GW_OK;

err_pointer:
    (void)cuMemFree(state->base);
err_pool:
    (void)cuMemPoolDestroy(state->pool);
    return status;
}

/* ---- file descriptors of allocations ------------------------------------------------------------------- */

/* Parts follow each other without a gap: each but the first begins its handle, each but the last ends it. */
static gw_status_t check_handles(const gwd_handle_t *parts, size_t n_parts, import_state_t *state, char *text,
                                 size_t text_bytes) {
    for (size_t i = 0; i < n_parts; i++) {
        const gwd_handle_t *part = &parts[i];
        uint64_t end;

        if (part->fd < 0)
            return invalid(text, text_bytes, i, "comes without a file descriptor");
        if (__builtin_add_overflow(part->offset, part->bytes, &end) || end > part->handle_bytes)
            return invalid(text, text_bytes, i, "leaves its handle");
        if ((i > 0 && part->offset != 0) || (i + 1 < n_parts && end != part->handle_bytes))
            return invalid(text, text_bytes, i, "does not continue the part before it");
        if (__builtin_add_overflow(state->range_bytes, part->handle_bytes, &state->range_bytes))
            return invalid(text, text_bytes, i, "is larger than any memory");
        state->part_bytes[i] = part->handle_bytes;
    }
    return GW_OK;
}

/* The handle is not needed once it is mapped: the mapping keeps the memory. */
static CUresult map_handle(const gwd_context_t *context, import_state_t *state, const gwd_handle_t *part,
                           const char **call_out) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = state->base + state->mapped_bytes;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUresult result;

    *call_out = "cuMemImportFromShareableHandle";
    result =
        cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)part->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return result;
    *call_out = "cuMemGetAllocationPropertiesFromHandle";
    result = cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (result == CUDA_SUCCESS &&
        (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id != context->device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS) {
        *call_out = "cuMemMap";
        result = cuMemMap(at, part->handle_bytes, 0, handle, 0);
    }
    (void)cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        return result;
    state->mapped_bytes += part->handle_bytes;
    state->n_mapped++;
    *call_out = "cuMemSetAccess";
    return cuMemSetAccess(at, part->handle_bytes, &access, 1);
}

static void unmap_handles(const import_state_t *state) {
    CUdeviceptr at = state->base;

    for (size_t i = 0; i < state->n_mapped; i++) {
        (void)cuMemUnmap(at, state->part_bytes[i]);
        at += state->part_bytes[i];
    }
    (void)cuMemAddressFree(state->base, state->range_bytes);
}

static gw_status_t import_handles(const gwd_context_t *context, import_state_t *state, const gwd_handle_t *parts,
                                  size_t n_parts, char *text, size_t text_bytes) {
    const char *call = "cuMemAddressReserve";
    gw_status_t status = check_handles(parts, n_parts, state, text, text_bytes);
    CUresult result;

    if (status != GW_OK)
        return status;
    result = cuMemAddressReserve(&state->base, state->range_bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return gwd_cuda_fail(result, call, GW_ERR_BUFFER_IMPORT, text, text_bytes);
    for (size_t i = 0; i < n_parts && result == CUDA_SUCCESS; i++)
        result = map_handle(context, state, &parts[i], &call);
    if (result == CUDA_SUCCESS)
        return GW_OK;
    unmap_handles(state);
    return gwd_cuda_fail(result, call, GW_ERR_BUFFER_IMPORT, text, text_bytes);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static gw_status_t import_kind(const gwd_context_t *context, import_state_t *state, const gwd_handle_t *parts,
                               size_t n_parts, char *text, size_t text_bytes) {
    for (size_t i = 0; i < n_parts; i++)
        if (parts[i].kind != state->kind || (n_parts > 1 && state->kind != GW__HANDLE_KIND__HANDLE_CUDA_VMM))
            return invalid(text, text_bytes, i, "only allocations by file descriptor can be several parts");
    switch (state->kind) {
    case GW__HANDLE_KIND__HANDLE_CUDA_IPC:
        return import_ipc(state, &parts[0], text, text_bytes);
    case GW__HANDLE_KIND__HANDLE_CUDA_VMM:
        return import_handles(context, state, parts, n_parts, text, text_bytes);
    case GW__HANDLE_KIND__HANDLE_CUDA_POOL:
        return import_pool(state, &parts[0], text, text_bytes);
    default:
        snprintf(text, text_bytes, "part 0: the cuda backend takes no handle of kind %u", state->kind);
        return GW_ERR_UNSUPPORTED;
    }
}

static gw_status_t import(gwd_context_t *context, const gwd_handle_t *parts, size_t n_parts, gwd_memory_t *memory_out,
                          char *text, size_t text_bytes) {
    import_state_t *state = calloc(1, sizeof(*state) + n_parts * sizeof(state->part_bytes[0]));
    gw_status_t status;
    CUresult result;

    if (!state)
        return gwd_cuda_fail(CUDA_ERROR_OUT_OF_MEMORY, "a buffer", GW_ERR_NO_MEMORY, text, text_bytes);
    state->kind = parts[0].kind;
    result = cuCtxPushCurrent(context->context);
    if (result != CUDA_SUCCESS) {
        free(state);
        return gwd_cuda_fail(result, "cuCtxPushCurrent", GW_ERR_DEVICE, text, text_bytes);
    }
    status = import_kind(context, state, parts, n_parts, text, text_bytes);
    (void)cuCtxPopCurrent(NULL);
    if (status != GW_OK) {
        free(state);
        return status;
    }
    *memory_out = (gwd_memory_t){(void *)(uintptr_t)(state->base + parts[0].offset), state->range_bytes, state};
    return GW_OK;
}

static void release(gwd_context_t *context, const gwd_memory_t *memory) {
    import_state_t *state = memory->state;

    if (cuCtxPushCurrent(context->context) == CUDA_SUCCESS) { /* a broken context has let go of everything */
        if (state->kind == GW__HANDLE_KIND__HANDLE_CUDA_IPC)
            (void)cuIpcCloseMemHandle(state->base);
        else if (state->kind == GW__HANDLE_KIND__HANDLE_CUDA_VMM)
            unmap_handles(state);
        if (state->kind == GW__HANDLE_KIND__HANDLE_CUDA_POOL) {
            (void)cuMemFree(state->base);
            (void)cuMemPoolDestroy(state->pool);
        }
        (void)cuCtxPopCurrent(NULL);
    }
    free(state);
}

const gwd_backend_t gwd_cuda_memory = {import, release};
