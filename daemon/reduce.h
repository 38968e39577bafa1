/* reduce.h - the threads that do the arithmetic
 *
 * A job is an exchange cut into chunks. Users take turns, a chunk each, and so do the groups of a user, so that
 * nobody waits for all that another has asked for. In a group's turn the job with the highest priority is
 * next (the oldest among equals), so an urgent bucket waits for one chunk of a large one and not for all of
 * it. When the last chunk is done the job goes back to its lane.
 *
 * Half of the threads take chunks from the front of a job and half from its back, until they meet. So a
 * thread sees the same part of a bucket in every step, which its caches may still hold.
 *
 * Lanes help: a lane that waits for a job does chunks too, and looks at its channels between any two. So
 * the work begins before the first thread has woken up, and mostly ends where the completion is written.
 */
#ifndef GWD_REDUCE_H
#define GWD_REDUCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "exchange.h"
#include "queue.h"

typedef struct gwd_reduce gwd_reduce_t;

/* One who takes turns: a user, whose groups take turns within, or a group, which has jobs. Zeroed at first but for the
 * parent, then owned by the reduce threads; it must outlive its jobs. */
typedef struct gwd_share {
    struct gwd_share *parent;       /* of a group: its user; of a user: NULL */
    struct gwd_job *jobs;           /* with chunks left to begin, by priority, then by age */
    struct gwd_share *first, *last; /* those within that have work, in the order of their turns */
    struct gwd_share *next;
    _Atomic uint64_t n_copies; /* of its flights that are under way; the lanes' own, see lane_staged.c */
} gwd_share_t;

typedef struct gwd_job {
    gwd_exchange_t exchange;
    void (*work)(struct gwd_job *job, uint64_t chunk); /* does one chunk; NULL: gwd_exchange_chunk */
    int priority;
    gwd_share_t *share;                       /* of its group */
    gwd_queue_t *finished;                    /* where a pointer to this job goes when it has ended */
    void (*on_finished)(struct gwd_job *job); /* what is to be done with it there */
    /* Owned by the reduce threads from start until it ends. */
    uint64_t n_chunks;
    uint64_t front, back; /* chunks front..back-1 have not been begun */
    uint64_t running;     /* chunks that are being done */
    struct gwd_job *next;
} gwd_job_t;

/* Starts `n_threads` threads. 0: one for each CPU this process may use but one, which is the lane's; at
 * least 1, and at most 16, since memory is the limit by then. A thread without work looks for some for
 * `spin_ns` before it sleeps. Returns 0 or an errno value. */
int gwd_reduce_new(unsigned n_threads, uint64_t spin_ns, gwd_reduce_t **reduce_out);

/* Stops the threads; no job may be left. */
void gwd_reduce_free(gwd_reduce_t *reduce);

unsigned gwd_reduce_threads(const gwd_reduce_t *reduce);

/* Hands a job over; its n_chunks is at least 1. It comes back through job->finished. `helps`: the calling thread is
 * about to call gwd_reduce_help, so that one thread less is woken. Thread: any. */
void gwd_reduce_start(gwd_reduce_t *reduce, gwd_job_t *job, bool helps);

/* Does one chunk, from the front of the job that is next, in the calling thread; false when none is left to begin. */
bool gwd_reduce_help(gwd_reduce_t *reduce);

/* Drops the chunks that nobody has begun. The job still comes back, once, through job->finished.
 * Thread: the one that started it, before it has come back. */
void gwd_reduce_cancel(gwd_reduce_t *reduce, gwd_job_t *job);

#endif
