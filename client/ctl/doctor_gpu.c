/* doctor_gpu.c - whether this process and the daemon get at the GPUs
 *
 * What uses a GPU runs in a process of its own, see gpu_check.c; here is what is seen from outside: the kernel's driver,
 * its device nodes, and what the daemon's user and unit allow it.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"
#include "gpu.h"
#include "gpu_check.h"
#include "gwctl.h"
#include "run.h"

static const char kernel_driver[] = "/proc/driver/nvidia/version";

/* ---- device nodes ------------------------------------------------------------------------------- */

/* Calls `visit` with each node that a process needs to use GPUs: the two that are always there, and one a GPU. */
static void each_node(const char *root, void (*visit)(const char *path, void *context), void *context) {
    static const char *const always[] = {"nvidiactl", "nvidia-uvm"};
    char path[320];
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
        snprintf(path, sizeof(path), "%s/dev/%s", root, always[i]);
        visit(path, context);
    }
    snprintf(path, sizeof(path), "%s/dev", root);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, "nvidia", 6) != 0 || !isdigit((unsigned char)entry->d_name[6]))
            continue;
        snprintf(path, sizeof(path), "%s/dev/%.32s", root, entry->d_name);
        visit(path, context);
    }
    if (folder != NULL)
        closedir(folder);
}

typedef struct node_count {
    int n_gpus;
    char missing[320];
    int error;
} node_count_t;

static void visit_own(const char *path, void *context) {
    node_count_t *nodes = context;
    nodes->n_gpus += isdigit((unsigned char)path[strlen(path) - 1]) != 0;
    if (access(path, R_OK | W_OK) != 0 && nodes->missing[0] == '\0') {
        snprintf(nodes->missing, sizeof(nodes->missing), "%s", path);
        nodes->error = errno;
    }
}

/* In a container the kernel's driver is seen, but the nodes are there only when the container was given them. */
static void check_nodes(gwctl_report_t *report) {
    node_count_t nodes = {.n_gpus = 0};
    each_node("", visit_own, &nodes);
    bool good = nodes.missing[0] == '\0' && nodes.n_gpus > 0;
    gwctl_check_t *check = gwctl_check_add(report, "GPU devices", good ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    if (nodes.missing[0] != '\0')
        snprintf(check->detail, sizeof(check->detail), "%s: %s", nodes.missing, strerror(nodes.error));
    else
        snprintf(check->detail, sizeof(check->detail), "%d GPU%s in /dev", nodes.n_gpus, nodes.n_gpus == 1 ? "" : "s");
    if (!good)
        snprintf(
            check->remedy, sizeof(check->remedy),
            "a container: give it the GPUs (--gpus all); a host: nvidia-modprobe -c 0 -u, and permissions in /dev");
}

/* ---- the daemon --------------------------------------------------------------------------------- */

/* Who the daemon is, and the first node that it may not open. */
typedef struct daemon_view {
    long uid, gid;
    long groups[64];
    size_t n_groups;
    char bad[320]; /* "": none */
    int error;     /* why; 0: by its permissions */
    struct stat status;
} daemon_view_t;

static bool read_identity(long pid, daemon_view_t *daemon) {
    char path[64];
    char line[1024];
    int found = 0;
    snprintf(path, sizeof(path), "/proc/%ld/status", pid);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return false;
    while (fgets(line, sizeof(line), stream) != NULL) {
        found += sscanf(line, "Uid: %*d %ld", &daemon->uid) == 1;
        found += sscanf(line, "Gid: %*d %ld", &daemon->gid) == 1;
        if (strncmp(line, "Groups:", 7) != 0)
            continue;
        char *place = line + 7;
        char *end;
        for (long group = strtol(place, &end, 10); end != place && daemon->n_groups < 64;
             group = strtol(place, &end, 10)) {
            daemon->groups[daemon->n_groups++] = group;
            place = end;
        }
    }
    fclose(stream);
    return found == 2;
}

static bool may_open(const daemon_view_t *daemon, const struct stat *status) {
    bool in_group = (long)status->st_gid == daemon->gid;
    for (size_t i = 0; i < daemon->n_groups; i++)
        in_group = in_group || (long)status->st_gid == daemon->groups[i];
    if (daemon->uid == 0)
        return true;
    unsigned bits = (unsigned)status->st_mode >> ((long)status->st_uid == daemon->uid ? 6 : in_group ? 3 : 0);
    return (bits & 6) == 6;
}

static void visit_daemons(const char *path, void *context) {
    daemon_view_t *daemon = context;
    struct stat status;
    if (daemon->bad[0] != '\0')
        return;
    int error = stat(path, &status) == 0 ? 0 : errno;
    if (error == 0 && may_open(daemon, &status))
        return;
    snprintf(daemon->bad, sizeof(daemon->bad), "%s", path);
    daemon->error = error;
    daemon->status = status;
}

/* The unit of the service manager that the daemon runs in: the last part of its cgroup, in both versions of those. */
static bool find_unit(long pid, char *unit, size_t unit_bytes) {
    char path[64];
    char line[512];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%ld/cgroup", pid);
    FILE *stream = fopen(path, "re");
    while (stream != NULL && !found && fgets(line, sizeof(line), stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *name = strrchr(line, '/');
        const char *end = name != NULL ? strstr(name, ".service") : NULL;
        found = end != NULL && end[8] == '\0' && strlen(name) <= unit_bytes && strstr(line, "/user@") == NULL &&
                (strncmp(line, "0::", 3) == 0 || strstr(line, ":name=systemd:") != NULL);
        if (found)
            snprintf(unit, unit_bytes, "%s", name + 1);
    }
    if (stream != NULL)
        fclose(stream);
    return found;
}

/* Whether a unit's device policy keeps GPUs away: its permissions in /dev do not show that. */
static bool policy_denies(const char *unit, char *why, size_t why_bytes) {
    const char *const argv[] = {"systemctl", "show", "--property=DevicePolicy,DeviceAllow", unit, NULL};
    char output[4096];
    char ignored[GWCTL_WHY_BYTES];
    if (gwctl_run("systemctl", argv, "", 5, output, sizeof(output), ignored, sizeof(ignored)) != 0)
        return false;
    bool listed = strstr(output, "DeviceAllow=/") != NULL || strstr(output, "DeviceAllow=char-") != NULL;
    bool closed = strstr(output, "DevicePolicy=closed") != NULL || strstr(output, "DevicePolicy=strict") != NULL;
    if (strstr(output, "nvidia") != NULL || !(closed || listed))
        return false;
    snprintf(why, why_bytes, "the device policy of %.100s allows no NVIDIA device", unit);
    return true;
}

static void check_daemon_access(gwctl_report_t *report, long pid) {
    char root[64];
    char unit[256] = "";
    daemon_view_t daemon = {.uid = -1};
    if (!read_identity(pid, &daemon))
        return;
    /* Its own /dev, as a unit with PrivateDevices has; only root and the daemon's user may look there. */
    snprintf(root, sizeof(root), "/proc/%ld/root", pid);
    if (access(root, X_OK) != 0)
        root[0] = '\0';
    each_node(root, visit_daemons, &daemon);
    gwctl_check_t *check = gwctl_check_add(report, "daemon: GPU devices", GWCTL_CHECK_WARNING);
    const char *name = daemon.bad + strlen(root) * (strncmp(daemon.bad, root, strlen(root)) == 0);
    if (daemon.bad[0] != '\0' && daemon.error != 0) {
        snprintf(check->detail, sizeof(check->detail), "the daemon's %s: %s", name, strerror(daemon.error));
        snprintf(check->remedy, sizeof(check->remedy),
                 "in its unit: PrivateDevices=no and DeviceAllow=char-nvidia* rw; in a container: give it the GPUs");
    } else if (daemon.bad[0] != '\0') {
        snprintf(check->detail, sizeof(check->detail),
                 "%s (mode %04o, owner %u, group %u) is closed to the daemon's user %ld", name,
                 (unsigned)(daemon.status.st_mode & 07777), daemon.status.st_uid, daemon.status.st_gid, daemon.uid);
        if ((daemon.status.st_mode & 060) == 060)
            snprintf(check->remedy, sizeof(check->remedy), "SupplementaryGroups=%u in its unit", daemon.status.st_gid);
        else
            snprintf(check->remedy, sizeof(check->remedy), "the driver's default is mode 0666: set it by a udev rule");
    } else if (find_unit(pid, unit, sizeof(unit)) && policy_denies(unit, check->detail, sizeof(check->detail))) {
        snprintf(check->remedy, sizeof(check->remedy),
                 "systemctl edit %.100s: [Service] DeviceAllow=char-nvidia* rw; then restart it", unit);
    } else {
        check->verdict = GWCTL_CHECK_OK;
        snprintf(check->detail, sizeof(check->detail), "its user %ld may open them", daemon.uid);
    }
}

/* ---- all of it ---------------------------------------------------------------------------------- */

/* Enters the checks that the process printed, and says when it did not come to its end. Returns whether there are GPUs. */
static bool check_in_process(gwctl_report_t *report, long daemon_pid) {
    char pid[24];
    const char *const argv[] = {"gwctl", "gpu-check", pid, NULL};
    char why[GWCTL_WHY_BYTES] = "";
    static char output[65536];
    const char *last = "";
    char *rest;
    snprintf(pid, sizeof(pid), "%ld", daemon_pid);
    int code = gwctl_run(GWCTL_SELF, argv, "", GWCTL_GPU_CHECK_S + 5, output, sizeof(output), why, sizeof(why));
    for (char *line = strtok_r(output, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        gwctl_check_t check;
        cJSON *json = cJSON_Parse(line);
        if (json != NULL && gwctl_check_from_json(json, &check)) {
            gwctl_check_t *entered = gwctl_check_add(report, check.name, check.verdict);
            *entered = check;
            last = entered->name;
        }
        cJSON_Delete(json);
    }
    if (code == GWCTL_OK || code == GWCTL_GPU_CHECK_NONE)
        return code == GWCTL_OK;
    gwctl_check_t *check = gwctl_check_add(report, "GPU checks", GWCTL_CHECK_FAILED);
    if (why[0] == '\0')
        snprintf(why, sizeof(why), "they ended with code %d", code);
    snprintf(check->detail, sizeof(check->detail), "%s, %s%s", why, last[0] != '\0' ? "after " : "in the first", last);
    snprintf(check->remedy, sizeof(check->remedy),
             "the driver hangs or crashes: see whether nvidia-smi works, and the kernel's messages: dmesg | grep NVRM");
    return true;
}

void gwctl_check_gpus(gwctl_report_t *report, long daemon_pid) {
    char version[256] = "";
    bool in_kernel = gwctl_read_line(kernel_driver, version, sizeof(version));
    if (!gwctl_gpu_has_driver()) {
        gwctl_check_t *check = gwctl_check_add(report, "GPU", in_kernel ? GWCTL_CHECK_WARNING : GWCTL_CHECK_OK);
        snprintf(check->detail, sizeof(check->detail), "no GPU: no NVIDIA driver: there is no libcuda.so.1");
        if (in_kernel)
            snprintf(
                check->remedy, sizeof(check->remedy),
                "the kernel has a driver: a container: give it the GPUs (--gpus all); a host: install the driver's "
                "libraries");
        return;
    }
    if (in_kernel)
        check_nodes(report);
    if (isatty(STDERR_FILENO))
        fputs("checking the GPUs ...\r", stderr);
    bool there = check_in_process(report, daemon_pid);
    if (isatty(STDERR_FILENO))
        fputs("\033[K", stderr);
    if (!there)
        return;
    gwctl_check_mps(report);
    if (in_kernel && daemon_pid > 0)
        check_daemon_access(report, daemon_pid);
}
