/* submit.c - submitting operations and waiting for them
 *
 * This is the path that is walked for every bucket of every step: no allocation, one sendmsg to submit, and
 * at best no system call to wait. The slot alone says whether an operation has ended; Complete messages
 * only make the channel readable for event loops.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "copy.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"

enum { SUBMIT_BYTES = 64, COMPLETE_BYTES = 256, SLICE_NS = 50 * 1000 * 1000, SPIN_NS = 50 * 1000 };

/* ---- slots and records ------------------------------------------------------------------------------ */

static bool has_ended(gw_group_t *group, uint64_t sequence) {
    gw_slot_t *slot = gw_slots_at(group->slots, sequence, group->credits);
    return gw_slots_reached(atomic_load_explicit(&slot->done, memory_order_acquire), sequence);
}

static bool is_copied(const gw_span_t *span) {
    return span->buffer != NULL && span->buffer->shared != span->buffer->data;
}

static void copy_in(const gw_span_t *span) {
    if (is_copied(span))
        gw_copy(span->buffer->shared + span->offset, span->buffer->data + span->offset, (size_t)span->bytes);
}

static void copy_out(const gw_span_t *span) {
    if (is_copied(span))
        gw_copy(span->buffer->data + span->offset, span->buffer->shared + span->offset, (size_t)span->bytes);
}

bool gw_record_settle(gw_group_t *group, gw_record_t *record) {
    gw_bucket_t *bucket = record->bucket;

    if (bucket == NULL)
        return true;
    if (has_ended(group, record->sequence)) {
        record->status = (gw_status_t)atomic_load_explicit(
            &gw_slots_at(group->slots, record->sequence, group->credits)->status, memory_order_relaxed);
        if (record->status == GW_OK)
            copy_out(&bucket->recv);
    } else if (atomic_load_explicit(&group->gone, memory_order_relaxed)) {
        record->status = GW_ERR_DAEMON_GONE;
    } else {
        return false;
    }
    record->bucket = NULL;
    bucket->pending = 0;
    for (gw_waiter_t *waiter = record->waiters; waiter != NULL; waiter = waiter->next) {
        waiter->status = record->status;
        waiter->ended = true;
    }
    record->waiters = NULL;
    return true;
}

bool gw_bucket_settle(gw_bucket_t *bucket) {
    return bucket->pending == 0 || gw_record_settle(bucket->group, gw_group_record(bucket->group, bucket->pending));
}

/* ---- waiting for a slot ----------------------------------------------------------------------------- */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sleeps until the word changes, at most `ns`. That it may return early is part of the bargain. */
static void sleep_on(_Atomic uint32_t *word, uint32_t value, int64_t ns) {
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

/* Looks at the word for a short while and lets others run in between: waking a thread that sleeps costs tens
 * of microseconds on many machines, more than a small operation takes. */
static bool spin_on(const gw_slot_t *slot, uint64_t sequence, int64_t deadline_ns) {
    int64_t end_ns = now_ns() + SPIN_NS;

    end_ns = end_ns < deadline_ns ? end_ns : deadline_ns;
    do {
        if (gw_slots_reached(atomic_load_explicit(&slot->done, memory_order_acquire), sequence))
            return true;
        (void)sched_yield(); /* cannot fail */
    } while (now_ns() < end_ns);
    return false;
}

gw_status_t gw_group_await(gw_group_t *group, uint64_t sequence, int64_t deadline_ns) {
    gw_slot_t *slot = gw_slots_at(group->slots, sequence, group->credits);
    bool gone = false;

    if (spin_on(slot, sequence, deadline_ns))
        return GW_OK;
    for (;;) {
        uint32_t word = atomic_load_explicit(&slot->done, memory_order_acquire);
        if (gw_slots_reached(word, sequence))
            return GW_OK;
        if (gone)
            return gw_group_status(group);
        int64_t slice_ns = SLICE_NS;
        if (deadline_ns != INT64_MAX) {
            int64_t rest_ns = deadline_ns - now_ns();
            if (rest_ns <= 0)
                return gw_fail(GW_ERR_TIMEOUT, "operation %llu", (unsigned long long)sequence);
            slice_ns = rest_ns < slice_ns ? rest_ns : slice_ns;
        }
        sleep_on(&slot->done, word, slice_ns);
        /* The daemon may have ended the operation before it went: so if it is gone, look once more. When the
         * group fails the daemon ends every operation, once nobody works on its memory any more. */
        if (atomic_load_explicit(&slot->done, memory_order_relaxed) == word)
            gone = gw_group_is_gone(group);
    }
}

/* ---- submitting --------------------------------------------------------------------------------------- */

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
        gw_record_t *record = gw_group_record(group, group->last_sequence + 1);
        if (gw_record_settle(group, record)) {
            *record_out = record;
            return GW_OK;
        }
        uint64_t oldest = record->sequence;
        pthread_mutex_unlock(&group->lock);
        status = gw_group_await(group, oldest, INT64_MAX);
        pthread_mutex_lock(&group->lock);
        if (status != GW_OK)
            return status;
    }
}

static gw_status_t check_idle(const gw_bucket_t *bucket) {
    if (bucket->released)
        return gw_fail(GW_ERR_NOT_FOUND, "the memory of bucket '%s' has been released", bucket->name);
    if (bucket->pending != 0)
        return gw_fail(GW_ERR_BUSY, "bucket '%s' is in flight as operation %llu, which nobody has waited for",
                       bucket->name, (unsigned long long)bucket->pending);
    return GW_OK;
}

static gw_status_t submit_locked(gw_bucket_t *bucket, uint64_t thread, gw_waiter_t *waiter, gw_op_t *op_out) {
    gw_group_t *group = bucket->group;
    Gw__Submit submit = GW__SUBMIT__INIT;
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
    uint64_t sequence = group->last_sequence + 1;
    copy_in(&bucket->send);
    gw_slot_t *slot = gw_slots_at(group->slots, sequence, group->credits);
    atomic_store_explicit(&slot->ready, (uint32_t)sequence, memory_order_release);
    submit.bucket = bucket->handle;
    submit.epoch = group->epoch;
    submit.sequence = sequence;
    submit.queue = thread;
    submit.notify = group->notify;
    status = send_submit(group, &submit);
    if (status != GW_OK)
        return status;
    group->last_sequence = sequence;
    record->sequence = sequence;
    record->bucket = bucket;
    record->waiters = waiter;
    bucket->pending = sequence;
    *op_out = sequence;
    return GW_OK;
}

gw_status_t gw_bucket_submit(gw_bucket_t *bucket, gw_queue_t queue, uint64_t thread, gw_waiter_t *waiter,
                             gw_op_t *op_out) {
    if (queue != NULL)
        return gw_fail(GW_ERR_UNSUPPORTED, "queue is %p, but the memory is the host's: it must be NULL", queue);
    pthread_mutex_lock(&bucket->group->lock);
    gw_status_t status = submit_locked(bucket, thread, waiter, op_out);
    pthread_mutex_unlock(&bucket->group->lock);
    return status;
}

gw_status_t gw_submit(gw_bucket_t *bucket, gw_queue_t queue, gw_op_t *op_out) {
    if (bucket == NULL || op_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "%s is NULL", bucket == NULL ? "bucket" : "op_out");
    gw_status_t status = gw_context_check(bucket->group->context);
    return status != GW_OK ? status : gw_bucket_submit(bucket, queue, 0, NULL, op_out);
}

/* ---- seeing the end ------------------------------------------------------------------------------------- */

/* The status of an operation whose end has been seen, with its message. */
static gw_status_t tell(gw_group_t *group, gw_status_t status) {
    char text[GW_SLOTS_MESSAGE_BYTES];

    if (status == GW_OK || status == GW_ERR_DAEMON_GONE)
        return status == GW_OK ? GW_OK : gw_group_status(group);
    gw_group_message(group, text);
    return gw_fail(status, "%s", text);
}

/* Whether a packet of the channel tells of an end that nobody has seen yet. The lock is held. */
static bool is_news(gw_group_t *group, const uint8_t *packet, size_t n_bytes) {
    gw_frame_header_t header;

    if (n_bytes <= sizeof(header))
        return false;
    memcpy(&header, packet, sizeof(header));
    if (header.type != GW_MSG_COMPLETE)
        return false;
    Gw__Complete *complete = gw__complete__unpack(NULL, n_bytes - sizeof(header), packet + sizeof(header));
    if (complete == NULL)
        return false;
    const gw_record_t *record = gw_group_record(group, complete->sequence);
    bool news = record->sequence == complete->sequence && record->bucket != NULL;
    gw__complete__free_unpacked(complete, NULL);
    return news;
}

/* Takes Complete messages of operations whose end has been seen off the channel, up to the first that is
 * news: so the channel stays readable until the caller has asked for that one. The lock is held. */
static void drain(gw_group_t *group) {
    uint8_t packet[COMPLETE_BYTES];

    for (;;) {
        ssize_t n = recv(group->channel, packet, sizeof(packet), MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            atomic_store_explicit(&group->gone, true, memory_order_relaxed);
        if (n <= 0 || is_news(group, packet, (size_t)n))
            return;
        (void)recv(group->channel, packet, sizeof(packet), MSG_DONTWAIT); /* what was just seen */
    }
}

/* Looks once, and if the operation goes on and `waiter` is not NULL, has it told of the end. */
static gw_status_t look(gw_group_t *group, gw_op_t op, gw_waiter_t *waiter) {
    pthread_mutex_lock(&group->lock);
    uint64_t last = group->last_sequence;
    gw_record_t *record = gw_group_record(group, op);
    bool known = op >= 1 && record->sequence == op;
    bool ended = known && gw_record_settle(group, record);
    gw_status_t status = ended ? record->status : GW_IN_PROGRESS;
    if (known && !ended && waiter != NULL) {
        waiter->next = record->waiters;
        record->waiters = waiter;
    }
    if (group->notify)
        drain(group);
    pthread_mutex_unlock(&group->lock);

    if (!known)
        return gw_fail_advised(GW_ERR_NOT_FOUND,
                               "operation %llu: the last one submitted is %llu, and the last %u are remembered; wait "
                               "for each of them before so many later ones are submitted",
                               (unsigned long long)op, (unsigned long long)last, group->credits);
    return ended ? tell(group, status) : GW_IN_PROGRESS;
}

static void take_out(gw_record_t *record, const gw_waiter_t *waiter) {
    gw_waiter_t **at = &record->waiters;

    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
}

gw_status_t gw_bucket_await(gw_group_t *group, gw_op_t op, gw_waiter_t *waiter, int64_t deadline_ns) {
    gw_status_t status = gw_group_await(group, op, deadline_ns);

    pthread_mutex_lock(&group->lock);
    /* Until the end has been seen, the record is this operation's. */
    if (!waiter->ended && !gw_record_settle(group, gw_group_record(group, op)))
        take_out(gw_group_record(group, op), waiter);
    if (group->notify)
        drain(group);
    pthread_mutex_unlock(&group->lock);
    return waiter->ended ? tell(group, waiter->status) : status;
}

gw_status_t gw_wait(gw_group_t *group, gw_op_t op, int64_t timeout_ns) {
    gw_waiter_t waiter = {.ended = false};
    int64_t deadline_ns = INT64_MAX;

    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    if (timeout_ns < GW_NO_TIMEOUT)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "timeout_ns is %lld, it can be 0 or more, or GW_NO_TIMEOUT",
                       (long long)timeout_ns);
    status = look(group, op, &waiter);
    if (status != GW_IN_PROGRESS)
        return status;
    if (timeout_ns != GW_NO_TIMEOUT && __builtin_add_overflow(now_ns(), timeout_ns, &deadline_ns))
        deadline_ns = INT64_MAX;
    return gw_bucket_await(group, op, &waiter, deadline_ns);
}

gw_status_t gw_test(gw_group_t *group, gw_op_t op) {
    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    status = look(group, op, NULL);
    if (status == GW_IN_PROGRESS && gw_group_is_gone(group))
        status = look(group, op, NULL);
    return status;
}
