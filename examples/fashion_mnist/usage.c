/* usage.c - who used the processor cores so far, as the kernel counts it. See run.h. */
#include "run.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int64_t ticks_ns(unsigned long long ticks) {
    return (int64_t)ticks * (1000000000 / sysconf(_SC_CLK_TCK));
}

/* The busy time of the cores this process may run on; on a virtual machine also what the host took away from them. */
static int read_cores(struct usage *usage) {
    char line[512];
    cpu_set_t allowed;
    FILE *file = fopen("/proc/stat", "r");
    if (!file || sched_getaffinity(0, sizeof allowed, &allowed)) {
        perror("cannot tell who uses the cores");
        if (file)
            fclose(file);
        return -1;
    }
    while (fgets(line, sizeof line, file)) {
        unsigned core = 0;
        unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
        if (sscanf(line, "cpu%u %llu %llu %llu %llu %llu %llu %llu %llu", &core, &user, &nice, &system, &idle, &iowait,
                   &irq, &softirq, &steal) != 9 ||
            !CPU_ISSET(core, &allowed))
            continue;
        usage->cores++;
        usage->busy_ns += ticks_ns(user + nice + system + irq + softirq + steal);
    }
    fclose(file);
    return 0;
}

/* The processor time of all threads of a process. */
static int read_process(int pid, int64_t *cpu_ns_out) {
    char path[64], line[1024] = "";
    unsigned long long user, system;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    char *end = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL; /* of the program's name */
    if (file)
        fclose(file);
    if (!end || sscanf(end, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2) {
        fprintf(stderr, "cannot read %s: is it the daemon's process?\n", path);
        return -1;
    }
    *cpu_ns_out = ticks_ns(user + system);
    return 0;
}

int usage_read(const struct run *run, struct usage *usage_out) {
    struct usage usage = {.at_ns = now_ns()};
    struct rusage own;
    if (read_cores(&usage) || (run->daemon_pid && read_process(run->daemon_pid, &usage.daemon_ns)))
        return -1;
    getrusage(RUSAGE_SELF, &own);
    usage.own_ns = (own.ru_utime.tv_sec + own.ru_stime.tv_sec) * (int64_t)1000000000 +
                   (own.ru_utime.tv_usec + own.ru_stime.tv_usec) * (int64_t)1000;
    *usage_out = usage;
    return 0;
}
