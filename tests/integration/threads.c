/* threads.c - several threads of a rank call the same collectives of one group at once
 *
 * Two ranks in this process, `THREADS` threads each. Which thread's call meets which call of the other rank is
 * open; that all of them end well is not. Exits with 0 if so.
 */
#include <gradwire.h>

#include <pthread.h>
#include <stdio.h>

enum { RANKS = 2, THREADS = 3, ROUNDS = 200 };

static gw_context_t *context;
static gw_unique_id_t id;
static gw_group_t *groups[RANKS];
static pthread_barrier_t joined;

typedef struct worker {
    pthread_t thread;
    int rank, number;
    gw_status_t status;
} worker_t;

static gw_status_t work(const worker_t *worker) {
    gw_status_t status = GW_OK;

    if (worker->number == 0)
        status = gw_group_init(context, &id, RANKS, worker->rank, &groups[worker->rank]);
    pthread_barrier_wait(&joined);
    for (int i = 0; i < ROUNDS && status == GW_OK; i++)
        status = gw_barrier(groups[worker->rank], NULL);
    if (status != GW_OK)
        fprintf(stderr, "rank %d, thread %d: %s\n", worker->rank, worker->number, gw_last_error());
    return status;
}

static void *run(void *argument) {
    worker_t *worker = argument;

    worker->status = work(worker);
    return NULL;
}

int main(void) {
    worker_t workers[RANKS * THREADS];
    int failed = 0;

    if (pthread_barrier_init(&joined, NULL, RANKS * THREADS) != 0 || gw_connect(NULL, &context) != GW_OK ||
        gw_get_unique_id(context, &id) != GW_OK) {
        fprintf(stderr, "%s\n", gw_last_error());
        return 1;
    }
    for (int i = 0; i < RANKS * THREADS; i++) {
        workers[i] = (worker_t){.rank = i / THREADS, .number = i % THREADS};
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0)
            return 1;
    }
    for (int i = 0; i < RANKS * THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        failed += workers[i].status != GW_OK;
    }
    gw_disconnect(context);
    return failed != 0;
}
