/* memory.c - what the driver knows of memory, and handles by which the daemon can open it; see device.h
 *
 * A span is walked allocation by allocation. Each has an identity, by which it is known again later, and a kind:
 *   legacy IPC   cuMemAlloc, cudaMalloc: a handle for the whole allocation
 *   pool         cuMemAllocFromPoolAsync: a file descriptor for the pool, and data that names the allocation
 *   VMM          cuMemCreate and cuMemMap: a file descriptor for each mapping
 * Where the driver gives no handle the whole span goes by the trainer's stream.
 */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gradwire.pb-c.h"

_Static_assert(sizeof(CUipcMemHandle) <= GW_HANDLE_DATA_BYTES, "a handle fits into a part");
_Static_assert(sizeof(CUmemPoolPtrExportData) <= GW_HANDLE_DATA_BYTES, "a pool's pointer fits into a part");

/* What the driver says of a pointer; all 0 if it does not know it. Its answers have 1 to 8 bytes, and not all widths are
 * documented: each gets 8, of which the lower are meant (CUDA hosts are little-endian). */
typedef struct facts {
    CUcontext context;
    CUmemoryPool pool;
    CUdeviceptr start;
    uint64_t bytes, id, memory_type, is_managed, is_legacy, device, handle_types;
} facts_t;

static CUdeviceptr address_of(const void *at) {
    return (CUdeviceptr)(uintptr_t)at;
}

static CUresult ask(const void *at, facts_t *facts_out) {
    CUpointer_attribute questions[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    };
    void *answers[] = {
        &facts_out->context, &facts_out->pool,         &facts_out->start,      &facts_out->bytes,
        &facts_out->id,      &facts_out->memory_type,  &facts_out->is_managed, &facts_out->is_legacy,
        &facts_out->device,  &facts_out->handle_types,
    };

    memset(facts_out, 0, sizeof(*facts_out));
    return cuPointerGetAttributes(sizeof(questions) / sizeof(questions[0]), questions, answers, address_of(at));
}

static CUdevice number_of(const facts_t *facts) {
    return (CUdevice)(int32_t)facts->device;
}

/* Host memory that the driver knows is host memory all the same. */
static bool is_device(const facts_t *facts) {
    return facts->is_managed != 0 || (facts->memory_type != 0 && facts->memory_type != CU_MEMORYTYPE_HOST);
}

static gw_status_t find(const void *data, gw_device_t **device_out, char *text, size_t text_bytes) {
    facts_t facts;

    *device_out = NULL;
    CUresult result = ask(data, &facts);
    if (result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_DEINITIALIZED)
        return GW_OK; /* a driver that nobody uses has no memory */
    if (result != CUDA_SUCCESS)
        return gw_cuda_fail(result, "cuPointerGetAttributes", text, text_bytes);
    if (!is_device(&facts))
        return GW_OK;
    return gw_cuda_device(facts.context, number_of(&facts), device_out, text, text_bytes);
}

static const char *uuid(const gw_device_t *device) {
    return device->uuid;
}

/* ---- handles ---------------------------------------------------------------------------------------- */

static bool refuse(gw_export_t *export, const char *why) {
    snprintf(export->why, sizeof(export->why), "%s", why);
    return false;
}

static bool refuse_call(gw_export_t *export, CUresult result, const char *call) {
    (void)gw_cuda_fail(result, call, export->why, sizeof(export->why));
    return false;
}

static void keep_fd(gw_part_t *part, int fd) {
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* a child that got it would keep memory alive, no more */
    part->fd = fd;
}

static bool export_legacy(gw_export_t *export, CUdeviceptr start, gw_part_t *part) {
    CUipcMemHandle handle;

    CUresult result = cuIpcGetMemHandle(&handle, start);
    if (result != CUDA_SUCCESS)
        return refuse_call(export, result, "cuIpcGetMemHandle");
    part->kind = GW__HANDLE_KIND__HANDLE_CUDA_IPC;
    memcpy(part->data, &handle, sizeof(handle));
    part->data_bytes = sizeof(handle);
    export->path = "ipc";
    return true;
}

static bool export_pool(gw_export_t *export, CUmemoryPool pool, CUdeviceptr start, gw_part_t *part) {
    CUmemPoolPtrExportData pointer;
    int fd = -1;

    CUresult result = cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        return refuse(export, "a memory pool without a handle that can be shared, such as the default pool");
    keep_fd(part, fd);
    result = cuMemPoolExportPointer(&pointer, start);
    if (result != CUDA_SUCCESS)
        return refuse_call(export, result, "cuMemPoolExportPointer");
    part->kind = GW__HANDLE_KIND__HANDLE_CUDA_POOL;
    memcpy(part->data, &pointer, sizeof(pointer));
    part->data_bytes = sizeof(pointer);
    export->path = "pool";
    return true;
}

static bool export_mapping(gw_export_t *export, const facts_t *facts, CUdeviceptr start, gw_part_t *part) {
    CUmemGenericAllocationHandle handle;
    int fd = -1;

    if ((facts->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
        return refuse(export, "cuMemCreate without file descriptors as handle type");
    CUresult result = cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)start);
    if (result != CUDA_SUCCESS)
        return refuse_call(export, result, "cuMemRetainAllocationHandle");
    result = cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)cuMemRelease(handle); /* the reference just taken */
    if (result != CUDA_SUCCESS)
        return refuse_call(export, result, "cuMemExportToShareableHandle");
    keep_fd(part, fd);
    part->kind = GW__HANDLE_KIND__HANDLE_CUDA_VMM;
    export->path = "vmm";
    return true;
}

/* Makes the handle of one allocation. False: there is none, `why` says so. */
static bool export_allocation(gw_export_t *export, const facts_t *facts, CUdeviceptr start, gw_part_t *part) {
    if (facts->is_managed)
        return refuse(export, "managed memory");
    if (facts->is_legacy)
        return export_legacy(export, start, part);
    if (facts->pool != NULL)
        return export_pool(export, facts->pool, start, part);
    return export_mapping(export, facts, start, part);
}

/* ---- spans -------------------------------------------------------------------------------------------- */

static void close_parts(gw_export_t *export) {
    for (size_t i = 0; i < export->n_parts; i++)
        if (export->parts[i].fd >= 0)
            close(export->parts[i].fd);
    free(export->parts);
    export->parts = NULL;
    export->n_parts = 0;
}

static void drop(gw_export_t *export) {
    close_parts(export);
    free(export->identities);
    memset(export, 0, sizeof(*export));
}

/* Of mapped memory the attributes tell the reserved addresses; the mapping is what has a handle. */
static void find_extent(const facts_t *facts, const void *at, CUdeviceptr *start_out, size_t *bytes_out) {
    *start_out = facts->start;
    *bytes_out = (size_t)facts->bytes;
    if (!facts->is_managed && !facts->is_legacy && facts->pool == NULL &&
        cuMemGetAddressRange(start_out, bytes_out, address_of(at)) != CUDA_SUCCESS)
        *bytes_out = 0;
}

static gw_status_t check_facts(const facts_t *facts, CUresult result, const gw_device_t *device, const void *at,
                               char *text, size_t text_bytes) {
    if (result != CUDA_SUCCESS)
        return gw_cuda_fail(result, "cuPointerGetAttributes", text, text_bytes);
    if (is_device(facts) && number_of(facts) == device->number)
        return GW_OK;
    snprintf(text, text_bytes, "the memory at %p is not of the same device as that where the buffer begins", at);
    return GW_ERR_INVALID_ARGUMENT;
}

/* Makes room for one entry more in both lists. */
static gw_status_t make_room(gw_export_t *export, size_t *room_io, char *text, size_t text_bytes) {
    if (export->n_identities < *room_io)
        return GW_OK;
    size_t room = *room_io > 0 ? 2 * *room_io : 8;
    gw_identity_t *identities = realloc(export->identities, room * sizeof(*identities));
    if (identities != NULL)
        export->identities = identities;
    gw_part_t *parts = identities != NULL ? realloc(export->parts, room * sizeof(*parts)) : NULL;
    if (parts == NULL) {
        snprintf(text, text_bytes, "the records of %zu allocations", room);
        return GW_ERR_NO_MEMORY;
    }
    export->parts = parts;
    *room_io = room;
    return GW_OK;
}

/* Takes the allocation at `at` into the lists; *bytes_out: of the span that are in it. */
static gw_status_t take_allocation(gw_export_t *export, const uint8_t *at, uint64_t rest_bytes, uint64_t *bytes_out,
                                   char *text, size_t text_bytes) {
    CUdeviceptr start;
    size_t whole_bytes;
    facts_t facts;

    CUresult result = ask(at, &facts);
    gw_status_t status = check_facts(&facts, result, export->device, at, text, text_bytes);
    if (status != GW_OK)
        return status;
    find_extent(&facts, at, &start, &whole_bytes);
    bool is_known = start <= address_of(at) && address_of(at) - start < whole_bytes;
    uint64_t offset = is_known ? address_of(at) - start : 0;
    *bytes_out = is_known && whole_bytes - offset < rest_bytes ? whole_bytes - offset : rest_bytes;
    export->identities[export->n_identities++] = (gw_identity_t){at, *bytes_out, facts.id};
    if (export->why[0] != '\0')
        return GW_OK; /* only the identities are still of interest */
    gw_part_t *part = &export->parts[export->n_parts++];
    *part = (gw_part_t){.fd = -1, .offset = offset, .bytes = *bytes_out, .handle_bytes = whole_bytes};
    if (!is_known)
        (void)refuse(export, "the driver does not say where the allocation begins");
    else
        (void)export_allocation(export, &facts, start, part);
    return GW_OK;
}

static gw_status_t export_span(gw_device_t *device, const void *data, uint64_t bytes, gw_export_t *export_out,
                               char *text, size_t text_bytes) {
    gw_export_t export = {.device = device, .path = "stream"};
    uint64_t taken_bytes;
    gw_entered_t entered;
    size_t room = 0;

    gw_status_t status = gw_cuda_enter(device, &entered, text, text_bytes);
    if (status != GW_OK)
        return status;
    for (uint64_t at = 0; at < bytes && status == GW_OK; at += taken_bytes) {
        taken_bytes = bytes - at;
        status = make_room(&export, &room, text, text_bytes);
        if (status == GW_OK)
            status = take_allocation(&export, (const uint8_t *)data + at, bytes - at, &taken_bytes, text, text_bytes);
    }
    gw_cuda_leave(&entered);
    if (status != GW_OK) {
        drop(&export);
        return status;
    }
    if (export.why[0] != '\0') {
        close_parts(&export);
        export.path = "stream";
    }
    *export_out = export;
    return GW_OK;
}

/* Asked before every operation, so nothing else is asked for. */
static bool is_known_as(const gw_identity_t *identity) {
    CUpointer_attribute questions[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    uint64_t id = 0, memory_type = 0; /* 0 for memory that is gone */
    void *answers[] = {&id, &memory_type};

    return cuPointerGetAttributes(2, questions, answers, address_of(identity->at)) == CUDA_SUCCESS &&
           memory_type != 0 && id == identity->id;
}

static bool is_same(const gw_export_t *export, const void *data, uint64_t bytes) {
    uintptr_t first = (uintptr_t)data, end = first + bytes;

    for (size_t i = 0; i < export->n_identities; i++) {
        const gw_identity_t *identity = &export->identities[i];
        uintptr_t at = (uintptr_t)identity->at;

        if (at < end && at + identity->bytes > first && !is_known_as(identity))
            return false;
    }
    return true;
}

/* ---- pinned memory -------------------------------------------------------------------------------------- */

static gw_status_t pin(gw_device_t *device, void *memory, size_t bytes, void **address_out, char *text,
                       size_t text_bytes) {
    CUdeviceptr address;
    gw_entered_t entered;

    gw_status_t status = gw_cuda_enter(device, &entered, text, text_bytes);
    if (status != GW_OK)
        return status;
    CUresult result = cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    bool is_new = result == CUDA_SUCCESS;
    if (!is_new && result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        status = gw_cuda_fail(result, "cuMemHostRegister", text, text_bytes);
        goto out;
    }
    result = cuMemHostGetDevicePointer(&address, memory, 0);
    if (result == CUDA_SUCCESS) {
        *address_out = (void *)(uintptr_t)address;
    } else {
        status = gw_cuda_fail(result, "cuMemHostGetDevicePointer", text, text_bytes);
        if (is_new)
            (void)cuMemHostUnregister(memory);
    }
out:
    gw_cuda_leave(&entered);
    return status;
}

/* Fails only if the context is gone, and the pinning with it. */
static void unpin(gw_device_t *device, void *memory) {
    char text[GW_DRIVER_TEXT_BYTES];
    gw_entered_t entered;

    if (gw_cuda_enter(device, &entered, text, sizeof(text)) != GW_OK)
        return;
    (void)cuMemHostUnregister(memory);
    gw_cuda_leave(&entered);
}

static void drain(gw_device_t *device) {
    char text[GW_DRIVER_TEXT_BYTES];
    gw_entered_t entered;

    if (gw_cuda_enter(device, &entered, text, sizeof(text)) != GW_OK)
        return;
    (void)cuCtxSynchronize(); /* what fails will not be done either */
    gw_cuda_leave(&entered);
}

const gw_device_memory_t gw_cuda_memory = {
    .find = find,
    .uuid = uuid,
    .export_span = export_span,
    .close_parts = close_parts,
    .drop = drop,
    .is_same = is_same,
    .pin = pin,
    .unpin = unpin,
    .drain = drain,
};
