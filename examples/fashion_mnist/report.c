/* report.c - judges the run: each claim is a PASS or a FAIL, and each has a control that must be caught. See run.h.
 *
 * One claim may get a NOTE instead: overlap, when other programs were too busy to measure it. */
#include "timing.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define ACCURACY_BOUND 0.3  /* points between four ranks and one process */
#define ACCURACY_LEAST 80.0 /* per cent: far above it when training works, 10 when it does not */
#define EXPOSED_BOUND  0.5  /* of what is exposed without overlap */
#define OTHERS_BOUND   0.05 /* of the cores: with more used by other programs a median may not fail */
#define SINGLE_BOUND   1e-3 /* of the loss, four ranks to one process, at any step */

static int failures;

static bool coloured(void) {
    return isatty(STDOUT_FILENO) == 1;
}

__attribute__((format(printf, 2, 3))) static void judge(bool good, const char *format, ...) {
    const char *colour = !coloured() ? "" : good ? "\033[32m" : "\033[1;31m";
    printf("%s%s%s  ", colour, good ? "PASS" : "FAIL", coloured() ? "\033[0m" : "");
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    failures += !good;
}

double trained_loss(const struct run *run, int64_t step) {
    double loss = 0.0;
    for (int r = 0; r < RANKS; r++)
        loss += run->trained[r][step].loss;
    return loss / RANKS;
}

double uncoupled_loss(const struct run *run, int step) {
    double loss = 0.0;
    for (int r = 0; r < RANKS; r++)
        loss += measured_step(run, r, 0, OFF, step)->loss;
    return loss / RANKS;
}

static double per_cent(const struct run *run, int64_t correct) {
    return 100.0 * (double)correct / (double)run->test.count;
}

static void judge_accuracy(const struct run *run) {
    double ranks = per_cent(run, run->results->epoch_correct[run->epochs - 1]);
    double single = per_cent(run, run->results->single_correct);
    judge(ranks >= ACCURACY_LEAST, "it learns: loss %.3f -> %.3f, test accuracy %.2f %% (at least %.0f)",
          trained_loss(run, 0), trained_loss(run, run->steps - 1), ranks, ACCURACY_LEAST);
    judge(fabs(ranks - single) <= ACCURACY_BOUND,
          "test accuracy: %d ranks %.2f %%, one process on the same batches %.2f %% (at most %.1f points apart)", RANKS,
          ranks, single, ACCURACY_BOUND);
}

static void judge_losses(const struct run *run) {
    double ranks = 0.0, single = 0.0, both = 0.0, uncoupled = 0.0;
    for (int64_t s = 0; s < run->reference_steps; s++) {
        ranks = fmax(ranks, fabs(trained_loss(run, s) - run->reference_loss[s]));
        single = fmax(single, fabs(run->single_loss[s] - run->reference_loss[s]));
    }
    for (int64_t s = 0; s < run->steps; s++)
        both = fmax(both, fabs(trained_loss(run, s) - run->single_loss[s]));
    for (int s = 0; s < ROUND_STEPS; s++)
        uncoupled = fmax(uncoupled, fabs(uncoupled_loss(run, s) - run->reference_loss[s]));
    judge(ranks <= REFERENCE_BOUND,
          "loss curve of %d ranks: at most %.1e from double precision in %lld steps (bound %.0e)", RANKS, ranks,
          (long long)run->reference_steps, REFERENCE_BOUND);
    judge(single <= REFERENCE_BOUND, "loss curve of one process: at most %.1e from it (bound %.0e)", single,
          REFERENCE_BOUND);
    judge(both <= SINGLE_BOUND,
          "loss curves of %d ranks and of one process: at most %.1e apart in %lld steps (bound %.0e)", RANKS, both,
          (long long)run->steps, SINGLE_BOUND);
    judge(uncoupled > REFERENCE_BOUND, "control: with the exchange off the curve is %.1e off, and the bound catches it",
          uncoupled);
}

static bool all_equal(const uint64_t hash[RANKS]) {
    for (int r = 1; r < RANKS; r++)
        if (hash[r] != hash[0])
            return false;
    return true;
}

static void judge_replicas(const struct run *run) {
    const struct results *results = run->results;
    const uint64_t last = results->epoch_hash[run->epochs - 1][0];
    bool equal = true, off_equal = false, same_bits = true;
    for (int e = 0; e < run->epochs; e++)
        equal = equal && all_equal(results->epoch_hash[e]);
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t(*hash)[RANKS] = results->round_hash[i];
        off_equal = off_equal || all_equal(hash[OFF]);
        same_bits = same_bits && all_equal(hash[OVERLAPPED]) && all_equal(hash[APART]) &&
                    hash[OVERLAPPED][0] == hash[APART][0] && hash[OVERLAPPED][0] == results->round_hash[0][APART][0];
    }
    judge(equal, "replicas: all %zu parameters of all %d ranks equal bit for bit after each epoch (%016llx)",
          mlp_total_count(), RANKS, (unsigned long long)last);
    for (int e = 0; e < run->epochs && !equal; e++)
        for (int r = 0; r < RANKS; r++)
            printf("      epoch %d, rank %d: %016llx\n", e + 1, r, (unsigned long long)results->epoch_hash[e][r]);
    judge(!off_equal, "control: with the exchange off the replicas differ");
    judge(results->flipped_hash != last, "control: one flipped bit in one parameter is seen (%016llx)",
          (unsigned long long)results->flipped_hash);
    judge(same_bits, "overlap changes no bit, and neither does running again: %d runs of %d steps end alike",
          2 * ROUNDS, ROUND_STEPS);
}

static void print_shares(const char *name, const struct shares *s) {
    printf("  %-28s %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f\n", name, s->forward, s->backward, s->exposed, s->other,
           s->update, s->step);
}

/* When other programs use the cores, both medians grow by the time that threads wait for one. A bound met in spite of
 * that counts; one not met says nothing about the exchange. */
static void judge_overlap(const struct run *run, const struct shares *overlapped, const struct shares *apart) {
    const double others = timing_others(run), on_us = overlapped->median_exposed * 1e3,
                 apart_us = apart->median_exposed * 1e3;
    const bool met = on_us <= EXPOSED_BOUND * apart_us;
    if (met || others <= OTHERS_BOUND)
        judge(met,
              "overlap: %.0f us of the exchange exposed a step, without overlap %.0f us: %.2f of it (at most %.2f)",
              on_us, apart_us, on_us / apart_us, EXPOSED_BOUND);
    else
        printf(
            "NOTE  overlap: not judged: other programs used %.0f %% of the cores meanwhile; %.0f us exposed, %.0f us "
            "without overlap\n",
            100.0 * others, on_us, apart_us);
    printf(
        "      (medians of the steps; of the quarter least disturbed: %.0f and %.0f us)\n"
        "      (other programs%s used %.1f %% of the cores meanwhile; a FAIL needs a quiet machine: at most %.0f %%)\n",
        overlapped->quarter_exposed * 1e3, apart->quarter_exposed * 1e3,
        run->daemon_pid ? "" : ", the daemon among them as its pid is not known,", 100.0 * others,
        100.0 * OTHERS_BOUND);
}

static void judge_times(const struct run *run) {
    struct shares trained, mode[MODES];
    if (timing_trained(run, &trained) || timing_measured(run, OVERLAPPED, &mode[OVERLAPPED]) ||
        timing_measured(run, APART, &mode[APART]) || timing_measured(run, OFF, &mode[OFF])) {
        judge(false, "out of memory");
        return;
    }
    judge_overlap(run, &mode[OVERLAPPED], &mode[APART]);
    printf("\nWhere a step's time went, in ms, mean over the ranks\n"
           "  %-28s %8s %8s %8s %8s %8s %8s\n",
           "", "forward", "backward", "exchange", "waiting", "update", "step");
    print_shares("the training, overlapped", &trained);
    print_shares("measured: overlapped", &mode[OVERLAPPED]);
    print_shares("measured: apart", &mode[APART]);
    print_shares("measured: exchange off", &mode[OFF]);
    printf("  exchange: what the exchange itself makes a rank wait; waiting: the rest, for a rank that still computed "
           "or for\n"
           "  a free core (%d trainers and the daemon share %ld).\n",
           RANKS, sysconf(_SC_NPROCESSORS_ONLN));
}

static void print_lateness(const struct run *run) {
    struct lateness lateness;
    timing_lateness(run, &lateness);
    printf("\nWho was late, in %lld steps of the training\n", (long long)run->steps);
    for (int r = 0; r < RANKS; r++)
        printf("  rank %d was last in %5.1f %%, then %.2f ms behind the one before it\n", r,
               100.0 * (double)lateness.last_count[r] / (double)run->steps, lateness.behind_ms[r]);
}

int report_print(const struct run *run) {
    failures = 0;
    judge_accuracy(run);
    judge_losses(run);
    judge_replicas(run);
    judge_times(run);
    print_lateness(run);
    if (run->admin_view)
        printf("\nWhat the daemon knows of the group\n%s", run->admin_view);
    return failures;
}
