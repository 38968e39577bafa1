/* group.h - a rank's membership of a group
 *
 * The group keeps a ring of `credits` records, one for each slot. A record is open from gw_submit until
 * its end has been seen by gw_wait, gw_test or whoever needs the slot next; seeing it once copies the
 * result of registered memory out and keeps the status, so that asking again gives the same answer. Operations on
 * streams are open as well until somebody has seen their end, and the CPU may be several of a bucket ahead.
 */
#ifndef GW_GROUP_H
#define GW_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "bucket.h"
#include "context.h"
#include "slots.h"

enum { GW_CACHE_SIZE = 256 };

/* A thread that waits for an operation, on its stack. Whoever sees the end tells all of them: the record may serve a
 * later operation before a slow thread comes to look. */
typedef struct gw_waiter {
    struct gw_waiter *next;
    bool ended;
    gw_status_t status; /* valid once ended */
} gw_waiter_t;

typedef struct gw_record {
    uint64_t sequence;
    gw_bucket_t *bucket;  /* NULL once the end has been seen */
    gw_place_t place;     /* of its memory */
    gw_device_t *device;  /* of device memory */
    gw_status_t status;   /* valid from then on */
    gw_waiter_t *waiters; /* none from then on */
} gw_record_t;

/* A bucket that a one-call collective declared. */
typedef struct gw_cached {
    uint64_t hash;
    gw_bucket_t *bucket;
} gw_cached_t;

/* The slots as a device sees them. */
typedef struct gw_pin {
    struct gw_pin *next;
    gw_device_t *device;
    uint8_t *slots;
} gw_pin_t;

struct gw_group {
    gw_context_t *context;
    gw_group_t *next, **link; /* in context->groups */
    uint32_t handle, epoch, credits;
    int rank, nranks;
    int channel; /* non-blocking */
    gw_slots_header_t *slots;
    _Atomic bool gone;              /* the channel is closed: the daemon has gone away */
    _Atomic uint64_t last_sequence; /* written under `lock` */
    _Atomic uint64_t failed_seen;   /* operations that failed alone and that gw_group_check has told of */

    gw_group_t *watch_next, **watch_link; /* the watchdog's; NULL: it does not watch */

    pthread_mutex_t lock; /* of what follows; keeps messages on the channel in order of sequence */
    gw_pin_t *pins;
    bool notify;
    gw_record_t *ring; /* credits of them */
    uint64_t last_bad; /* of the operations whose records serve others now: the last that did not end well */
    gw_bucket_t *buckets;
    gw_cached_t cache[GW_CACHE_SIZE];
    unsigned n_cached;
    uint64_t round;                         /* counts one-call collectives */
    char device_text[GW_DRIVER_TEXT_BYTES]; /* why a result could not be copied back */
};

gw_status_t gw_group_argument(const gw_group_t *group);

/* GW_OK, or why the group has failed, with its message. No system call. */
gw_status_t gw_group_status(gw_group_t *group);

/* The daemon's sentence about what went wrong. `text_out` has GW_SLOTS_MESSAGE_BYTES bytes. */
void gw_group_message(const gw_group_t *group, char *text_out);

/* Looks whether the daemon still holds its end of the channel. */
bool gw_group_is_gone(gw_group_t *group);

/* Whether the operation of an open record has ended, and its result is where it belongs; if so it is settled. The lock
 * is held. */
bool gw_record_settle(gw_group_t *group, gw_record_t *record);

/* Blocks until the slot of `sequence` has ended, the deadline (CLOCK_MONOTONIC, INT64_MAX: none) has
 * passed, or the daemon has gone. The lock is not held. */
gw_status_t gw_group_await(gw_group_t *group, uint64_t sequence, int64_t deadline_ns);

/* Lets others run while a device copies a result that is ready: that takes microseconds, and wakes nobody. */
void gw_group_nap(void);

/* What is known of an operation whose record is not its own: it has ended before another one took that. The lock is
 * held. Errors: GW_ERR_NOT_FOUND (it was never submitted, or one that came later and is forgotten too ended badly). */
gw_status_t gw_group_recall(const gw_group_t *group, gw_op_t op);

static inline gw_record_t *gw_group_record(gw_group_t *group, uint64_t sequence) {
    return &group->ring[sequence & (group->credits - 1u)];
}

/* Whether the daemon has ended the operation. */
static inline bool gw_group_has_ended(gw_group_t *group, uint64_t sequence) {
    gw_slot_t *slot = gw_slots_at(group->slots, sequence, group->credits);
    return gw_slots_reached(atomic_load_explicit(&slot->done, memory_order_acquire), sequence);
}

#endif
