/* gpu_share.c - GPU memory opened by another process, as trainers' memory is by the daemon
 *
 * One process exports, a second one, started afresh, imports: it compares what it finds and writes something else, which
 * the first one then looks for. Descriptors are handed over by inheritance, handles and patterns as text on stdin; one
 * line comes back for each: its outcome, and why.
 */
#include "gpu_share.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "gwctl.h"
#include "run.h"

enum { LIMIT_S = 60, LINE_BYTES = 320 };
static const char *const outcomes[] = {"works", "broken", "wrong", "full"};
enum { N_OUTCOMES = sizeof(outcomes) / sizeof(outcomes[0]) };

/* ---- lines -------------------------------------------------------------------------------------- */

/* One line of text a share, with the UUID of its device. Reading it returns false when the text is no share. */
static void to_line(const char *uuid, const gwctl_share_t *share, char *line) {
    char hex[2 * GWCTL_HANDLE_BYTES + 1];
    for (size_t i = 0; i < GWCTL_HANDLE_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", share->handle[i]);
    snprintf(line, LINE_BYTES, "%s %d %" PRIu64 " %" PRIu64 " %d %s\n", uuid, (int)share->kind, share->bytes,
             share->seed, share->fd, hex);
}

static bool from_line(const char *line, char *uuid, gwctl_share_t *share_out) {
    gwctl_share_t share = {.fd = -1};
    char hex[2 * GWCTL_HANDLE_BYTES + 1] = "";
    int kind;
    int n = sscanf(line, "%47s %d %" SCNu64 " %" SCNu64 " %d %128s", uuid, &kind, &share.bytes, &share.seed, &share.fd,
                   hex);
    if (n != 6 || strlen(hex) != 2 * GWCTL_HANDLE_BYTES || (kind != GWCTL_SHARE_HANDLE && kind != GWCTL_SHARE_FD))
        return false;
    share.kind = (gwctl_share_kind_t)kind;
    for (size_t i = 0; i < GWCTL_HANDLE_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        share.handle[i] = (unsigned char)byte;
    }
    *share_out = share;
    return true;
}

/* ---- the process that imports ------------------------------------------------------------------- */

static gwctl_outcome_t use(const gwctl_gpu_api_t *api, const gwctl_gpus_t *gpus, const char *line, char *why) {
    char uuid[GWCTL_UUID_BYTES];
    gwctl_share_t share;
    gwctl_device_t *device;
    if (!from_line(line, uuid, &share)) {
        snprintf(why, GWCTL_WHY_BYTES, "what was handed over cannot be read");
        return GWCTL_BROKEN;
    }
    for (size_t i = 0; i < gpus->count; i++) {
        if (strcmp(gpus->gpu[i].uuid, uuid) != 0)
            continue;
        gwctl_outcome_t outcome = api->open(gpus->gpu[i].index, &device, why);
        if (outcome == GWCTL_WORKS) {
            outcome = api->share_use(device, &share, why);
            api->close(device);
        }
        return outcome;
    }
    snprintf(why, GWCTL_WHY_BYTES, "the process that imports does not see %s", uuid);
    return GWCTL_BROKEN;
}

int gwctl_gpu_import(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static gwctl_gpus_t gpus;
    const gwctl_gpu_api_t *api = NULL;
    char line[LINE_BYTES];
    char why[GWCTL_WHY_BYTES];
    (void)options;
    (void)arguments;
    (void)n_arguments;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S);
    bool found = gwctl_gpu_find(&api, &gpus, why) == GWCTL_GPU_FOUND;
    while (fgets(line, sizeof(line), stdin) != NULL) {
        gwctl_outcome_t outcome = found ? use(api, &gpus, line, why) : GWCTL_BROKEN;
        printf("%s %s\n", outcomes[outcome], outcome != GWCTL_WORKS ? why : "");
        fflush(stdout);
    }
    return GWCTL_OK;
}

/* ---- the process that exports ------------------------------------------------------------------- */

/* Takes one line of the answer; returns the next. */
static char *take_answer(char *line, gwctl_trial_t *trial, const char *otherwise) {
    char *end = strchr(line, '\n');
    size_t length = strcspn(line, " \n");
    trial->outcome = GWCTL_BROKEN;
    snprintf(trial->why, sizeof(trial->why), "%s", otherwise);
    if (end == NULL)
        return line;
    *end = '\0';
    for (int i = 0; i < N_OUTCOMES; i++) {
        if (strlen(outcomes[i]) != length || strncmp(line, outcomes[i], length) != 0)
            continue;
        trial->outcome = (gwctl_outcome_t)i;
        snprintf(trial->why, sizeof(trial->why), "%s", line + length + (line[length] == ' '));
    }
    return end + 1;
}

static void import_all(gwctl_trial_t *trials, size_t n, char *input, char *output, size_t output_bytes) {
    const char *const argv[] = {"gwctl", "gpu-import", NULL};
    char why[GWCTL_WHY_BYTES] = "the process that imports ended early";
    char *place = input;
    *place = '\0';
    for (size_t i = 0; i < n; i++) {
        if (!trials[i].shared)
            continue;
        if (trials[i].share.fd >= 0)
            fcntl(trials[i].share.fd, F_SETFD, 0); /* to be inherited */
        to_line(trials[i].gpu->uuid, &trials[i].share, place);
        place += strlen(place);
    }
    if (place == input)
        return;
    gwctl_run(GWCTL_SELF, argv, input, LIMIT_S + 5, output, output_bytes, why, sizeof(why));
    place = output;
    for (size_t i = 0; i < n; i++) {
        if (trials[i].shared)
            place = take_answer(place, &trials[i], why);
    }
}

void gwctl_share_try(const gwctl_gpu_api_t *api, gwctl_trial_t *trials, size_t n) {
    size_t text_bytes = n * (LINE_BYTES + GWCTL_WHY_BYTES) + 1;
    char *input = malloc(text_bytes);
    char *output = malloc(text_bytes);
    for (size_t i = 0; i < n; i++) {
        gwctl_trial_t *trial = &trials[i];
        snprintf(trial->why, sizeof(trial->why), "out of host memory");
        trial->outcome = input == NULL || output == NULL ? GWCTL_FULL
                                                         : api->share(trial->device, trial->share.kind,
                                                                      trial->share.seed, &trial->share, trial->why);
        trial->shared = trial->outcome == GWCTL_WORKS;
    }
    if (input != NULL && output != NULL)
        import_all(trials, n, input, output, text_bytes);
    for (size_t i = 0; i < n; i++) {
        gwctl_trial_t *trial = &trials[i];
        if (trial->shared && trial->outcome == GWCTL_WORKS)
            trial->outcome = api->share_verify(trial->device, &trial->share, trial->why);
        if (trial->shared)
            api->share_free(trial->device, &trial->share);
    }
    free(input);
    free(output);
}
