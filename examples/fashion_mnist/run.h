/* run.h - what the processes of one demonstration share.
 *
 * The first process loads the images, maps one piece of shared memory, and forks the trainers (trainer.c), then the
 * two processes that train alone for comparison (single.c, reference.c). They write what they did, step by step, into
 * the shared memory; the first process shows progress, and at the end judges (report.c) and draws (plot.c), or only
 * writes down figures, for those who compare many trainings (figures.c).
 */
#ifndef FASHION_RUN_H
#define FASHION_RUN_H

#include "dataset.h"
#include "mlp.h"

#include <gradwire.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum {
    RANKS = 4,
    BATCH = 64, /* images a rank and step */
    EPOCHS_MAX = 40,
    ROUNDS = 8, /* of the measurement: each goes through all modes once, every other one backwards */
    ROUND_STEPS = 40,
};

enum { CODECS = GW_CODEC_INT4 + 1 };
extern const char *const codec_name[CODECS]; /* by gw_codec_t */

#define REFERENCE_BOUND 1e-5 /* how far a loss may be from the one in double precision, at any step */

/* How gradients are exchanged. */
enum mode {
    OVERLAPPED, /* submitted as soon as a layer's gradient is ready, waited for before its update */
    APART,      /* submitted and waited for after the whole backward pass */
    OFF,        /* not at all: the negative control */
    MODES,
};

enum { MEASURED_STEPS = ROUNDS * MODES * ROUND_STEPS };

/* One step of one rank. Times are CLOCK_MONOTONIC, so those of different processes can be compared. */
struct step {
    double loss; /* mean over this rank's images, before the update */
    int64_t begin_ns;
    int64_t forward_ns;  /* when the forward pass had ended */
    int64_t backward_ns; /* when the backward pass had ended */
    int64_t end_ns;
    int64_t submit_total_ns; /* a duration: spent in gw_submit */
    int64_t update_total_ns;
    int64_t submit_end_ns[LAYERS];
    int64_t wait_begin_ns[LAYERS];
    int64_t wait_end_ns[LAYERS];
};

/* Who used the cores that a trainer may run on, up to some moment. */
struct usage {
    int64_t at_ns;     /* when, CLOCK_MONOTONIC */
    int64_t busy_ns;   /* all programs, summed over the cores */
    int64_t own_ns;    /* this process */
    int64_t daemon_ns; /* 0 when its pid is not known */
    int cores;
};

/* Written by the processes, read by the first. */
struct results {
    gw_unique_id_t id;
    atomic_int id_ready;
    atomic_llong trainer_steps[RANKS]; /* progress: of the training, then of the measurement */
    atomic_int trainers_finished;      /* trainers that wait, before they leave the group, */
    atomic_int trainers_released;      /* for the first process to say so */
    atomic_llong single_steps;
    atomic_llong reference_steps;
    uint64_t epoch_hash[EPOCHS_MAX][RANKS];
    int64_t epoch_correct[EPOCHS_MAX]; /* of the test images, counted by all ranks together */
    uint64_t flipped_hash;             /* rank 0's, after one bit of one parameter was flipped */
    uint64_t round_hash[ROUNDS][MODES][RANKS];
    int64_t single_correct;
    struct usage usage_begin[RANKS], usage_end[RANKS]; /* of the measurement */
};

struct run {
    const char *socket_path[RANKS]; /* of each rank's daemon; NULL: where the library looks by itself */
    int nodes;                      /* how many daemons these are */
    gw_codec_t codec;               /* between them */
    int no_error_feedback;
    double wrong_scale;       /* of averages, for a negative control: 1 is right */
    const char *figures_path; /* only train, and write what came of it there; NULL: prove everything */
    const char *output_folder;
    const char *admin_command; /* shows what the daemon knows of the group; NULL: is not asked */
    char *admin_view;          /* what it printed; the first process's own */
    int daemon_pid;            /* 0: not known */
    uint64_t seed;
    int epochs;
    int64_t epoch_steps;
    int64_t steps;           /* of the training: epochs * epoch_steps */
    int64_t reference_steps; /* how many of them are repeated in double precision */
    struct dataset train, test;
    /* In shared memory: */
    struct results *results;
    struct step *trained[RANKS];  /* `steps` of them */
    struct step *measured[RANKS]; /* MEASURED_STEPS: see measured_step */
    double *single_loss;          /* `steps` */
    double *reference_loss;       /* `reference_steps` */
};

static inline struct step *measured_step(const struct run *run, int rank, int round, int mode, int step) {
    return &run->measured[rank][(round * MODES + mode) * ROUND_STEPS + step];
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns 0, or -1 after printing what is wrong. */
int usage_read(const struct run *run, struct usage *usage_out);

/* The processes: each returns the exit code. */
int trainer_run(const struct run *run, int rank);
int single_run(const struct run *run);
int reference_run(const struct run *run);

/* Means over ranks of the loss: at a step of the training, and of the first round with the exchange off. */
double trained_loss(const struct run *run, int64_t step);
double uncoupled_loss(const struct run *run, int step);

/* Prints every proof as a PASS or FAIL line, and where the time went. Returns the number of FAILs. */
int report_print(const struct run *run);

/* Writes what came of the training to `figures_path` as JSON. Returns 0, or -1 after printing what went wrong. */
int figures_write(const struct run *run);

/* Writes the loss curves to `path` as SVG. Returns 0, or -1 after printing what went wrong. */
int plot_write(const struct run *run, const char *path);

#endif
