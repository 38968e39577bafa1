/* main.c - trains a perceptron on Fashion-MNIST on GPUs, one process a GPU or more, and proves that it was done right.
 *
 * `scripts/demo --gpu` starts a daemon and this program. See run.h for its parts.
 */
#include "../fashion_mnist/processes.h"
#include "run.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DATA_FOLDER "/usr/share/datasets/fashion-mnist"
#define STALLED_S   60.0 /* without any progress: beginning with CUDA may take some seconds, a step never does */

static const char usage[] =
    "usage: fashion_mnist_gpu [--socket PATH] [--data FOLDER] [--out FOLDER] [--epochs N] [--ranks N] [--seed N]\n"
    "                         [--daemon-pid N] [--admin-command WORDS] | --check\n"
    "Trains a perceptron on Fashion-MNIST on GPUs, in processes that average gradients through gradwired.\n"
    "  --socket PATH   the daemon's client socket (default: where the library looks)\n"
    "  --data FOLDER   the data set (default: " DATA_FOLDER ")\n"
    "  --out FOLDER    where the picture of the loss curves goes (default: .)\n"
    "  --epochs N      passes over the images, 1 to 40 (default: 2)\n"
    "  --ranks N       processes that train, 2 to 16 (default: one a GPU, at least 2)\n"
    "  --seed N        of weights and order (default: 1)\n"
    "  --daemon-pid N  the daemon's, to tell what it takes of the processor\n"
    "  --admin-command WORDS   run before the group ends and shown in the report, for example 'gwctl buffers'\n"
    "  --check         only say which GPUs there are; the exit code is 1 when there is none that works\n";

static int parse_number(const char *text, long least, long most, long *value_out) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) {
        fprintf(stderr, "fashion_mnist_gpu: '%s' is not a number from %ld to %ld\n", text, least, most);
        return -1;
    }
    *value_out = value;
    return 0;
}

static const struct option options[] = {
    {"socket", required_argument, NULL, 's'},
    {"data", required_argument, NULL, 'd'},
    {"out", required_argument, NULL, 'o'},
    {"epochs", required_argument, NULL, 'e'},
    {"ranks", required_argument, NULL, 'r'},
    {"seed", required_argument, NULL, 'S'},
    {"admin-command", required_argument, NULL, 'a'},
    {"daemon-pid", required_argument, NULL, 'p'},
    {"check", no_argument, NULL, 'c'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char *data_folder = DATA_FOLDER;
static bool only_check;

static int take_number(int option, const char *text, struct run *run) {
    long number = 0;
    if (option == 'e') {
        if (parse_number(text, 1, EPOCHS_MAX, &number))
            return -1;
        run->epochs = (int)number;
    } else if (option == 'r') {
        if (parse_number(text, 2, RANKS_MOST, &number))
            return -1;
        run->ranks = (int)number;
    } else if (option == 'S') {
        if (parse_number(text, 0, 1000000000, &number))
            return -1;
        run->seed = (uint64_t)number;
    } else {
        if (parse_number(text, 1, INT_MAX, &number))
            return -1;
        run->daemon_pid = (int)number;
    }
    return 0;
}

/* Returns 0, or the exit code plus 1. */
static int parse_options(int argc, char **argv, struct run *run) {
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's':
            run->socket_path = optarg;
            break;
        case 'd':
            data_folder = optarg;
            break;
        case 'o':
            run->output_folder = optarg;
            break;
        case 'a':
            run->admin_command = optarg;
            break;
        case 'c':
            only_check = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 1;
        case '?':
            fputs(usage, stderr);
            return 3;
        default:
            if (take_number(option, optarg, run))
                return 3;
        }
    }
    if (optind < argc) {
        fputs(usage, stderr);
        return 3;
    }
    return 0;
}

/* Memory that the processes share; pages become real when they are written. NULL: it says why. */
static void *map_shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("fashion_mnist_gpu: mmap");
        return NULL;
    }
    return memory;
}

static int share_losses(struct run *run) {
    double *memory = map_shared((size_t)(run->ranks + 2) * (size_t)run->steps * sizeof *memory);
    if (!memory)
        return -1;
    for (int r = 0; r < run->ranks; r++, memory += run->steps)
        run->trained_loss[r] = memory;
    for (int p = 0; p < 2; p++, memory += run->steps)
        run->alone_loss[p] = memory;
    return 0;
}

/* Runs in a child: only it has begun with CUDA. */
static int look_for_gpus(void *of, int index) {
    struct results *results = ((struct run *)of)->results;
    int count = 0, major = 0, driver = 0;
    (void)index;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
        fprintf(stderr, "there is no NVIDIA driver here (libcuda.so.1): `nvidia-smi` works where there is one\n");
        return 1;
    }
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        fprintf(stderr, "there is no GPU that CUDA can use here: %s\n",
                error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error));
        return 1;
    }
    for (int d = 0; d < count && d < RANKS_MOST; d++) {
        struct cudaDeviceProp properties;
        if (CUDA_FAILED(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d)) ||
            CUDA_FAILED(cudaGetDeviceProperties(&properties, d)))
            return 1;
        if (major < 8) {
            fprintf(stderr,
                    "GPU %d (%s) has compute capability %d.%d; this is built for 8.0 and newer. CUDA_VISIBLE_DEVICES "
                    "can leave it out\n",
                    d, properties.name, properties.major, properties.minor);
            return 1;
        }
        snprintf(results->gpu_name[d], sizeof results->gpu_name[d], "%.60s", properties.name);
        results->gpus = d + 1;
    }
    return 0;
}

/* Ends a phase in which nothing happens any more. */
static int watch_progress(const struct run *run, double seconds) {
    static long long seen;
    static double since;
    const long long progress = atomic_load(&run->results->progress);
    if (progress != seen || seconds < since) {
        seen = progress;
        since = seconds;
    }
    if (seconds - since < STALLED_S)
        return 0;
    fprintf(stderr, "fashion_mnist_gpu: nothing has happened for %.0f s: the processes are ended\n", STALLED_S);
    return -1;
}

/* Keeps what the admin command prints, for the report. */
static void ask_daemon(struct run *run) {
    size_t used = 0, got = 0;
    enum { VIEW_BYTES = 32768 };
    FILE *pipe = run->admin_command ? popen(run->admin_command, "r") : NULL;
    if (!pipe)
        return;
    run->admin_view = calloc(VIEW_BYTES, 1);
    while (run->admin_view && (got = fread(run->admin_view + used, 1, VIEW_BYTES - 1 - used, pipe)) > 0)
        used += got;
    if (pclose(pipe) != 0)
        fprintf(stderr, "fashion_mnist_gpu: '%s' failed\n", run->admin_command);
}

static void show_training(const struct run *run, double seconds) {
    static int64_t epochs_shown;
    const int64_t measured = ROUNDS * MODES * ROUND_STEPS;
    int64_t done = run->steps + measured;
    for (int r = 0; r < run->ranks; r++) {
        int64_t steps = atomic_load(&run->results->trainer_steps[r]);
        done = steps < done ? steps : done;
    }
    const int64_t trained = done < run->steps ? done : run->steps, epochs = trained / run->epoch_steps;
    if (isatty(STDOUT_FILENO) == 1) {
        printf("\r\033[K%d ranks: step %lld of %lld", run->ranks, (long long)trained, (long long)run->steps);
        if (done >= run->steps)
            printf("; measuring overlap: step %lld of %lld", (long long)(done - run->steps), (long long)measured);
        printf(", %.0f s", seconds);
    } else if (epochs > epochs_shown) {
        printf("%d ranks: epoch %lld of %d, loss %.3f, %.1f s\n", run->ranks, (long long)epochs, run->epochs,
               ranks_loss(run, epochs * run->epoch_steps - 1), seconds);
    }
    epochs_shown = epochs;
}

static int attend_training(void *of, double seconds, bool last) {
    struct run *run = of;
    show_training(run, seconds);
    if (atomic_load(&run->results->trainers_finished) == run->ranks && !atomic_load(&run->results->trainers_released)) {
        ask_daemon(run);
        atomic_store(&run->results->trainers_released, 1);
    }
    return last ? 0 : watch_progress(run, seconds);
}

static int attend_alone(void *of, double seconds, bool last) {
    const struct run *run = of;
    const long long single = atomic_load(&run->results->alone_steps[SINGLE_PRECISION]),
                    exact = atomic_load(&run->results->alone_steps[DOUBLE_PRECISION]);
    if (isatty(STDOUT_FILENO) == 1)
        printf("\r\033[Kfor comparison: one process, step %lld of %lld; in double precision, step %lld, %.0f s", single,
               (long long)run->steps, exact, seconds);
    else if (last)
        printf("for comparison: one process %lld steps, in double precision %lld steps, %.1f s\n", single, exact,
               seconds);
    return last ? 0 : watch_progress(run, seconds);
}

static int trainer_child(void *of, int index) {
    return trainer_run(of, index);
}
static int alone_child(void *of, int index) {
    return alone_run(of, index == 0 ? SINGLE_PRECISION : DOUBLE_PRECISION);
}

/* What follows from the images and the number of GPUs. */
static int plan(struct run *run) {
    if (!run->ranks)
        run->ranks = run->results->gpus > 2 ? run->results->gpus : 2;
    run->batch = GLOBAL_BATCH / run->ranks;
    run->shard = shard_count(run->train.count, run->ranks);
    run->measured_batch = run->shard < MEASURED_BATCH ? (int)run->shard : MEASURED_BATCH;
    run->epoch_steps = (int64_t)run->shard / run->batch;
    run->steps = run->epochs * run->epoch_steps;
    if (run->steps == 0) {
        fprintf(stderr, "fashion_mnist_gpu: %u images are too few for %d ranks\n", run->train.count, run->ranks);
        return -1;
    }
    return share_losses(run);
}

static void print_plan(const struct run *run) {
    const int gpus = run->results->gpus;
    printf("Fashion-MNIST: %u images in %d shards, %zu parameters in %d buckets, %d images a rank and step\n",
           run->train.count, run->ranks, mlp_total_count(), LAYERS, run->batch);
    printf("%d trainers on %d GPU%s (%s)\n", run->ranks, gpus, gpus == 1 ? "" : "s", run->results->gpu_name[0]);
    fflush(stdout);
}

static int train_and_judge(struct run *run) {
    char picture[PATH_MAX];
    if (dataset_load(data_folder, "train", &run->train) || dataset_load(data_folder, "t10k", &run->test) || plan(run))
        return 1;
    print_plan(run);
    if (processes_run(&(struct phase){run->ranks, trainer_child, attend_training}, run) ||
        processes_run(&(struct phase){2, alone_child, attend_alone}, run)) {
        fprintf(stderr, "fashion_mnist_gpu: a process failed: see the messages above\n");
        return 1;
    }
    putchar('\n');
    int failures = report_print(run);
    snprintf(picture, sizeof picture, "%s/loss-gpu.svg", run->output_folder);
    if (plot_write(run, picture))
        failures++;
    else
        printf("\nThe loss curves: %s\n", picture);
    return failures == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    struct run run = {.output_folder = ".", .seed = 1, .epochs = 2};
    int code = parse_options(argc, argv, &run);
    if (code)
        return code - 1;
    run.results = map_shared(sizeof *run.results);
    if (!run.results || processes_run(&(struct phase){1, look_for_gpus, NULL}, &run))
        return 1;
    if (only_check) {
        for (int d = 0; d < run.results->gpus; d++)
            printf("GPU %d: %s\n", d, run.results->gpu_name[d]);
        return 0;
    }
    code = train_and_judge(&run);
    free(run.admin_view);
    dataset_free(&run.train);
    dataset_free(&run.test);
    return code;
}
