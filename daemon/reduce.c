/* reduce.c - see reduce.h */
#include "reduce.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "clock.h"
#include "log.h"
#include "slice.h"

struct gwd_reduce {
    pthread_mutex_t mutex;
    pthread_cond_t work;
    gwd_share_t users; /* those who have chunks left to begin */
    _Atomic bool any;  /* whether there are: for those who look without the mutex */
    _Atomic bool stopping;
    uint64_t spin_ns;
    unsigned n_threads, n_started, sleeping;
    pthread_t threads[];
};

/* The end of the line within `parent`. */
static void line_up(gwd_share_t *parent, gwd_share_t *share) {
    share->next = NULL;
    if (parent->first)
        parent->last->next = share;
    else
        parent->first = share;
    parent->last = share;
}

static void step_out(gwd_share_t *parent, const gwd_share_t *share) {
    gwd_share_t **at = &parent->first, *before = NULL;

    while (*at != share) {
        before = *at;
        at = &(*at)->next;
    }
    *at = share->next;
    if (parent->last == share)
        parent->last = before;
}

static gwd_share_t *parent_of(gwd_reduce_t *reduce, const gwd_share_t *share) {
    if (share == &reduce->users)
        return NULL;
    return share->parent ? share->parent : &reduce->users;
}

/* A share gets its first work: it takes its place, and so does each above it that had none. */
static void begin_turns(gwd_reduce_t *reduce, gwd_share_t *share) {
    gwd_share_t *parent;

    for (; (parent = parent_of(reduce, share)) != NULL; share = parent) {
        bool had_work = parent->first != NULL;

        line_up(parent, share);
        if (had_work)
            break;
    }
    atomic_store_explicit(&reduce->any, true, memory_order_relaxed);
}

/* The opposite: it has no work left. */
static void end_turns(gwd_reduce_t *reduce, gwd_share_t *share) {
    gwd_share_t *parent;

    for (; (parent = parent_of(reduce, share)) != NULL; share = parent) {
        step_out(parent, share);
        if (parent->first)
            break;
    }
    atomic_store_explicit(&reduce->any, reduce->users.first != NULL, memory_order_relaxed);
}

/* The group whose turn it is; the turns pass on. */
static gwd_share_t *take_turn(gwd_reduce_t *reduce) {
    gwd_share_t *share = &reduce->users;

    while (share->first) {
        gwd_share_t *parent = share;

        share = parent->first;
        step_out(parent, share);
        line_up(parent, share);
    }
    return share;
}

/* All chunks of the job have been begun. */
static void unlink_job(gwd_reduce_t *reduce, const gwd_job_t *job) {
    gwd_job_t **at = &job->share->jobs;

    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    if (!job->share->jobs)
        end_turns(reduce, job->share);
}

/* A pointer travels, so that nothing of the job is touched once its lane has it back. */
static void give_back(gwd_job_t *job) {
    if (gwd_queue_push(job->finished, &job))
        return;
    gwd_log(GWD_LOG_ERROR, "reduce", "out of memory: a job cannot be handed back, and its group would hang");
    abort();
}

typedef enum side { FRONT, BACK } side_t;

/* Begins the next chunk of the group whose turn it is and does it. Called, and returns, with the mutex held. */
static void do_chunk(gwd_reduce_t *reduce, side_t side) {
    gwd_job_t *job = take_turn(reduce)->jobs;
    uint64_t chunk = side == FRONT ? job->front++ : --job->back;

    job->running++;
    if (job->front == job->back)
        unlink_job(reduce, job);
    pthread_mutex_unlock(&reduce->mutex);

    if (job->work)
        job->work(job, chunk);
    else
        gwd_exchange_chunk(&job->exchange, chunk);

    pthread_mutex_lock(&reduce->mutex);
    job->running--;
    if (job->front == job->back && job->running == 0)
        give_back(job);
}

/* Looks for work for a while, and lets others run in between. */
static void spin(gwd_reduce_t *reduce) {
    uint64_t end_ns = gwd_now_ns() + reduce->spin_ns;

    while (!atomic_load_explicit(&reduce->any, memory_order_relaxed) && !reduce->stopping && gwd_now_ns() < end_ns)
        (void)sched_yield(); /* cannot fail */
}

/* With one thread it is the back's: the lane has the front. */
static side_t take_side(gwd_reduce_t *reduce) {
    return reduce->n_started++ % 2 == 0 ? BACK : FRONT;
}

static void *work(void *argument) {
    gwd_reduce_t *reduce = argument;
    side_t side;

    pthread_mutex_lock(&reduce->mutex);
    side = take_side(reduce);
    while (!reduce->stopping) {
        if (reduce->users.first) {
            do_chunk(reduce, side);
            continue;
        }
        pthread_mutex_unlock(&reduce->mutex);
        spin(reduce);
        gwd_slice_short(true);
        pthread_mutex_lock(&reduce->mutex);
        if (!reduce->users.first && !reduce->stopping) {
            reduce->sleeping++;
            pthread_cond_wait(&reduce->work, &reduce->mutex);
            reduce->sleeping--;
        }
        pthread_mutex_unlock(&reduce->mutex);
        gwd_slice_short(false);
        pthread_mutex_lock(&reduce->mutex);
    }
    pthread_mutex_unlock(&reduce->mutex);
    return NULL;
}

bool gwd_reduce_help(gwd_reduce_t *reduce) {
    bool any;

    if (!atomic_load_explicit(&reduce->any, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&reduce->mutex);
    any = reduce->users.first != NULL;
    if (any)
        do_chunk(reduce, FRONT);
    pthread_mutex_unlock(&reduce->mutex);
    return any;
}

static unsigned default_threads(void) {
    cpu_set_t set;
    unsigned cpus = 2; /* if it cannot be told: more than 1024 CPUs */

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cpus = (unsigned)CPU_COUNT(&set);
    if (cpus <= 2)
        return 1;
    return cpus - 1 < 16 ? cpus - 1 : 16;
}

int gwd_reduce_new(unsigned n_threads, uint64_t spin_ns, gwd_reduce_t **reduce_out) {
    gwd_reduce_t *reduce;
    int error;

    if (n_threads == 0)
        n_threads = default_threads();
    reduce = calloc(1, sizeof(*reduce) + n_threads * sizeof(reduce->threads[0]));
    if (!reduce)
        return ENOMEM;
    error = pthread_mutex_init(&reduce->mutex, NULL);
    if (error)
        goto err_memory;
    error = pthread_cond_init(&reduce->work, NULL);
    if (error)
        goto err_mutex;
    reduce->spin_ns = spin_ns;
    for (; reduce->n_threads < n_threads; reduce->n_threads++) {
        error = pthread_create(&reduce->threads[reduce->n_threads], NULL, work, reduce);
        if (error) {
            gwd_reduce_free(reduce);
            return error;
        }
        pthread_setname_np(reduce->threads[reduce->n_threads], "gw-reduce");
    }
    *reduce_out = reduce;
    return 0;

err_mutex:
    pthread_mutex_destroy(&reduce->mutex);
err_memory:
    free(reduce);
    return error;
}

void gwd_reduce_free(gwd_reduce_t *reduce) {
    pthread_mutex_lock(&reduce->mutex);
    reduce->stopping = true;
    pthread_cond_broadcast(&reduce->work);
    pthread_mutex_unlock(&reduce->mutex);
    for (unsigned i = 0; i < reduce->n_threads; i++)
        pthread_join(reduce->threads[i], NULL);
    pthread_cond_destroy(&reduce->work);
    pthread_mutex_destroy(&reduce->mutex);
    free(reduce);
}

unsigned gwd_reduce_threads(const gwd_reduce_t *reduce) {
    return reduce->n_threads;
}

void gwd_reduce_start(gwd_reduce_t *reduce, gwd_job_t *job, bool helps) {
    gwd_job_t **at = &job->share->jobs;
    uint64_t wake;
    bool idle;

    job->front = 0;
    job->back = job->n_chunks;
    job->running = 0;
    pthread_mutex_lock(&reduce->mutex);
    idle = reduce->users.first == NULL;
    if (!job->share->jobs)
        begin_turns(reduce, job->share);
    while (*at && (*at)->priority >= job->priority)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    wake = job->n_chunks - (idle && helps); /* a lane that had nothing to do does one itself */
    wake = wake < reduce->sleeping ? wake : reduce->sleeping;
    for (; wake > 0; wake--)
        pthread_cond_signal(&reduce->work);
    pthread_mutex_unlock(&reduce->mutex);
}

void gwd_reduce_cancel(gwd_reduce_t *reduce, gwd_job_t *job) {
    pthread_mutex_lock(&reduce->mutex);
    if (job->front < job->back) {
        unlink_job(reduce, job);
        job->back = job->front;
        if (job->running == 0)
            give_back(job);
    }
    pthread_mutex_unlock(&reduce->mutex);
}
