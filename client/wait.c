/* wait.c - waiting for operations, and seeing their end
 *
 * The slot alone says whether an operation has ended: at best that takes no system call. Complete messages only make
 * the channel readable for event loops.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bounce.h"
#include "copy.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "stream.h"

enum { COMPLETE_BYTES = 256, SLICE_NS = 50 * 1000 * 1000, SPIN_NS = 50 * 1000, NAP_NS = 10 * 1000 };

/* ---- slots and records ------------------------------------------------------------------------------ */

static void copy_out(const gw_span_t *span) {
    if (gw_span_is_copied(span))
        gw_copy(span->buffer->data + span->offset, span->buffer->arena.shared + span->offset, (size_t)span->bytes);
}

/* Whether the result of an operation that has ended is where it belongs; puts it there if it can. */
static bool has_come_back(gw_bucket_t *bucket, uint64_t sequence, gw_status_t *status_io) {
    if (bucket->place == GW_PLACE_DEVICE)
        return *status_io == GW_OK ? gw_stream_is_back(bucket, sequence, status_io)
                                   : gw_stream_has_passed(bucket->group, sequence);
    if (*status_io == GW_OK)
        copy_out(&bucket->recv);
    return true;
}

bool gw_record_settle(gw_group_t *group, gw_record_t *record) {
    gw_bucket_t *bucket = record->bucket;
    gw_status_t status = GW_ERR_DAEMON_GONE;

    if (bucket == NULL)
        return true;
    if (gw_group_has_ended(group, record->sequence)) {
        status = (gw_status_t)atomic_load_explicit(&gw_slots_at(group->slots, record->sequence, group->credits)->status,
                                                   memory_order_relaxed);
        if (!has_come_back(bucket, record->sequence, &status))
            return false;
    } else if (!atomic_load_explicit(&group->gone, memory_order_relaxed)) {
        return false;
    }
    record->status = status;
    record->bucket = NULL;
    bucket->open--;
    if (bucket->pending == record->sequence)
        bucket->pending = 0;
    if (status != GW_OK && bucket->bounce != NULL)
        bucket->bounce->failed = true;
    for (gw_waiter_t *waiter = record->waiters; waiter != NULL; waiter = waiter->next) {
        waiter->status = record->status;
        waiter->ended = true;
    }
    record->waiters = NULL;
    return true;
}

bool gw_bucket_settle(gw_bucket_t *bucket) {
    gw_group_t *group = bucket->group;

    if (bucket->open == 0)
        return true;
    if (bucket->open == 1 && bucket->pending != 0)
        return gw_record_settle(group, gw_group_record(group, bucket->pending));
    for (uint32_t i = 0; i < group->credits; i++)
        if (group->ring[i].bucket == bucket)
            (void)gw_record_settle(group, &group->ring[i]);
    return bucket->open == 0;
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

void gw_group_nap(void) {
    const struct timespec pause = {.tv_nsec = NAP_NS};
    (void)nanosleep(&pause, NULL); /* that it may return early is part of the bargain */
}

/* ---- seeing the end ------------------------------------------------------------------------------------- */

/* The status of an operation whose end has been seen, with its message. */
static gw_status_t tell(gw_group_t *group, gw_status_t status) {
    char text[GW_SLOTS_MESSAGE_BYTES];

    if (status == GW_OK || status == GW_ERR_DAEMON_GONE)
        return status == GW_OK ? GW_OK : gw_group_status(group);
    pthread_mutex_lock(&group->lock);
    snprintf(text, sizeof(text), "%s", group->device_text);
    pthread_mutex_unlock(&group->lock);
    if (status == GW_ERR_DEVICE && text[0] != '\0')
        return gw_fail_advised(status,
                               "the result could not be copied back: %s; end the process, its driver has failed", text);
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

gw_status_t gw_group_recall(const gw_group_t *group, gw_op_t op) {
    uint64_t last = atomic_load_explicit(&group->last_sequence, memory_order_relaxed);

    if (op > group->last_bad && op <= last)
        return GW_OK;
    if (op < 1 || op > last)
        return gw_fail_advised(GW_ERR_NOT_FOUND, "operation %llu: the last one submitted is %llu",
                               (unsigned long long)op, (unsigned long long)last);
    return gw_fail_advised(GW_ERR_NOT_FOUND,
                           "operation %llu: one from there to %llu has failed, and of those that have not ended well "
                           "the last %u are remembered; wait for each before so many later ones are submitted",
                           (unsigned long long)op, (unsigned long long)group->last_bad, group->credits);
}

/* Looks once, and if the operation goes on and `waiter` is not NULL, has it told of the end. */
static gw_status_t look(gw_group_t *group, gw_op_t op, gw_waiter_t *waiter) {
    pthread_mutex_lock(&group->lock);
    gw_record_t *record = gw_group_record(group, op);
    bool known = op >= 1 && record->sequence == op;
    bool ended = known && gw_record_settle(group, record);
    gw_status_t status = ended ? record->status : GW_IN_PROGRESS;
    if (!known)
        status = gw_group_recall(group, op);
    if (known && !ended && waiter != NULL) {
        waiter->next = record->waiters;
        record->waiters = waiter;
    }
    if (group->notify)
        drain(group);
    pthread_mutex_unlock(&group->lock);

    if (!known)
        return status;
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
    int64_t spin_end_ns = 0;
    bool goes_on;

    do {
        pthread_mutex_lock(&group->lock);
        /* Until the end has been seen, the record is this operation's. */
        goes_on = !waiter->ended && !gw_record_settle(group, gw_group_record(group, op));
        if (goes_on && status == GW_OK && deadline_ns != INT64_MAX && now_ns() >= deadline_ns)
            status = gw_fail(GW_ERR_TIMEOUT, "operation %llu", (unsigned long long)op);
        if (goes_on && status != GW_OK) {
            take_out(gw_group_record(group, op), waiter);
            goes_on = false;
        }
        if (group->notify)
            drain(group);
        pthread_mutex_unlock(&group->lock);
        if (goes_on && spin_end_ns == 0)
            spin_end_ns = now_ns() + SPIN_NS; /* a device copies the result back: most often that takes less */
        if (goes_on && now_ns() < spin_end_ns)
            (void)sched_yield(); /* cannot fail */
        else if (goes_on)
            gw_group_nap();
    } while (goes_on);
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
