/* run.h - what the processes of the demonstration on GPUs share.
 *
 * The first process loads the images, maps one piece of shared memory, and forks a process that looks for GPUs, then
 * the trainers (trainer.c), then two processes that train alone for comparison (alone.c), in single and in double
 * precision. It never calls CUDA itself: what CUDA has begun does not survive a fork. Network, data and schedule are
 * those of ../fashion_mnist.
 */
#ifndef FASHION_GPU_RUN_H
#define FASHION_GPU_RUN_H

#include "net.h"

#include <gradwire.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum {
    RANKS_MOST = 16,
    GLOBAL_BATCH = 256, /* images a step, all ranks together: as in the demonstration without GPUs */
    EPOCHS_MAX = 40,
    CHECK_STEPS = 16,   /* between two calls of gw_group_check */
    CONTROL_STEPS = 40, /* of the training, with the exchange off */
    ROUNDS = 8,         /* of the measurement: each goes through all modes once, every other one backwards */
    ROUND_STEPS = 40,
    WARM_UP_STEPS = 5,    /* of a round, not counted */
    MEASURED_BATCH = 4096 /* images a rank and step: so many that there is something to hide an exchange behind */
};

#define CURVE_BOUND 1e-5 /* of the loss, between curves that rounding alone sets apart: see report.c */

/* How gradients are exchanged. */
enum mode {
    OVERLAPPED, /* submitted as soon as a layer's gradient is enqueued, waited for before the layer's update */
    APART,      /* submitted after the whole backward pass */
    OFF,        /* not at all: plain compute, and the negative control */
    MODES,
};

/* What a step's time on the stream is made of: between events that the stream records. */
enum part {
    FORWARD,
    BACKWARD,
    UPDATE, /* with the waiting that is left */
    PARTS,
};

/* Of a piece of the run: how long it took, and what processor time the daemon took meanwhile. */
struct span {
    int64_t wall_ns, daemon_ns;
};

/* Written by the processes, read by the first. */
struct results {
    int gpus;
    char gpu_name[RANKS_MOST][64];
    gw_unique_id_t id;
    atomic_int id_ready;
    atomic_llong progress; /* grows with everything that any process has done */
    atomic_llong trainer_steps[RANKS_MOST];
    atomic_llong alone_steps[2];
    atomic_int trainers_finished, trainers_released; /* as in the demonstration without GPUs */
    char path[RANKS_MOST][16];                       /* gw_buffer_path of the gradients */
    uint64_t epoch_hash[EPOCHS_MAX][RANKS_MOST];
    int64_t epoch_correct[EPOCHS_MAX];
    uint64_t flipped_hash;
    uint64_t control_hash[RANKS_MOST];
    uint64_t round_hash[ROUNDS][MODES][RANKS_MOST];
    int64_t single_correct;
    struct span training, measured[ROUNDS][MODES]; /* rank 0's */
    double control_loss[RANKS_MOST][CONTROL_STEPS];
    float part_ms[RANKS_MOST][ROUNDS][MODES][ROUND_STEPS][PARTS];
};

struct run {
    const char *socket_path; /* of the daemon; NULL: where the library looks by itself */
    const char *output_folder;
    const char *admin_command; /* shows what the daemon knows of the run; NULL: is not asked */
    char *admin_view;
    int daemon_pid; /* 0: not known */
    uint64_t seed;
    int epochs;
    int ranks;          /* 0: as many as GPUs, at least 2 */
    int batch;          /* images a rank and step */
    int measured_batch; /* the same in the measurement */
    uint32_t shard;     /* images of a rank */
    int64_t epoch_steps, steps;
    struct dataset train, test;
    /* In shared memory: */
    struct results *results;
    double *trained_loss[RANKS_MOST]; /* `steps` of each rank */
    double *alone_loss[2];            /* `steps`, by precision */
};

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Says that something was done. */
static inline void tell_progress(const struct run *run) {
    atomic_fetch_add(&run->results->progress, 1);
}

/* Processor time of the daemon so far; 0 when its pid is not known. */
int64_t daemon_cpu_ns(const struct run *run);

/* Means over ranks of the loss: at a step of the training, and of the control. */
double ranks_loss(const struct run *run, int64_t step);
double control_loss(const struct run *run, int64_t step);

/* The processes: each returns the exit code. */
int trainer_run(const struct run *run, int rank);
int alone_run(const struct run *run, enum precision precision);

/* A step's time in ms in one mode: medians over rounds and steps of the means over ranks. */
struct times {
    double part[PARTS], step;
};
void times_of(const struct run *run, enum mode mode, struct times *times_out);

/* Prints every proof as a PASS or FAIL line, and where the time went. Returns the number of FAILs. */
int report_print(const struct run *run);

/* Writes the picture as SVG. Returns 0, or -1 after printing what went wrong. */
int plot_write(const struct run *run, const char *path);

#endif
