/* doctor.h - what `gwctl doctor` looks at */
#ifndef GWCTL_DOCTOR_H
#define GWCTL_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

typedef enum gwctl_verdict { GWCTL_CHECK_OK, GWCTL_CHECK_WARNING, GWCTL_CHECK_FAILED } gwctl_verdict_t;

typedef struct gwctl_check {
    char name[40];
    gwctl_verdict_t verdict;
    char detail[768]; /* what was found */
    char remedy[256]; /* what to do; "" when it is well */
} gwctl_check_t;

/* All checks of one run, in the order they are shown. */
typedef struct gwctl_report {
    gwctl_check_t checks[64];
    size_t count;
} gwctl_report_t;

/* Enters a check; the caller fills detail and remedy. */
gwctl_check_t *gwctl_check_add(gwctl_report_t *report, const char *name, gwctl_verdict_t verdict);

/* A check as `gwctl --json doctor` shows it, and back; NULL and false when that is not possible. */
cJSON *gwctl_check_to_json(const gwctl_check_t *check);
bool gwctl_check_from_json(const cJSON *json, gwctl_check_t *check_out);

/* doctor_host.c: everything that needs no daemon. */
void gwctl_check_host(gwctl_report_t *report);

/* doctor_process.c: limits of a process, this one or the daemon. `who` begins the names of the checks. */
void gwctl_check_process(gwctl_report_t *report, long pid, int is_daemon);

/* doctor_gpu.c: GPUs, their driver, and whether the daemon gets at them. `daemon_pid` 0: there is none. */
void gwctl_check_gpus(gwctl_report_t *report, long daemon_pid);

/* doctor_mps.c */
void gwctl_check_mps(gwctl_report_t *report);

/* The first line of a file, without its newline. Returns 0 when it cannot be read. */
int gwctl_read_line(const char *path, char *line, size_t line_bytes);

#endif
