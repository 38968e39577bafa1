/* run.c - see run.h
 *
 * A driver does not survive fork, so a program is always started afresh, even when it is gwctl again; and a driver that
 * hangs must not hang the operator's command, so everything has an end.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Starts it with the two pipes as stdin and stdout. Returns 0 or an errno. */
static int start(const char *program, const char *const *argv, int in, int out, pid_t *pid_out) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    error = posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    if (error == 0) /* argv is const in all but name */
        error = posix_spawnp(pid_out, program, &actions, NULL, (char *const *)(void *)(size_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Reads until the other end is closed. False: not in time. */
static bool collect(int fd, long end_ms, char *output, size_t output_bytes) {
    size_t used = 0;
    char dropped[1024];
    for (;;) {
        long left_ms = end_ms - now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (left_ms <= 0)
            return false;
        if (poll(&ready, 1, (int)left_ms) <= 0)
            continue;
        bool room = used + 1 < output_bytes;
        ssize_t n = room ? read(fd, output + used, output_bytes - 1 - used) : read(fd, dropped, sizeof(dropped));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        if (room)
            used += (size_t)n;
        output[used] = '\0';
    }
}

/* Its end, or false when it does not come in time: a process can be stuck in a driver even when it is killed. */
static bool reap(pid_t pid, long end_ms, int *status_out) {
    const struct timespec pause = {.tv_nsec = 2000000};
    for (;;) {
        pid_t got = waitpid(pid, status_out, WNOHANG);
        if (got == pid)
            return true;
        if ((got < 0 && errno != EINTR) || now_ms() > end_ms)
            return false;
        nanosleep(&pause, NULL);
    }
}

static int judge(const char *program, int status, char *why, size_t why_bytes) {
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WTERMSIG(status) == SIGALRM)
        snprintf(why, why_bytes, "%s did not end in time", program);
    else
        snprintf(why, why_bytes, "%s was killed by signal %d (%s)", program, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    return -1;
}

int gwctl_run(const char *program, const char *const *argv, const char *input, int limit_s, char *output,
              size_t output_bytes, char *why, size_t why_bytes) {
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};
    int status = 0;
    int code = -1;
    pid_t pid;
    size_t input_bytes = strlen(input);
    long end_ms = now_ms() + 1000L * limit_s;
    output[0] = '\0';
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 ||
        write(in[1], input, input_bytes) != (ssize_t)input_bytes) {
        snprintf(why, why_bytes, "a pipe to %s: %s", argv[0], strerror(errno));
        goto out;
    }
    int error = start(program, argv, in[0], out[1], &pid);
    if (error != 0) {
        snprintf(why, why_bytes, "%s does not start: %s", argv[0], strerror(error));
        goto out;
    }
    close(in[1]);
    close(out[1]);
    in[1] = out[1] = -1;
    if (collect(out[0], end_ms, output, output_bytes) && reap(pid, end_ms, &status)) {
        code = judge(argv[0], status, why, why_bytes);
    } else {
        snprintf(why, why_bytes, "%s did not end within %d s", argv[0], limit_s);
        kill(pid, SIGKILL);
        reap(pid, now_ms() + 1000, &status);
    }
out:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0)
            close(in[i]);
        if (out[i] >= 0)
            close(out[i]);
    }
    return code;
}
