/* control.h - how a measured process is told what to do: lines over a socket of the benchmark that started it
 *
 * In C and in C++. rank.h and gpu_rank.cu say which lines there are.
 */
#ifndef BENCH_CONTROL_H
#define BENCH_CONTROL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct bench_control {
    FILE *in;
    FILE *out;
} bench_control_t;

static inline int64_t bench_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Connects to the benchmark. Returns 0, or -1 after saying why. */
static inline int bench_connect(const char *path, bench_control_t *control_out) {
    struct sockaddr_un address;
    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "bench: the control socket's path is too long: %s\n", path);
        return -1;
    }
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, strlen(path));
    int in = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (in < 0 || connect(in, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        return -1;
    }
    int out = dup(in);
    control_out->in = fdopen(in, "r");
    control_out->out = out < 0 ? NULL : fdopen(out, "w");
    if (control_out->in == NULL || control_out->out == NULL) {
        perror("bench: control socket");
        return -1;
    }
    return 0;
}

/* Makes the rank known to the benchmark. Returns 0, or -1 if that has gone. */
static inline int bench_hello(bench_control_t *control, unsigned rank, const char *text) {
    return fprintf(control->out, "hello %u %s\n", rank, text) < 0 || fflush(control->out) != 0 ? -1 : 0;
}

#endif
