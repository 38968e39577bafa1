/* bucket.c - declaring buckets
 *
 * The library checks what it can before the daemon does, to name arguments as the caller wrote them. Here it is decided
 * whether the daemon uses device memory itself or the bucket gets an arena of its own.
 */
#include "bucket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bounce.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"

enum { MATRICES_A_MESSAGE = 128 };

static bool reduces(gw_collective_t collective) {
    return collective == GW_ALL_REDUCE || collective == GW_REDUCE_SCATTER || collective == GW_REDUCE;
}

static bool has_root(gw_collective_t collective) {
    return collective == GW_BROADCAST || collective == GW_REDUCE;
}

static gw_status_t bad(const gw_bucket_desc_t *desc, const char *argument, long long value, long long first,
                       long long last) {
    return gw_fail(GW_ERR_INVALID_ARGUMENT, "bucket '%s': %s is %lld, it can be %lld to %lld", desc->name, argument,
                   value, first, last);
}

static gw_status_t check_numbers(const gw_bucket_desc_t *desc, int nranks) {
    if (desc->collective < GW_ALL_REDUCE || desc->collective > GW_BARRIER)
        return bad(desc, "collective", (long long)desc->collective, GW_ALL_REDUCE, GW_BARRIER);
    if (gw_type_bytes(desc->type) == 0)
        return bad(desc, "type", (long long)desc->type, GW_F32, GW_I64);
    if (reduces(desc->collective) && (desc->redop < GW_SUM || desc->redop > GW_PROD))
        return bad(desc, "redop", (long long)desc->redop, GW_SUM, GW_PROD);
    if (has_root(desc->collective) && (desc->root < 0 || desc->root >= nranks))
        return bad(desc, "root", desc->root, 0, nranks - 1);
    if (desc->priority < -128 || desc->priority > 127)
        return bad(desc, "priority", desc->priority, -128, 127);
    if (desc->no_error_feedback != 0 && desc->no_error_feedback != 1)
        return bad(desc, "no_error_feedback", desc->no_error_feedback, 0, 1);
    if (desc->collective == GW_BARRIER && desc->count != 0)
        return bad(desc, "count of a barrier", (long long)desc->count, 0, 0);
    if (desc->n_matrices > 0 && desc->matrices == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "bucket '%s': matrices is NULL, n_matrices is %zu", desc->name,
                       desc->n_matrices);
    if (desc->n_matrices > UINT32_MAX)
        return bad(desc, "n_matrices", (long long)desc->n_matrices, 0, UINT32_MAX);
    return GW_OK;
}

/* How many times `count` elements this rank sends and receives. */
static void span_factors(const gw_bucket_desc_t *desc, int rank, int nranks, uint64_t *send_out, uint64_t *recv_out) {
    bool is_root = desc->root == rank;

    *send_out = desc->collective == GW_REDUCE_SCATTER ? (uint64_t)nranks : 1;
    *recv_out = desc->collective == GW_ALL_GATHER ? (uint64_t)nranks : 1;
    if (desc->collective == GW_BROADCAST && !is_root)
        *send_out = 0;
    if (desc->collective == GW_REDUCE && !is_root)
        *recv_out = 0;
    if (desc->count == 0) /* a barrier's too */
        *send_out = *recv_out = 0;
}

static gw_status_t resolve(gw_context_t *context, const gw_bucket_desc_t *desc, const char *argument, const void *data,
                           uint64_t factor, gw_span_t *span_out) {
    uint64_t type_bytes = gw_type_bytes(desc->type), bytes;
    char name[GW_NAME_BYTES + 32];

    memset(span_out, 0, sizeof(*span_out));
    if (factor == 0)
        return GW_OK;
    if (data == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "bucket '%s': %s is NULL", desc->name, argument);
    if (__builtin_mul_overflow(desc->count, type_bytes, &bytes) || __builtin_mul_overflow(bytes, factor, &bytes))
        return gw_fail(GW_ERR_SPAN, "bucket '%s': count is %llu, more than any memory holds", desc->name,
                       (unsigned long long)desc->count);
    snprintf(name, sizeof(name), "bucket '%s': %s", desc->name, argument);
    gw_status_t status = gw_buffer_find(context, data, bytes, name, &span_out->buffer, &span_out->offset);
    if (status != GW_OK)
        return status;
    if (span_out->offset % type_bytes != 0)
        return gw_fail(GW_ERR_SPAN,
                       "bucket '%s': %s starts %llu bytes into its buffer, no multiple of the %llu of an element",
                       desc->name, argument, (unsigned long long)span_out->offset, (unsigned long long)type_bytes);
    span_out->bytes = bytes;
    return GW_OK;
}

/* In place is one exact relation of the two spans for each collective; apart is always allowed. */
static gw_status_t check_overlap(const gw_bucket_desc_t *desc, int rank, const gw_span_t *send, const gw_span_t *recv) {
    uint64_t part = (uint64_t)rank * desc->count * gw_type_bytes(desc->type);
    bool in_place;

    if (send->buffer == NULL || send->buffer != recv->buffer || send->offset + send->bytes <= recv->offset ||
        recv->offset + recv->bytes <= send->offset)
        return GW_OK;
    if (desc->collective == GW_REDUCE_SCATTER)
        in_place = recv->offset == send->offset + part;
    else if (desc->collective == GW_ALL_GATHER)
        in_place = send->offset == recv->offset + part;
    else
        in_place = send->offset == recv->offset;
    if (in_place)
        return GW_OK;
    return gw_fail(GW_ERR_SPAN, "bucket '%s': send and recv overlap, and are not in place", desc->name);
}

static gw_device_t *device_of(const gw_span_t *span, gw_place_t *place_io) {
    if (span->buffer == NULL)
        return NULL;
    *place_io = span->buffer->device != NULL ? GW_PLACE_DEVICE : GW_PLACE_HOST;
    return span->buffer->device;
}

static gw_status_t find_place(gw_bucket_t *bucket) {
    gw_device_t *send = device_of(&bucket->send, &bucket->place);
    gw_device_t *recv = device_of(&bucket->recv, &bucket->place);

    bucket->device = send != NULL ? send : recv;
    if (bucket->send.buffer == NULL || bucket->recv.buffer == NULL || send == recv)
        return GW_OK;
    return gw_fail(GW_ERR_INVALID_ARGUMENT,
                   "bucket '%s': send is memory of %s, recv of %s%s; both must be in one place", bucket->name,
                   send != NULL ? gw_device_memory()->uuid(send) : "the host",
                   recv != NULL ? gw_device_memory()->uuid(recv) : "the host",
                   send != NULL && recv != NULL ? ", or of another context" : "");
}

/* ---- talking to the daemon ------------------------------------------------------------------------ */

static void send_layout(gw_call_t *call, const gw_bucket_desc_t *desc) {
    for (size_t first = 0; first < desc->n_matrices; first += MATRICES_A_MESSAGE) {
        Gw__BucketLayout layout = GW__BUCKET_LAYOUT__INIT;
        Gw__Matrix matrices[MATRICES_A_MESSAGE], *pointers[MATRICES_A_MESSAGE];
        size_t n = desc->n_matrices - first < MATRICES_A_MESSAGE ? desc->n_matrices - first : MATRICES_A_MESSAGE;

        for (size_t i = 0; i < n; i++) {
            const gw_matrix_t *matrix = &desc->matrices[first + i];
            gw__matrix__init(&matrices[i]);
            matrices[i].offset = matrix->offset;
            matrices[i].rows = matrix->rows;
            matrices[i].columns = matrix->columns;
            matrices[i].stride = matrix->stride;
            pointers[i] = &matrices[i];
        }
        layout.n_matrix = n;
        layout.matrix = pointers;
        gw_call_send(call, GW_MSG_BUCKET_LAYOUT, &layout.base, NULL, 0);
    }
}

/* Where the daemon finds a span. */
static void name_span(const gw_bucket_t *bucket, const gw_span_t *span, uint32_t *handle_out, uint64_t *offset_out) {
    if (span->buffer == NULL)
        return;
    if (bucket->bounce == NULL) {
        *handle_out = span->buffer->handle;
        *offset_out = span->offset;
    } else {
        *handle_out = bucket->bounce->arena.handle;
        *offset_out = span == &bucket->send ? bucket->bounce->send_offset : bucket->bounce->recv_offset;
    }
}

static gw_status_t announce(gw_bucket_t *bucket, size_t n_matrices, const gw_matrix_t *matrices) {
    gw_bucket_desc_t desc = bucket->desc;
    Gw__BucketCreate create = GW__BUCKET_CREATE__INIT;
    gw_call_t call;

    desc.n_matrices = n_matrices;
    desc.matrices = matrices;
    create.group = bucket->group->handle;
    create.name = bucket->name;
    create.collective = (uint32_t)desc.collective;
    create.type = (uint32_t)desc.type;
    create.redop = reduces(desc.collective) ? (uint32_t)desc.redop : 0;
    create.root = has_root(desc.collective) ? (uint32_t)desc.root : 0;
    create.count = desc.count;
    name_span(bucket, &bucket->send, &create.send_buffer, &create.send_offset);
    name_span(bucket, &bucket->recv, &create.recv_buffer, &create.recv_offset);
    create.priority = desc.priority;
    create.codec = (uint32_t)desc.codec;
    create.matrices = (uint32_t)n_matrices;
    create.no_error_feedback = (uint32_t)desc.no_error_feedback;
    gw_status_t status = gw_call_open(bucket->group->context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, GW_MSG_BUCKET_CREATE, &create.base, NULL, 0);
    send_layout(&call, &desc);
    status = gw_call_reply(&call, GW_MSG_BUCKET_READY);
    if (status == GW_OK) {
        Gw__BucketReady *ready = gw__bucket_ready__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
        if (ready == NULL || ready->bucket == 0)
            status = gw_fail(GW_ERR_PROTOCOL, "the daemon's answer to BucketCreate cannot be read");
        else
            bucket->handle = ready->bucket;
        gw__bucket_ready__free_unpacked(ready, NULL);
    }
    gw_call_close(&call);
    return status;
}

/* ---- making and ending ------------------------------------------------------------------------------ */

static gw_status_t resolve_spans(gw_bucket_t *bucket) {
    const gw_bucket_desc_t *desc = &bucket->desc;
    gw_group_t *group = bucket->group;
    uint64_t send_factor, recv_factor;

    span_factors(desc, group->rank, group->nranks, &send_factor, &recv_factor);
    gw_status_t status = resolve(group->context, desc, "send", desc->send, send_factor, &bucket->send);
    if (status == GW_OK)
        status = resolve(group->context, desc, "recv", desc->recv, recv_factor, &bucket->recv);
    if (status == GW_OK)
        status = check_overlap(desc, group->rank, &bucket->send, &bucket->recv);
    if (status == GW_OK)
        status = find_place(bucket);
    return status;
}

/* Why the daemon does not use the device memory itself; NULL: it does. */
static const char *reason_to_copy(const gw_bucket_t *bucket) {
    const gw_span_t *spans[] = {&bucket->send, &bucket->recv};
    uint64_t bytes = bucket->desc.count * gw_type_bytes(bucket->desc.type); /* what one copy of the daemon's moves */

    for (int i = 0; i < 2; i++)
        if (spans[i]->buffer != NULL && spans[i]->buffer->handle == 0)
            return spans[i]->buffer->export.why;
    return bytes <= bucket->group->context->stream_bytes ? "small: goes back by the trainer's stream" : NULL;
}

static gw_status_t make_way(gw_bucket_t *bucket) {
    const char *why = bucket->place == GW_PLACE_DEVICE ? reason_to_copy(bucket) : NULL;

    if (why == NULL)
        return GW_OK;
    return gw_bounce_make(bucket->group->context, &bucket->send, &bucket->recv, why, &bucket->bounce);
}

void gw_bucket_drop(gw_bucket_t *bucket, bool forked) {
    if (bucket->bounce != NULL)
        gw_bounce_end(bucket->group->context, bucket->bounce, forked);
    free(bucket);
}

gw_status_t gw_bucket_open(gw_group_t *group, const gw_bucket_desc_t *desc, gw_bucket_t **bucket_out) {
    gw_bucket_t *bucket = calloc(1, sizeof(*bucket));
    if (bucket == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "the record of a bucket");
    bucket->group = group;
    bucket->desc = *desc;
    snprintf(bucket->name, sizeof(bucket->name), "%s", desc->name != NULL ? desc->name : "");
    bucket->desc.name = bucket->name;
    gw_status_t status = check_numbers(&bucket->desc, group->nranks);
    if (status == GW_OK)
        status = resolve_spans(bucket);
    bucket->desc.matrices = NULL; /* the caller's, and only valid now */
    bucket->desc.n_matrices = 0;
    if (status == GW_OK)
        status = make_way(bucket);
    if (status == GW_OK)
        status = announce(bucket, desc->n_matrices, desc->matrices);
    if (status != GW_OK) {
        gw_bucket_drop(bucket, false);
        return status;
    }
    pthread_mutex_lock(&group->lock);
    bucket->next = group->buckets;
    bucket->link = &group->buckets;
    if (bucket->next != NULL)
        bucket->next->link = &bucket->next;
    group->buckets = bucket;
    pthread_mutex_unlock(&group->lock);
    *bucket_out = bucket;
    return GW_OK;
}

gw_status_t gw_bucket_end(gw_bucket_t *bucket) {
    Gw__BucketFree request = GW__BUCKET_FREE__INIT;
    gw_group_t *group = bucket->group;

    pthread_mutex_lock(&group->lock);
    bool idle = gw_bucket_settle(bucket);
    uint64_t pending = bucket->pending;
    pthread_mutex_unlock(&group->lock);
    if (!idle)
        return gw_fail(GW_ERR_BUSY, "bucket '%s' has an unfinished operation, number %llu", bucket->name,
                       (unsigned long long)pending);
    request.group = group->handle;
    request.bucket = bucket->handle;
    /* With its memory the daemon has ended the bucket, too, and may have given its handle to another. */
    bool has_ended = bucket->released && bucket->bounce == NULL;
    gw_status_t status = has_ended ? GW_OK : gw_call_do(group->context, GW_MSG_BUCKET_FREE, &request.base);
    if (status != GW_OK && !gw_context_is_broken(group->context))
        return status;
    pthread_mutex_lock(&group->lock);
    *bucket->link = bucket->next;
    if (bucket->next != NULL)
        bucket->next->link = bucket->link;
    pthread_mutex_unlock(&group->lock);
    gw_bucket_drop(bucket, false);
    return GW_OK;
}

gw_status_t gw_bucket_create(gw_group_t *group, const gw_bucket_desc_t *desc, gw_bucket_t **bucket_out) {
    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    if (desc == NULL || bucket_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "%s is NULL", desc == NULL ? "desc" : "bucket_out");
    if (desc->struct_bytes != sizeof(*desc))
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "desc->struct_bytes is %zu, not %zu: start from GW_BUCKET_DESC_INIT",
                       desc->struct_bytes, sizeof(*desc));
    if (desc->name != NULL && strnlen(desc->name, GW_NAME_BYTES) == GW_NAME_BYTES)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "name '%.40s...' is longer than %d bytes", desc->name,
                       GW_NAME_BYTES - 1);
    return gw_bucket_open(group, desc, bucket_out);
}

gw_status_t gw_bucket_free(gw_bucket_t *bucket) {
    if (bucket == NULL)
        return GW_OK;
    gw_status_t status = gw_context_check(bucket->group->context);
    return status != GW_OK ? status : gw_bucket_end(bucket);
}
