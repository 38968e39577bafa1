/* call.c - requests and replies on the session socket; see context.h */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "context.h"
#include "error.h"
#include "gradwire.pb-c.h"

bool gw_context_is_forked(const gw_context_t *context) {
    return getpid() != context->pid;
}

gw_status_t gw_context_check(const gw_context_t *context) {
    if (context == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "context is NULL");
    if (gw_context_is_forked(context))
        return gw_fail(GW_ERR_FORKED, "process %ld connected, this is process %ld", (long)context->pid, (long)getpid());
    return GW_OK;
}

bool gw_context_is_broken(gw_context_t *context) {
    pthread_mutex_lock(&context->lock);
    bool broken = context->broken != GW_OK;
    pthread_mutex_unlock(&context->lock);
    return broken;
}

/* Ends the session; the first reason stays. context->lock is held. */
static void break_session(gw_context_t *context, gw_status_t status, const char *text) {
    if (context->broken != GW_OK)
        return;
    context->broken = status;
    snprintf(context->broken_text, sizeof(context->broken_text), "%s", text);
    shutdown(context->socket, SHUT_RDWR);
}

gw_status_t gw_call_open(gw_context_t *context, gw_call_t *call) {
    gw_status_t status = gw_context_check(context);
    if (status != GW_OK)
        return status;
    memset(call, 0, sizeof(*call));
    for (unsigned i = 0; i < GW_FDS_MAX; i++)
        call->reply.fds[i] = -1;
    call->context = context;
    call->storage = malloc(GW_PACKET_MAX);
    if (call->storage == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "%zu bytes for a reply", (size_t)GW_PACKET_MAX);

    pthread_mutex_lock(&context->send_lock);
    if (++context->last_request == 0) /* 0 is no request */
        ++context->last_request;
    call->request = context->last_request;
    pthread_mutex_lock(&context->lock);
    call->next = context->waiting;
    context->waiting = call;
    pthread_mutex_unlock(&context->lock);
    return GW_OK;
}

void gw_call_send(gw_call_t *call, enum gw_message_type type, const ProtobufCMessage *message, const int *fds,
                  unsigned n_fds) {
    gw_context_t *context = call->context;
    gw_frame_result_t result;

    if (call->status != GW_OK)
        return;
    if (protobuf_c_message_get_packed_size(message) > GW_BODY_MAX) {
        result = GW_FRAME_TOO_BIG;
    } else {
        size_t n_bytes = protobuf_c_message_pack(message, context->packed);
        result = gw_frame_send(context->socket, (uint16_t)type, call->request, context->packed, n_bytes, fds, n_fds);
    }
    switch (result) {
    case GW_FRAME_OK:
        call->sent++;
        break;
    case GW_FRAME_CLOSED: /* what was received before that may say why: gw_call_reply looks */
        break;
    case GW_FRAME_TOO_BIG:
        call->status = gw_fail(GW_ERR_INVALID_ARGUMENT, "the request is larger than %u bytes", GW_BODY_MAX);
        break;
    default:
        call->status = gw_fail_errno("sending to the daemon");
        break;
    }
}

static gw_call_t *find_waiting(gw_context_t *context, uint32_t request) {
    gw_call_t *call = context->waiting;
    while (call != NULL && call->request != request)
        call = call->next;
    return call;
}

/* Hands a packet, which `reader` has read into its storage, to the call that it answers. */
static void deliver(gw_call_t *reader, gw_frame_t *frame, bool has_fds) {
    gw_context_t *context = reader->context;
    gw_call_t *call = find_waiting(context, frame->header.request);

    if (call == NULL || call->state != GW_CALL_WAITING) { /* a second answer to one request: not for anyone */
        gw_frame_close_fds(frame);
        return;
    }
    if (call != reader) {
        uint8_t *storage = call->storage;
        call->storage = reader->storage;
        reader->storage = storage;
    }
    call->reply = *frame;
    call->state = has_fds ? GW_CALL_ANSWERED : GW_CALL_NO_FDS;
}

/* An error that belongs to no request is the daemon's last word. */
static void take_last_word(gw_context_t *context, const gw_frame_t *frame) {
    Gw__Error *error = gw__error__unpack(NULL, frame->header.body_bytes, frame->body);
    if (error == NULL) {
        break_session(context, GW_ERR_PROTOCOL, "the daemon sent an error that cannot be read");
        return;
    }
    break_session(context, (gw_status_t)error->status, error->text);
    gw__error__free_unpacked(error, NULL);
}

/* Reads one packet and does what it says. context->lock is held, and let go of while reading. */
static void read_packet(gw_call_t *reader) {
    gw_context_t *context = reader->context;
    const char *why = "";
    gw_frame_t frame;

    context->reading = true;
    pthread_mutex_unlock(&context->lock);
    gw_frame_result_t result = gw_frame_recv(context->socket, reader->storage, &frame, &why);
    if (result == GW_FRAME_CLOSED) /* ECONNRESET comes once, before what the daemon had still written */
        result = gw_frame_recv(context->socket, reader->storage, &frame, &why);
    int error = errno;
    pthread_mutex_lock(&context->lock);
    context->reading = false;

    switch (result) {
    case GW_FRAME_OK:
        if (frame.header.type == GW_MSG_ERROR && frame.header.request == 0)
            take_last_word(context, &frame);
        else
            deliver(reader, &frame, true);
        break;
    case GW_FRAME_NO_FDS:
        deliver(reader, &frame, false);
        break;
    case GW_FRAME_CLOSED:
        break_session(context, GW_ERR_DAEMON_GONE, "it closed the connection");
        break;
    case GW_FRAME_MALFORMED:
        if (frame.header.magic == GW_MAGIC && frame.header.major != GW_PROTO_MAJOR)
            break_session(context, GW_ERR_VERSION, why);
        else
            break_session(context, GW_ERR_PROTOCOL, why);
        break;
    default:
        break_session(context, GW_ERR_DAEMON_GONE, strerrordesc_np(error));
        break;
    }
    pthread_cond_broadcast(&context->changed);
}

/* What the daemon answered in place of the reply. */
static gw_status_t refusal(const gw_frame_t *frame) {
    Gw__Error *error = gw__error__unpack(NULL, frame->header.body_bytes, frame->body);
    if (error == NULL || error->status == GW_OK) {
        gw__error__free_unpacked(error, NULL);
        return gw_fail(GW_ERR_PROTOCOL, "the daemon sent an error that cannot be read");
    }
    gw_status_t status = gw_fail((gw_status_t)error->status, "%s", error->text);
    gw__error__free_unpacked(error, NULL);
    return status;
}

gw_status_t gw_call_reply(gw_call_t *call, enum gw_message_type wanted) {
    gw_context_t *context = call->context;

    pthread_mutex_unlock(&context->send_lock);
    pthread_mutex_lock(&context->lock);
    if (call->status != GW_OK && call->sent > 0) /* half a request cannot be taken back */
        break_session(context, call->status, "a request could not be sent whole");
    while (call->status == GW_OK && call->state == GW_CALL_WAITING && context->broken == GW_OK) {
        if (context->reading)
            pthread_cond_wait(&context->changed, &context->lock);
        else
            read_packet(call);
    }
    gw_call_t **link = &context->waiting;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    if (call->status == GW_OK && call->state == GW_CALL_WAITING)
        call->status = gw_fail(context->broken, "%s", context->broken_text);
    pthread_mutex_unlock(&context->lock);

    if (call->status != GW_OK)
        return call->status;
    if (call->reply.header.type == GW_MSG_ERROR)
        return refusal(&call->reply);
    if (call->reply.header.type != wanted)
        return gw_fail(GW_ERR_PROTOCOL, "the daemon answered with message type %u, expected was %u",
                       call->reply.header.type, (unsigned)wanted);
    if (call->state == GW_CALL_NO_FDS)
        return gw_fail(GW_ERR_FD_LIMIT, "this process has no file descriptors left for the %u that the daemon sent",
                       call->reply.header.n_fds);
    return GW_OK;
}

void gw_call_refusal(const gw_call_t *call, char *text, size_t text_bytes) {
    text[0] = '\0';
    if (call->state != GW_CALL_ANSWERED || call->reply.header.type != GW_MSG_ERROR)
        return;
    Gw__Error *error = gw__error__unpack(NULL, call->reply.header.body_bytes, call->reply.body);
    if (error != NULL)
        snprintf(text, text_bytes, "%s", error->text);
    gw__error__free_unpacked(error, NULL);
}

void gw_call_close(gw_call_t *call) {
    gw_frame_close_fds(&call->reply);
    free(call->storage);
}

gw_status_t gw_call_do(gw_context_t *context, enum gw_message_type type, const ProtobufCMessage *message) {
    gw_call_t call;
    gw_status_t status = gw_call_open(context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, type, message, NULL, 0);
    status = gw_call_reply(&call, GW_MSG_DONE);
    gw_call_close(&call);
    return status;
}
