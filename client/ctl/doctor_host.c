/* doctor_host.c - what the kernel and the processor of this host offer */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "frame.h"

/* Shared memory that a client cannot shrink under the daemon: the host engine stands on it. */
static void check_sealing(gwctl_report_t *report) {
    const char *call = "memfd_create";
    int fd = memfd_create("gwctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int good = fd >= 0;
    if (good) {
        call = "ftruncate of a memfd";
        good = ftruncate(fd, 4096) == 0;
    }
    if (good) {
        call = "sealing a memfd";
        good = fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
    }
    int error = errno;
    if (good) {
        call = "a seal that holds";
        good = ftruncate(fd, 0) != 0 && errno == EPERM;
    }
    if (fd >= 0)
        close(fd);
    gwctl_check_t *check = gwctl_check_add(report, "sealed memory", good ? GWCTL_CHECK_OK : GWCTL_CHECK_FAILED);
    snprintf(check->detail, sizeof(check->detail), good ? "memfd with seals" : "%s: %s", call, strerror(error));
    if (!good)
        snprintf(check->remedy, sizeof(check->remedy), "allow memfd_create and fcntl in the sandbox or container");
}

static void check_pidfd(gwctl_report_t *report) {
    struct utsname name;
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    gwctl_check_t *check = gwctl_check_add(report, "process handles", fd >= 0 ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    snprintf(check->detail, sizeof(check->detail), "%s on kernel %.64s",
             fd >= 0 ? "pidfd_open works" : "pidfd_open does not work", uname(&name) == 0 ? name.release : "?");
    if (fd >= 0)
        close(fd);
    else
        snprintf(
            check->remedy, sizeof(check->remedy),
            "use a kernel of 5.3 or later, or allow pidfd_open: the death of a trainer is seen by its socket only");
}

static int read_number(const char *path, uint64_t *number_out) {
    char line[64];
    if (!gwctl_read_line(path, line, sizeof(line)))
        return 0;
    *number_out = strtoull(line, NULL, 10);
    return 1;
}

/* A packet of the protocol must fit into a socket's buffer, with the kernel's own overhead. */
static void check_socket_buffer(gwctl_report_t *report) {
    uint64_t bytes;
    const uint64_t wanted = 2 * GW_PACKET_MAX;
    if (!read_number("/proc/sys/net/core/wmem_default", &bytes))
        return;
    int good = bytes >= wanted;
    gwctl_check_t *check = gwctl_check_add(report, "socket buffers", good ? GWCTL_CHECK_OK : GWCTL_CHECK_FAILED);
    snprintf(check->detail, sizeof(check->detail), "net.core.wmem_default is %" PRIu64, bytes);
    if (!good)
        snprintf(check->remedy, sizeof(check->remedy), "sysctl -w net.core.wmem_default=212992");
}

static void check_open_files(gwctl_report_t *report) {
    char line[128];
    uint64_t used = 0;
    uint64_t most = 0;
    if (!gwctl_read_line("/proc/sys/fs/file-nr", line, sizeof(line)) ||
        sscanf(line, "%" SCNu64 " %*u %" SCNu64, &used, &most) != 2)
        return;
    int good = used < most / 10 * 9;
    gwctl_check_t *check =
        gwctl_check_add(report, "open files of the host", good ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    snprintf(check->detail, sizeof(check->detail), "%" PRIu64 " of %" PRIu64, used, most);
    if (!good)
        snprintf(check->remedy, sizeof(check->remedy), "raise fs.file-max with sysctl");
}

/* Each buffer is at least one mapping of the daemon. */
static void check_mappings(gwctl_report_t *report) {
    uint64_t count;
    if (!read_number("/proc/sys/vm/max_map_count", &count))
        return;
    int good = count >= 65530;
    gwctl_check_t *check = gwctl_check_add(report, "mappings a process", good ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    snprintf(check->detail, sizeof(check->detail), "vm.max_map_count is %" PRIu64, count);
    if (!good)
        snprintf(check->remedy, sizeof(check->remedy), "sysctl -w vm.max_map_count=65530");
}

/* With strict accounting shared memory is refused although there is room. */
static void check_overcommit(gwctl_report_t *report) {
    uint64_t mode;
    if (!read_number("/proc/sys/vm/overcommit_memory", &mode))
        return;
    gwctl_check_t *check =
        gwctl_check_add(report, "memory accounting", mode == 2 ? GWCTL_CHECK_WARNING : GWCTL_CHECK_OK);
    snprintf(check->detail, sizeof(check->detail), "vm.overcommit_memory is %" PRIu64, mode);
    if (mode == 2)
        snprintf(check->remedy, sizeof(check->remedy),
                 "strict accounting counts buffers in full: raise vm.overcommit_ratio if buffers are refused");
}

static void check_huge_pages(gwctl_report_t *report) {
    char line[128];
    if (!gwctl_read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof(line)))
        return;
    gwctl_check_t *check = gwctl_check_add(report, "huge shared pages", GWCTL_CHECK_OK);
    snprintf(check->detail, sizeof(check->detail), "shmem_enabled: %s", line);
    if (strstr(line, "[never]") != NULL || strstr(line, "[deny]") != NULL)
        snprintf(check->remedy, sizeof(check->remedy),
                 "large buffers may gain from: echo within_size >/sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

static void check_processor(gwctl_report_t *report) {
    gwctl_check_t *check = gwctl_check_add(report, "vector instructions", GWCTL_CHECK_OK);
#if defined(__x86_64__)
    int wide = __builtin_cpu_supports("avx512f");
    int good = __builtin_cpu_supports("avx2");
    snprintf(check->detail, sizeof(check->detail), "%s", wide ? "AVX-512" : good ? "AVX2" : "SSE2");
    if (!good) {
        check->verdict = GWCTL_CHECK_WARNING;
        snprintf(check->remedy, sizeof(check->remedy), "it works, but slower: a processor with AVX2 reduces faster");
    }
#elif defined(__aarch64__)
    snprintf(check->detail, sizeof(check->detail), "NEON");
#else
    check->verdict = GWCTL_CHECK_WARNING;
    snprintf(check->detail, sizeof(check->detail), "a processor without vector code of ours");
    snprintf(check->remedy, sizeof(check->remedy), "it works, but slower");
#endif
}

static void check_cores(gwctl_report_t *report) {
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)online;
    int good = allowed >= 2;
    gwctl_check_t *check = gwctl_check_add(report, "processors", good ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    snprintf(check->detail, sizeof(check->detail), "%d allowed of %ld", allowed, online);
    if (!good)
        snprintf(check->remedy, sizeof(check->remedy), "trainers and daemon share one processor: allow at least two");
}

void gwctl_check_host(gwctl_report_t *report) {
    check_sealing(report);
    check_pidfd(report);
    check_socket_buffer(report);
    check_open_files(report);
    check_mappings(report);
    check_overcommit(report);
    check_huge_pages(report);
    check_processor(report);
    check_cores(report);
}
