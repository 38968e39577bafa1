/* timing.h - where the time of a step went, and which rank was last.
 *
 * Four trainers on few cores take turns: a rank often waits for another that still computes, or for a free core. No
 * exchange, however fast, can hide that. What counts as the exchange, *exposed*, is the time that a rank waits for a
 * bucket after all ranks have submitted it, on the rank that can go on first: the others wait for a core. The rest of
 * the waiting, and the calls of gw_submit, are *other*.
 */
#ifndef FASHION_TIMING_H
#define FASHION_TIMING_H

#include "run.h"

/* Of one step in ms: means over ranks and steps. */
struct shares {
    double forward, backward, exposed, other, update, step;
    /* Of what was exposed in a step: the median, and the quarter that other programs on the cores disturb least. */
    double median_exposed, quarter_exposed;
};

/* The whole training. Returns 0, or -1 when memory is short. */
int timing_trained(const struct run *run, struct shares *shares_out);

/* One mode of the measurement, without the first steps of each round. */
int timing_measured(const struct run *run, enum mode mode, struct shares *shares_out);

/* The share of the cores' time that others than the trainers and the daemon used during the measurement: 0 to 1. The
 * daemon counts as another program when its pid is not known. */
double timing_others(const struct run *run);

struct lateness {
    int64_t last_count[RANKS]; /* steps of the training in which this rank ended its backward pass last */
    double behind_ms[RANKS];   /* then: how long after the second to last, mean */
};

void timing_lateness(const struct run *run, struct lateness *lateness_out);

#endif
