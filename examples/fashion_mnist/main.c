/* main.c - trains a perceptron on Fashion-MNIST in four processes, and proves that it was done right.
 *
 * `scripts/demo` starts a daemon and this program. See run.h for its parts.
 */
#include "processes.h"
#include "run.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DATA_FOLDER          "/usr/share/datasets/fashion-mnist"
#define REFERENCE_STEPS_MOST 200 /* double precision takes twice the time: this ends with the single process */

static const char usage[] =
    "usage: fashion_mnist [--socket PATH,...] [--data FOLDER] [--out FOLDER] [--epochs N] [--epoch-steps N] [--seed "
    "N]\n"
    "    [--codec NAME] [--no-error-feedback] [--wrong-scale F] [--figures PATH] [--daemon-pid N] [--admin-command "
    "WORDS]\n"
    "Trains a perceptron on Fashion-MNIST in 4 processes that average gradients through gradwired.\n"
    "  --socket PATH   the daemon's client socket (default: where the library looks); several, with commas: the "
    "daemons\n"
    "                  of several nodes, which get equal parts of the ranks\n"
    "  --data FOLDER   the data set (default: " DATA_FOLDER ")\n"
    "  --out FOLDER    where the picture of the loss curves goes (default: .)\n"
    "  --epochs N      passes over the images, 1 to 40 (default: 2)\n"
    "  --epoch-steps N an epoch ends after so many steps (default: when all images were seen)\n"
    "  --seed N        of weights and order (default: 1)\n"
    "  --codec NAME    of gradients between nodes: none, fp16, bf16, fp8, int8, int4 (default: none)\n"
    "  --no-error-feedback  what the codec leaves out is lost\n"
    "  --wrong-scale F a negative control: averages come out multiplied by this, 0.001 to 1000\n"
    "  --figures PATH  only train, prove nothing, and write what came of it to this file as JSON\n"
    "  --daemon-pid N  the daemon's, to tell its use of the cores from that of other programs\n"
    "  --admin-command WORDS   run before the group ends and shown in the report, for example 'gwctl groups'\n";

static int parse_number(const char *text, long least, long most, long *value_out) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) {
        fprintf(stderr, "fashion_mnist: '%s' is not a number from %ld to %ld\n", text, least, most);
        return -1;
    }
    *value_out = value;
    return 0;
}

/* Divides the ranks among the daemons named in `paths`, which is cut up. */
static int parse_sockets(char *paths, struct run *run) {
    const char *path[RANKS];
    int n = 0;
    for (char *rest = paths, *one; (one = strsep(&rest, ",")) != NULL; n++) {
        if (n == RANKS || !*one) {
            fprintf(stderr, "fashion_mnist: --socket wants 1 to %d paths, with a comma between two\n", RANKS);
            return -1;
        }
        path[n] = one;
    }
    for (int r = 0; r < RANKS; r++)
        run->socket_path[r] = path[r * n / RANKS];
    run->nodes = n;
    return 0;
}

static int parse_codec(const char *name, gw_codec_t *codec_out) {
    for (int codec = GW_CODEC_NONE; codec < CODECS; codec++) {
        if (strcmp(name, codec_name[codec]) == 0) {
            *codec_out = (gw_codec_t)codec;
            return 0;
        }
    }
    fprintf(stderr, "fashion_mnist: '%s' is no codec: see --help\n", name);
    return -1;
}

/* What has to do with nodes. */
static int parse_exchange(int option, char *argument, struct run *run) {
    switch (option) {
    case 's':
        return parse_sockets(argument, run);
    case 'c':
        return parse_codec(argument, &run->codec);
    case 'n':
        run->no_error_feedback = 1;
        return 0;
    default:
        run->wrong_scale = strtod(argument, NULL);
        if (run->wrong_scale >= 0.001 && run->wrong_scale <= 1000)
            return 0;
        fprintf(stderr, "fashion_mnist: '%s' is not a number from 0.001 to 1000\n", argument);
        return -1;
    }
}

/* Returns 0, or the exit code plus 1. */
static int parse_options(int argc, char **argv, struct run *run, const char **data_out) {
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"data", required_argument, NULL, 'd'},
        {"out", required_argument, NULL, 'o'},
        {"epochs", required_argument, NULL, 'e'},
        {"epoch-steps", required_argument, NULL, 'E'},
        {"seed", required_argument, NULL, 'S'},
        {"codec", required_argument, NULL, 'c'},
        {"no-error-feedback", no_argument, NULL, 'n'},
        {"wrong-scale", required_argument, NULL, 'w'},
        {"figures", required_argument, NULL, 'f'},
        {"admin-command", required_argument, NULL, 'a'},
        {"daemon-pid", required_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    long number = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's':
        case 'c':
        case 'n':
        case 'w':
            if (parse_exchange(option, optarg, run))
                return 3;
            break;
        case 'f':
            run->figures_path = optarg;
            break;
        case 'E':
            if (parse_number(optarg, 1, INT_MAX, &number))
                return 3;
            run->epoch_steps = number;
            break;
        case 'd':
            *data_out = optarg;
            break;
        case 'o':
            run->output_folder = optarg;
            break;
        case 'e':
            if (parse_number(optarg, 1, EPOCHS_MAX, &number))
                return 3;
            run->epochs = (int)number;
            break;
        case 'a':
            run->admin_command = optarg;
            break;
        case 'S':
            if (parse_number(optarg, 0, 1000000000, &number))
                return 3;
            run->seed = (uint64_t)number;
            break;
        case 'p':
            if (parse_number(optarg, 1, INT_MAX, &number))
                return 3;
            run->daemon_pid = (int)number;
            break;
        case 'h':
            fputs(usage, stdout);
            return 1;
        default:
            fputs(usage, stderr);
            return 3;
        }
    }
    if (optind < argc) {
        fputs(usage, stderr);
        return 3;
    }
    return 0;
}

/* One mapping for all that the processes share, in pages that only those written become real. */
static int share(struct run *run) {
    size_t trained = (size_t)run->steps * sizeof(struct step);
    size_t measured = (size_t)MEASURED_STEPS * sizeof(struct step);
    size_t results = (sizeof(struct results) + 63) & ~(size_t)63;
    size_t bytes = results + RANKS * (trained + measured) + 2 * (size_t)run->steps * sizeof(double);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("fashion_mnist: mmap");
        return -1;
    }
    run->results = (void *)memory;
    memory += results;
    for (int r = 0; r < RANKS; r++, memory += trained + measured) {
        run->trained[r] = (void *)memory;
        run->measured[r] = (void *)(memory + trained);
    }
    run->single_loss = (void *)memory;
    run->reference_loss = run->single_loss + run->steps;
    return 0;
}

/* Keeps what the admin command prints, for the report. */
static void ask_daemon(struct run *run) {
    size_t used = 0, got = 0;
    enum { VIEW_BYTES = 16384 };
    FILE *pipe = run->admin_command ? popen(run->admin_command, "r") : NULL;
    if (!pipe)
        return;
    run->admin_view = calloc(VIEW_BYTES, 1);
    while (run->admin_view && (got = fread(run->admin_view + used, 1, VIEW_BYTES - 1 - used, pipe)) > 0)
        used += got;
    if (pclose(pipe) != 0)
        fprintf(stderr, "fashion_mnist: '%s' failed\n", run->admin_command);
}

static void show_training(const struct run *run, double seconds) {
    static int64_t epochs_shown;
    const int64_t all = run->figures_path ? run->steps : run->steps + MEASURED_STEPS;
    int64_t done = all;
    for (int r = 0; r < RANKS; r++) {
        int64_t steps = atomic_load(&run->results->trainer_steps[r]);
        done = steps < done ? steps : done;
    }
    if (done == 0)
        return;
    int64_t trained = done < run->steps ? done : run->steps, epochs = trained / run->epoch_steps;
    double loss = trained_loss(run, trained - 1);
    if (isatty(STDOUT_FILENO) == 1) {
        printf("\r\033[K%d ranks: step %lld of %lld, loss %.3f", RANKS, (long long)trained, (long long)run->steps,
               loss);
        if (done >= run->steps && all > run->steps)
            printf("; measuring overlap: step %lld of %d", (long long)(done - run->steps), MEASURED_STEPS);
        printf(", %.0f s", seconds);
    } else if (epochs > epochs_shown) {
        printf("%d ranks: epoch %lld of %d, loss %.3f, %.1f s\n", RANKS, (long long)epochs, run->epochs, loss, seconds);
    }
    epochs_shown = epochs;
}

/* What the first process does while the processes of a phase run. */
static int attend_training(void *of, double seconds, bool last) {
    struct run *run = of;
    (void)last;
    show_training(run, seconds);
    if (atomic_load(&run->results->trainers_finished) == RANKS && !atomic_load(&run->results->trainers_released)) {
        ask_daemon(run);
        atomic_store(&run->results->trainers_released, 1);
    }
    return 0;
}

static int attend_alone(void *of, double seconds, bool last) {
    const struct run *run = of;
    if (isatty(STDOUT_FILENO) == 1)
        printf("\r\033[Kfor comparison: one process, step %lld of %lld; double precision, step %lld of %lld, %.0f s",
               atomic_load(&run->results->single_steps), (long long)run->steps,
               atomic_load(&run->results->reference_steps), (long long)run->reference_steps, seconds);
    else if (last)
        printf("for comparison: one process %lld steps, double precision %lld steps, %.1f s\n", (long long)run->steps,
               (long long)run->reference_steps, seconds);
    return 0;
}

static int trainer_child(void *of, int index) {
    return trainer_run(of, index);
}
static int alone_child(void *of, int index) {
    return index == 0 ? single_run(of) : reference_run(of);
}

/* Returns how much of it failed. */
static int prove(const struct run *run) {
    char picture[1024];
    putchar('\n');
    int failures = report_print(run);
    snprintf(picture, sizeof picture, "%s/loss.svg", run->output_folder);
    if (plot_write(run, picture))
        return failures + 1;
    printf("\nThe loss curves: %s\n", picture);
    return failures;
}

int main(int argc, char **argv) {
    struct run run = {
        .output_folder = ".", .seed = 1, .epochs = 2, .nodes = 1, .wrong_scale = 1.0, .codec = GW_CODEC_NONE};
    const char *data = DATA_FOLDER;
    int stop = parse_options(argc, argv, &run, &data);
    if (stop)
        return stop - 1;
    if (dataset_load(data, "train", &run.train) || dataset_load(data, "t10k", &run.test))
        return 1;
    const int64_t whole_epoch = shard_count(run.train.count, RANKS) / BATCH;
    if (run.epoch_steps == 0 || run.epoch_steps > whole_epoch)
        run.epoch_steps = whole_epoch;
    run.steps = run.epochs * run.epoch_steps;
    run.reference_steps = run.steps < REFERENCE_STEPS_MOST ? run.steps : REFERENCE_STEPS_MOST;
    if (share(&run))
        return 1;
    printf("Fashion-MNIST: %u images in %d shards, %zu parameters in %d buckets, %d images a rank and step\n",
           run.train.count, RANKS, mlp_total_count(), LAYERS, BATCH);
    fflush(stdout);
    int failures = 0;
    if (processes_run(&(struct phase){RANKS, trainer_child, attend_training}, &run) ||
        (!run.figures_path && processes_run(&(struct phase){2, alone_child, attend_alone}, &run))) {
        fprintf(stderr, "fashion_mnist: a process failed: see the messages above\n");
        return 1;
    }
    if (run.figures_path)
        failures = figures_write(&run) != 0;
    else
        failures = prove(&run);
    free(run.admin_view);
    dataset_free(&run.train);
    dataset_free(&run.test);
    return failures == 0 ? 0 : 1;
}
