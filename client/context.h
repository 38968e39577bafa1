/* context.h - a connection, and the requests on it
 *
 * A context is one session of the daemon. Requests are synchronous for the thread that makes them, but
 * several threads may have one under way each: joining a group waits for the other ranks, and they may be
 * threads of this process. Replies are told apart by the request number. No thread of the library's own
 * serves them: of the threads that wait, one reads the socket and hands the others their replies.
 */
#ifndef GW_CONTEXT_H
#define GW_CONTEXT_H

#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "frame.h"
#include "gradwire.h"
#include "watchdog.h"

/* One request under way; lives on the stack of the thread that makes it. */
typedef struct gw_call {
    gw_context_t *context;
    struct gw_call *next; /* in context->waiting */
    uint32_t request;
    unsigned sent;      /* messages that the daemon has got */
    gw_status_t status; /* of sending */
    enum { GW_CALL_WAITING, GW_CALL_ANSWERED, GW_CALL_NO_FDS } state;
    uint8_t *storage; /* GW_PACKET_MAX bytes; `reply` points into it */
    gw_frame_t reply;
} gw_call_t;

struct gw_context {
    int socket;
    pid_t pid; /* who connected: a forked child has another */
    uint32_t max_ranks;
    uint64_t max_buffer_bytes;
    uint64_t stream_bytes; /* up to this size a device's buckets go by the stream */

    pthread_mutex_t send_lock; /* held from the first to the last message of a request */
    uint8_t *packed;           /* GW_BODY_MAX bytes to pack a message into */
    uint32_t last_request;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    gw_call_t *waiting;
    bool reading;       /* a thread is in gw_frame_recv */
    gw_status_t broken; /* why the session is at its end; GW_OK while it works */
    char broken_text[256];

    pthread_mutex_t objects_lock; /* of what follows; taken before a group's lock */
    gw_group_t *groups;
    gw_buffer_t **buffers; /* in order of address */
    size_t n_buffers, buffers_room;

    gw_watchdog_t watchdog;
};

/* GW_OK if the calling process may use the context; GW_ERR_FORKED in a child. */
gw_status_t gw_context_check(const gw_context_t *context);
bool gw_context_is_forked(const gw_context_t *context);

/* Whether the session is at its end. Objects are then gone on the daemon's side. */
bool gw_context_is_broken(gw_context_t *context);

/* A request is: open, send one or more messages, reply, close. gw_call_open gives failures of fork and
 * memory; then nothing else may be called. What goes wrong while sending is told by gw_call_reply. */
gw_status_t gw_call_open(gw_context_t *context, gw_call_t *call);
void gw_call_send(gw_call_t *call, enum gw_message_type type, const ProtobufCMessage *message, const int *fds,
                  unsigned n_fds);

/* Waits for the reply, which must be of the type wanted. A refusal by the daemon becomes its status and
 * its text. With GW_CALL_NO_FDS as state, the reply's body can be read although GW_ERR_FD_LIMIT is returned.
 * Fds of the reply that the caller wants to keep it takes by setting them to -1. */
gw_status_t gw_call_reply(gw_call_t *call, enum gw_message_type wanted);
void gw_call_close(gw_call_t *call);

/* The daemon's own words where it refused, else "". After gw_call_reply. */
void gw_call_refusal(const gw_call_t *call, char *text, size_t text_bytes);

/* The whole of a request of one message whose answer is Done. */
gw_status_t gw_call_do(gw_context_t *context, enum gw_message_type type, const ProtobufCMessage *message);

#endif
