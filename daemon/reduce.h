/* reduce.h - the threads that do the arithmetic
 *
 * A job is an exchange cut into chunks. Reduce threads take the next chunk of the job with the highest
 * priority (the oldest among equals), so an urgent bucket waits for one chunk of a large one and not for
 * all of it. When the last chunk is done the job goes back to its lane.
 */
#ifndef GWD_REDUCE_H
#define GWD_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "exchange.h"
#include "queue.h"

typedef struct gwd_reduce gwd_reduce_t;

typedef struct gwd_job {
    gwd_exchange_t exchange;
    int priority;
    gwd_queue_t *finished; /* where a pointer to this job goes when it has ended */
    /* Owned by the reduce threads from start until it ends. */
    uint64_t n_chunks, next_chunk, running_chunks;
    struct gwd_job *next;
} gwd_job_t;

/* Starts `n_threads` threads (0: one for each CPU this process may use). Returns 0 or an errno value. */
int gwd_reduce_new(unsigned n_threads, gwd_reduce_t **reduce_out);

/* Stops the threads; no job may be left. */
void gwd_reduce_free(gwd_reduce_t *reduce);

unsigned gwd_reduce_threads(const gwd_reduce_t *reduce);

/* Hands a job over; its n_chunks is at least 1. It comes back through job->finished. Thread: any. */
void gwd_reduce_start(gwd_reduce_t *reduce, gwd_job_t *job);

/* Drops the chunks that nobody has begun. The job still comes back, once, through job->finished.
 * Thread: the one that started it, before it has come back. */
void gwd_reduce_cancel(gwd_reduce_t *reduce, gwd_job_t *job);

#endif
