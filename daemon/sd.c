/* sd.c - the service manager: readiness, and sockets that it opened for us */
#include "sd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "escape.h"

#define GWD_SD_FIRST_FD 3

/* ---- notification ------------------------------------------------------------------------------- */

/* A path, or an abstract name written with @ for its leading 0. */
static int fill_address(const char *path, struct sockaddr_un *address, socklen_t *bytes_out) {
    size_t bytes = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || bytes < 2)
        return -EINVAL;
    if (bytes >= sizeof(address->sun_path))
        return -ENAMETOOLONG;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, bytes);
    if (path[0] == '@')
        address->sun_path[0] = '\0';
    *bytes_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    return 0;
}

/* Sends one state, such as "READY=1", with a line of status for people behind it (NULL: none). */
static int notify(const char *state, const char *status) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address;
    socklen_t address_bytes;
    char line[256];
    char message[512];
    if (path == NULL || path[0] == '\0')
        return 0;
    int result = fill_address(path, &address, &address_bytes);
    if (result != 0)
        return result;
    int bytes = 0;
    if (status != NULL) {
        gw_escape(status, strlen(status), line, sizeof(line)); /* a newline would begin another field */
        bytes = snprintf(message, sizeof(message), "%s\nSTATUS=%s\n", state, line);
    } else {
        bytes = snprintf(message, sizeof(message), "%s\n", state);
    }
    if (bytes < 0 || (size_t)bytes >= sizeof(message))
        return -EMSGSIZE;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    ssize_t sent = sendto(fd, message, (size_t)bytes, MSG_NOSIGNAL, (const struct sockaddr *)&address, address_bytes);
    result = sent < 0 ? -errno : 0;
    close(fd);
    return result;
}

int gwd_sd_ready(const char *status) {
    return notify("READY=1", status);
}

int gwd_sd_reloading(void) {
    /* Type=notify-reload tells this reload from an earlier one by the time. */
    char state[64];
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return -errno;
    int64_t usec = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRId64, usec);
    return notify(state, NULL);
}

int gwd_sd_stopping(const char *status) {
    return notify("STOPPING=1", status);
}

/* ---- sockets ------------------------------------------------------------------------------------ */

static int parse_number(const char *text, long *value_out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0)
        return 0;
    *value_out = value;
    return 1;
}

/* The number of sockets that are meant for this process; a parent's leftovers are not. */
static long count_sockets(void) {
    const char *pid_text = getenv("LISTEN_PID");
    const char *fds_text = getenv("LISTEN_FDS");
    long pid = 0;
    long count = 0;
    if (pid_text == NULL || fds_text == NULL || !parse_number(pid_text, &pid) || pid != (long)getpid())
        return 0;
    return parse_number(fds_text, &count) ? count : 0;
}

static int get_option(int fd, int option) {
    int value = -1;
    socklen_t bytes = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &bytes) == 0 ? value : -1;
}

static int is_listening(int fd) {
    return get_option(fd, SO_DOMAIN) == AF_UNIX && get_option(fd, SO_TYPE) == SOCK_SEQPACKET &&
           get_option(fd, SO_ACCEPTCONN) == 1;
}

static gw_status_t take_socket(int fd, const char **names, gwd_sd_socket_t *socket_out, char *error,
                               size_t error_bytes) {
    size_t name_bytes = strcspn(*names, ":");
    snprintf(socket_out->name, sizeof(socket_out->name), "%.*s", (int)(name_bytes < 63 ? name_bytes : 63), *names);
    *names += name_bytes + ((*names)[name_bytes] == ':');
    int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0) {
        snprintf(error, error_bytes, "descriptor %d ('%s') of the service manager: %s", fd, socket_out->name,
                 strerror(errno));
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (!is_listening(fd)) {
        snprintf(error, error_bytes,
                 "descriptor %d ('%s') of the service manager is not a listening SOCK_SEQPACKET Unix socket: "
                 "use ListenSequentialPacket= and Accept=no in its unit",
                 fd, socket_out->name);
        return GW_ERR_INVALID_ARGUMENT;
    }
    socket_out->fd = fd;
    return GW_OK;
}

gw_status_t gwd_sd_listen_fds(gwd_sd_socket_t sockets_out[GWD_SD_SOCKETS], size_t *count_out, char *error,
                              size_t error_bytes) {
    gw_status_t status = GW_OK;
    long count = count_sockets();
    const char *variable = getenv("LISTEN_FDNAMES");
    const char *names = variable != NULL ? variable : "";
    if (count > GWD_SD_SOCKETS) {
        snprintf(error, error_bytes, "the service manager passes %ld sockets, more than the %d that are possible",
                 count, GWD_SD_SOCKETS);
        status = GW_ERR_INVALID_ARGUMENT;
    }
    for (long i = 0; i < count && status == GW_OK; i++)
        status = take_socket(GWD_SD_FIRST_FD + (int)i, &names, &sockets_out[i], error, error_bytes);
    for (long i = 0; i < count && status != GW_OK; i++)
        close(GWD_SD_FIRST_FD + (int)i);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (status == GW_OK)
        *count_out = (size_t)count;
    return status;
}
