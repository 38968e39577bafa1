/* doctor_process.c - limits of a process: what the shell or the unit file gave it
 *
 * Everything is read from /proc and the cgroup files, so the daemon is looked at from outside, as it really runs.
 */
#include "doctor.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GWCTL_DAEMON_FILES  4096
#define GWCTL_TRAINER_FILES 1024
#define GWCTL_LOCKED_BYTES  (UINT64_C(64) << 20)
#define GWCTL_UNLIMITED     UINT64_MAX
#define GWCTL_CGROUP_BYTES  512

/* The soft limit that /proc/PID/limits has under this name. Returns 0 when it cannot be read. */
static int read_limit(long pid, const char *name, uint64_t *limit_out) {
    char path[64];
    char line[256];
    int found = 0;
    snprintf(path, sizeof(path), "/proc/%ld/limits", pid);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return 0;
    while (!found && fgets(line, sizeof(line), stream) != NULL) {
        if (strncmp(line, name, strlen(name)) != 0)
            continue;
        const char *value = line + strlen(name) + strspn(line + strlen(name), " ");
        *limit_out = strncmp(value, "unlimited", 9) == 0 ? GWCTL_UNLIMITED : strtoull(value, NULL, 10);
        found = 1;
    }
    fclose(stream);
    return found;
}

static void format_limit(uint64_t limit, const char *unit, char *text, size_t text_bytes) {
    if (limit == GWCTL_UNLIMITED)
        snprintf(text, text_bytes, "no limit");
    else
        snprintf(text, text_bytes, "%" PRIu64 " %s", limit, unit);
}

static void check_files(gwctl_report_t *report, long pid, int is_daemon) {
    uint64_t limit;
    uint64_t wanted = is_daemon ? GWCTL_DAEMON_FILES : GWCTL_TRAINER_FILES;
    if (!read_limit(pid, "Max open files", &limit))
        return;
    gwctl_check_t *check = gwctl_check_add(report, is_daemon ? "daemon: open files" : "here: open files",
                                           limit >= wanted ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    format_limit(limit, "descriptors", check->detail, sizeof(check->detail));
    if (limit < wanted)
        snprintf(check->remedy, sizeof(check->remedy),
                 is_daemon ? "set LimitNOFILE=%" PRIu64 " or more in its unit"
                           : "ulimit -n %" PRIu64 ", or more, before training",
                 wanted);
}

static void check_locked_memory(gwctl_report_t *report, long pid, int is_daemon) {
    uint64_t limit;
    if (!read_limit(pid, "Max locked memory", &limit))
        return;
    int has_gpu = access("/dev/nvidiactl", F_OK) == 0;
    int low = has_gpu && limit < GWCTL_LOCKED_BYTES;
    gwctl_check_t *check = gwctl_check_add(report, is_daemon ? "daemon: locked memory" : "here: locked memory",
                                           low ? GWCTL_CHECK_WARNING : GWCTL_CHECK_OK);
    char text[64];
    format_limit(limit, "bytes", text, sizeof(text));
    snprintf(check->detail, sizeof(check->detail), "%s%s", text, has_gpu ? "" : "; without a GPU nothing is locked");
    if (low)
        snprintf(check->remedy, sizeof(check->remedy),
                 is_daemon ? "set LimitMEMLOCK=infinity in its unit" : "ulimit -l unlimited, before training");
}

/* The cgroup of a process below /sys/fs/cgroup (version 2). Returns 0 when there is none. */
static int read_cgroup(long pid, char *cgroup, size_t cgroup_bytes) {
    char path[64];
    char line[GWCTL_CGROUP_BYTES];
    snprintf(path, sizeof(path), "/proc/%ld/cgroup", pid);
    if (!gwctl_read_line(path, line, sizeof(line)) || strncmp(line, "0::/", 4) != 0)
        return 0;
    snprintf(cgroup, cgroup_bytes, "%s", line + 3);
    return 1;
}

/* Walks from the cgroup to the root and takes the smallest memory.max. Returns 0 when none limits. */
static int find_memory_limit(const char *cgroup, uint64_t *limit_out, uint64_t *used_out) {
    char folder[GWCTL_CGROUP_BYTES];
    char path[GWCTL_CGROUP_BYTES + 64];
    char line[64];
    int found = 0;
    snprintf(folder, sizeof(folder), "%s", cgroup);
    for (;;) {
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", folder);
        if (gwctl_read_line(path, line, sizeof(line)) && strcmp(line, "max") != 0) {
            uint64_t limit = strtoull(line, NULL, 10);
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", folder);
            if ((!found || limit < *limit_out) && gwctl_read_line(path, line, sizeof(line))) {
                *limit_out = limit;
                *used_out = strtoull(line, NULL, 10);
                found = 1;
            }
        }
        char *slash = strrchr(folder, '/');
        if (slash == NULL)
            return found;
        *slash = '\0';
    }
}

static void check_memory(gwctl_report_t *report, long pid, int is_daemon) {
    char cgroup[GWCTL_CGROUP_BYTES];
    uint64_t limit = 0;
    uint64_t used = 0;
    if (!read_cgroup(pid, cgroup, sizeof(cgroup)))
        return;
    gwctl_check_t *check =
        gwctl_check_add(report, is_daemon ? "daemon: memory limit" : "here: memory limit", GWCTL_CHECK_OK);
    if (!find_memory_limit(cgroup, &limit, &used)) {
        snprintf(check->detail, sizeof(check->detail), "no limit");
        return;
    }
    snprintf(check->detail, sizeof(check->detail), "%" PRIu64 " MiB, of which %" PRIu64 " MiB are used", limit >> 20,
             used >> 20);
    if (access("/dev/nvidiactl", F_OK) == 0 && limit < used + GWCTL_LOCKED_BYTES) {
        check->verdict = GWCTL_CHECK_WARNING;
        snprintf(check->remedy, sizeof(check->remedy),
                 "no room for the pinned memory that a GPU's buckets travel through: raise it (cgroup %.120s)", cgroup);
    } else if (used > limit / 10 * 9) {
        check->verdict = GWCTL_CHECK_WARNING;
        snprintf(check->remedy, sizeof(check->remedy),
                 "nearly full: raise MemoryMax of the unit or slice (cgroup %.120s)", cgroup);
    }
}

void gwctl_check_process(gwctl_report_t *report, long pid, int is_daemon) {
    check_files(report, pid, is_daemon);
    check_locked_memory(report, pid, is_daemon);
    check_memory(report, pid, is_daemon);
}
