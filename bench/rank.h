/* rank.h - what every measured process of `make bench-host` does
 *
 * bench/run-host starts the ranks of gradwire and of its peers, and then has them measured in turn, size by
 * size. In between a rank must not take a core from the peer whose turn it is, so each one sleeps in a read
 * of its control socket until a line says what to run:
 *
 *   rank -> run-host   hello RANK TEXT
 *   run-host -> rank   run KIND BYTES RANKS BLOCKS TIMED         (to all ranks of a peer)
 *   rank -> run-host   ok WRONG NS NS NS ...                     (or: error TEXT)
 *   run-host closes the connection: the rank ends
 *
 * A run is BLOCKS blocks. Each block fills the memory, does BENCH_SKIPPED operations that align the ranks and
 * are not timed, then TIMED operations, each timed alone, and then checks every element. All operations sum in
 * place, so values grow by the factor of the ranks with every operation. The values filled in are whole numbers
 * below 2^11 and the number of ranks is a power of two: every sum is exact in fp32, in any order, and the check
 * is for equality. An operation that did nothing, or did it twice, is wrong by that factor in every element.
 */
#ifndef BENCH_RANK_H
#define BENCH_RANK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

#define BENCH_RANKS_MAX 4
#define BENCH_SKIPPED   2u /* operations at the start of a block that are not timed */

typedef struct bench_run {
    char kind[32];
    uint64_t bytes;
    unsigned n_ranks;
    unsigned n_blocks;
    unsigned n_timed;               /* operations of a block that are timed */
    unsigned first_rank;            /* of those whose memory this process holds */
    unsigned n_here;                /* how many it holds: 1, or all of them for the limit */
    float *memory[BENCH_RANKS_MAX]; /* set by prepare */
} bench_run_t;

/* What differs between the peers. All but finish return NULL or what went wrong. */
typedef struct bench_peer {
    const char *(*prepare)(bench_run_t *run);
    const char *(*operation)(bench_run_t *run);
    void (*finish)(bench_run_t *run);
} bench_peer_t;

/* The first value of element i is bench_base + bench_offset. A rank's part is a power of 4, so that a sum in which
 * one rank is missing or counted twice cannot come out right. */
static inline uint32_t bench_base(uint64_t i) {
    return ((uint32_t)i * 2654435761u) >> 22;
}
static inline uint32_t bench_offset(unsigned rank, unsigned block) {
    return (1u << (2u * rank)) + block % 512u;
}

static inline void bench_fill(float *data, uint64_t count, unsigned rank, unsigned block) {
    uint32_t offset = bench_offset(rank, block);
    for (uint64_t i = 0; i < count; i++)
        data[i] = (float)(int32_t)(bench_base(i) + offset);
}

/* How many elements differ from what n_operations sums over n_ranks make of the first values. */
static inline uint64_t bench_wrong(const float *data, uint64_t count, unsigned n_ranks, unsigned block,
                                   unsigned n_operations) {
    uint32_t offsets = 0;
    for (unsigned rank = 0; rank < n_ranks; rank++)
        offsets += bench_offset(rank, block);
    float growth = 1.0f;
    for (unsigned k = 1; k < n_operations; k++)
        growth *= (float)n_ranks;
    uint64_t n_wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        float expected = (float)(int32_t)(bench_base(i) * n_ranks + offsets) * growth;
        n_wrong += data[i] != expected;
    }
    return n_wrong;
}

/* One run. `times` receives n_blocks * n_timed durations. Returns NULL or what went wrong. */
static inline const char *bench_measure(const bench_peer_t *peer, bench_run_t *run, int64_t *times,
                                        uint64_t *n_wrong_out) {
    uint64_t count = run->bytes / sizeof(float);
    unsigned n_operations = BENCH_SKIPPED + run->n_timed;
    *n_wrong_out = 0;
    for (unsigned block = 0; block < run->n_blocks; block++) {
        for (unsigned i = 0; i < run->n_here; i++)
            bench_fill(run->memory[i], count, run->first_rank + i, block);
        for (unsigned k = 0; k < n_operations; k++) {
            int64_t start = bench_now_ns();
            const char *why = peer->operation(run);
            if (why != NULL)
                return why;
            if (k >= BENCH_SKIPPED)
                *times++ = bench_now_ns() - start;
        }
        for (unsigned i = 0; i < run->n_here; i++)
            *n_wrong_out += bench_wrong(run->memory[i], count, run->n_ranks, block, n_operations);
    }
    return NULL;
}

/* Does one run and answers. Returns 0, or -1 if run-host has gone. */
static inline int bench_answer(bench_control_t *control, const bench_peer_t *peer, bench_run_t *run) {
    size_t n_times = (size_t)run->n_blocks * run->n_timed;
    uint64_t n_wrong = 0;
    int64_t *times = malloc((n_times + 1) * sizeof *times);
    const char *why = times == NULL ? "no memory for the times" : peer->prepare(run);
    if (why == NULL) {
        why = bench_measure(peer, run, times, &n_wrong);
        peer->finish(run);
    }
    if (why != NULL) {
        fprintf(control->out, "error %s\n", why);
    } else {
        fprintf(control->out, "ok %" PRIu64, n_wrong);
        for (size_t i = 0; i < n_times; i++)
            fprintf(control->out, " %" PRId64, times[i]);
        fputc('\n', control->out);
    }
    free(times);
    return fflush(control->out) != 0 ? -1 : 0;
}

/* Serves run-host until it closes the connection. Returns 0, or -1 after saying why. */
static inline int bench_serve(bench_control_t *control, const bench_peer_t *peer, unsigned first_rank) {
    char line[256];
    while (fgets(line, sizeof line, control->in) != NULL) {
        bench_run_t run = {.first_rank = first_rank, .n_here = 1};
        if (sscanf(line, "run %31s %" SCNu64 " %u %u %u", run.kind, &run.bytes, &run.n_ranks, &run.n_blocks,
                   &run.n_timed) != 5 ||
            run.n_ranks > BENCH_RANKS_MAX) {
            fprintf(stderr, "bench: run-host sent: %s", line);
            return -1;
        }
        if (bench_answer(control, peer, &run) != 0) {
            perror("bench: control socket");
            return -1;
        }
    }
    return 0;
}

#endif
