/* test_sd.c - what the service manager hears, and which sockets are taken from it */
#include "cunit_main.h"
#include "sd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- notification ------------------------------------------------------------------------------- */

/* A socket as the service manager's, at a path or, with @, an abstract name. */
static int open_manager(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CU_ASSERT_FATAL(fd >= 0);
    memcpy(address.sun_path, name, strlen(name));
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    CU_ASSERT_EQUAL_FATAL(bind(fd, (const struct sockaddr *)&address, bytes), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static const char *receive(int fd) {
    static char text[1024];
    ssize_t bytes = recv(fd, text, sizeof(text) - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    return text;
}

static void check_notifications(const char *name) {
    int fd = open_manager(name);
    CU_ASSERT_EQUAL(gwd_sd_ready("serving"), 0);
    CU_ASSERT_STRING_EQUAL(receive(fd), "READY=1\nSTATUS=serving\n");
    CU_ASSERT_EQUAL(gwd_sd_stopping(NULL), 0);
    CU_ASSERT_STRING_EQUAL(receive(fd), "STOPPING=1\n");
    CU_ASSERT_EQUAL(gwd_sd_ready("a\nMAINPID=1"), 0);
    CU_ASSERT_STRING_EQUAL(receive(fd), "READY=1\nSTATUS=a\\x0aMAINPID=1\n");

    struct timespec before, after;
    long long usec = 0;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CU_ASSERT_EQUAL(gwd_sd_reloading(), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    CU_ASSERT_EQUAL(sscanf(receive(fd), "RELOADING=1\nMONOTONIC_USEC=%lld\n", &usec), 1);
    CU_ASSERT(usec >= before.tv_sec * 1000000LL + before.tv_nsec / 1000);
    CU_ASSERT(usec <= after.tv_sec * 1000000LL + after.tv_nsec / 1000);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

static void a_socket_with_a_path_is_told(void) {
    char path[64];
    snprintf(path, sizeof(path), "/tmp/gradwire-sd-%d", (int)getpid());
    check_notifications(path);
    unlink(path);
}

static void an_abstract_socket_is_told(void) {
    char name[64];
    snprintf(name, sizeof(name), "@gradwire-sd-%d", (int)getpid());
    check_notifications(name);
}

static void without_a_manager_nothing_happens(void) {
    char long_path[200];
    memset(long_path, 'x', sizeof(long_path));
    long_path[0] = '/';
    long_path[sizeof(long_path) - 1] = '\0';
    unsetenv("NOTIFY_SOCKET");
    CU_ASSERT_EQUAL(gwd_sd_ready("serving"), 0);
    setenv("NOTIFY_SOCKET", "", 1);
    CU_ASSERT_EQUAL(gwd_sd_ready("serving"), 0);
    setenv("NOTIFY_SOCKET", "relative", 1);
    CU_ASSERT_EQUAL(gwd_sd_ready("serving"), -EINVAL);
    setenv("NOTIFY_SOCKET", long_path, 1);
    CU_ASSERT_EQUAL(gwd_sd_ready("serving"), -ENAMETOOLONG);
    setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
    CU_ASSERT_EQUAL(gwd_sd_ready("serving"), -ENOENT);
    unsetenv("NOTIFY_SOCKET");
}

/* ---- sockets ------------------------------------------------------------------------------------ */

static int open_listener(int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(sa_family_t)) != 0 ||
        (type != SOCK_DGRAM && listen(fd, 1) != 0))
        _exit(90);
    return fd;
}

/* Runs `body` in a child whose descriptors from 3 on are listeners of these types; 0: none. Its result counts. */
static void check_child(const int *types, int count, int (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        char text[32];
        int listeners[16];
        for (int i = 0; i < count; i++)
            listeners[i] = fcntl(open_listener(types[i]), F_DUPFD, 100);
        for (int i = 0; i < count; i++) {
            if (dup2(listeners[i], 3 + i) != 3 + i)
                _exit(91);
        }
        snprintf(text, sizeof(text), "%d", count);
        setenv("LISTEN_FDS", text, 1);
        snprintf(text, sizeof(text), "%d", (int)getpid());
        setenv("LISTEN_PID", text, 1);
        _exit(body());
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
}

static gwd_sd_socket_t sockets[GWD_SD_SOCKETS];
static size_t count_taken;
static char error[512];

static gw_status_t take(void) {
    count_taken = 99;
    return gwd_sd_listen_fds(sockets, &count_taken, error, sizeof(error));
}

static int body_named(void) {
    setenv("LISTEN_FDNAMES", "client:admin", 1);
    if (take() != GW_OK || count_taken != 2)
        return 1;
    if (sockets[0].fd != 3 || strcmp(sockets[0].name, "client") != 0 || sockets[1].fd != 4 ||
        strcmp(sockets[1].name, "admin") != 0)
        return 2;
    if ((fcntl(3, F_GETFD) & FD_CLOEXEC) == 0 || (fcntl(4, F_GETFD) & FD_CLOEXEC) == 0)
        return 3;
    if (getenv("LISTEN_FDS") != NULL || getenv("LISTEN_PID") != NULL || getenv("LISTEN_FDNAMES") != NULL)
        return 4;
    return take() == GW_OK && count_taken == 0 ? 0 : 5;
}

static int body_without_names(void) {
    unsetenv("LISTEN_FDNAMES");
    return take() == GW_OK && count_taken == 2 && sockets[0].name[0] == '\0' && sockets[1].name[0] == '\0' ? 0 : 1;
}

static int body_other_pid(void) {
    setenv("LISTEN_PID", "1", 1);
    return take() == GW_OK && count_taken == 0 && fcntl(3, F_GETFD) >= 0 ? 0 : 1;
}

static int body_wrong_type(void) {
    setenv("LISTEN_FDNAMES", "client:admin", 1);
    if (take() != GW_ERR_INVALID_ARGUMENT || count_taken != 99)
        return 1;
    if (strstr(error, "descriptor 4 ('admin')") == NULL || strstr(error, "ListenSequentialPacket=") == NULL)
        return 2;
    return fcntl(3, F_GETFD) < 0 && fcntl(4, F_GETFD) < 0 ? 0 : 3;
}

static int body_closed(void) {
    setenv("LISTEN_FDS", "2", 1);
    return take() == GW_ERR_INVALID_ARGUMENT && strstr(error, "descriptor 4") != NULL ? 0 : 1;
}

static int body_too_many(void) {
    return take() == GW_ERR_INVALID_ARGUMENT && strstr(error, "passes 9 sockets") != NULL ? 0 : 1;
}

static int body_garbage(void) {
    setenv("LISTEN_FDS", "2x", 1);
    if (take() != GW_OK || count_taken != 0)
        return 1;
    setenv("LISTEN_PID", "", 1);
    setenv("LISTEN_FDS", "-1", 1);
    return take() == GW_OK && count_taken == 0 ? 0 : 2;
}

static const int nine[] = {SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_SEQPACKET,
                           SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_SEQPACKET, SOCK_SEQPACKET};
static const int stream_second[] = {SOCK_SEQPACKET, SOCK_STREAM};
static const int datagram_second[] = {SOCK_SEQPACKET, SOCK_DGRAM};

static void sockets_are_taken_by_name(void) {
    check_child(nine, 2, body_named);
}
static void names_may_be_missing(void) {
    check_child(nine, 2, body_without_names);
}
static void sockets_of_another_process_are_left(void) {
    check_child(nine, 1, body_other_pid);
}
static void too_many_sockets_are_refused(void) {
    check_child(nine, 9, body_too_many);
}
static void garbage_counts_as_none(void) {
    check_child(nine, 1, body_garbage);
}

static void sockets_of_another_kind_are_refused(void) {
    check_child(stream_second, 2, body_wrong_type);
    check_child(datagram_second, 2, body_wrong_type);
}

static void a_descriptor_that_is_not_open_is_refused(void) {
    check_child(nine, 1, body_closed);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a socket with a path is told", a_socket_with_a_path_is_told},
        {"an abstract socket is told", an_abstract_socket_is_told},
        {"without a manager nothing happens", without_a_manager_nothing_happens},
        {"sockets are taken by name", sockets_are_taken_by_name},
        {"names may be missing", names_may_be_missing},
        {"sockets of another process are left", sockets_of_another_process_are_left},
        {"sockets of another kind are refused", sockets_of_another_kind_are_refused},
        {"a descriptor that is not open is refused", a_descriptor_that_is_not_open_is_refused},
        {"too many sockets are refused", too_many_sockets_are_refused},
        {"garbage counts as none", garbage_counts_as_none},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("sd", tests);
}
