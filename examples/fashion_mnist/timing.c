/* timing.c - see timing.h. */
#include "timing.h"

#include <stdlib.h>

enum { WARM_UP_STEPS = 5 };

static double ms(int64_t ns) {
    return (double)ns * 1e-6;
}

static int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Which rank ended its backward pass last. */
static int last_rank(struct step *const step[RANKS]) {
    int last = 0;
    for (int r = 1; r < RANKS; r++)
        if (step[r]->backward_ns > step[last]->backward_ns)
            last = r;
    return last;
}

/* When all ranks had submitted the bucket of a layer: from then on it is the exchange that a rank waits for. */
static int64_t matched_ns(struct step *const step[RANKS], int layer) {
    int64_t matched = 0;
    for (int r = 0; r < RANKS; r++)
        matched = later(matched, step[r]->submit_end_ns[layer]);
    return matched;
}

static int64_t waited_ns(const struct step *s) {
    int64_t total = 0;
    for (int l = 0; l < LAYERS; l++)
        total += s->wait_end_ns[l] - s->wait_begin_ns[l];
    return total;
}

/* What of a rank's waiting came after all ranks had submitted what it waited for. */
static int64_t exposed_ns(struct step *const step[RANKS], int rank) {
    const struct step *s = step[rank];
    int64_t total = 0;
    for (int l = 0; l < LAYERS; l++) {
        int64_t from = later(s->wait_begin_ns[l], matched_ns(step, l));
        total += later(s->wait_end_ns[l] - from, 0);
    }
    return total;
}

/* Adds one step of all ranks; returns what was exposed on the rank that could go on first. */
static double add_step(struct step *const step[RANKS], struct shares *sum) {
    int64_t exposed = exposed_ns(step, 0);
    for (int r = 1; r < RANKS; r++) {
        int64_t its = exposed_ns(step, r);
        exposed = its < exposed ? its : exposed;
    }
    for (int r = 0; r < RANKS; r++) {
        const struct step *s = step[r];
        sum->exposed += ms(exposed) / RANKS;
        sum->other += ms(s->submit_total_ns + waited_ns(s) - exposed) / RANKS;
        sum->forward += ms(s->forward_ns - s->begin_ns) / RANKS;
        sum->update += ms(s->update_total_ns) / RANKS;
        sum->step += ms(s->end_ns - s->begin_ns) / RANKS;
    }
    return ms(exposed);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The shares of `count` steps, where steps[i * RANKS + r] is step i of rank r. */
static int shares_of(struct step *const *steps, int64_t count, struct shares *shares_out) {
    struct shares sum = {0};
    double *exposed = calloc((size_t)count, sizeof *exposed);
    if (!exposed)
        return -1;
    for (int64_t i = 0; i < count; i++)
        exposed[i] = add_step(steps + i * RANKS, &sum);
    qsort(exposed, (size_t)count, sizeof *exposed, compare);
    double n = (double)count;
    *shares_out = (struct shares){.forward = sum.forward / n,
                                  .exposed = sum.exposed / n,
                                  .other = sum.other / n,
                                  .update = sum.update / n,
                                  .step = sum.step / n,
                                  .quarter_exposed = exposed[count / 4],
                                  .median_exposed = exposed[count / 2]};
    /* The rest; with overlap the calls of gw_submit lie inside the backward pass. */
    shares_out->backward =
        shares_out->step - shares_out->forward - shares_out->exposed - shares_out->other - shares_out->update;
    free(exposed);
    return 0;
}

int timing_trained(const struct run *run, struct shares *shares_out) {
    struct step **steps = calloc((size_t)run->steps * RANKS, sizeof *steps);
    if (!steps)
        return -1;
    for (int64_t s = 0; s < run->steps; s++)
        for (int r = 0; r < RANKS; r++)
            steps[s * RANKS + r] = &run->trained[r][s];
    int rc = shares_of(steps, run->steps, shares_out);
    free(steps);
    return rc;
}

int timing_measured(const struct run *run, enum mode mode, struct shares *shares_out) {
    struct step *steps[ROUNDS * ROUND_STEPS * RANKS];
    int64_t count = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int s = WARM_UP_STEPS; s < ROUND_STEPS; s++, count++)
            for (int r = 0; r < RANKS; r++)
                steps[count * RANKS + r] = measured_step(run, r, round, (int)mode, s);
    return shares_of(steps, count, shares_out);
}

double timing_others(const struct run *run) {
    const struct usage *begin = run->results->usage_begin, *end = run->results->usage_end;
    int64_t others_ns = end[0].busy_ns - begin[0].busy_ns - (end[0].daemon_ns - begin[0].daemon_ns);
    for (int r = 0; r < RANKS; r++)
        others_ns -= end[r].own_ns - begin[r].own_ns;
    /* The kernel counts busy cores in ticks and processes exactly, so a little below 0 is possible. */
    return (double)later(others_ns, 0) / ((double)(end[0].at_ns - begin[0].at_ns) * end[0].cores);
}

void timing_lateness(const struct run *run, struct lateness *lateness_out) {
    struct lateness found = {0};
    for (int64_t s = 0; s < run->steps; s++) {
        struct step *step[RANKS];
        for (int r = 0; r < RANKS; r++)
            step[r] = &run->trained[r][s];
        const int last = last_rank(step);
        int64_t second_ns = 0;
        for (int r = 0; r < RANKS; r++)
            if (r != last)
                second_ns = later(second_ns, step[r]->backward_ns);
        found.last_count[last]++;
        found.behind_ms[last] += ms(step[last]->backward_ns - second_ns);
    }
    for (int r = 0; r < RANKS; r++)
        found.behind_ms[r] /= found.last_count[r] > 0 ? (double)found.last_count[r] : 1.0;
    *lateness_out = found;
}
