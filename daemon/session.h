/* session.h - one connection of a client or an operator
 *
 * A session reads packets from its socket, hands them to the handlers, and sends replies in order. While
 * replies cannot be sent because the peer does not read, nothing more is read from it either, so a slow
 * reader holds up only itself. A session ends when its socket closes, its process ends (pidfd), it breaks
 * the protocol, or an operator kicks it; what it had is then taken back, and it is freed when the last
 * lane and helper have let go.
 */
#ifndef GWD_SESSION_H
#define GWD_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "buffer.h"
#include "frame.h"
#include "quota.h"
#include "table.h"

struct gwd_server;
struct gwd_incoming_bucket;

typedef enum gwd_role { GWD_ROLE_CLIENT = 1, GWD_ROLE_ADMIN = 2 } gwd_role_t; /* bits */

/* A reply that the socket had no room for. */
typedef struct gwd_reply {
    struct gwd_reply *next;
    uint16_t type;
    uint32_t request;
    size_t body_bytes;
    unsigned n_fds;
    int fds[2];
    uint8_t body[];
} gwd_reply_t;

typedef struct gwd_session {
    struct gwd_session *next;
    struct gwd_server *server;
    uint64_t id; /* never used twice */
    gwd_role_t role;
    int fd, pidfd;
    pid_t pid;
    uid_t uid;
    gwd_user_t *user;
    char name[64];
    uint64_t connected_ns;
    bool greeted; /* Hello was answered */
    bool closing;
    uv_poll_t poll, pid_poll;
    uv_timer_t hello_timer;
    unsigned open_handles; /* of libuv */
    gwd_reply_t *replies, **replies_end;
    uint32_t refused_request; /* later parts of it are dropped without an answer each */
    gwd_buffer_t *incoming_buffer;
    struct gwd_incoming_bucket *incoming_bucket;
    gwd_table_t buffers; /* gwd_buffer_t */
    gwd_table_t members; /* gwd_member_t */
    uint32_t n_buffers;  /* in any state */
    uint32_t n_members;
} gwd_session_t;

/* Takes an accepted socket over. On an error the socket is closed, after telling the peer why. */
void gwd_session_open(struct gwd_server *server, int fd, gwd_role_t role);

/* Ends the session. `status` is what the other ranks of its groups hear. */
void gwd_session_close(gwd_session_t *session, gw_status_t status, const char *why);

/* Frees a closing session when nothing of it is left; called whenever something has gone. */
void gwd_session_settle(gwd_session_t *session);

gwd_session_t *gwd_session_find(const struct gwd_server *server, uint64_t id);

/* Sends a reply, or keeps it until the socket has room. `fds` are closed in every case. */
void gwd_session_send(gwd_session_t *session, uint16_t type, uint32_t request, const uint8_t *body, size_t body_bytes,
                      const int *fds, unsigned n_fds);

/* The replies that many handlers need. */
void gwd_session_done(gwd_session_t *session, uint32_t request);
void gwd_session_reply_handle(gwd_session_t *session, uint32_t request, uint16_t type, uint32_t handle);
void gwd_session_error(gwd_session_t *session, uint32_t request, gw_status_t status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Answers with an error that cannot be answered any further, and disconnects. */
void gwd_session_fatal(gwd_session_t *session, uint32_t request, gw_status_t status, const char *why);

#endif
