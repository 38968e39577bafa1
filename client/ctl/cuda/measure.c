/* measure.c - how fast bytes are copied: between each GPU and pinned host memory, and between GPUs
 *
 * Copies are queued back to back on the copy engines, one stream a direction, and timed by the clock from the first call
 * to the end of the last: what a large bucket sees.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gpu_cuda.h"

#define COPY_BYTES (UINT64_C(64) << 20)
#define RUN_S      0.02 /* a run takes about as long */
enum { RUNS = 3, COPIES_MAX = 64, SENT = 0, RECEIVED = 1 };

/* A GPU, with what is copied from it and to it, here and in host memory. */
typedef struct end {
    const gwctl_device_t *device;
    CUdeviceptr memory[2];
    void *host[2];
} end_t;

/* Copies in one direction. `to` NULL: to the host; `from` NULL: from the host. */
typedef struct move {
    const end_t *from, *to;
} move_t;

static gwctl_outcome_t end_open(end_t *end, const gwctl_device_t *device, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    end->device = device;
    for (int i = 0; i < 2 && outcome == GWCTL_WORKS; i++) {
        outcome = gwctl_cuda_say(cuMemAlloc(&end->memory[i], COPY_BYTES), "cuMemAlloc", why);
        if (outcome == GWCTL_WORKS)
            outcome = gwctl_cuda_host_alloc(device, COPY_BYTES, &end->host[i], why);
    }
    return outcome;
}

static void end_close(end_t *end) {
    if (end->device == NULL || cuCtxSetCurrent(end->device->context) != CUDA_SUCCESS)
        return;
    for (int i = 0; i < 2; i++) {
        if (end->memory[i] != 0)
            cuMemFree(end->memory[i]);
        if (end->host[i] != NULL)
            gwctl_cuda_host_free(end->host[i], COPY_BYTES);
    }
}

/* The stream that a move runs on: what comes from the host has one of its own. */
static CUstream stream_of(const move_t *move) {
    return move->from != NULL ? move->from->device->stream[SENT] : move->to->device->stream[RECEIVED];
}

static gwctl_outcome_t enqueue(const move_t *move, char *why) {
    const end_t *from = move->from;
    const end_t *to = move->to;
    gwctl_outcome_t outcome = gwctl_cuda_enter(from != NULL ? from->device : to->device, why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    if (to == NULL)
        return gwctl_cuda_say(cuMemcpyDtoHAsync(from->host[SENT], from->memory[SENT], COPY_BYTES, stream_of(move)),
                              "cuMemcpyDtoHAsync", why);
    if (from == NULL)
        return gwctl_cuda_say(cuMemcpyHtoDAsync(to->memory[RECEIVED], to->host[RECEIVED], COPY_BYTES, stream_of(move)),
                              "cuMemcpyHtoDAsync", why);
    return gwctl_cuda_say(cuMemcpyPeerAsync(to->memory[RECEIVED], to->device->context, from->memory[SENT],
                                            from->device->context, COPY_BYTES, stream_of(move)),
                          "cuMemcpyPeerAsync", why);
}

/* Runs all moves at once, `n_copies` copies each. It waits in any case, since memory may be freed next. */
static gwctl_outcome_t run(const move_t *moves, size_t n, int n_copies, double *seconds_out, char *why) {
    gwctl_outcome_t outcome = GWCTL_WORKS;
    double begin_s = gwctl_cuda_now_s();
    for (int k = 0; k < n_copies && outcome == GWCTL_WORKS; k++) {
        for (size_t i = 0; i < n && outcome == GWCTL_WORKS; i++)
            outcome = enqueue(&moves[i], why);
    }
    for (size_t i = 0; i < n; i++) {
        char ignored[GWCTL_WHY_BYTES];
        gwctl_outcome_t waited = gwctl_cuda_wait(stream_of(&moves[i]), outcome == GWCTL_WORKS ? why : ignored);
        outcome = outcome == GWCTL_WORKS ? waited : outcome;
    }
    *seconds_out = gwctl_cuda_now_s() - begin_s;
    return outcome;
}

/* The rate of each of some moves at once: the best of a few runs, since others may use the links as well. */
static gwctl_outcome_t rate(const move_t *moves, size_t n, double *rate_out, char *why) {
    double seconds;
    double best_s = 0;
    gwctl_outcome_t outcome = run(moves, n, 1, &seconds, why); /* warms up, and tells how many fill a run */
    int n_copies = seconds > 0 && RUN_S / seconds < COPIES_MAX ? 1 + (int)(RUN_S / seconds) : COPIES_MAX;
    for (int i = 0; i < RUNS && outcome == GWCTL_WORKS; i++) {
        outcome = run(moves, n, n_copies, &seconds, why);
        best_s = i == 0 || seconds < best_s ? seconds : best_s;
    }
    if (outcome == GWCTL_WORKS && best_s > 0)
        *rate_out = (double)COPY_BYTES * n_copies / best_s / 1e9;
    return outcome;
}

static gwctl_outcome_t measure_host(const end_t *ends, size_t n, gwctl_step_fn step, gwctl_copies_t *copies,
                                    char *why) {
    move_t moves[2 * GWCTL_GPUS_MAX];
    gwctl_outcome_t outcome = GWCTL_WORKS;
    for (size_t i = 0; i < n && outcome == GWCTL_WORKS; i++) {
        char what[96];
        move_t *both = &moves[2 * i];
        both[0] = (move_t){.from = &ends[i]};
        both[1] = (move_t){.to = &ends[i]};
        snprintf(what, sizeof(what), "GPU %zu of %zu and host memory", i + 1, n);
        step(what);
        outcome = rate(&both[0], 1, &copies->to_host[i], why);
        if (outcome == GWCTL_WORKS)
            outcome = rate(&both[1], 1, &copies->from_host[i], why);
        if (outcome == GWCTL_WORKS)
            outcome = rate(both, 2, &copies->both[i], why);
    }
    if (outcome == GWCTL_WORKS && n > 1) {
        step("all GPUs and host memory");
        outcome = rate(moves, 2 * n, &copies->all, why);
    }
    return outcome;
}

static gwctl_outcome_t measure_pair(const end_t *ends, size_t i, size_t j, gwctl_copies_t *copies, char *why) {
    const move_t both[2] = {{.from = &ends[i], .to = &ends[j]}, {.from = &ends[j], .to = &ends[i]}};
    copies->direct[i][j] = gwctl_cuda_enable_peer(ends[i].device, ends[j].device);
    copies->direct[j][i] = gwctl_cuda_enable_peer(ends[j].device, ends[i].device);
    gwctl_outcome_t outcome = rate(&both[0], 1, &copies->peer[i][j], why);
    if (outcome == GWCTL_WORKS)
        outcome = rate(&both[1], 1, &copies->peer[j][i], why);
    if (outcome == GWCTL_WORKS)
        outcome = rate(both, 2, &copies->peer_both[i][j], why);
    copies->peer_both[j][i] = copies->peer_both[i][j];
    return outcome;
}

static gwctl_outcome_t measure_peers(const end_t *ends, size_t n, gwctl_step_fn step, gwctl_copies_t *copies,
                                     char *why) {
    gwctl_outcome_t outcome = GWCTL_WORKS;
    for (size_t i = 0; i < n && outcome == GWCTL_WORKS; i++) {
        for (size_t j = i + 1; j < n && outcome == GWCTL_WORKS; j++) {
            char what[96];
            snprintf(what, sizeof(what), "GPUs %zu and %zu of %zu", i + 1, j + 1, n);
            step(what);
            outcome = measure_pair(ends, i, j, copies, why);
        }
    }
    return outcome;
}

gwctl_outcome_t gwctl_cuda_measure(gwctl_device_t *const *devices, size_t n, gwctl_step_fn step, gwctl_copies_t *copies,
                                   char *why) {
    gwctl_outcome_t outcome = GWCTL_WORKS;
    end_t *ends = calloc(n, sizeof(*ends));
    if (ends == NULL) {
        snprintf(why, GWCTL_WHY_BYTES, "out of host memory");
        return GWCTL_FULL;
    }
    copies->bytes = COPY_BYTES;
    step("memory to copy");
    for (size_t i = 0; i < n && outcome == GWCTL_WORKS; i++)
        outcome = end_open(&ends[i], devices[i], why);
    if (outcome == GWCTL_WORKS)
        outcome = measure_host(ends, n, step, copies, why);
    if (outcome == GWCTL_WORKS)
        outcome = measure_peers(ends, n, step, copies, why);
    for (size_t i = 0; i < n; i++)
        end_close(&ends[i]);
    free(ends);
    return outcome;
}
