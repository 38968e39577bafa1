/* submit.c - submitting operations
 *
 * This is the path that is walked for every bucket of every step: no allocation, one sendmsg.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "bounce.h"
#include "copy.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "stream.h"

enum { SUBMIT_BYTES = 64 };

static uint64_t last_sequence(const gw_group_t *group) {
    return atomic_load_explicit(&group->last_sequence, memory_order_relaxed);
}

static void copy_in(const gw_span_t *span) {
    if (gw_span_is_copied(span))
        gw_copy(span->buffer->arena.shared + span->offset, span->buffer->data + span->offset, (size_t)span->bytes);
}

/* Sends on the channel. When it is full this waits for room: the daemon reads on once the oldest operation ends. */
static gw_status_t send_submit(gw_group_t *group, const Gw__Submit *submit) {
    uint8_t packed[SUBMIT_BYTES];
    size_t n_bytes = gw__submit__pack(submit, packed);

    for (;;) {
        struct pollfd channel = {.fd = group->channel, .events = POLLOUT};
        gw_frame_result_t result = gw_frame_send(group->channel, GW_MSG_SUBMIT, 0, packed, n_bytes, NULL, 0);
        switch (result) {
        case GW_FRAME_OK:
            return GW_OK;
        case GW_FRAME_AGAIN:
            if (poll(&channel, 1, -1) < 0 && errno != EINTR)
                return gw_fail_errno("waiting for room on the channel");
            break;
        case GW_FRAME_CLOSED:
            atomic_store_explicit(&group->gone, true, memory_order_relaxed);
            return gw_group_status(group);
        default:
            return gw_fail_errno("submitting");
        }
    }
}

/* Makes the record of the next operation free: its last round must have been seen. The lock is held, and let
 * go of while waiting. */
static gw_status_t take_record(gw_group_t *group, gw_record_t **record_out) {
    for (;;) {
        gw_status_t status = gw_group_status(group);
        if (status != GW_OK)
            return status;
        gw_record_t *record = gw_group_record(group, last_sequence(group) + 1);
        if (gw_record_settle(group, record)) {
            *record_out = record;
            return GW_OK;
        }
        uint64_t oldest = record->sequence;
        bool is_copied_back = gw_group_has_ended(group, oldest);
        pthread_mutex_unlock(&group->lock);
        if (is_copied_back)
            gw_group_nap();
        else
            status = gw_group_await(group, oldest, INT64_MAX);
        pthread_mutex_lock(&group->lock);
        if (status != GW_OK)
            return status;
    }
}

/* That a stream waits for an operation is enough: the next one comes behind it. */
static gw_status_t check_idle(const gw_bucket_t *bucket) {
    if (bucket->released)
        return gw_fail(GW_ERR_NOT_FOUND, "the memory of bucket '%s' has been released", bucket->name);
    if (bucket->pending != 0 && !bucket->awaited)
        return gw_fail(GW_ERR_BUSY, "bucket '%s' is in flight as operation %llu, which nobody has waited for",
                       bucket->name, (unsigned long long)bucket->pending);
    return GW_OK;
}

/* Host memory is ready now, a device's when its stream says so. */
static gw_status_t make_ready(gw_bucket_t *bucket, gw_queue_t queue, uint64_t sequence) {
    gw_group_t *group = bucket->group;

    if (bucket->place == GW_PLACE_DEVICE)
        return gw_stream_ready(bucket, queue, sequence);
    copy_in(&bucket->send);
    gw_slot_t *slot = gw_slots_at(group->slots, sequence, group->credits);
    atomic_store_explicit(&slot->ready, (uint32_t)sequence, memory_order_release);
    return GW_OK;
}

/* Tells the daemon. A stream may have said by now that this number is ready, so it cannot be used for another operation:
 * if it cannot be announced, the group is at its end, and the daemon must see that. */
static gw_status_t announce(gw_bucket_t *bucket, uint64_t sequence, uint64_t thread) {
    gw_group_t *group = bucket->group;
    Gw__Submit submit = GW__SUBMIT__INIT;

    submit.bucket = bucket->handle;
    submit.epoch = group->epoch;
    submit.sequence = sequence;
    submit.queue = thread;
    submit.notify = group->notify;
    gw_status_t status = send_submit(group, &submit);
    if (status != GW_OK && bucket->place == GW_PLACE_DEVICE) {
        (void)shutdown(group->channel, SHUT_RDWR); /* fails only if that has been done */
        atomic_store(&group->gone, true);
    }
    return status;
}

static gw_status_t submit_locked(gw_bucket_t *bucket, gw_queue_t queue, uint64_t thread, gw_waiter_t *waiter,
                                 gw_record_t **record_out) {
    gw_group_t *group = bucket->group;
    gw_record_t *record = NULL;

    gw_status_t status = gw_group_status(group);
    if (status == GW_OK)
        status = check_idle(bucket);
    if (status == GW_OK)
        status = take_record(group, &record);
    if (status == GW_OK)
        status = check_idle(bucket); /* again: another thread may have come in between */
    if (status != GW_OK)
        return status;
    uint64_t sequence = last_sequence(group) + 1;
    status = make_ready(bucket, queue, sequence);
    if (status == GW_OK)
        status = announce(bucket, sequence, thread);
    if (status != GW_OK) {
        if (bucket->bounce != NULL)
            bucket->bounce->failed = true;
        return status;
    }
    /* The watchdog's order is needed where a stream may wait. */
    atomic_store_explicit(&group->last_sequence, sequence,
                          bucket->place == GW_PLACE_DEVICE ? memory_order_seq_cst : memory_order_relaxed);
    if (record->status != GW_OK)
        group->last_bad = record->sequence;
    record->sequence = sequence;
    record->bucket = bucket;
    record->place = bucket->place;
    record->device = bucket->device;
    record->waiters = waiter;
    bucket->pending = sequence;
    bucket->awaited = false;
    bucket->open++;
    *record_out = record;
    return GW_OK;
}

/* What the daemon looks at when groups wait for each other: the stream, if all that it does later waits for this
 * operation. The thread goes on in any case. */
static uint64_t blocked_queue(gw_queue_t queue, bool joined) {
    enum { DEFAULT_STREAM = 1 };

    if (!joined)
        return 0;
    return queue != NULL ? (uint64_t)(uintptr_t)queue : DEFAULT_STREAM;
}

static gw_status_t submit_on_stream(gw_bucket_t *bucket, gw_queue_t queue, bool joined, gw_op_t *op_out) {
    gw_group_t *group = bucket->group;
    gw_record_t *record;

    gw_status_t status = gw_stream_check(bucket, queue);
    if (status != GW_OK)
        return status;
    pthread_mutex_lock(&group->lock);
    status = submit_locked(bucket, queue, blocked_queue(queue, joined), NULL, &record);
    if (status == GW_OK) {
        *op_out = record->sequence;
        if (joined)
            status = gw_stream_await(group, record, queue);
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}

gw_status_t gw_bucket_submit(gw_bucket_t *bucket, gw_queue_t queue, uint64_t thread, gw_waiter_t *waiter,
                             gw_op_t *op_out) {
    gw_record_t *record;

    if (bucket->place == GW_PLACE_DEVICE)
        return submit_on_stream(bucket, queue, thread != 0, op_out);
    if (queue != NULL && bucket->place == GW_PLACE_HOST)
        return gw_fail(GW_ERR_UNSUPPORTED, "queue is %p, but the memory is the host's: it must be NULL", queue);
    pthread_mutex_lock(&bucket->group->lock);
    gw_status_t status = submit_locked(bucket, NULL, thread, waiter, &record);
    if (status == GW_OK)
        *op_out = record->sequence;
    pthread_mutex_unlock(&bucket->group->lock);
    return status;
}

gw_status_t gw_submit(gw_bucket_t *bucket, gw_queue_t queue, gw_op_t *op_out) {
    if (bucket == NULL || op_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "%s is NULL", bucket == NULL ? "bucket" : "op_out");
    gw_status_t status = gw_context_check(bucket->group->context);
    return status != GW_OK ? status : gw_bucket_submit(bucket, queue, 0, NULL, op_out);
}
