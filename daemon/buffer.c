/* buffer.c - see buffer.h */
#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frame.h"
#include "gradwire.pb-c.h"
#include "log.h"
#include "server.h"
#include "session.h"

enum { PARTS_MAX = 4096 };

/* A device's memory is its trainer's, and costs this process nothing. */
static uint64_t charged_bytes(uint64_t bytes, const char *uuid, bool copied) {
    return uuid[0] && !copied ? 0 : bytes;
}

gw_status_t gwd_buffer_new(struct gwd_session *session, uint32_t request, uint64_t bytes, uint32_t n_parts, bool copied,
                           const char *uuid, const char *why, gwd_buffer_t **buffer_out, char *text,
                           size_t text_bytes) {
    gwd_quota_t *quota = &session->server->quota;
    gwd_buffer_t *buffer;
    gw_status_t status;

    if (strlen(uuid) >= GWD_DEVICE_UUID_BYTES) {
        snprintf(text, text_bytes, "the name of the device has %zu bytes, at most %d", strlen(uuid),
                 GWD_DEVICE_UUID_BYTES - 1);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (bytes == 0 || n_parts == 0 || n_parts > PARTS_MAX) {
        snprintf(text, text_bytes, "a buffer of %llu bytes in %u parts: at least 1 byte, 1 to %d parts",
                 (unsigned long long)bytes, n_parts, PARTS_MAX);
        return GW_ERR_INVALID_ARGUMENT;
    }
    status = gwd_quota_charge(quota, session->user, GWD_QUOTA_BUFFERS, 1, text, text_bytes);
    if (status != GW_OK)
        return status;
    status = gwd_quota_charge(quota, session->user, GWD_QUOTA_BUFFER_BYTES, charged_bytes(bytes, uuid, copied), text,
                              text_bytes);
    if (status != GW_OK)
        goto err_count;
    status = gwd_quota_charge(quota, session->user, GWD_QUOTA_FDS, n_parts, text, text_bytes);
    if (status != GW_OK)
        goto err_bytes;
    buffer = calloc(1, sizeof(*buffer));
    if (!buffer)
        goto err_fds;
    buffer->parts = calloc(n_parts, sizeof(*buffer->parts));
    if (!buffer->parts)
        goto err_buffer;
    buffer->session = session;
    buffer->request = request;
    buffer->bytes = bytes;
    buffer->n_parts = n_parts;
    buffer->copied = copied;
    snprintf(buffer->uuid, sizeof(buffer->uuid), "%s", uuid);
    snprintf(buffer->why, sizeof(buffer->why), "%s", why);
    if (uuid[0] && !copied) {
        buffer->device = gwd_device_ref(session->server, uuid);
        if (!buffer->device)
            goto err_parts;
        buffer->device->imported += bytes;
    }
    buffer->work.data = buffer;
    session->n_buffers++;
    *buffer_out = buffer;
    return GW_OK;

err_parts:
    free(buffer->parts);
err_buffer:
    free(buffer);
err_fds:
    gwd_quota_refund(session->user, GWD_QUOTA_FDS, n_parts);
    snprintf(text, text_bytes, "out of memory");
    status = GW_ERR_NO_MEMORY;
err_bytes:
    gwd_quota_refund(session->user, GWD_QUOTA_BUFFER_BYTES, charged_bytes(bytes, uuid, copied));
err_count:
    gwd_quota_refund(session->user, GWD_QUOTA_BUFFERS, 1);
    return status;
}

/* The handles are needed until the import only. */
static void drop_parts(gwd_buffer_t *buffer) {
    if (!buffer->parts)
        return;
    for (uint32_t i = 0; i < buffer->n_received; i++)
        if (buffer->parts[i].fd >= 0)
            close(buffer->parts[i].fd);
    free(buffer->parts);
    buffer->parts = NULL;
    gwd_quota_refund(buffer->session->user, GWD_QUOTA_FDS, buffer->n_parts);
}

/* The last step of every life. */
static void end(gwd_buffer_t *buffer) {
    gwd_session_t *session = buffer->session;

    drop_parts(buffer);
    if (buffer->handle)
        gwd_table_remove(&session->buffers, buffer->handle);
    if (buffer->device) {
        buffer->device->imported -= buffer->bytes;
        gwd_device_unref(buffer->device);
    }
    gwd_quota_refund(session->user, GWD_QUOTA_BUFFER_BYTES, charged_bytes(buffer->bytes, buffer->uuid, buffer->copied));
    gwd_quota_refund(session->user, GWD_QUOTA_BUFFERS, 1);
    session->n_buffers--;
    free(buffer);
    gwd_session_settle(session);
}

void gwd_buffer_discard(gwd_buffer_t *buffer) {
    end(buffer);
}

static const gwd_backend_t *backend_of(const gwd_buffer_t *buffer) {
    return buffer->device ? buffer->device->backend->memory : &gwd_backend_host;
}

static gwd_context_t *context_of(const gwd_buffer_t *buffer) {
    return buffer->device ? buffer->device->context : NULL;
}

static void import_work(uv_work_t *work) {
    gwd_buffer_t *buffer = work->data;

    buffer->status = buffer->device ? gwd_device_open(buffer->device, buffer->text, sizeof(buffer->text)) : GW_OK;
    if (buffer->status == GW_OK)
        buffer->status = backend_of(buffer)->import(context_of(buffer), buffer->parts, buffer->n_parts, &buffer->memory,
                                                    buffer->text, sizeof(buffer->text));
}

static void import_done(uv_work_t *work, int cancelled) {
    gwd_buffer_t *buffer = work->data;
    gwd_session_t *session = buffer->session;

    (void)cancelled; /* nobody cancels it */
    drop_parts(buffer);
    if (buffer->status == GW_OK) {
        buffer->handle = gwd_table_add(&session->buffers, buffer);
        if (buffer->handle == 0) {
            buffer->status = GW_ERR_NO_MEMORY;
            snprintf(buffer->text, sizeof(buffer->text), "out of memory");
        }
    }
    if (buffer->status != GW_OK) {
        if (buffer->status == GW_ERR_DEVICE)
            buffer->device->suspect = true;
        gwd_session_error(session, buffer->request, buffer->status, "%s", buffer->text);
        if (buffer->memory.address)
            gwd_buffer_release(buffer, 0);
        else
            end(buffer);
        return;
    }
    gwd_log(GWD_LOG_DEBUG, "buffer", "session %llu: buffer %u of %llu bytes", (unsigned long long)session->id,
            buffer->handle, (unsigned long long)buffer->bytes);
    if (session->closing) {
        gwd_buffer_release(buffer, 0);
        return;
    }
    gwd_session_reply_handle(session, buffer->request, GW_MSG_BUFFER_READY, buffer->handle);
}

static gw_status_t check_total(const gwd_buffer_t *buffer, char *text, size_t text_bytes) {
    uint64_t total = 0;

    for (uint32_t i = 0; i < buffer->n_parts; i++)
        if (__builtin_add_overflow(total, buffer->parts[i].bytes, &total))
            total = UINT64_MAX;
    if (total == buffer->bytes)
        return GW_OK;
    snprintf(text, text_bytes, "the parts hold %llu bytes, but the buffer has %llu", (unsigned long long)total,
             (unsigned long long)buffer->bytes);
    return GW_ERR_INVALID_ARGUMENT;
}

gw_status_t gwd_buffer_add_part(gwd_buffer_t *buffer, uint32_t index, const gwd_handle_t *part, char *text,
                                size_t text_bytes) {
    gw_status_t status = GW_OK;

    if (index != buffer->n_received || part->bytes == 0) {
        snprintf(text, text_bytes, "part %u of %llu bytes came where part %u was due", index,
                 (unsigned long long)part->bytes, buffer->n_received);
        status = GW_ERR_INVALID_ARGUMENT;
    } else if ((part->kind == GW__HANDLE_KIND__HANDLE_MEMFD) != !buffer->device) {
        snprintf(text, text_bytes, "part %u: memory of %s does not come as a handle of kind %u", index,
                 buffer->device ? "a device" : "the host", part->kind);
        status = GW_ERR_UNSUPPORTED;
    }
    if (status != GW_OK) {
        if (part->fd >= 0)
            close(part->fd);
        goto err;
    }
    buffer->kind = buffer->n_received ? buffer->kind : part->kind;
    buffer->parts[buffer->n_received++] = *part;
    if (buffer->n_received < buffer->n_parts)
        return GW_OK;
    status = check_total(buffer, text, text_bytes);
    if (status != GW_OK)
        goto err;
    if (uv_queue_work(&buffer->session->server->loop, &buffer->work, import_work, import_done) != 0) {
        snprintf(text, text_bytes, "no helper thread");
        status = GW_ERR_SYSTEM;
        goto err;
    }
    return GW_OK;

err:
    end(buffer);
    return status;
}

static void release_work(uv_work_t *work) {
    gwd_buffer_t *buffer = work->data;

    backend_of(buffer)->release(context_of(buffer), &buffer->memory);
}

static void release_done(uv_work_t *work, int cancelled) {
    gwd_buffer_t *buffer = work->data;

    (void)cancelled;
    if (buffer->request)
        gwd_session_done(buffer->session, buffer->request);
    end(buffer);
}

static void try_release(gwd_buffer_t *buffer) {
    if (!buffer->releasing || buffer->refs > 0)
        return;
    if (uv_queue_work(&buffer->session->server->loop, &buffer->work, release_work, release_done) != 0) {
        release_work(&buffer->work); /* slower, but never lost */
        release_done(&buffer->work, 0);
    }
}

void gwd_buffer_release(gwd_buffer_t *buffer, uint32_t request) {
    if (buffer->releasing) { /* the session ends while it is being released */
        buffer->request = request ? request : buffer->request;
        return;
    }
    buffer->releasing = true;
    buffer->request = request;
    try_release(buffer);
}

void gwd_buffer_ref(gwd_buffer_t *buffer) {
    buffer->refs++;
}

void gwd_buffer_unref(gwd_buffer_t *buffer) {
    buffer->refs--;
    try_release(buffer);
}
