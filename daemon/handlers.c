/* handlers.c - see handlers.h */
#include "handlers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "escape.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "group_codec.h"
#include "server.h"
#include "unpack.h"

enum { MATRICES_MAX = 1 << 16 };

/* A bucket whose BucketLayout messages have not all come. */
struct gwd_incoming_bucket {
    uint32_t request, group;
    uint32_t n_received;
    bool charged;
    uint32_t send_buffer, recv_buffer; /* handles: the buffers may go while the layout comes */
    gwd_bucket_desc_t desc;
};

typedef gwd_session_t session_t;

/* ---- hello -------------------------------------------------------------------------------------- */

static void on_hello(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__Hello *hello = (const Gw__Hello *)body;
    gwd_server_t *server = session->server;
    Gw__Welcome welcome = GW__WELCOME__INIT;
    uint8_t packed[512];

    if (session->greeted) {
        gwd_session_fatal(session, frame->header.request, GW_ERR_PROTOCOL, "a second Hello");
        return;
    }
    if (server->draining && session->role == GWD_ROLE_CLIENT) {
        gwd_session_fatal(session, frame->header.request, GW_ERR_DRAINING, "no new client");
        return;
    }
    session->greeted = true;
    (void)uv_timer_stop(&session->hello_timer);
    snprintf(session->name, sizeof(session->name), "%s", hello->client_name);
    welcome.minor = GW_PROTO_MINOR < hello->minor ? GW_PROTO_MINOR : hello->minor;
    welcome.node = (ProtobufCBinaryData){sizeof(server->node), server->node};
    welcome.host = server->host;
    welcome.version = (char *)(uintptr_t)server->version;
    welcome.max_buffer_bytes = (uint64_t)server->config.limits_buffer_bytes_per_uid;
    welcome.max_ranks = (uint32_t)server->config.limits_ranks_per_group;
    welcome.stream_bytes = (uint64_t)server->config.device_stream_bytes;
    gwd_session_send(session, GW_MSG_WELCOME, frame->header.request, packed, gw__welcome__pack(&welcome, packed), NULL,
                     0);
}

/* ---- groups ------------------------------------------------------------------------------------- */

static gwd_member_t *member_of(session_t *session, uint32_t request, uint32_t handle) {
    gwd_member_t *member = gwd_member_find(session, handle);

    if (!member)
        gwd_session_error(session, request, GW_ERR_NOT_FOUND, "there is no group %u in this session", handle);
    return member;
}

static void on_get_unique_id(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    Gw__UniqueId reply = GW__UNIQUE_ID__INIT;
    char text[GWD_TEXT_BYTES];
    uint8_t packed[160];
    gw_unique_id_t id;
    gw_status_t status;

    (void)body;
    if (session->server->draining) {
        gwd_session_error(session, frame->header.request, GW_ERR_DRAINING, "no new group");
        return;
    }
    status = gwd_group_make_id(session, &id, text, sizeof(text));
    if (status != GW_OK) {
        gwd_session_error(session, frame->header.request, status, "%s", text);
        return;
    }
    reply.id = (ProtobufCBinaryData){sizeof(id), id.bytes};
    gwd_session_send(session, GW_MSG_UNIQUE_ID, frame->header.request, packed, gw__unique_id__pack(&reply, packed),
                     NULL, 0);
}

static void on_group_join(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__GroupJoin *join = (const Gw__GroupJoin *)body;
    gwd_codec_choice_t codec;
    char text[GWD_TEXT_BYTES];
    gw_unique_id_t id;
    gw_status_t status;

    if (join->id.len != sizeof(id)) {
        gwd_session_error(session, frame->header.request, GW_ERR_INVALID_ARGUMENT, "a unique id has %zu bytes, not %zu",
                          sizeof(id), join->id.len);
        return;
    }
    memcpy(&id, join->id.data, sizeof(id));
    status = gwd_group_ask(session->server, join->codec, join->rounding, &codec, text, sizeof(text));
    if (status == GW_OK)
        status =
            gwd_group_join(session, frame->header.request, &id, join->nranks, join->rank, &codec, text, sizeof(text));
    if (status != GW_OK)
        gwd_session_error(session, frame->header.request, status, "%s", text);
}

static void on_group_split(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__GroupSplit *split = (const Gw__GroupSplit *)body;
    gwd_member_t *member = member_of(session, frame->header.request, split->group);
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (!member)
        return;
    status = gwd_group_split(member, frame->header.request, split->color, split->key, text, sizeof(text));
    if (status != GW_OK)
        gwd_session_error(session, frame->header.request, status, "%s", text);
}

static void on_group_abort(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__GroupAbort *abort_group = (const Gw__GroupAbort *)body;
    gwd_member_t *member = member_of(session, frame->header.request, abort_group->group);
    char identity[GWD_IDENTITY_BYTES], reason[GWD_TEXT_BYTES / 2], text[GWD_TEXT_BYTES];

    if (!member)
        return;
    gwd_member_identity(member, identity, sizeof(identity));
    gw_escape(abort_group->reason, sizeof(reason), reason, sizeof(reason)); /* it reaches the other ranks' terminals */
    snprintf(text, sizeof(text), "%s aborted the group%s%s", identity, reason[0] ? ": " : "", reason);
    gwd_group_fail(member->group, GW_ERR_ABORTED, text);
    gwd_session_done(session, frame->header.request);
}

static void on_group_leave(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    gwd_member_t *member = member_of(session, frame->header.request, ((const Gw__GroupLeave *)body)->group);
    gwd_leave_reason_t reason = {GW_ERR_RANK_LEFT, "left the group"};

    if (member)
        gwd_member_leave(member, frame->header.request, &reason);
}

static void on_group_state_save(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    gwd_member_t *member = member_of(session, frame->header.request, ((const Gw__GroupStateSave *)body)->group);
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (!member)
        return;
    status = gwd_group_state_save(member, frame->header.request, &frame->fds[0], text, sizeof(text));
    if (status != GW_OK)
        gwd_session_error(session, frame->header.request, status, "%s", text);
}

static void on_group_state_load(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__GroupStateLoad *load = (const Gw__GroupStateLoad *)body;
    gwd_member_t *member = member_of(session, frame->header.request, load->group);
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (!member)
        return;
    status = gwd_group_state_load(member, frame->header.request, &frame->fds[0], load->bytes, text, sizeof(text));
    if (status != GW_OK)
        gwd_session_error(session, frame->header.request, status, "%s", text);
}

/* ---- buffers ------------------------------------------------------------------------------------ */

static void on_buffer_create(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__BufferCreate *create = (const Gw__BufferCreate *)body;
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (session->incoming_buffer) {
        gwd_session_fatal(session, frame->header.request, GW_ERR_PROTOCOL,
                          "BufferCreate while parts of another buffer are due");
        return;
    }
    status = gwd_buffer_new(session, frame->header.request, create->bytes, create->parts, create->copied != 0,
                            create->device, create->why, &session->incoming_buffer, text, sizeof(text));
    if (status != GW_OK)
        gwd_session_error(session, frame->header.request, status, "%s", text);
}

static void on_buffer_part(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__BufferPart *part = (const Gw__BufferPart *)body;
    gwd_buffer_t *buffer = session->incoming_buffer;
    gwd_handle_t handle = {
        .kind = part->kind, .offset = part->offset, .bytes = part->bytes, .handle_bytes = part->handle_bytes};
    char text[GWD_TEXT_BYTES];
    gw_status_t status;
    bool complete;

    if (!buffer || buffer->request != frame->header.request) {
        if (frame->header.request != session->refused_request)
            gwd_session_error(session, frame->header.request, GW_ERR_INVALID_ARGUMENT, "no BufferCreate came before");
        return;
    }
    if (part->data.len > sizeof(handle.data)) {
        session->incoming_buffer = NULL;
        gwd_buffer_discard(buffer);
        gwd_session_error(session, frame->header.request, GW_ERR_INVALID_ARGUMENT, "part %u: %zu bytes of handle data",
                          part->index, part->data.len);
        return;
    }
    if (part->data.len)
        memcpy(handle.data, part->data.data, part->data.len);
    handle.data_bytes = part->data.len;
    handle.fd = frame->header.n_fds ? frame->fds[0] : -1;
    frame->fds[0] = -1;
    complete = buffer->n_received + 1 == buffer->n_parts;
    status = gwd_buffer_add_part(buffer, part->index, &handle, text, sizeof(text));
    if (complete || status != GW_OK)
        session->incoming_buffer = NULL;
    if (status != GW_OK)
        gwd_session_error(session, frame->header.request, status, "%s", text);
}

static gwd_buffer_t *buffer_of(const session_t *session, uint32_t handle) {
    gwd_buffer_t *buffer = gwd_table_get(&session->buffers, handle);

    return buffer && !buffer->releasing ? buffer : NULL;
}

static void on_buffer_release(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    uint32_t handle = ((const Gw__BufferRelease *)body)->buffer;
    gwd_buffer_t *buffer = buffer_of(session, handle);

    if (!buffer)
        gwd_session_error(session, frame->header.request, GW_ERR_NOT_FOUND, "there is no buffer %u in this session",
                          handle);
    else
        gwd_member_end_buffer(session, buffer, frame->header.request);
}

/* ---- buckets ------------------------------------------------------------------------------------ */

void gwd_handlers_drop_incoming_bucket(gwd_session_t *session) {
    if (!session->incoming_bucket)
        return;
    if (session->incoming_bucket->charged)
        gwd_quota_refund(session->user, GWD_QUOTA_BUCKETS,
                         gwd_bucket_charge(session->incoming_bucket->desc.n_matrices));
    free(session->incoming_bucket->desc.matrices);
    free(session->incoming_bucket);
    session->incoming_bucket = NULL;
}

/* All has come: make the bucket and answer. Ends the incoming one in every case. */
static void finish_bucket(session_t *session) {
    struct gwd_incoming_bucket *incoming = session->incoming_bucket;
    gwd_bucket_desc_t *desc = &incoming->desc;
    gwd_member_t *member = member_of(session, incoming->request, incoming->group);
    char text[GWD_TEXT_BYTES];
    gwd_bucket_t *bucket;
    gw_status_t status;

    if (!member)
        goto out;
    desc->send_buffer = buffer_of(session, incoming->send_buffer);
    desc->recv_buffer = buffer_of(session, incoming->recv_buffer);
    if ((incoming->send_buffer && !desc->send_buffer) || (incoming->recv_buffer && !desc->recv_buffer)) {
        gwd_session_error(session, incoming->request, GW_ERR_NOT_FOUND, "bucket '%s': there is no buffer %u",
                          desc->name,
                          desc->send_buffer || !incoming->send_buffer ? incoming->recv_buffer : incoming->send_buffer);
        goto out;
    }
    status = gwd_bucket_new(desc, member->rank, member->group->nranks, &bucket, text, sizeof(text));
    if (status == GW_OK) {
        desc->matrices = NULL; /* the bucket has them */
        bucket->codec = gwd_group_codec_of(member->group, bucket);
        status = gwd_member_add_bucket(member, bucket, text, sizeof(text));
        if (status != GW_OK)
            gwd_bucket_free(bucket);
        else
            incoming->charged = false; /* the member has that, too */
    }
    if (status == GW_OK)
        gwd_session_reply_handle(session, incoming->request, GW_MSG_BUCKET_READY, bucket->id);
    else
        gwd_session_error(session, incoming->request, status, "%s", text);
out:
    gwd_handlers_drop_incoming_bucket(session);
}

static void on_bucket_create(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__BucketCreate *create = (const Gw__BucketCreate *)body;
    struct gwd_incoming_bucket *incoming;
    uint32_t request = frame->header.request;
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (session->incoming_bucket) {
        gwd_session_fatal(session, request, GW_ERR_PROTOCOL, "BucketCreate while the layout of another bucket is due");
        return;
    }
    if (strlen(create->name) >= GW_NAME_BYTES || create->matrices > MATRICES_MAX || create->codec >= GW_CODECS) {
        gwd_session_error(session, request, create->codec >= GW_CODECS ? GW_ERR_UNSUPPORTED : GW_ERR_INVALID_ARGUMENT,
                          "bucket: name of %zu bytes (at most %d), %u matrices (at most %d), codec %u (below %d)",
                          strlen(create->name), GW_NAME_BYTES - 1, create->matrices, MATRICES_MAX, create->codec,
                          GW_CODECS);
        return;
    }
    status = gwd_quota_charge(&session->server->quota, session->user, GWD_QUOTA_BUCKETS,
                              gwd_bucket_charge(create->matrices), text, sizeof(text));
    if (status != GW_OK) {
        gwd_session_error(session, request, status, "bucket '%s': %s", create->name, text);
        return;
    }
    incoming = calloc(1, sizeof(*incoming));
    if (incoming && create->matrices)
        incoming->desc.matrices = calloc(create->matrices, sizeof(gw_matrix_t));
    if (!incoming || (create->matrices && !incoming->desc.matrices)) {
        free(incoming);
        gwd_quota_refund(session->user, GWD_QUOTA_BUCKETS, gwd_bucket_charge(create->matrices));
        gwd_session_error(session, request, GW_ERR_NO_MEMORY, "bucket '%s': out of memory", create->name);
        return;
    }
    incoming->charged = true;
    incoming->request = request;
    incoming->group = create->group;
    incoming->send_buffer = create->send_buffer;
    incoming->recv_buffer = create->recv_buffer;
    snprintf(incoming->desc.name, sizeof(incoming->desc.name), "%s", create->name);
    incoming->desc.collective = (gw_collective_t)create->collective;
    incoming->desc.type = (gw_type_t)create->type;
    incoming->desc.redop = (gw_redop_t)create->redop;
    incoming->desc.root = create->root;
    incoming->desc.count = create->count;
    incoming->desc.send_offset = create->send_offset;
    incoming->desc.recv_offset = create->recv_offset;
    incoming->desc.priority = create->priority;
    incoming->desc.codec = (gw_codec_t)create->codec;
    incoming->desc.no_error_feedback = create->no_error_feedback != 0;
    incoming->desc.n_matrices = create->matrices;
    session->incoming_bucket = incoming;
    if (create->matrices == 0)
        finish_bucket(session);
}

static void on_bucket_layout(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__BucketLayout *layout = (const Gw__BucketLayout *)body;
    struct gwd_incoming_bucket *incoming = session->incoming_bucket;

    if (!incoming || incoming->request != frame->header.request) {
        if (frame->header.request != session->refused_request)
            gwd_session_error(session, frame->header.request, GW_ERR_INVALID_ARGUMENT, "no BucketCreate came before");
        return;
    }
    if (layout->n_matrix > incoming->desc.n_matrices - incoming->n_received) {
        gwd_session_error(session, incoming->request, GW_ERR_INVALID_ARGUMENT,
                          "bucket '%s': more matrices than the %u announced", incoming->desc.name,
                          incoming->desc.n_matrices);
        gwd_handlers_drop_incoming_bucket(session);
        return;
    }
    for (size_t i = 0; i < layout->n_matrix; i++) {
        const Gw__Matrix *m = layout->matrix[i];

        incoming->desc.matrices[incoming->n_received++] = (gw_matrix_t){m->offset, m->rows, m->columns, m->stride};
    }
    if (incoming->n_received == incoming->desc.n_matrices)
        finish_bucket(session);
}

static void on_bucket_free(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__BucketFree *request = (const Gw__BucketFree *)body;
    gwd_member_t *member = member_of(session, frame->header.request, request->group);
    gwd_bucket_t *bucket = member ? gwd_table_get(&member->buckets, request->bucket) : NULL;

    if (!member)
        return;
    if (!bucket || bucket->ending)
        gwd_session_error(session, frame->header.request, GW_ERR_NOT_FOUND, "there is no bucket %u in group %u",
                          request->bucket, request->group);
    else
        gwd_member_end_bucket(member, bucket, frame->header.request);
}

/* ---- admin -------------------------------------------------------------------------------------- */

static void on_admin_request(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body) {
    const Gw__AdminRequest *request = (const Gw__AdminRequest *)body;

    gwd_admin_serve(session, frame->header.request, request->command, request->argument, request->n_argument);
}

/* ---- dispatch ----------------------------------------------------------------------------------- */

typedef struct handler {
    const ProtobufCMessageDescriptor *body;
    unsigned roles;
    unsigned max_fds;
    void (*serve)(session_t *session, gw_frame_t *frame, const ProtobufCMessage *body);
} handler_t;

#define BOTH (GWD_ROLE_CLIENT | GWD_ROLE_ADMIN)

static const handler_t handlers[] = {
    [GW_MSG_HELLO] = {&gw__hello__descriptor, BOTH, 0, on_hello},
    [GW_MSG_GET_UNIQUE_ID] = {&gw__get_unique_id__descriptor, GWD_ROLE_CLIENT, 0, on_get_unique_id},
    [GW_MSG_GROUP_JOIN] = {&gw__group_join__descriptor, GWD_ROLE_CLIENT, 0, on_group_join},
    [GW_MSG_GROUP_SPLIT] = {&gw__group_split__descriptor, GWD_ROLE_CLIENT, 0, on_group_split},
    [GW_MSG_GROUP_ABORT] = {&gw__group_abort__descriptor, GWD_ROLE_CLIENT, 0, on_group_abort},
    [GW_MSG_GROUP_LEAVE] = {&gw__group_leave__descriptor, GWD_ROLE_CLIENT, 0, on_group_leave},
    [GW_MSG_BUFFER_CREATE] = {&gw__buffer_create__descriptor, GWD_ROLE_CLIENT, 0, on_buffer_create},
    [GW_MSG_BUFFER_PART] = {&gw__buffer_part__descriptor, GWD_ROLE_CLIENT, 1, on_buffer_part},
    [GW_MSG_BUFFER_RELEASE] = {&gw__buffer_release__descriptor, GWD_ROLE_CLIENT, 0, on_buffer_release},
    [GW_MSG_BUCKET_CREATE] = {&gw__bucket_create__descriptor, GWD_ROLE_CLIENT, 0, on_bucket_create},
    [GW_MSG_BUCKET_LAYOUT] = {&gw__bucket_layout__descriptor, GWD_ROLE_CLIENT, 0, on_bucket_layout},
    [GW_MSG_BUCKET_FREE] = {&gw__bucket_free__descriptor, GWD_ROLE_CLIENT, 0, on_bucket_free},
    [GW_MSG_GROUP_STATE_SAVE] = {&gw__group_state_save__descriptor, GWD_ROLE_CLIENT, 1, on_group_state_save},
    [GW_MSG_GROUP_STATE_LOAD] = {&gw__group_state_load__descriptor, GWD_ROLE_CLIENT, 1, on_group_state_load},
    [GW_MSG_ADMIN_REQUEST] = {&gw__admin_request__descriptor, GWD_ROLE_ADMIN, 0, on_admin_request},
};

static const handler_t *find(const gwd_session_t *session, const gw_frame_t *frame, gw_status_t *status_out) {
    const handler_t *handler = NULL;

    if (frame->header.type < sizeof(handlers) / sizeof(handlers[0]) && handlers[frame->header.type].serve)
        handler = &handlers[frame->header.type];
    if (!handler)
        *status_out = GW_ERR_UNKNOWN_REQUEST;
    else if (!(handler->roles & session->role))
        *status_out = GW_ERR_PERMISSION;
    else
        *status_out = GW_OK;
    return handler;
}

void gwd_handlers_dispatch(gwd_session_t *session, gw_frame_t *frame) {
    gw_status_t status;
    const handler_t *handler = find(session, frame, &status);
    uint32_t request = frame->header.request;
    ProtobufCMessage *body;

    if (request == 0) {
        gwd_session_fatal(session, 0, GW_ERR_PROTOCOL, "request id 0");
    } else if (!session->greeted && frame->header.type != GW_MSG_HELLO) {
        gwd_session_fatal(session, request, GW_ERR_PROTOCOL, "the first message is not Hello");
    } else if (status != GW_OK) {
        gwd_session_error(session, request, status, "message type %u on the %s socket", frame->header.type,
                          session->role == GWD_ROLE_ADMIN ? "admin" : "client");
    } else if (frame->header.n_fds > handler->max_fds) {
        gwd_session_fatal(session, request, GW_ERR_PROTOCOL, "more file descriptors than the message takes");
    } else {
        body = gwd_unpack(handler->body, frame->body, frame->header.body_bytes);
        if (!body) {
            gwd_session_fatal(session, request, GW_ERR_PROTOCOL, "the body is not what its type says");
            return;
        }
        handler->serve(session, frame, body);
        gwd_unpack_free(body);
    }
}

void gwd_handlers_no_fds(gwd_session_t *session, const gw_frame_t *frame) {
    if (session->incoming_buffer && frame->header.type == GW_MSG_BUFFER_PART) {
        gwd_buffer_discard(session->incoming_buffer);
        session->incoming_buffer = NULL;
    }
    gwd_session_error(session, frame->header.request, GW_ERR_FD_LIMIT,
                      "the daemon has no file descriptor left for this request");
}
