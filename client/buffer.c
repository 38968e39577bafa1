/* buffer.c - allocating, registering and releasing memory
 *
 * Both kinds of buffer are a memfd that is filled before it is sealed, so that neither side can be killed
 * by a page that is not there (SIGBUS). The fd is closed as soon as the daemon has its own.
 */
#include "buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "bucket.h"
#include "context.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"

/* ---- the context's buffers, in order of address ------------------------------------------------- */

/* How many buffers start at or below `data`. context->objects_lock is held, here and below. */
static size_t count_below(const gw_context_t *context, const uint8_t *data) {
    size_t low = 0, high = context->n_buffers;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)context->buffers[middle]->data <= (uintptr_t)data)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static gw_status_t make_room(gw_context_t *context) {
    if (context->n_buffers < context->buffers_room)
        return GW_OK;
    size_t room = context->buffers_room > 0 ? 2 * context->buffers_room : 16;
    gw_buffer_t **buffers = realloc(context->buffers, room * sizeof(*buffers));
    if (buffers == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "a table of %zu buffers", room);
    context->buffers = buffers;
    context->buffers_room = room;
    return GW_OK;
}

/* A pointer must lead to one buffer, so registered memory may not overlap. */
static gw_status_t insert(gw_context_t *context, gw_buffer_t *buffer) {
    pthread_mutex_lock(&context->objects_lock);
    size_t at = count_below(context, buffer->data);
    gw_status_t status = make_room(context);
    if (status != GW_OK)
        goto out;
    const gw_buffer_t *before = at > 0 ? context->buffers[at - 1] : NULL;
    const gw_buffer_t *after = at < context->n_buffers ? context->buffers[at] : NULL;
    if ((before != NULL && (uintptr_t)before->data + before->bytes > (uintptr_t)buffer->data) ||
        (after != NULL && (uintptr_t)buffer->data + buffer->bytes > (uintptr_t)after->data)) {
        status = gw_fail(GW_ERR_INVALID_ARGUMENT, "data %p with %llu bytes overlaps memory that is a buffer already",
                         (void *)buffer->data, (unsigned long long)buffer->bytes);
        goto out;
    }
    memmove(&context->buffers[at + 1], &context->buffers[at], (context->n_buffers - at) * sizeof(gw_buffer_t *));
    context->buffers[at] = buffer;
    context->n_buffers++;
out:
    pthread_mutex_unlock(&context->objects_lock);
    return status;
}

static void take_out(gw_context_t *context, const gw_buffer_t *buffer) {
    size_t after = count_below(context, buffer->data);
    memmove(&context->buffers[after - 1], &context->buffers[after],
            (context->n_buffers - after) * sizeof(gw_buffer_t *));
    context->n_buffers--;
}

gw_status_t gw_buffer_find(gw_context_t *context, const void *data, uint64_t bytes, const char *name,
                           gw_buffer_t **buffer_out, uint64_t *offset_out) {
    gw_buffer_t *buffer = NULL;

    pthread_mutex_lock(&context->objects_lock);
    size_t below = count_below(context, data);
    if (below > 0)
        buffer = context->buffers[below - 1];
    uint64_t offset = buffer != NULL ? (uint64_t)((uintptr_t)data - (uintptr_t)buffer->data) : 0;
    uint64_t buffer_bytes = buffer != NULL ? buffer->bytes : 0;
    pthread_mutex_unlock(&context->objects_lock);

    if (offset >= buffer_bytes)
        return gw_fail_advised(GW_ERR_NOT_FOUND,
                               "%s %p is in no buffer of this connection; it must come from gw_buffer_alloc or "
                               "be registered with gw_buffer_register",
                               name, data);
    if (bytes > buffer_bytes - offset)
        return gw_fail(GW_ERR_SPAN, "%s needs %llu bytes, its buffer of %llu bytes has %llu from there on", name,
                       (unsigned long long)bytes, (unsigned long long)buffer_bytes,
                       (unsigned long long)(buffer_bytes - offset));
    *buffer_out = buffer;
    *offset_out = offset;
    return GW_OK;
}

/* ---- making ------------------------------------------------------------------------------------- */

/* fallocate would take page after page until the kernel ends somebody for it. */
static bool fits_in_host(size_t bytes) {
    struct sysinfo info;

    return sysinfo(&info) != 0 || bytes / info.mem_unit <= (uint64_t)info.totalram + info.totalswap;
}

/* A sealed memfd without holes. */
static gw_status_t make_memfd(size_t bytes, int *fd_out) {
    gw_status_t status;
    int fd;
    int result;

    if (!fits_in_host(bytes))
        return gw_fail(GW_ERR_NO_MEMORY, "a buffer of %zu bytes is larger than the memory of this host", bytes);
    fd = memfd_create("gradwire-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return gw_fail_errno("memfd_create");
    if (ftruncate(fd, (off_t)bytes) < 0) {
        status = gw_fail_errno("ftruncate of the buffer's memfd");
        goto err_fd;
    }
    do {
        result = fallocate(fd, 0, 0, (off_t)bytes);
    } while (result < 0 && errno == EINTR);
    if (result < 0) {
        status = gw_fail_errno("fallocate of the buffer's memfd");
        goto err_fd;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        status = gw_fail_errno("sealing the buffer's memfd");
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

static gw_status_t announce(gw_context_t *context, int fd, size_t bytes, bool copied, uint32_t *handle_out) {
    Gw__BufferCreate create = GW__BUFFER_CREATE__INIT;
    Gw__BufferPart part = GW__BUFFER_PART__INIT;
    gw_call_t call;

    create.bytes = bytes;
    create.parts = 1;
    create.copied = copied;
    part.kind = GW__HANDLE_KIND__HANDLE_MEMFD;
    part.bytes = bytes;
    gw_status_t status = gw_call_open(context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, GW_MSG_BUFFER_CREATE, &create.base, NULL, 0);
    gw_call_send(&call, GW_MSG_BUFFER_PART, &part.base, &fd, 1);
    status = gw_call_reply(&call, GW_MSG_BUFFER_READY);
    if (status == GW_OK) {
        Gw__BufferReady *ready = gw__buffer_ready__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
        if (ready == NULL || ready->buffer == 0)
            status = gw_fail(GW_ERR_PROTOCOL, "the daemon's answer to BufferCreate cannot be read");
        else
            *handle_out = ready->buffer;
        gw__buffer_ready__free_unpacked(ready, NULL);
    }
    gw_call_close(&call);
    return status;
}

static gw_status_t release_handle(gw_context_t *context, uint32_t handle) {
    Gw__BufferRelease release = GW__BUFFER_RELEASE__INIT;
    release.buffer = handle;
    return gw_call_do(context, GW_MSG_BUFFER_RELEASE, &release.base);
}

/* `data` NULL: the shared memory itself is what the caller gets. */
static gw_status_t make_buffer(gw_context_t *context, void *data, uint64_t bytes, gw_buffer_t **buffer_out) {
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    int fd = -1;

    gw_status_t status = gw_context_check(context);
    if (status != GW_OK)
        return status;
    if (buffer_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "buffer_out is NULL");
    if (bytes == 0)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "bytes is 0, the least is 1");
    uint64_t limit = context->max_buffer_bytes > 0 ? context->max_buffer_bytes : (uint64_t)1 << 47;
    if (bytes > limit)
        return gw_fail(GW_ERR_QUOTA, "bytes is %llu, beyond limits.buffer_bytes_per_uid (%llu)",
                       (unsigned long long)bytes, (unsigned long long)limit);
    gw_buffer_t *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "the record of a buffer");
    buffer->context = context;
    buffer->bytes = bytes;
    buffer->shared_bytes = (size_t)((bytes + page_bytes - 1) / page_bytes * page_bytes);

    status = make_memfd(buffer->shared_bytes, &fd);
    if (status != GW_OK)
        goto err_buffer;
    status = map_memfd(fd, buffer->shared_bytes, &buffer->shared);
    if (status != GW_OK)
        goto err_fd;
    buffer->data = data != NULL ? data : buffer->shared;
    status = announce(context, fd, buffer->shared_bytes, data != NULL, &buffer->handle);
    if (status != GW_OK)
        goto err_map;
    status = insert(context, buffer);
    if (status != GW_OK)
        goto err_handle;
    close(fd);
    *buffer_out = buffer;
    return GW_OK;

err_handle:
    (void)release_handle(context, buffer->handle); /* nothing uses it; a session that breaks here ends it too */
err_map:
    munmap(buffer->shared, buffer->shared_bytes);
err_fd:
    close(fd);
err_buffer:
    free(buffer);
    return status;
}

gw_status_t gw_buffer_alloc(gw_context_t *context, uint64_t bytes, gw_buffer_t **buffer_out) {
    return make_buffer(context, NULL, bytes, buffer_out);
}

gw_status_t gw_buffer_register(gw_context_t *context, void *data, uint64_t bytes, gw_buffer_t **buffer_out) {
    if (data == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "data is NULL");
    if (bytes > UINTPTR_MAX - (uintptr_t)data)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "bytes is %llu, which leads from data %p past the end of memory",
                       (unsigned long long)bytes, data);
    return make_buffer(context, data, bytes, buffer_out);
}

/* ---- ending ------------------------------------------------------------------------------------- */

static void buffer_free(gw_buffer_t *buffer) {
    munmap(buffer->shared, buffer->shared_bytes);
    free(buffer);
}

/* Runs `visit` on every bucket that uses the buffer, until it returns false; each under its group's lock. */
static bool visit_buckets(gw_buffer_t *buffer, bool (*visit)(gw_bucket_t *bucket)) {
    bool go_on = true;
    for (gw_group_t *group = buffer->context->groups; group != NULL && go_on; group = group->next) {
        pthread_mutex_lock(&group->lock);
        for (gw_bucket_t *bucket = group->buckets; bucket != NULL && go_on; bucket = bucket->next) {
            if (!bucket->released && (bucket->send.buffer == buffer || bucket->recv.buffer == buffer))
                go_on = visit(bucket);
        }
        pthread_mutex_unlock(&group->lock);
    }
    return go_on;
}

/* From here on the bucket is refused by gw_submit: the daemon ends it with its memory. */
static bool forget_memory(gw_bucket_t *bucket) {
    bucket->released = gw_bucket_settle(bucket);
    return bucket->released;
}

gw_status_t gw_buffer_release(gw_buffer_t *buffer) {
    if (buffer == NULL)
        return GW_OK;
    gw_context_t *context = buffer->context;
    gw_status_t status = gw_context_check(context);
    if (status != GW_OK)
        return status;
    pthread_mutex_lock(&context->objects_lock);
    bool idle = visit_buckets(buffer, gw_bucket_settle) && visit_buckets(buffer, forget_memory);
    pthread_mutex_unlock(&context->objects_lock);
    if (!idle)
        return gw_fail(GW_ERR_BUSY, "a bucket that uses the buffer at %p has an unfinished operation",
                       (void *)buffer->data);
    status = release_handle(context, buffer->handle);
    if (status != GW_OK && !gw_context_is_broken(context))
        return status;
    pthread_mutex_lock(&context->objects_lock);
    take_out(context, buffer);
    pthread_mutex_unlock(&context->objects_lock);
    buffer_free(buffer);
    return GW_OK;
}

void gw_buffer_end(gw_buffer_t *buffer) {
    gw_context_t *context = buffer->context;
    if (!gw_context_is_forked(context))
        (void)release_handle(context, buffer->handle); /* closing the session does it if this cannot */
    take_out(context, buffer);
    buffer_free(buffer);
}

void *gw_buffer_data(const gw_buffer_t *buffer) {
    return buffer != NULL ? buffer->data : NULL;
}

uint64_t gw_buffer_bytes(const gw_buffer_t *buffer) {
    return buffer != NULL ? buffer->bytes : 0;
}
