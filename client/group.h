/* group.h - a rank's membership of a group
 *
 * The group keeps a ring of `credits` records, one for each slot. A record is open from gw_submit until
 * its end has been seen by gw_wait, gw_test or whoever needs the slot next; seeing it once copies the
 * result of registered memory out and keeps the status, so that asking again gives the same answer.
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
    gw_status_t status;   /* valid from then on */
    gw_waiter_t *waiters; /* none from then on */
} gw_record_t;

/* A bucket that a one-call collective declared. */
typedef struct gw_cached {
    uint64_t hash;
    gw_bucket_t *bucket;
} gw_cached_t;

struct gw_group {
    gw_context_t *context;
    gw_group_t *next, **link; /* in context->groups */
    uint32_t handle, epoch, credits;
    int rank, nranks;
    int channel; /* non-blocking */
    gw_slots_header_t *slots;
    _Atomic bool gone;            /* the channel is closed: the daemon has gone away */
    _Atomic uint64_t failed_seen; /* operations that failed alone and that gw_group_check has told of */

    pthread_mutex_t lock; /* of what follows; keeps messages on the channel in order of sequence */
    uint64_t last_sequence;
    bool notify;
    gw_record_t *ring; /* credits of them */
    gw_bucket_t *buckets;
    gw_cached_t cache[GW_CACHE_SIZE];
    unsigned n_cached;
    uint64_t round; /* counts one-call collectives */
};

gw_status_t gw_group_argument(const gw_group_t *group);

/* GW_OK, or why the group has failed, with its message. No system call. */
gw_status_t gw_group_status(gw_group_t *group);

/* The daemon's sentence about what went wrong. `text_out` has GW_SLOTS_MESSAGE_BYTES bytes. */
void gw_group_message(const gw_group_t *group, char *text_out);

/* Looks whether the daemon still holds its end of the channel. */
bool gw_group_is_gone(gw_group_t *group);

/* Whether the operation of an open record has ended; if so it is settled. The lock is held. */
bool gw_record_settle(gw_group_t *group, gw_record_t *record);

/* Blocks until the slot of `sequence` has ended, the deadline (CLOCK_MONOTONIC, INT64_MAX: none) has
 * passed, or the daemon has gone. The lock is not held. */
gw_status_t gw_group_await(gw_group_t *group, uint64_t sequence, int64_t deadline_ns);

static inline gw_record_t *gw_group_record(gw_group_t *group, uint64_t sequence) {
    return &group->ring[sequence & (group->credits - 1u)];
}

#endif
