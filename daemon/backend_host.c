/* backend_host.c - host memory: memfds that clients share with the daemon
 *
 * A client that truncates a memfd under the daemon would kill it with SIGBUS, and one whose memory is not
 * there yet would let the daemon pay for it. So a memfd must be of ordinary pages, sealed against
 * shrinking, long enough, and allocated to its last byte. Holes punched later read as zeros, in the
 * owner's own bucket; their pages were charged to the owner's quota when the buffer was registered.
 */
#include "backend.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static uint64_t page_bytes(void) {
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t round_up(uint64_t bytes) {
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

static gw_status_t check_memfd(const gwd_handle_t *part, size_t index, char *text, size_t text_bytes) {
    struct statfs fs;
    struct stat st;
    uint64_t end;
    int seals = fcntl(part->fd, F_GET_SEALS);

    if (seals < 0 || fstatfs(part->fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC || fstat(part->fd, &st) != 0) {
        snprintf(text, text_bytes, "part %zu: the file descriptor is not a memfd of ordinary pages", index);
        return GW_ERR_BUFFER_KIND;
    }
    if (!(seals & F_SEAL_SHRINK)) {
        snprintf(text, text_bytes, "part %zu: the memfd is not sealed against shrinking (F_SEAL_SHRINK)", index);
        return GW_ERR_BUFFER_SEAL;
    }
    if (part->offset % page_bytes() != 0 || __builtin_add_overflow(part->offset, part->bytes, &end)) {
        snprintf(text, text_bytes, "part %zu: offset %llu is not a multiple of the page size", index,
                 (unsigned long long)part->offset);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (end > (uint64_t)st.st_size) {
        snprintf(text, text_bytes, "part %zu: the memfd has %lld bytes, but %llu from byte %llu on are registered",
                 index, (long long)st.st_size, (unsigned long long)part->bytes, (unsigned long long)part->offset);
        return GW_ERR_BUFFER_SHORT;
    }
    if ((uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size) {
        snprintf(text, text_bytes, "part %zu: only %llu of the memfd's %lld bytes are allocated", index,
                 (unsigned long long)st.st_blocks * 512, (long long)st.st_size);
        return GW_ERR_BUFFER_HOLES;
    }
    return GW_OK;
}

static gw_status_t check_parts(const gwd_handle_t *parts, size_t n_parts, uint64_t *mapped_out, char *text,
                               size_t text_bytes) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < n_parts; i++) {
        gw_status_t status = check_memfd(&parts[i], i, text, text_bytes);

        if (status != GW_OK)
            return status;
        if (i + 1 < n_parts && parts[i].bytes % page_bytes() != 0) {
            snprintf(text, text_bytes, "part %zu: %llu bytes are not a multiple of the page size", i,
                     (unsigned long long)parts[i].bytes);
            return GW_ERR_INVALID_ARGUMENT;
        }
        if (__builtin_add_overflow(bytes, parts[i].bytes, &bytes) || bytes > INT64_MAX / 2) {
            snprintf(text, text_bytes, "part %zu: the buffer is larger than any memory", i);
            return GW_ERR_INVALID_ARGUMENT;
        }
    }
    *mapped_out = round_up(bytes);
    return GW_OK;
}

static gw_status_t import(gwd_context_t *context, const gwd_handle_t *parts, size_t n_parts, gwd_memory_t *memory_out,
                          char *text, size_t text_bytes) {
    uint64_t mapped, at = 0;
    unsigned char *base;
    gw_status_t status = check_parts(parts, n_parts, &mapped, text, text_bytes);

    (void)context; /* the host has none */
    if (status != GW_OK)
        return status;
    base = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        goto err_map;
    for (size_t i = 0; i < n_parts; i++) {
        uint64_t length = round_up(parts[i].bytes);
        void *got = mmap(base + at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, parts[i].fd,
                         (off_t)parts[i].offset);

        if (got == MAP_FAILED)
            goto err_part;
        at += length;
    }
    *memory_out = (gwd_memory_t){base, mapped, NULL};
    return GW_OK;

err_part:
    status = errno == ENOMEM ? GW_ERR_NO_MEMORY : GW_ERR_SYSTEM;
    snprintf(text, text_bytes, "mmap of %llu bytes: %s", (unsigned long long)mapped, strerror(errno));
    munmap(base, mapped);
    return status;
err_map:
    snprintf(text, text_bytes, "mmap of %llu bytes: %s", (unsigned long long)mapped, strerror(errno));
    return errno == ENOMEM ? GW_ERR_NO_MEMORY : GW_ERR_SYSTEM;
}

static void release(gwd_context_t *context, const gwd_memory_t *memory) {
    (void)context;
    (void)munmap(memory->address, memory->mapped_bytes); /* fails only for arguments that are not a mapping */
}

const gwd_backend_t gwd_backend_host = {import, release};
