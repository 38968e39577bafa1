/* limit.c - what the machine allows: one pass over the memory of all ranks
 *
 * A sum of n ranks must read every rank's input once and write every rank's result once. This program does that
 * and nothing else: n shared buffers (memfds, as the daemon's), a fixed number of threads, each on its part. No
 * program that leaves the result in every rank's own memory can do with less traffic. Kinds:
 *
 *   shared  the threads are started for the pass, since a daemon that takes no CPU when idle has none that run
 *   awake   the threads spin between operations: nothing is lost to starting them. What the memory alone allows.
 *   copy    a plain memcpy between two buffers, by threads that spin.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "rank.h"

#define LIMIT_THREADS_MAX 64
#define LIMIT_LANES       16 /* floats of a vector: one cache line */

typedef float limit_vector_t __attribute__((vector_size(LIMIT_LANES * sizeof(float))));

#if defined(__x86_64__)
#define LIMIT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LIMIT_CLONES
#endif

static unsigned n_threads;
static pthread_t threads[LIMIT_THREADS_MAX];
static bench_run_t *current; /* what the threads work on */
static int starting;         /* kind shared */
static atomic_uint started;  /* counts operations: the threads watch it */
static atomic_uint finished; /* threads that have ended the operation */
static atomic_int stopping;

LIMIT_CLONES static void limit_sum2(limit_vector_t *restrict a, limit_vector_t *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        limit_vector_t sum = a[i] + b[i];
        a[i] = sum;
        b[i] = sum;
    }
}

LIMIT_CLONES static void limit_sum4(limit_vector_t *restrict a, limit_vector_t *restrict b, limit_vector_t *restrict c,
                                    limit_vector_t *restrict d, size_t n) {
    for (size_t i = 0; i < n; i++) {
        limit_vector_t sum = a[i] + b[i] + c[i] + d[i];
        a[i] = sum;
        b[i] = sum;
        c[i] = sum;
        d[i] = sum;
    }
}

/* The part of thread `index`. */
static void limit_part(const bench_run_t *run, unsigned index) {
    size_t n = run->bytes / sizeof(limit_vector_t);
    size_t from = n * index / n_threads;
    size_t to = n * (index + 1) / n_threads;
    limit_vector_t *at[4] = {NULL};
    for (unsigned i = 0; i < run->n_here; i++)
        at[i] = (limit_vector_t *)(void *)run->memory[i] + from;
    if (strcmp(run->kind, "copy") == 0)
        memcpy(at[1], at[0], (to - from) * sizeof(limit_vector_t));
    else if (run->n_here == 2)
        limit_sum2(at[0], at[1], to - from);
    else
        limit_sum4(at[0], at[1], at[2], at[3], to - from);
}

static inline void limit_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns whether there is another operation. */
static int limit_await(unsigned *seen) {
    while (atomic_load_explicit(&started, memory_order_acquire) == *seen)
        limit_pause();
    ++*seen;
    return !atomic_load(&stopping);
}

static void *limit_thread(void *argument) {
    unsigned index = (unsigned)(uintptr_t)argument;
    unsigned seen = 0;
    while (limit_await(&seen)) {
        limit_part(current, index);
        atomic_fetch_add_explicit(&finished, 1, memory_order_release);
    }
    return NULL;
}

static void limit_finish(bench_run_t *run) {
    atomic_store(&stopping, 1);
    atomic_fetch_add_explicit(&started, 1, memory_order_release);
    for (unsigned i = 1; i < n_threads && !starting; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < run->n_here; i++)
        if (munmap(run->memory[i], run->bytes) != 0)
            perror("munmap");
}

static float *limit_memory(uint64_t bytes) {
    int fd = memfd_create("limit", MFD_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static const char *limit_prepare(bench_run_t *run) {
    int copy = strcmp(run->kind, "copy") == 0;
    if (!copy && run->n_ranks != 2 && run->n_ranks != 4)
        return "the limit is known for 2 and 4 ranks";
    if (run->bytes == 0 || run->bytes % sizeof(limit_vector_t) != 0)
        return "the size must be a multiple of 64 bytes";
    run->n_here = copy ? 2 : run->n_ranks;
    run->n_ranks = copy ? 1 : run->n_ranks; /* rank.h's check: afterwards both hold rank 0's values, nothing grew */
    for (unsigned i = 0; i < run->n_here; i++)
        if ((run->memory[i] = limit_memory(run->bytes)) == NULL)
            return "no memory";
    current = run;
    starting = strcmp(run->kind, "shared") == 0;
    atomic_store(&stopping, 0);
    atomic_store(&started, 0);
    for (unsigned i = 1; i < n_threads && !starting; i++)
        if (pthread_create(&threads[i], NULL, limit_thread, (void *)(uintptr_t)i) != 0)
            return "pthread_create failed";
    return NULL;
}

static void *limit_once(void *argument) {
    limit_part(current, (unsigned)(uintptr_t)argument);
    return NULL;
}

static const char *limit_start(void) {
    for (unsigned i = 0; i < n_threads; i++)
        if (pthread_create(&threads[i], NULL, limit_once, (void *)(uintptr_t)i) != 0)
            return "pthread_create failed";
    for (unsigned i = 0; i < n_threads; i++)
        pthread_join(threads[i], NULL);
    return NULL;
}

static const char *limit_operation(bench_run_t *run) {
    if (starting)
        return limit_start();
    atomic_store(&finished, 0);
    atomic_fetch_add_explicit(&started, 1, memory_order_release);
    limit_part(run, 0);
    while (atomic_load_explicit(&finished, memory_order_acquire) != n_threads - 1)
        limit_pause();
    return NULL;
}

int main(int argc, char **argv) {
    static const bench_peer_t peer = {limit_prepare, limit_operation, limit_finish};
    bench_control_t control;
    n_threads = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
    if (n_threads < 1 || n_threads > LIMIT_THREADS_MAX) {
        fprintf(stderr, "usage: limit CONTROL-SOCKET THREADS (started by bench/run-host)\n");
        return 2;
    }
    int failed = bench_connect(argv[1], &control) != 0 || bench_hello(&control, 0, "limit") != 0 ||
                 bench_serve(&control, &peer, 0) != 0;
    return failed ? 1 : 0;
}
