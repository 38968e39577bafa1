/* report.c - judges the run: each claim is a PASS or a FAIL, and each has a control that must be caught. See run.h.
 *
 * The bounds. A float has 24 bits, so the mean loss of a step, a number near 1, cannot be nearer than some 1e-7 to what
 * double precision gives; two ways to sum the same numbers differ by as much, and as the network has no kinks the
 * difference does not grow. CURVE_BOUND leaves room for other ways to sum, and is far below what any real difference
 * makes: the control differs by more than 0.01.
 *
 * Overlap is judged when each trainer has a GPU of its own. When they share one they take turns on it, and what a step
 * takes tells of the turns: then it is a NOTE.
 */
#include "run.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define LATER_BOUND    1e-3 /* ranks to one process, at any step: differences grow in very long runs */
#define CURVE_STEPS    500
#define ACCURACY_BOUND 0.3  /* points between the ranks and one process */
#define EXPOSED_BOUND  0.75 /* of what the exchange costs a step without overlap */
#define NOISE_BOUND    0.03 /* of a step: an exchange that costs less is nothing to judge */

static int failures;

__attribute__((format(printf, 2, 3))) static void judge(bool good, const char *format, ...) {
    const bool coloured = isatty(STDOUT_FILENO) == 1;
    const char *colour = !coloured ? "" : good ? "\033[32m" : "\033[1;31m";
    printf("%s%s%s  ", colour, good ? "PASS" : "FAIL", coloured ? "\033[0m" : "");
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    failures += !good;
}

double ranks_loss(const struct run *run, int64_t step) {
    double loss = 0.0;
    for (int r = 0; r < run->ranks; r++)
        loss += run->trained_loss[r][step];
    return loss / run->ranks;
}

double control_loss(const struct run *run, int64_t step) {
    double loss = 0.0;
    for (int r = 0; r < run->ranks; r++)
        loss += run->results->control_loss[r][step];
    return loss / run->ranks;
}

/* That a loss is no number must not look like a small difference. */
static double farther(double most, double a, double b) {
    const double distance = fabs(a - b);
    return distance <= most ? most : isnan(distance) ? INFINITY : distance;
}

static double per_cent(const struct run *run, int64_t correct) {
    return 100.0 * (double)correct / (double)run->test.count;
}

static void judge_accuracy(const struct run *run) {
    const double least = run->epochs > 1 ? 85.0 : 80.0;
    const double ranks = per_cent(run, run->results->epoch_correct[run->epochs - 1]);
    const double single = per_cent(run, run->results->single_correct);
    judge(ranks >= least, "it learns: loss %.3f -> %.3f, test accuracy %.2f %% (at least %.0f)", ranks_loss(run, 0),
          ranks_loss(run, run->steps - 1), ranks, least);
    judge(fabs(ranks - single) <= ACCURACY_BOUND,
          "test accuracy: %d ranks %.2f %%, one process on the same batches %.2f %% (at most %.1f points apart)",
          run->ranks, ranks, single, ACCURACY_BOUND);
}

static void judge_losses(const struct run *run) {
    const double *single = run->alone_loss[SINGLE_PRECISION], *exact = run->alone_loss[DOUBLE_PRECISION];
    const int64_t first = run->steps < CURVE_STEPS ? run->steps : CURVE_STEPS;
    double both = 0.0, later = 0.0, ranks_off = 0.0, single_off = 0.0, control_off = 0.0;
    for (int64_t s = 0; s < first; s++) {
        both = farther(both, ranks_loss(run, s), single[s]);
        ranks_off = farther(ranks_off, ranks_loss(run, s), exact[s]);
        single_off = farther(single_off, single[s], exact[s]);
    }
    for (int64_t s = first; s < run->steps; s++)
        later = farther(later, ranks_loss(run, s), single[s]);
    for (int64_t s = 0; s < first && s < CONTROL_STEPS; s++)
        control_off = farther(control_off, control_loss(run, s), single[s]);
    judge(both <= CURVE_BOUND,
          "loss curves of %d ranks and of one process: at most %.1e apart in %lld steps (bound %.0e)", run->ranks, both,
          (long long)first, CURVE_BOUND);
    if (first < run->steps)
        judge(later <= LATER_BOUND, "and after that: at most %.1e apart (bound %.0e)", later, LATER_BOUND);
    judge(ranks_off <= CURVE_BOUND && single_off <= CURVE_BOUND,
          "what rounding explains: double precision is at most %.1e from the ranks, %.1e from the process (bound %.0e)",
          ranks_off, single_off, CURVE_BOUND);
    judge(control_off > CURVE_BOUND, "control: with the exchange off the curve is %.1e off, and the bound catches it",
          control_off);
}

static bool all_equal(const struct run *run, const uint64_t hash[RANKS_MOST]) {
    for (int r = 1; r < run->ranks; r++)
        if (hash[r] != hash[0])
            return false;
    return true;
}

static void judge_replicas(const struct run *run) {
    const struct results *results = run->results;
    const uint64_t last = results->epoch_hash[run->epochs - 1][0];
    bool equal = true, off_equal = all_equal(run, results->control_hash), same_bits = true;
    for (int e = 0; e < run->epochs; e++)
        equal = equal && all_equal(run, results->epoch_hash[e]);
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t(*hash)[RANKS_MOST] = results->round_hash[i];
        off_equal = off_equal || all_equal(run, hash[OFF]);
        same_bits = same_bits && all_equal(run, hash[OVERLAPPED]) && all_equal(run, hash[APART]) &&
                    hash[OVERLAPPED][0] == results->round_hash[0][OVERLAPPED][0] &&
                    hash[APART][0] == results->round_hash[0][OVERLAPPED][0];
    }
    judge(equal, "replicas: all %zu parameters of all %d ranks equal bit for bit after each epoch (%016llx)",
          mlp_total_count(), run->ranks, (unsigned long long)last);
    for (int e = 0; e < run->epochs && !equal; e++)
        for (int r = 0; r < run->ranks; r++)
            printf("      epoch %d, rank %d: %016llx\n", e + 1, r, (unsigned long long)results->epoch_hash[e][r]);
    judge(!off_equal, "control: with the exchange off the replicas differ");
    judge(results->flipped_hash != last, "control: one flipped bit in one parameter is seen (%016llx)",
          (unsigned long long)results->flipped_hash);
    judge(same_bits, "overlap changes no bit, and neither does running again: %d runs of %d steps end alike",
          2 * ROUNDS, ROUND_STEPS);
}

static void judge_overlap(const struct run *run, const struct times *times) {
    const double off = times[OFF].step, apart_us = 1e3 * (times[APART].step - off),
                 overlapped_us = 1e3 * (times[OVERLAPPED].step - off);
    if (run->ranks > run->results->gpus)
        printf("NOTE  overlap: not judged: %d trainers take turns on %d GPU%s", run->ranks, run->results->gpus,
               run->results->gpus == 1 ? "" : "s");
    else if (apart_us < 1e3 * NOISE_BOUND * off)
        printf("NOTE  overlap: not judged: even without it the exchange takes less than %.0f %% of a step",
               100.0 * NOISE_BOUND);
    else {
        judge(overlapped_us <= EXPOSED_BOUND * apart_us,
              "overlap: the exchange makes a step %.0f us longer, without overlap %.0f us: %.2f of it (at most %.2f)",
              overlapped_us, apart_us, overlapped_us / apart_us, EXPOSED_BOUND);
        return;
    }
    printf("; the exchange makes a step %.0f us longer, without overlap %.0f us\n", overlapped_us, apart_us);
}

static struct span total_of(const struct run *run, enum mode mode) {
    struct span total = {0};
    for (int i = 0; i < ROUNDS; i++) {
        total.wall_ns += run->results->measured[i][mode].wall_ns;
        total.daemon_ns += run->results->measured[i][mode].daemon_ns;
    }
    return total;
}

static double cores(struct span span) {
    return span.wall_ns > 0 ? (double)span.daemon_ns / (double)span.wall_ns : 0.0;
}

static void print_times(const struct run *run, const struct times *times) {
    static const char *const name[MODES] = {"overlapped", "apart", "exchange off"};
    printf("\nWhere a step's time on the stream went, %d images a rank, in ms: medians of %d steps, mean of the ranks\n"
           "  %-14s %8s %8s %8s %8s %16s\n",
           run->measured_batch, ROUNDS * (ROUND_STEPS - WARM_UP_STEPS), "", "forward", "backward", "update", "step",
           "the daemon's CPU");
    for (int m = 0; m < MODES; m++) {
        const struct times *t = &times[m];
        printf("  %-14s %8.3f %8.3f %8.3f %8.3f", name[m], t->part[FORWARD], t->part[BACKWARD], t->part[UPDATE],
               t->step);
        if (run->daemon_pid)
            printf(" %10.2f cores", cores(total_of(run, (enum mode)m)));
        putchar('\n');
    }
    printf("  update: with what is left of the exchange to wait for. A step's parts are medians of their own.\n");
}

static void print_use(const struct run *run) {
    const struct results *results = run->results;
    const struct span training = results->training;
    const double exchanged = (double)run->steps * (double)mlp_total_count() * sizeof(float);
    printf("\nHow the gradients reach the daemon\n");
    for (int r = 0; r < run->ranks; r++)
        printf("  rank %d, GPU %d (%s): %s\n", r, r % results->gpus, results->gpu_name[r % results->gpus],
               results->path[r]);
    printf("  the training: %lld steps in %.2f s; each rank gave and took %.2f GB\n", (long long)run->steps,
           (double)training.wall_ns * 1e-9, exchanged * 1e-9);
    if (run->daemon_pid)
        printf("  the daemon took %.2f s of CPU for the training, %.2f s for all of this\n",
               (double)training.daemon_ns * 1e-9, (double)daemon_cpu_ns(run) * 1e-9);
}

int report_print(const struct run *run) {
    struct times times[MODES];
    failures = 0;
    for (int m = 0; m < MODES; m++)
        times_of(run, (enum mode)m, &times[m]);
    judge_accuracy(run);
    judge_losses(run);
    judge_replicas(run);
    judge_overlap(run, times);
    print_times(run, times);
    print_use(run);
    if (run->admin_view)
        printf("\nWhat the daemon knows\n%s", run->admin_view);
    return failures;
}
