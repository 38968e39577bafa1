/* buffer.c - allocating, registering and releasing memory
 *
 * Host memory is an arena, or has one behind it. Device memory is opened by the daemon where it can be; else the daemon
 * knows nothing of it, and each of its buckets has an arena (bounce.c).
 */
#include "buffer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bucket.h"
#include "context.h"
#include "error.h"
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

static gw_status_t check_arguments(gw_context_t *context, uint64_t bytes, const void *buffer_out) {
    gw_status_t status = gw_context_check(context);
    if (status != GW_OK)
        return status;
    if (buffer_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "buffer_out is NULL");
    if (bytes == 0)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "bytes is 0, the least is 1");
    return GW_OK;
}

/* A device's memory is not limited: the daemon only opens it. */
static gw_status_t check_limit(const gw_context_t *context, uint64_t bytes) {
    uint64_t limit = context->max_buffer_bytes > 0 ? context->max_buffer_bytes : (uint64_t)1 << 47;
    if (bytes > limit)
        return gw_fail(GW_ERR_QUOTA, "bytes is %llu, beyond limits.buffer_bytes_per_uid (%llu)",
                       (unsigned long long)bytes, (unsigned long long)limit);
    return GW_OK;
}

/* Memory that the daemon has opened itself, or goes by streams. What the daemon says against opening it is kept for
 * gw_buffer_path; that it cannot take anything more, or has gone, is an error. */
static gw_status_t offer_to_daemon(gw_buffer_t *buffer) {
    gw_export_t *export = &buffer->export;
    gw_arena_use_t use = {.device = gw_device_memory()->uuid(buffer->device), .why = ""};
    char refusal[GW_WHY_BYTES];

    if (export->n_parts == 0)
        return GW_OK;
    gw_status_t status = gw_arena_announce(buffer->context, buffer->bytes, &use, export->parts, export->n_parts,
                                           refusal, &buffer->handle);
    gw_device_memory()->close_parts(export);
    if (status == GW_OK || status == GW_ERR_QUOTA || status == GW_ERR_DRAINING || refusal[0] == '\0')
        return status;
    export->path = "stream";
    snprintf(export->why, sizeof(export->why), "%s", refusal);
    return GW_OK;
}

static gw_status_t export_device(gw_buffer_t *buffer) {
    char text[GW_DRIVER_TEXT_BYTES];

    gw_status_t status = gw_device_memory()->export_span(buffer->device, buffer->data, buffer->bytes, &buffer->export,
                                                         text, sizeof(text));
    if (status != GW_OK)
        return gw_fail(status, "%s", text);
    status = offer_to_daemon(buffer);
    if (status != GW_OK)
        gw_device_memory()->drop(&buffer->export);
    return status;
}

/* `data` NULL: the shared memory itself is what the caller gets. */
static gw_status_t share_host(gw_buffer_t *buffer, void *data) {
    const gw_arena_use_t use = {.copied = data != NULL, .device = "", .why = ""};

    gw_status_t status = check_limit(buffer->context, buffer->bytes);
    if (status != GW_OK)
        return status;
    status = gw_arena_make(buffer->context, buffer->bytes, &use, &buffer->arena);
    if (status != GW_OK)
        return status;
    buffer->handle = buffer->arena.handle;
    buffer->data = data != NULL ? data : buffer->arena.shared;
    return GW_OK;
}

static void buffer_free(gw_buffer_t *buffer) {
    gw_arena_unmap(&buffer->arena);
    if (buffer->device != NULL)
        gw_device_memory()->drop(&buffer->export);
    free(buffer);
}

static gw_status_t make_buffer(gw_context_t *context, void *data, uint64_t bytes, gw_device_t *device,
                               gw_buffer_t **buffer_out) {
    gw_buffer_t *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "the record of a buffer");
    buffer->context = context;
    buffer->data = data;
    buffer->bytes = bytes;
    buffer->device = device;
    gw_status_t status = device != NULL ? export_device(buffer) : share_host(buffer, data);
    if (status != GW_OK) {
        free(buffer);
        return status;
    }
    status = insert(context, buffer);
    if (status != GW_OK) {
        if (buffer->handle != 0) /* nothing uses it; a session that breaks here ends it too */
            (void)gw_arena_release(context, buffer->handle);
        buffer_free(buffer);
        return status;
    }
    *buffer_out = buffer;
    return GW_OK;
}

gw_status_t gw_buffer_alloc(gw_context_t *context, uint64_t bytes, gw_buffer_t **buffer_out) {
    gw_status_t status = check_arguments(context, bytes, buffer_out);
    return status != GW_OK ? status : make_buffer(context, NULL, bytes, NULL, buffer_out);
}

gw_status_t gw_buffer_register(gw_context_t *context, void *data, uint64_t bytes, gw_buffer_t **buffer_out) {
    gw_device_t *device;

    if (data == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "data is NULL");
    if (bytes > UINTPTR_MAX - (uintptr_t)data)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "bytes is %llu, which leads from data %p past the end of memory",
                       (unsigned long long)bytes, data);
    gw_status_t status = check_arguments(context, bytes, buffer_out);
    if (status == GW_OK)
        status = gw_device_find(data, bytes, &device);
    return status != GW_OK ? status : make_buffer(context, data, bytes, device, buffer_out);
}

/* ---- ending ------------------------------------------------------------------------------------- */

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

/* From here on the bucket is refused by gw_submit. The daemon ends it with its memory, unless that is an arena. */
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
    status = buffer->handle != 0 ? gw_arena_release(context, buffer->handle) : GW_OK;
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
    if (!gw_context_is_forked(context) && buffer->handle != 0)
        (void)gw_arena_release(context, buffer->handle); /* closing the session does it if this cannot */
    take_out(context, buffer);
    buffer_free(buffer);
}

void *gw_buffer_data(const gw_buffer_t *buffer) {
    return buffer != NULL ? buffer->data : NULL;
}

uint64_t gw_buffer_bytes(const gw_buffer_t *buffer) {
    return buffer != NULL ? buffer->bytes : 0;
}

const char *gw_buffer_path(const gw_buffer_t *buffer) {
    if (buffer == NULL)
        return "";
    if (buffer->device != NULL)
        return buffer->export.path;
    return buffer->data == buffer->arena.shared ? "shared" : "copied";
}
