/* processes.c - see processes.h. */
#include "processes.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_S 3.0 /* to end by themselves, and then to end at SIGTERM */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static pid_t start(const struct phase *phase, void *of, int index) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    _exit(phase->child(of, index));
}

/* Takes the end of one child, if there is any. Returns 1 when all was well with it, -1 when not, 0 when none ended. */
static int reap(pid_t *pid, int count) {
    int status = 0;
    pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended <= 0)
        return 0;
    for (int i = 0; i < count; i++) {
        if (pid[i] != ended)
            continue;
        pid[i] = 0;
        if (WIFSIGNALED(status))
            fprintf(stderr, "process %d (pid %d) was ended by signal %d\n", i, (int)ended, WTERMSIG(status));
    }
    return status == 0 ? 1 : -1;
}

static void end_all(const pid_t *pid, int count, int signal_number) {
    for (int i = 0; i < count; i++)
        if (pid[i] > 0)
            kill(pid[i], signal_number);
}

int processes_run(const struct phase *phase, void *of) {
    const double begin_s = now_s();
    pid_t pid[PROCESSES_MOST] = {0};
    int alive = 0;
    double failed_s = 0.0;
    for (int i = 0; i < phase->count && failed_s == 0.0; i++) {
        pid[i] = start(phase, of, i);
        if (pid[i] < 0) {
            perror("fork");
            failed_s = now_s();
        }
        alive += pid[i] > 0;
    }
    while (alive > 0) {
        int ended = reap(pid, phase->count);
        alive -= ended != 0;
        if (ended < 0 && failed_s == 0.0)
            failed_s = now_s();
        if (ended)
            continue;
        if (failed_s == 0.0 && phase->attend && phase->attend(of, now_s() - begin_s, false))
            failed_s = now_s();
        fflush(stdout);
        usleep(100000);
        if (failed_s != 0.0 && now_s() - failed_s > GRACE_S)
            end_all(pid, phase->count, now_s() - failed_s > 2 * GRACE_S ? SIGKILL : SIGTERM);
    }
    if (failed_s == 0.0 && phase->attend && phase->attend(of, now_s() - begin_s, true))
        failed_s = now_s();
    if (phase->attend && isatty(STDOUT_FILENO) == 1)
        putchar('\n');
    return failed_s != 0.0 ? -1 : 0;
}
