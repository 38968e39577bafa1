/* listen.c - the two sockets that clients and operators find the daemon by. See server.h
 *
 * Under systemd they are passed in. Otherwise they are made in one folder, which a lock keeps for one
 * daemon at a time; a socket file that nobody listens on any more is then known to be stale.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "sd.h"
#include "server.h"

enum { ACCEPTS_AT_ONCE = 16, BACKLOG = 512 };

/* ---- accepting ---------------------------------------------------------------------------------- */

static int open_reserve(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Out of descriptors: without this the client would wait in the backlog, and the loop would spin. */
static void refuse_one(gwd_server_t *server, int listener) {
    int fd;

    if (server->reserve_fd >= 0)
        close(server->reserve_fd);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        gwd_log(GWD_LOG_WARNING, "session", "a client is refused: no file descriptor is left; raise LimitNOFILE");
        gwd_stats_add(&server->stats.sessions_refused, 1);
        close(fd);
    }
    server->reserve_fd = open_reserve();
}

static void on_listener(uv_poll_t *poll, int status, int events) {
    gwd_listener_t *listener = poll->data;

    (void)events;
    if (status < 0)
        return;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            gwd_session_open(listener->server, fd, listener->role);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE)
            refuse_one(listener->server, listener->fd);
        return;
    }
}

static gw_status_t start_listener(gwd_server_t *server, gwd_listener_t *listener, gwd_role_t role, int fd, char *text,
                                  size_t text_bytes) {
    int flags = fcntl(fd, F_GETFL);

    listener->server = server;
    listener->role = role;
    listener->poll.data = listener;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        uv_poll_init(&server->loop, &listener->poll, fd) != 0) {
        snprintf(text, text_bytes, "a listening socket cannot be polled: %s", strerror(errno));
        close(fd);
        return GW_ERR_SYSTEM;
    }
    listener->fd = fd;
    if (uv_poll_start(&listener->poll, UV_READABLE, on_listener) != 0) {
        snprintf(text, text_bytes, "a listening socket cannot be polled: %s", strerror(errno));
        return GW_ERR_SYSTEM;
    }
    return GW_OK;
}

/* ---- the folder --------------------------------------------------------------------------------- */

static gw_status_t choose_folder(const gwd_config_t *config, char *dir, size_t dir_bytes, char *text,
                                 size_t text_bytes) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n;

    if (config->socket_dir[0])
        n = snprintf(dir, dir_bytes, "%s", config->socket_dir);
    else if (geteuid() == 0)
        n = snprintf(dir, dir_bytes, "/run/gradwire");
    else if (runtime && runtime[0] == '/')
        n = snprintf(dir, dir_bytes, "%s/gradwire", runtime);
    else
        n = snprintf(dir, dir_bytes, "/tmp/gradwire-%u", (unsigned)geteuid());
    if (n < 0 || (size_t)n >= dir_bytes) {
        snprintf(text, text_bytes, "the socket folder's path is longer than %zu bytes; set socket.dir", dir_bytes - 1);
        return GW_ERR_INVALID_ARGUMENT;
    }
    return GW_OK;
}

/* Another user must not be able to swap the folder or its sockets: it is ours, or root's, and no link. */
static gw_status_t make_folder(const char *dir, char *text, size_t text_bytes) {
    struct stat st;

    if (mkdir(dir, geteuid() == 0 ? 0755 : 0700) != 0 && errno != EEXIST) {
        snprintf(text, text_bytes, "mkdir %s: %s; set socket.dir (--socket-dir)", dir, strerror(errno));
        return GW_ERR_SYSTEM;
    }
    if (lstat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0)) {
        snprintf(text, text_bytes, "%s is not a folder of this user; remove it or set socket.dir (--socket-dir)", dir);
        return GW_ERR_PERMISSION;
    }
    return GW_OK;
}

static gw_status_t lock_folder(gwd_server_t *server, const char *dir, char *text, size_t text_bytes) {
    char path[128];

    snprintf(path, sizeof(path), "%s/lock", dir);
    server->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (server->lock_fd < 0) {
        snprintf(text, text_bytes, "open %s: %s", path, strerror(errno));
        return GW_ERR_SYSTEM;
    }
    if (flock(server->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        snprintf(text, text_bytes, "another gradwired serves %s; stop it, or give this one its own --socket-dir", dir);
        return GW_ERR_BUSY;
    }
    return GW_OK;
}

static gw_status_t own_socket(const char *path, int64_t mode, const char *group, const char *setting, char *text,
                              size_t text_bytes) {
    const struct group *entry = group[0] ? getgrnam(group) : NULL;

    if (group[0] && !entry) {
        snprintf(text, text_bytes, "there is no group '%s' to own %s; correct %s", group, path, setting);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (entry && chown(path, (uid_t)-1, entry->gr_gid) != 0) {
        snprintf(text, text_bytes, "chown %s to group %s: %s", path, group, strerror(errno));
        return GW_ERR_SYSTEM;
    }
    if (chmod(path, (mode_t)mode) != 0) {
        snprintf(text, text_bytes, "chmod %s: %s", path, strerror(errno));
        return GW_ERR_SYSTEM;
    }
    return GW_OK;
}

static gw_status_t open_socket(gwd_listener_t *listener, const char *dir, const char *name, int64_t mode,
                               const char *group, int *fd_out, char *text, size_t text_bytes) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    gw_status_t status = GW_ERR_SYSTEM;
    mode_t old_mask;
    int fd, bound;

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", dir, name);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        snprintf(text, text_bytes, "socket: %s", strerror(errno));
        return GW_ERR_SYSTEM;
    }
    if (unlink(address.sun_path) == 0) /* we hold the folder's lock: nobody listens there */
        gwd_log(GWD_LOG_NOTICE, "daemon", "removed the stale socket %s", address.sun_path);
    old_mask = umask(0177); /* nobody else connects before the mode is set */
    bound = bind(fd, (const struct sockaddr *)&address, sizeof(address));
    umask(old_mask);
    if (bound != 0) {
        snprintf(text, text_bytes, "bind %s: %s", address.sun_path, strerror(errno));
        goto err_fd;
    }
    status = own_socket(address.sun_path, mode, group,
                        strcmp(name, "admin.sock") == 0 ? "socket.admin_group" : "socket.group", text, text_bytes);
    if (status == GW_OK && listen(fd, BACKLOG) != 0) {
        snprintf(text, text_bytes, "listen %s: %s", address.sun_path, strerror(errno));
        status = GW_ERR_SYSTEM;
    }
    if (status != GW_OK)
        goto err_path;
    memcpy(listener->path, address.sun_path, sizeof(listener->path));
    *fd_out = fd;
    return GW_OK;

err_path:
    (void)unlink(address.sun_path);
err_fd:
    close(fd);
    return status;
}

static gw_status_t open_folder(gwd_server_t *server, char *text, size_t text_bytes) {
    const gwd_config_t *config = &server->config;
    char dir[sizeof(server->clients.path) - sizeof("/client.sock")];
    gw_status_t status;
    int fd;

    status = choose_folder(config, dir, sizeof(dir), text, text_bytes);
    if (status == GW_OK)
        status = make_folder(dir, text, text_bytes);
    if (status == GW_OK)
        status = lock_folder(server, dir, text, text_bytes);
    if (status == GW_OK)
        status = open_socket(&server->admins, dir, "admin.sock", config->socket_admin_mode, config->socket_admin_group,
                             &fd, text, text_bytes);
    if (status == GW_OK)
        status = start_listener(server, &server->admins, GWD_ROLE_ADMIN, fd, text, text_bytes);
    if (status == GW_OK)
        status = open_socket(&server->clients, dir, "client.sock", config->socket_client_mode, config->socket_group,
                             &fd, text, text_bytes);
    if (status == GW_OK)
        status = start_listener(server, &server->clients, GWD_ROLE_CLIENT, fd, text, text_bytes);
    return status;
}

/* ---- from the service manager ------------------------------------------------------------------- */

static gw_status_t take_passed(gwd_server_t *server, gwd_sd_socket_t *sockets, size_t n, char *text,
                               size_t text_bytes) {
    gw_status_t status = GW_OK;

    for (size_t i = 0; i < n && status == GW_OK; i++) {
        bool admin = strcmp(sockets[i].name, "admin") == 0;
        gwd_listener_t *listener = admin ? &server->admins : &server->clients;

        if (listener->fd >= 0) {
            snprintf(text, text_bytes, "two sockets named '%s' were passed in: FileDescriptorName= is client or admin",
                     sockets[i].name);
            return GW_ERR_INVALID_ARGUMENT;
        }
        status =
            start_listener(server, listener, admin ? GWD_ROLE_ADMIN : GWD_ROLE_CLIENT, sockets[i].fd, text, text_bytes);
        sockets[i].fd = -1;
    }
    return status;
}

gw_status_t gwd_listen_open(gwd_server_t *server, char *text, size_t text_bytes) {
    gwd_sd_socket_t sockets[GWD_SD_SOCKETS];
    gw_status_t status;
    size_t n;

    server->reserve_fd = open_reserve();
    status = gwd_sd_listen_fds(sockets, &n, text, text_bytes);
    if (status != GW_OK)
        return status;
    if (n == 0)
        return open_folder(server, text, text_bytes);
    status = take_passed(server, sockets, n, text, text_bytes);
    for (size_t i = 0; i < n; i++)
        if (sockets[i].fd >= 0)
            close(sockets[i].fd);
    return status;
}

static void close_listener(gwd_listener_t *listener) {
    if (listener->fd < 0)
        return;
    if (listener->path[0])
        (void)unlink(listener->path);
    uv_close((uv_handle_t *)&listener->poll, NULL);
    close(listener->fd);
    listener->fd = -1;
}

void gwd_listen_close(gwd_server_t *server) {
    close_listener(&server->clients);
    close_listener(&server->admins);
    if (server->reserve_fd >= 0)
        close(server->reserve_fd);
    server->reserve_fd = -1;
    if (server->lock_fd >= 0)
        close(server->lock_fd);
    server->lock_fd = -1;
}
