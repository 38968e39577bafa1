/* arena.c - see arena.h */
#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "error.h"
#include "gradwire.pb-c.h"

uint64_t gw_arena_round(uint64_t bytes) {
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/* fallocate would take page after page until the kernel ends somebody for it. */
static bool fits_in_host(size_t bytes) {
    struct sysinfo info;

    return sysinfo(&info) != 0 || bytes / info.mem_unit <= (uint64_t)info.totalram + info.totalswap;
}

gw_status_t gw_arena_memfd(size_t bytes, int seals, int *fd_out) {
    gw_status_t status;
    int fd;
    int result;

    if (!fits_in_host(bytes))
        return gw_fail(GW_ERR_NO_MEMORY, "%zu bytes to share are more than the memory of this host", bytes);
    fd = memfd_create("gradwire-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return gw_fail_errno("memfd_create");
    if (ftruncate(fd, (off_t)bytes) < 0) {
        status = gw_fail_errno("ftruncate of a memfd");
        goto err_fd;
    }
    do {
        result = fallocate(fd, 0, 0, (off_t)bytes);
    } while (result < 0 && errno == EINTR);
    if (result < 0) {
        status = gw_fail_errno("fallocate of a memfd");
        goto err_fd;
    }
    if (fcntl(fd, F_ADD_SEALS, seals) < 0) {
        status = gw_fail_errno("sealing a memfd");
        goto err_fd;
    }
    *fd_out = fd;
    return GW_OK;

err_fd:
    close(fd);
    return status;
}

static gw_status_t map_memfd(int fd, size_t bytes, uint8_t **shared_out) {
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (shared == MAP_FAILED)
        return gw_fail_errno("mapping the buffer");
    (void)madvise(shared, bytes, MADV_HUGEPAGE); /* an optimisation that kernels may be built without */
    *shared_out = shared;
    return GW_OK;
}

/* ---- talking to the daemon ------------------------------------------------------------------------ */

static void send_parts(gw_call_t *call, const gw_part_t *parts, size_t n_parts) {
    for (size_t i = 0; i < n_parts; i++) {
        Gw__BufferPart part = GW__BUFFER_PART__INIT;

        part.index = (uint32_t)i;
        part.kind = (Gw__HandleKind)parts[i].kind;
        part.offset = parts[i].offset;
        part.bytes = parts[i].bytes;
        part.handle_bytes = parts[i].handle_bytes;
        part.data.data = (uint8_t *)(uintptr_t)parts[i].data; /* protobuf-c wants a pointer to non-const */
        part.data.len = parts[i].data_bytes;
        gw_call_send(call, GW_MSG_BUFFER_PART, &part.base, &parts[i].fd, parts[i].fd >= 0 ? 1 : 0);
    }
}

gw_status_t gw_arena_announce(gw_context_t *context, uint64_t bytes, const gw_arena_use_t *use, const gw_part_t *parts,
                              size_t n_parts, char *refusal, uint32_t *handle_out) {
    Gw__BufferCreate create = GW__BUFFER_CREATE__INIT;
    gw_call_t call;

    refusal[0] = '\0';
    create.bytes = bytes;
    create.parts = (uint32_t)n_parts;
    create.copied = use->copied;
    create.device = (char *)(uintptr_t)use->device;
    create.why = (char *)(uintptr_t)use->why;
    gw_status_t status = gw_call_open(context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, GW_MSG_BUFFER_CREATE, &create.base, NULL, 0);
    send_parts(&call, parts, n_parts);
    status = gw_call_reply(&call, GW_MSG_BUFFER_READY);
    if (status == GW_OK) {
        Gw__BufferReady *ready = gw__buffer_ready__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
        if (ready == NULL || ready->buffer == 0)
            status = gw_fail(GW_ERR_PROTOCOL, "the daemon's answer to BufferCreate cannot be read");
        else
            *handle_out = ready->buffer;
        gw__buffer_ready__free_unpacked(ready, NULL);
    } else {
        gw_call_refusal(&call, refusal, GW_WHY_BYTES);
    }
    gw_call_close(&call);
    return status;
}

gw_status_t gw_arena_release(gw_context_t *context, uint32_t handle) {
    Gw__BufferRelease release = GW__BUFFER_RELEASE__INIT;
    release.buffer = handle;
    return gw_call_do(context, GW_MSG_BUFFER_RELEASE, &release.base);
}

gw_status_t gw_arena_make(gw_context_t *context, uint64_t bytes, const gw_arena_use_t *use, gw_arena_t *arena_out) {
    gw_arena_t arena = {.bytes = (size_t)gw_arena_round(bytes)};
    gw_part_t part = {.kind = GW__HANDLE_KIND__HANDLE_MEMFD, .bytes = arena.bytes};
    char refusal[GW_WHY_BYTES];

    gw_status_t status = gw_arena_memfd(arena.bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &part.fd);
    if (status != GW_OK)
        return status;
    status = map_memfd(part.fd, arena.bytes, &arena.shared);
    if (status != GW_OK)
        goto err_fd;
    status = gw_arena_announce(context, arena.bytes, use, &part, 1, refusal, &arena.handle);
    if (status != GW_OK)
        goto err_map;
    close(part.fd);
    *arena_out = arena;
    return GW_OK;

err_map:
    munmap(arena.shared, arena.bytes);
err_fd:
    close(part.fd);
    return status;
}

void gw_arena_unmap(gw_arena_t *arena) {
    if (arena->shared != NULL)
        munmap(arena->shared, arena->bytes);
    arena->shared = NULL;
}
