/* ipc.c - legacy IPC memory handles: a handle names a file of the folder */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

static const char magic[8] = "simipc1";

struct ticket {
    char magic[8];
    char name[FAKE_NAME_BYTES / 2 + 8];
    uint64_t bytes;
    int32_t physical;
    int32_t process;
};
_Static_assert(sizeof(struct ticket) <= CU_IPC_HANDLE_SIZE, "a handle has room for all of it");

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct ticket ticket = {.process = (int)getpid()};
    const struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    if (!pHandle)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake.no_ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_rwlock_rdlock(&fake_map_lock);
    range = fake_range_find(dptr);
    if (range && range->kind == FAKE_DEVICE) {
        memcpy(ticket.magic, magic, sizeof(magic));
        memcpy(ticket.name, range->name, sizeof(ticket.name));
        ticket.bytes = range->bytes;
        ticket.physical = fake.physical[range->device];
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    if (result == CUDA_SUCCESS) {
        memset(pHandle, 0, sizeof(*pHandle));
        memcpy(pHandle->reserved, &ticket, sizeof(ticket));
    }
    return result;
}

static struct fake_range *find_open(const struct fake_range *wanted) {
    for (unsigned i = 0; i < fake_range_count(); i++) {
        struct fake_range *range = fake_range_nth(i);

        if (range->kind == FAKE_IMPORTED && range->context == wanted->context && strcmp(range->name, wanted->name) == 0)
            return range;
    }
    return NULL;
}

static CUresult map_file(struct fake_range *range, int fd) {
    void *at = fake_place(range->mapped_bytes, FAKE_PAGE_BYTES);

    if (!at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->base = (uintptr_t)at;
    range->opens = 1;
    if (fake_back(at, range->mapped_bytes, fd, 0, PROT_READ | PROT_WRITE) && fake_range_add(range))
        return CUDA_SUCCESS;
    fake_unplace(at, range->mapped_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The map lock is held for writing. */
static CUresult open_locked(struct fake_range *range, CUdeviceptr *at_out) {
    struct fake_range *open_already = find_open(range);
    struct stat state;
    CUresult result;
    int fd;

    if (open_already) {
        open_already->opens++;
        *at_out = open_already->base;
        return CUDA_SUCCESS;
    }
    fd = fake_file_open(range->name);
    if (fd < 0)
        return CUDA_ERROR_MAP_FAILED;
    if (fstat(fd, &state) == 0 && (uint64_t)state.st_size == range->mapped_bytes)
        result = map_file(range, fd);
    else
        result = CUDA_ERROR_MAP_FAILED;
    close(fd);
    if (result == CUDA_SUCCESS)
        *at_out = range->base;
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct fake_range range = {.kind = FAKE_IMPORTED};
    struct ticket ticket;

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&ticket, handle.reserved, sizeof(ticket));
    if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memcmp(ticket.magic, magic, sizeof(magic)) != 0 ||
        ticket.bytes == 0 || ticket.bytes > FAKE_MEMORY_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake.no_ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (ticket.process == (int)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    memcpy(range.name, ticket.name, sizeof(ticket.name) - 1);
    range.bytes = ticket.bytes;
    range.mapped_bytes = fake_round(range.bytes, FAKE_PAGE_BYTES);
    range.device = fake_device_ordinal(ticket.physical);
    range.context = fake_context_current();
    if (range.device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_rwlock_wrlock(&fake_map_lock);
    result = open_locked(&range, pdptr);
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct fake_range *range;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_wrlock(&fake_map_lock);
    range = fake_range_find(dptr);
    if (!range || range->base != dptr || range->kind != FAKE_IMPORTED)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (--range->opens == 0)
        fake_range_destroy(range);
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}
