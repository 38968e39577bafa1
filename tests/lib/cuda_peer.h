/* cuda_peer.h - tests of the simulated CUDA driver with a second process
 *
 * The peers are the test's own program again, started with a role: a fork of a process that uses the driver cannot use
 * it. They find a socket as descriptor 3.
 */
#ifndef CUDA_PEER_H
#define CUDA_PEER_H

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_test.h"

enum { PEER_CHANNEL = 3, PEER_USER = 65534, PEER_DIES_S = 60 };

typedef struct {
    const char *name;
    int (*play)(void);           /* 0 when all went well */
    const char *setting, *value; /* of its environment */
} peer_role_t;

/* Another user where the tests run as root. */
static inline int peer_play(const peer_role_t *roles, const char *name) {
    CUcontext context;

    alarm(PEER_DIES_S);
    if (geteuid() == 0 && setuid(PEER_USER) != 0)
        return 1;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 1;
    for (; roles->name; roles++)
        if (strcmp(roles->name, name) == 0)
            return roles->play();
    return 1;
}

static inline pid_t peer_start(const peer_role_t *role, int *channel_out) {
    int channels[2];
    pid_t process;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channels), 0);
    process = fork();
    CU_ASSERT_FATAL(process >= 0);
    if (process == 0) {
        if ((channels[1] == PEER_CHANNEL ? 0 : dup2(channels[1], PEER_CHANNEL)) >= 0 &&
            (!role->setting || setenv(role->setting, role->value, 1) == 0))
            execl("/proc/self/exe", "peer", role->name, (char *)NULL);
        _exit(127);
    }
    close(channels[1]);
    *channel_out = channels[0];
    return process;
}

static inline void peer_expect(pid_t process, int channel, int status) {
    int got = -1;

    close(channel);
    CU_ASSERT_EQUAL(waitpid(process, &got, 0), process);
    CU_ASSERT_EQUAL(got, status);
}

/* The main() of such a test: what processes share lies in a folder of its own, in which nothing may stay. */
static inline int peer_test_run(const char *name, CU_TestInfo *tests, const peer_role_t *roles, int argc, char **argv) {
    char folder[] = "/dev/shm/gradwire-test-XXXXXX", path[64];
    int status;

    if (argc > 1)
        return peer_play(roles, argv[1]);
    if (!mkdtemp(folder) || chmod(folder, 01777) != 0 || setenv("FAKE_CUDA_DIR", folder, 1) != 0) {
        perror(folder);
        return 1;
    }
    status = cuda_test_run(name, tests);
    snprintf(path, sizeof(path), "%s/memory", folder);
    unlink(path);
    return rmdir(folder) != 0 || status != 0;
}

#endif
