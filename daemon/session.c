/* session.c - see session.h */
#include "session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "handlers.h"
#include "lane.h"
#include "log.h"
#include "server.h"

enum { PACKETS_AT_ONCE = 16 }; /* from one session, before others have their turn */

static void on_socket(uv_poll_t *poll, int status, int events);

gwd_session_t *gwd_session_find(const struct gwd_server *server, uint64_t id) {
    gwd_session_t *session = server->sessions;

    while (session && session->id != id)
        session = session->next;
    return session;
}

/* ---- replies ------------------------------------------------------------------------------------ */

static void close_fds(const int *fds, unsigned n_fds) {
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
}

/* Reads while there is nothing to write, and writes while there is. */
static void watch(gwd_session_t *session) {
    int events = session->replies ? UV_WRITABLE : UV_READABLE;

    if (session->closing)
        return;
    if (uv_poll_start(&session->poll, events | UV_DISCONNECT, on_socket) != 0)
        gwd_session_close(session, GW_ERR_RANK_DIED, "its socket cannot be polled");
}

static void keep_reply(gwd_session_t *session, uint16_t type, uint32_t request, const uint8_t *body, size_t body_bytes,
                       const int *fds, unsigned n_fds) {
    gwd_reply_t *reply = malloc(sizeof(*reply) + body_bytes);

    if (!reply) {
        close_fds(fds, n_fds);
        gwd_session_close(session, GW_ERR_RANK_DIED, "out of memory for its replies");
        return;
    }
    *reply = (gwd_reply_t){NULL, type, request, body_bytes, n_fds, {-1, -1}};
    if (body_bytes)
        memcpy(reply->body, body, body_bytes);
    for (unsigned i = 0; i < n_fds; i++)
        reply->fds[i] = fds[i];
    *session->replies_end = reply;
    session->replies_end = &reply->next;
    watch(session);
}

void gwd_session_send(gwd_session_t *session, uint16_t type, uint32_t request, const uint8_t *body, size_t body_bytes,
                      const int *fds, unsigned n_fds) {
    gw_frame_result_t result = GW_FRAME_AGAIN;

    if (session->closing) {
        close_fds(fds, n_fds);
        return;
    }
    if (!session->replies)
        result = gw_frame_send(session->fd, type, request, body, body_bytes, fds, n_fds);
    if (result == GW_FRAME_AGAIN) {
        keep_reply(session, type, request, body, body_bytes, fds, n_fds);
        return;
    }
    close_fds(fds, n_fds);
    if (result != GW_FRAME_OK)
        gwd_session_close(session, GW_ERR_RANK_DIED, "its socket is closed");
}

static void flush_replies(gwd_session_t *session) {
    while (session->replies) {
        gwd_reply_t *reply = session->replies;
        gw_frame_result_t result = gw_frame_send(session->fd, reply->type, reply->request, reply->body,
                                                 reply->body_bytes, reply->fds, reply->n_fds);

        if (result == GW_FRAME_AGAIN)
            return;
        session->replies = reply->next;
        if (!session->replies)
            session->replies_end = &session->replies;
        close_fds(reply->fds, reply->n_fds);
        free(reply);
        if (result != GW_FRAME_OK) {
            gwd_session_close(session, GW_ERR_RANK_DIED, "its socket is closed");
            return;
        }
    }
    watch(session);
}

void gwd_session_done(gwd_session_t *session, uint32_t request) {
    gwd_session_send(session, GW_MSG_DONE, request, NULL, 0, NULL, 0);
}

void gwd_session_reply_handle(gwd_session_t *session, uint32_t request, uint16_t type, uint32_t handle) {
    Gw__BufferReady message = GW__BUFFER_READY__INIT; /* BucketReady has the same single field */
    uint8_t body[16];

    message.buffer = handle;
    gwd_session_send(session, type, request, body, gw__buffer_ready__pack(&message, body), NULL, 0);
}

static void send_error(gwd_session_t *session, uint32_t request, gw_status_t status, char *text) {
    Gw__Error message = GW__ERROR__INIT;
    uint8_t body[GWD_TEXT_BYTES + 32];

    message.status = (uint32_t)status;
    message.text = text;
    gwd_stats_add(&session->server->stats.requests_failed, 1);
    gwd_log(GWD_LOG_INFO, "session", "session %llu (%s, uid %u, pid %d): %s: %s", (unsigned long long)session->id,
            session->name, (unsigned)session->uid, (int)session->pid, gw_status_name(status), text);
    gwd_session_send(session, GW_MSG_ERROR, request, body, gw__error__pack(&message, body), NULL, 0);
}

void gwd_session_error(gwd_session_t *session, uint32_t request, gw_status_t status, const char *format, ...) {
    char text[GWD_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    session->refused_request = request;
    send_error(session, request, status, text);
}

void gwd_session_fatal(gwd_session_t *session, uint32_t request, gw_status_t status, const char *why) {
    gwd_session_error(session, request, status, "%s", why);
    gwd_session_close(session, status == GW_ERR_PROTOCOL ? GW_ERR_PROTOCOL_RANK : GW_ERR_RANK_DIED, why);
}

/* ---- end ---------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle) {
    gwd_session_t *session = handle->data;

    session->open_handles--;
    gwd_session_settle(session);
}

static void leave_group(void *item, void *context) {
    gwd_member_leave(item, 0, context);
}

static void release_buffer(void *item, void *context) {
    (void)context;
    gwd_buffer_release(item, 0);
}

void gwd_session_close(gwd_session_t *session, gw_status_t status, const char *why) {
    gwd_leave_reason_t reason = {status, why};

    if (session->closing)
        return;
    session->closing = true;
    gwd_log(GWD_LOG_INFO, "session", "session %llu (%s, uid %u, pid %d) ends: %s", (unsigned long long)session->id,
            session->name, (unsigned)session->uid, (int)session->pid, why);
    (void)shutdown(session->fd, SHUT_RDWR); /* the peer hears of it now; the fd stays until all has gone */
    uv_close((uv_handle_t *)&session->poll, on_handle_closed);
    uv_close((uv_handle_t *)&session->hello_timer, on_handle_closed);
    if (session->pidfd >= 0)
        uv_close((uv_handle_t *)&session->pid_poll, on_handle_closed);
    if (session->incoming_buffer)
        gwd_buffer_discard(session->incoming_buffer);
    session->incoming_buffer = NULL;
    gwd_handlers_drop_incoming_bucket(session);
    gwd_table_each(&session->members, leave_group, &reason);
    gwd_table_each(&session->buffers, release_buffer, NULL);
}

static void unlink_session(gwd_session_t *session) {
    gwd_session_t **at = &session->server->sessions;

    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    session->server->n_sessions--;
}

void gwd_session_settle(gwd_session_t *session) {
    gwd_server_t *server = session->server;

    if (!session->closing || session->open_handles || session->n_members || session->n_buffers)
        return;
    while (session->replies) {
        gwd_reply_t *reply = session->replies;

        session->replies = reply->next;
        close_fds(reply->fds, reply->n_fds);
        free(reply);
    }
    unlink_session(session);
    close(session->fd);
    if (session->pidfd >= 0)
        close(session->pidfd);
    gwd_table_fini(&session->buffers);
    gwd_table_fini(&session->members);
    gwd_quota_refund(session->user, GWD_QUOTA_FDS, 2);
    gwd_quota_refund(session->user, GWD_QUOTA_CLIENTS, 1);
    gwd_quota_put(&server->quota, session->user);
    free(session);
    gwd_server_settle(server);
}

/* ---- reading ------------------------------------------------------------------------------------ */

/* One that has left its groups first ends in good order. */
static void close_gone(gwd_session_t *session) {
    gwd_session_close(session, GW_ERR_RANK_DIED, session->n_members ? "died or disconnected" : "disconnected");
}

/* Returns whether to read on. */
static bool read_packet(gwd_session_t *session) {
    gw_frame_t frame;
    const char *why = "";
    gw_frame_result_t result = gw_frame_recv(session->fd, session->server->packet, &frame, &why);

    switch (result) {
    case GW_FRAME_OK:
        gwd_stats_add(&session->server->stats.messages_received, 1);
        gwd_handlers_dispatch(session, &frame);
        gw_frame_close_fds(&frame);
        return !session->closing && !session->replies;
    case GW_FRAME_NO_FDS:
        gwd_handlers_no_fds(session, &frame);
        return !session->closing && !session->replies;
    case GW_FRAME_AGAIN:
        return false;
    case GW_FRAME_MALFORMED:
        gwd_stats_add(&session->server->stats.messages_malformed, 1);
        gwd_session_fatal(session, 0, GW_ERR_PROTOCOL, why);
        return false;
    case GW_FRAME_CLOSED:
    case GW_FRAME_TOO_BIG:
    case GW_FRAME_SYSTEM:
        break;
    }
    close_gone(session);
    return false;
}

static void on_socket(uv_poll_t *poll, int status, int events) {
    gwd_session_t *session = poll->data;
    int n = 0;

    if (status < 0 || (events & UV_DISCONNECT && !(events & UV_READABLE) && session->replies)) {
        close_gone(session);
        return;
    }
    if (events & UV_WRITABLE)
        flush_replies(session);
    if (session->closing || session->replies)
        return;
    while (n++ < PACKETS_AT_ONCE && read_packet(session))
        ;
}

static void on_process_end(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    gwd_session_close(poll->data, GW_ERR_RANK_DIED, "died");
}

static void on_hello_late(uv_timer_t *timer) {
    gwd_session_fatal(timer->data, 0, GW_ERR_TIMEOUT, "no Hello came in time (deadline.hello_ms)");
}

/* ---- start -------------------------------------------------------------------------------------- */

static void refuse(gwd_server_t *server, int fd, gw_status_t status, const char *why) {
    Gw__Error message = GW__ERROR__INIT;
    uint8_t body[GWD_TEXT_BYTES + 32];
    char text[GWD_TEXT_BYTES];

    snprintf(text, sizeof(text), "%s", why);
    message.status = (uint32_t)status;
    message.text = text;
    gwd_stats_add(&server->stats.sessions_refused, 1);
    gwd_log(GWD_LOG_WARNING, "session", "a client is refused: %s", why);
    /* It is told if it can be; it is disconnected anyway. */
    (void)gw_frame_send(fd, GW_MSG_ERROR, 0, body, gw__error__pack(&message, body), NULL, 0);
    close(fd);
}

/* Limits are for clients: an operator must come in above all when clients have used them up. */
static gw_status_t admit(gwd_server_t *server, gwd_role_t role, uid_t uid, gwd_user_t **user_out, char *text,
                         size_t text_bytes) {
    gwd_user_t *user;
    gw_status_t status;

    if (role == GWD_ROLE_CLIENT && server->n_sessions >= (uint64_t)server->config.limits_clients) {
        snprintf(text, text_bytes, "as many clients are connected as limits.clients (%lld) allows",
                 (long long)server->config.limits_clients);
        return GW_ERR_QUOTA;
    }
    user = gwd_quota_get(&server->quota, uid);
    if (!user) {
        snprintf(text, text_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    if (role == GWD_ROLE_ADMIN) {
        user->used[GWD_QUOTA_CLIENTS] += 1;
        user->used[GWD_QUOTA_FDS] += 2;
        *user_out = user;
        return GW_OK;
    }
    status = gwd_quota_charge(&server->quota, user, GWD_QUOTA_CLIENTS, 1, text, text_bytes);
    if (status != GW_OK)
        goto err_user;
    status = gwd_quota_charge(&server->quota, user, GWD_QUOTA_FDS, 2, text, text_bytes);
    if (status != GW_OK)
        goto err_client;
    *user_out = user;
    return GW_OK;

err_client:
    gwd_quota_refund(user, GWD_QUOTA_CLIENTS, 1);
err_user:
    gwd_quota_put(&server->quota, user);
    return status;
}

/* The process may outlive its socket (a forked child holds it) and the other way round: watch both. In a
 * container of another PID namespace the pid is 0, and the socket alone has to tell. */
static void watch_process(gwd_session_t *session) {
    session->pidfd = session->pid > 0 ? (int)syscall(SYS_pidfd_open, session->pid, 0) : -1;
    if (session->pidfd < 0)
        return;
    if (uv_poll_init(&session->server->loop, &session->pid_poll, session->pidfd) != 0) {
        close(session->pidfd);
        session->pidfd = -1;
        return;
    }
    session->pid_poll.data = session;
    session->open_handles++;
    if (uv_poll_start(&session->pid_poll, UV_READABLE, on_process_end) != 0)
        gwd_session_close(session, GW_ERR_RANK_DIED, "its process cannot be watched");
}

void gwd_session_open(struct gwd_server *server, int fd, gwd_role_t role) {
    struct ucred cred;
    socklen_t cred_bytes = sizeof(cred);
    char text[GWD_TEXT_BYTES];
    gwd_user_t *user;
    gwd_session_t *session;
    gw_status_t status;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) != 0) {
        refuse(server, fd, GW_ERR_SYSTEM, "SO_PEERCRED failed");
        return;
    }
    status = admit(server, role, cred.uid, &user, text, sizeof(text));
    if (status != GW_OK) {
        refuse(server, fd, status, text);
        return;
    }
    session = calloc(1, sizeof(*session));
    if (!session || uv_poll_init(&server->loop, &session->poll, fd) != 0) {
        gwd_quota_refund(user, GWD_QUOTA_FDS, 2);
        gwd_quota_refund(user, GWD_QUOTA_CLIENTS, 1);
        gwd_quota_put(&server->quota, user);
        free(session);
        refuse(server, fd, GW_ERR_NO_MEMORY, "out of memory");
        return;
    }
    session->server = server;
    session->id = ++server->last_session_id;
    session->role = role;
    session->fd = fd;
    session->pidfd = -1;
    session->pid = cred.pid;
    session->uid = cred.uid;
    session->user = user;
    session->connected_ns = gwd_now_ns();
    session->replies_end = &session->replies;
    session->poll.data = session;
    session->hello_timer.data = session;
    session->open_handles = 2;
    session->next = server->sessions;
    server->sessions = session;
    server->n_sessions++;
    gwd_stats_add(&server->stats.sessions_accepted, 1);
    (void)uv_timer_init(&server->loop, &session->hello_timer); /* cannot fail */
    watch(session);
    if (!session->closing)
        (void)uv_timer_start(&session->hello_timer, on_hello_late, (uint64_t)server->config.deadline_hello_ms, 0);
    if (!session->closing)
        watch_process(session);
}
