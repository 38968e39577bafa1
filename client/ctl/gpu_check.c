/* gpu_check.c - the checks of `gwctl doctor` that use the GPUs, in a process of their own
 *
 * A driver may hang or crash the process that asks it; the doctor must not go with it. So these checks run in a child of
 * gwctl, `gwctl gpu-check`, which prints each as a line of JSON as soon as it is made.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "doctor.h"
#include "gpu_check.h"
#include "gpu_share.h"
#include "gwctl.h"

#define PINNED_BYTES (UINT64_C(64) << 20)

/* The GPUs that a context could be made on. */
typedef struct gwctl_bench {
    const gwctl_gpu_api_t *api;
    gwctl_gpus_t gpus;
    size_t n;
    const gwctl_gpu_t *gpu[GWCTL_GPUS_MAX];
    gwctl_device_t *device[GWCTL_GPUS_MAX];
    uint64_t seed;
} gwctl_bench_t;

/* ---- output ------------------------------------------------------------------------------------- */

static void emit(const gwctl_check_t *check) {
    cJSON *json = gwctl_check_to_json(check);
    char *text = json != NULL ? cJSON_PrintUnformatted(json) : NULL;
    if (text != NULL)
        puts(text);
    fflush(stdout);
    free(text);
    cJSON_Delete(json);
}

__attribute__((format(printf, 4, 5))) static void say(const char *name, gwctl_verdict_t verdict, const char *remedy,
                                                      const char *format, ...) {
    gwctl_check_t check = {.verdict = verdict};
    va_list arguments;
    snprintf(check.name, sizeof(check.name), "%s", name);
    snprintf(check.remedy, sizeof(check.remedy), "%s", remedy);
    va_start(arguments, format);
    vsnprintf(check.detail, sizeof(check.detail), format, arguments);
    va_end(arguments);
    emit(&check);
}

/* A list such as "0, 1, 3" that grows. */
typedef struct gwctl_list {
    char text[256];
} gwctl_list_t;

__attribute__((format(printf, 2, 3))) static void list_add(gwctl_list_t *list, const char *format, ...) {
    size_t used = strlen(list->text);
    va_list arguments;
    if (used > 0)
        used += (size_t)snprintf(list->text + used, sizeof(list->text) - used, ", ");
    if (used >= sizeof(list->text))
        return;
    va_start(arguments, format);
    vsnprintf(list->text + used, sizeof(list->text) - used, format, arguments);
    va_end(arguments);
}

/* A check that was made on one GPU or pair, and did not go well. */
static void say_bad(const char *where, const char *what, gwctl_outcome_t outcome, const char *why, const char *remedy) {
    char name[40];
    bool full = outcome == GWCTL_FULL;
    snprintf(name, sizeof(name), "%s: %s", where, what);
    say(name, full ? GWCTL_CHECK_WARNING : GWCTL_CHECK_FAILED,
        full ? "not tried for lack of memory: try again when no training runs" : remedy, "%s", why);
}

/* ---- without contexts --------------------------------------------------------------------------- */

/* What to do about a driver that does not start, by the error's name. */
static const char *driver_remedy(const char *why) {
    if (strstr(why, "SYSTEM_NOT_READY") != NULL)
        return "GPUs behind NVSwitch need the fabric manager: systemctl start nvidia-fabricmanager";
    if (strstr(why, "DRIVER_MISMATCH") != NULL)
        return "the kernel's driver and libcuda.so.1 are of different versions: reload the driver or restart the host";
    return "see whether nvidia-smi works, and the kernel's messages: dmesg | grep NVRM";
}

static int say_none(gwctl_gpu_state_t state, const char *why) {
    switch (state) {
    case GWCTL_GPU_NO_PLUGIN:
        say("GPU plugin", GWCTL_CHECK_WARNING, "install gradwire's CUDA plugins: build it where a CUDA toolkit is",
            "%s", why);
        break;
    case GWCTL_GPU_BROKEN:
        say("GPU driver", GWCTL_CHECK_FAILED, driver_remedy(why), "%s", why);
        break;
    default:
        say("GPU", GWCTL_CHECK_OK, "", "no GPU: %s", why);
        break;
    }
    return GWCTL_GPU_CHECK_NONE;
}

static void check_driver(const gwctl_gpus_t *gpus) {
    bool old = gpus->driver_cuda / 1000 < gpus->built_cuda / 1000;
    gwctl_list_t names = {""};
    for (size_t i = 0, same; i < gpus->count; i += same) {
        for (same = 1; i + same < gpus->count && strcmp(gpus->gpu[i + same].name, gpus->gpu[i].name) == 0;)
            same++;
        list_add(&names, "%zu %s", same, gpus->gpu[i].name);
    }
    say("GPU driver", old ? GWCTL_CHECK_WARNING : GWCTL_CHECK_OK,
        old ? "the driver is older than what the plugins were built for: update the driver, or build with its CUDA"
            : "",
        "%s%swith CUDA %d.%d, plugins built with CUDA %d.%d; %s", gpus->driver, gpus->driver[0] != '\0' ? " " : "",
        gpus->driver_cuda / 1000, gpus->driver_cuda % 1000 / 10, gpus->built_cuda / 1000, gpus->built_cuda % 1000 / 10,
        names.text);
    if (gpus->nvml[0] != '\0')
        say("GPU management", GWCTL_CHECK_WARNING,
            "links and memory in use are not shown: install libnvidia-ml.so.1 of the same driver; in a container set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "%s", gpus->nvml);
}

static void check_compute_mode(const gwctl_gpus_t *gpus) {
    gwctl_list_t list = {""};
    for (size_t i = 0; i < gpus->count; i++) {
        if (gpus->gpu[i].exclusive)
            list_add(&list, "%d", gpus->gpu[i].index);
    }
    if (list.text[0] != '\0')
        say("GPU compute mode", GWCTL_CHECK_FAILED, "trainer and daemon both need the GPU: nvidia-smi -c DEFAULT",
            "GPU %s is for one process alone", list.text);
}

static void check_held(const gwctl_bench_t *bench, long daemon_pid) {
    gwctl_list_t list = {""};
    for (size_t i = 0; i < bench->gpus.count; i++) {
        const gwctl_gpu_t *gpu = &bench->gpus.gpu[i];
        uint64_t bytes = bench->api->held_bytes(gpu->uuid, daemon_pid);
        if (bytes == UINT64_MAX)
            list_add(&list, "GPU %d not known", gpu->index);
        else if (bytes > 0)
            list_add(&list, "GPU %d %s", gpu->index, gwctl_cell_bytes((double)bytes).text);
    }
    say("daemon: GPU memory", GWCTL_CHECK_OK, "", "%s", list.text[0] != '\0' ? list.text : "none");
}

/* ---- with contexts ------------------------------------------------------------------------------ */

static void open_all(gwctl_bench_t *bench) {
    for (size_t i = 0; i < bench->gpus.count; i++) {
        char why[GWCTL_WHY_BYTES];
        char where[24];
        const gwctl_gpu_t *gpu = &bench->gpus.gpu[i];
        gwctl_outcome_t outcome = bench->api->open(gpu->index, &bench->device[bench->n], why);
        if (outcome == GWCTL_WORKS) {
            bench->gpu[bench->n++] = gpu;
            continue;
        }
        snprintf(where, sizeof(where), "GPU %d", gpu->index);
        say_bad(where, "context", outcome, why,
                "no process can use this GPU: see nvidia-smi, and the kernel's messages: dmesg | grep NVRM");
    }
}

static gwctl_outcome_t try_pin(const gwctl_bench_t *bench, size_t i, char *why) {
    return bench->api->pin(bench->device[i], PINNED_BYTES, why);
}

static gwctl_outcome_t try_words(const gwctl_bench_t *bench, size_t i, char *why) {
    return bench->api->words(bench->device[i], why);
}

/* Tries something on each GPU: one line when all is well, else one for each GPU where it is not. */
static void check_each(const gwctl_bench_t *bench, const char *what,
                       gwctl_outcome_t (*try)(const gwctl_bench_t *, size_t, char *), const char *good,
                       const char *remedy) {
    char name[40];
    gwctl_list_t list = {""};
    for (size_t i = 0; i < bench->n; i++) {
        char why[GWCTL_WHY_BYTES];
        char where[24];
        gwctl_outcome_t outcome = try(bench, i, why);
        snprintf(where, sizeof(where), "GPU %d", bench->gpu[i]->index);
        if (outcome == GWCTL_WORKS)
            list_add(&list, "%d", bench->gpu[i]->index);
        else
            say_bad(where, what, outcome, why, remedy);
    }
    snprintf(name, sizeof(name), "GPU %s", what);
    if (list.text[0] != '\0')
        say(name, GWCTL_CHECK_OK, "", "%s: GPU %s", good, list.text);
}

/* A handle and a descriptor of one GPU's memory: with either, trainers' memory can be opened. */
static void judge_sharing(const gwctl_trial_t *handle, const gwctl_trial_t *fd, gwctl_list_t *good) {
    const char *remedy =
        "trainers' own streams then copy to host memory, which takes more of the GPU; see the kernel's "
        "messages: dmesg | grep NVRM";
    char name[40];
    bool wrong = handle->outcome == GWCTL_WRONG || fd->outcome == GWCTL_WRONG;
    bool full = handle->outcome == GWCTL_FULL || fd->outcome == GWCTL_FULL;
    bool one = handle->outcome == GWCTL_WORKS || fd->outcome == GWCTL_WORKS;
    if (handle->outcome == GWCTL_WORKS && fd->outcome == GWCTL_WORKS) {
        list_add(good, "%d", handle->gpu->index);
        return;
    }
    if (full)
        remedy = "not tried for lack of memory: try again when no training runs";
    if (wrong)
        remedy = "do not use the daemon with this GPU: the driver shows other memory than was shared; update it";
    snprintf(name, sizeof(name), "GPU %d: sharing", handle->gpu->index);
    say(name, wrong || !(full || one) ? GWCTL_CHECK_FAILED : GWCTL_CHECK_WARNING, remedy,
        "by IPC handle: %s; by file descriptor: %s", handle->outcome == GWCTL_WORKS ? "works" : handle->why,
        fd->outcome == GWCTL_WORKS ? "works" : fd->why);
}

static void check_sharing(const gwctl_bench_t *bench) {
    gwctl_list_t list = {""};
    gwctl_trial_t *trials = calloc(2 * bench->n, sizeof(*trials));
    if (trials == NULL) {
        say("GPU sharing", GWCTL_CHECK_WARNING, "try again", "out of host memory");
        return;
    }
    for (size_t i = 0; i < 2 * bench->n; i++) {
        trials[i].gpu = bench->gpu[i / 2];
        trials[i].device = bench->device[i / 2];
        trials[i].share.kind = i % 2 == 0 ? GWCTL_SHARE_HANDLE : GWCTL_SHARE_FD;
        trials[i].share.seed = bench->seed + 10 * i;
    }
    gwctl_share_try(bench->api, trials, 2 * bench->n);
    for (size_t i = 0; i < bench->n; i++)
        judge_sharing(&trials[2 * i], &trials[2 * i + 1], &list);
    if (list.text[0] != '\0')
        say("GPU sharing", GWCTL_CHECK_OK, "",
            "another process read and wrote memory by IPC handle and by file descriptor: GPU %s", list.text);
    free(trials);
}

static void check_peers(const gwctl_bench_t *bench) {
    size_t n_good = 0;
    size_t n_direct = 0;
    for (size_t i = 0; i < bench->n; i++) {
        for (size_t j = i + 1; j < bench->n; j++) {
            char why[GWCTL_WHY_BYTES];
            char where[32];
            bool direct = false;
            gwctl_outcome_t outcome =
                bench->api->peer(bench->device[i], bench->device[j], bench->seed + 1000 * (i + 1) + j, &direct, why);
            n_good += outcome == GWCTL_WORKS;
            n_direct += outcome == GWCTL_WORKS && direct;
            snprintf(where, sizeof(where), "GPU %d and %d", bench->gpu[i]->index, bench->gpu[j]->index);
            if (outcome != GWCTL_WORKS)
                say_bad(
                    where, "copies", outcome, why,
                    "do not train across these GPUs: turn off the PCIe bridges' access control (ACS) in the firmware, "
                    "or boot with iommu=pt");
        }
    }
    if (n_good > 0)
        say("GPU peer copies", GWCTL_CHECK_OK, "",
            "%zu pair%s, both ways at once, every byte compared; %zu direct, %zu "
            "through host memory",
            n_good, n_good == 1 ? "" : "s", n_direct, n_good - n_direct);
}

/* ---- all of it ---------------------------------------------------------------------------------- */

static void check_all(gwctl_bench_t *bench, long daemon_pid) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    bench->seed = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    check_driver(&bench->gpus);
    check_compute_mode(&bench->gpus);
    if (daemon_pid > 0)
        check_held(bench, daemon_pid);
    open_all(bench);
    check_each(bench, "pinned memory", try_pin, "64 MiB of host memory pinned",
               "ulimit -l unlimited, and a memory limit of the container or unit that has room for pinned memory");
    check_each(bench, "stream words", try_words, "streams write and await words in a sealed memfd",
               "operations on this GPU cannot be ordered: update the driver; in a container allow memfd_create");
    check_sharing(bench);
    check_peers(bench);
    for (size_t i = 0; i < bench->n; i++)
        bench->api->close(bench->device[i]);
}

int gwctl_gpu_check(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static gwctl_bench_t bench;
    char why[GWCTL_WHY_BYTES];
    (void)options;
    (void)n_arguments;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(GWCTL_GPU_CHECK_S);
    gwctl_gpu_state_t state = gwctl_gpu_find(&bench.api, &bench.gpus, why);
    if (state != GWCTL_GPU_FOUND)
        return say_none(state, why);
    check_all(&bench, strtol(arguments[0], NULL, 10));
    return GWCTL_OK;
}
