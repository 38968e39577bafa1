/* peer.c - see peer.h */
#include "peer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"
#include "gradwire.pb-c.h"

enum { BODY_BYTES = 8192 };

int peer_memory_fd;
gw_unique_id_t peer_unique_id;

/* ---- the input ---------------------------------------------------------------------------------- */

uint8_t input_take(input_t *input) {
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->at++;
}

/* Small numbers most of the time, and now and then any. */
static uint64_t number(input_t *input) {
    uint8_t first = input_take(input);
    uint64_t value = 0;

    if (first < 240)
        return first;
    for (int i = 0; i < 8; i++)
        value = value << 8 | input_take(input);
    return first < 244 ? value : first < 248 ? value & 0xffffffff : UINT64_C(1) << (value & 63);
}

/* `good`, or any number. */
static uint64_t near(input_t *input, uint64_t good) {
    return input_take(input) & 15 ? good : number(input);
}

static const uint8_t *take_bytes(input_t *input, size_t *bytes_out) {
    size_t bytes = input_take(input) | (size_t)(input_take(input) & 15) << 8;
    const uint8_t *at = input->at;

    bytes = bytes < input->left ? bytes : input->left;
    input->at += bytes;
    input->left -= bytes;
    *bytes_out = bytes;
    return at;
}

/* ---- what peers send ---------------------------------------------------------------------------- */

static void send_body(peer_t *peer, uint16_t type, const uint8_t *body, size_t bytes, const int *fds, unsigned n_fds) {
    (void)gw_frame_send(peer->socket, type, peer->request, body, bytes, fds, n_fds);
}

static void send_message(peer_t *peer, uint16_t type, const ProtobufCMessage *message) {
    static uint8_t body[BODY_BYTES];

    peer->request++;
    if (protobuf_c_message_get_packed_size(message) <= sizeof(body))
        send_body(peer, type, body, protobuf_c_message_pack(message, body), NULL, 0);
}

void peer_send_anything(peer_t *peer, input_t *input) {
    const int fds[GW_FDS_MAX] = {peer_memory_fd, peer_memory_fd, peer_memory_fd, peer_memory_fd,
                                 peer_memory_fd, peer_memory_fd, peer_memory_fd, 2};
    uint8_t type = input_take(input), flags = input_take(input);
    size_t bytes;
    const uint8_t *body = take_bytes(input, &bytes);

    peer->request += flags >> 7;
    if (flags & 64)
        (void)send(peer->socket, body, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    else
        send_body(peer, type % 28, body, bytes, fds, flags % 9);
}

void peer_send_get(peer_t *peer) {
    Gw__GetUniqueId get = GW__GET_UNIQUE_ID__INIT;

    send_message(peer, GW_MSG_GET_UNIQUE_ID, &get.base);
}

void peer_send_hello(peer_t *peer) {
    Gw__Hello hello = GW__HELLO__INIT;

    hello.client_name = (char *)(uintptr_t) "fuzz";
    send_message(peer, GW_MSG_HELLO, &hello.base);
}

void peer_send_join(peer_t *peer, input_t *input) {
    Gw__GroupJoin join = GW__GROUP_JOIN__INIT;

    join.id = (ProtobufCBinaryData){sizeof(peer_unique_id), peer_unique_id.bytes};
    join.nranks = (uint32_t)near(input, 2);
    join.rank = (uint32_t)near(input, peer->rank);
    send_message(peer, GW_MSG_GROUP_JOIN, &join.base);
}

void peer_send_buffer(peer_t *peer, input_t *input) {
    Gw__BufferCreate create = GW__BUFFER_CREATE__INIT;
    Gw__BufferPart part = GW__BUFFER_PART__INIT;
    uint8_t body[128];

    create.parts = (uint32_t)near(input, 1);
    part.bytes = near(input, PEER_MEMORY_BYTES / 2);
    create.bytes = near(input, part.bytes * (create.parts < 4 ? create.parts : 4));
    send_message(peer, GW_MSG_BUFFER_CREATE, &create.base);
    part.kind = near(input, GW__HANDLE_KIND__HANDLE_MEMFD) & 0xff;
    part.offset = near(input, 0);
    for (uint32_t i = 0; i < create.parts && i < 4; i++) {
        part.index = (uint32_t)near(input, i);
        send_body(peer, GW_MSG_BUFFER_PART, body, gw__buffer_part__pack(&part, body), &peer_memory_fd, 1);
    }
}

void peer_send_bucket(peer_t *peer, input_t *input) {
    Gw__BucketCreate create = GW__BUCKET_CREATE__INIT;
    Gw__BucketLayout layout = GW__BUCKET_LAYOUT__INIT;
    Gw__Matrix matrix = GW__MATRIX__INIT, *matrices[2] = {&matrix, &matrix};
    uint8_t body[256], name[2] = {(uint8_t)(input_take(input) | 1), 0};

    create.group = (uint32_t)near(input, peer->group);
    create.name = (char *)name;
    create.collective = (uint32_t)near(input, 1 + input_take(input) % 6);
    create.type = (uint32_t)near(input, 1 + input_take(input) % 8);
    create.redop = (uint32_t)near(input, 1 + input_take(input) % 5);
    create.root = (uint32_t)near(input, input_take(input) & 1);
    create.count = create.collective == GW_BARRIER ? 0 : near(input, input_take(input) * 64u);
    create.send_buffer = (uint32_t)near(input, peer->buffer);
    create.recv_buffer = (uint32_t)near(input, peer->buffer);
    create.send_offset = near(input, 0);
    create.recv_offset = near(input, input_take(input) & 1 ? 0 : PEER_MEMORY_BYTES / 4);
    create.priority = (int32_t)near(input, 0);
    create.matrices = (uint32_t)near(input, input_take(input) & 3);
    send_message(peer, GW_MSG_BUCKET_CREATE, &create.base);
    layout.matrix = matrices;
    for (uint32_t left = create.matrices; left > 0 && left < 8; left -= (uint32_t)layout.n_matrix) {
        layout.n_matrix = left > 1 ? 2 : 1;
        matrix = (Gw__Matrix){matrix.base, number(input), number(input), number(input), number(input)};
        send_body(peer, GW_MSG_BUCKET_LAYOUT, body, gw__bucket_layout__pack(&layout, body), NULL, 0);
    }
}

/* An all-reduce that works, larger or smaller than what a lane does itself. */
void peer_send_usual_bucket(peer_t *peer, uint64_t count) {
    Gw__BucketCreate create = GW__BUCKET_CREATE__INIT;

    create.group = peer->group;
    create.name = (char *)(uintptr_t) "usual";
    create.collective = GW_ALL_REDUCE;
    create.type = GW_F32;
    create.redop = GW_SUM;
    create.count = count;
    create.send_buffer = create.recv_buffer = peer->buffer;
    send_message(peer, GW_MSG_BUCKET_CREATE, &create.base);
}

/* Requests with one or two handles. */
void peer_send_small(peer_t *peer, input_t *input) {
    Gw__GroupSplit split = GW__GROUP_SPLIT__INIT;
    Gw__GroupAbort abort_group = GW__GROUP_ABORT__INIT;
    Gw__GroupLeave leave = GW__GROUP_LEAVE__INIT;
    Gw__BufferRelease release = GW__BUFFER_RELEASE__INIT;
    Gw__BucketFree free_bucket = GW__BUCKET_FREE__INIT;
    Gw__GroupStateSave save = GW__GROUP_STATE_SAVE__INIT;
    Gw__GroupStateLoad load = GW__GROUP_STATE_LOAD__INIT;
    uint8_t body[64];

    split.group = abort_group.group = leave.group = free_bucket.group = save.group = load.group =
        (uint32_t)near(input, peer->group);
    release.buffer = (uint32_t)near(input, peer->buffer);
    free_bucket.bucket = (uint32_t)near(input, peer->bucket);
    abort_group.reason = (char *)(uintptr_t) "\x1b fuzz \xff";
    switch (input_take(input) % 8) {
    case 0:
        split.color = (int32_t)(number(input) - 2);
        split.key = (int32_t)number(input);
        send_message(peer, GW_MSG_GROUP_SPLIT, &split.base);
        break;
    case 1:
        send_message(peer, GW_MSG_GROUP_ABORT, &abort_group.base);
        break;
    case 2:
        send_message(peer, GW_MSG_GROUP_LEAVE, &leave.base);
        break;
    case 3: /* save the state, with and without a place for it, and load what is there */
        send_message(peer, GW_MSG_GROUP_STATE_SAVE, &save.base);
        break;
    case 4:
        send_body(peer, GW_MSG_GROUP_STATE_SAVE, body, gw__group_state_save__pack(&save, body), &peer_memory_fd, 1);
        break;
    case 5:
        load.bytes = near(input, 88);
        send_body(peer, GW_MSG_GROUP_STATE_LOAD, body, gw__group_state_load__pack(&load, body), &peer_memory_fd, 1);
        break;
    case 6:
        send_message(peer, GW_MSG_BUFFER_RELEASE, &release.base);
        break;
    default:
        send_message(peer, GW_MSG_BUCKET_FREE, &free_bucket.base);
        break;
    }
}

void peer_send_admin(peer_t *peer, input_t *input, uint64_t last_session) {
    static const char *const names[] = {"status", "clients", "groups", "buffers",   "buckets",
                                        "stats",  "config",  "trace",  "log-level", "kick"};
    Gw__AdminRequest request = GW__ADMIN_REQUEST__INIT;
    char argument[24], *arguments[1] = {argument};

    request.command = (char *)(uintptr_t)names[input_take(input) % 10];
    if (strcmp(request.command, "kick") == 0) {
        snprintf(argument, sizeof(argument), "%llu",
                 (unsigned long long)near(input, last_session - input_take(input) % 3));
        request.argument = arguments;
        request.n_argument = 1;
    }
    send_message(peer, GW_MSG_ADMIN_REQUEST, &request.base);
}

/* ---- channels and slots ------------------------------------------------------------------------- */

static void send_submit(peer_t *peer, Gw__Submit *message, uint8_t flags) {
    uint8_t body[64];

    message->notify = flags & 1;
    message->queue = flags >> 6;
    if (flags & 6)
        atomic_store(&gw_slots_at(peer->slots, message->sequence, peer->credits)->ready, (uint32_t)message->sequence);
    if (gw_frame_send(peer->channel, GW_MSG_SUBMIT, 0, body, gw__submit__pack(message, body), NULL, 0) == GW_FRAME_OK)
        peer->sequence++;
}

void peer_submit(peer_t *peer, input_t *input) {
    Gw__Submit message = GW__SUBMIT__INIT;

    if (peer->channel < 0)
        return;
    message.bucket = (uint32_t)near(input, peer->bucket);
    message.epoch = (uint32_t)near(input, peer->epoch);
    message.sequence = near(input, peer->sequence + 1);
    send_submit(peer, &message, input_take(input));
}

/* What good clients do, as often as the input says. */
void peer_submit_all(peer_t *peers, input_t *input) {
    uint8_t flags = input_take(input), times = input_take(input);

    for (int n = 0; n <= (times < 240 ? times & 3 : times & 127); n++)
        for (int i = 0; i < 2; i++) {
            Gw__Submit message = GW__SUBMIT__INIT;

            if (peers[i].channel < 0 || flags >> (4 + i) & 1)
                continue;
            message.bucket = peers[i].bucket;
            message.epoch = peers[i].epoch;
            message.sequence = peers[i].sequence + 1;
            send_submit(&peers[i], &message, flags & 15);
        }
}

void peer_channel_anything(const peer_t *peer, input_t *input) {
    uint8_t flags = input_take(input);
    size_t bytes;
    const uint8_t *body = take_bytes(input, &bytes);

    if (peer->channel >= 0)
        (void)gw_frame_send(peer->channel, flags & 1 ? GW_MSG_SUBMIT : input_take(input), 0, body, bytes,
                            &peer_memory_fd, flags >> 7);
}

void peer_scribble(const peer_t *peer, input_t *input) {
    uint64_t at = number(input);

    if (peer->slots)
        ((uint8_t *)peer->slots)[at % gw_slots_bytes(peer->credits)] = input_take(input);
}

void peer_drop_group(peer_t *peer) {
    if (peer->channel >= 0)
        close(peer->channel);
    if (peer->slots)
        munmap(peer->slots, gw_slots_bytes(peer->credits));
    peer->channel = -1;
    peer->slots = NULL;
}

/* ---- what peers hear ---------------------------------------------------------------------------- */

static void take_group(peer_t *peer, gw_frame_t *frame) {
    Gw__GroupReady *ready = gw__group_ready__unpack(NULL, frame->header.body_bytes, frame->body);

    if (!ready || (ready->group && frame->header.n_fds != 2))
        abort();
    if (ready->group) {
        peer_drop_group(peer);
        peer->group = ready->group;
        peer->credits = ready->credits;
        peer->epoch = ready->epoch;
        peer->sequence = 0;
        peer->slots = mmap(NULL, gw_slots_bytes(ready->credits), PROT_READ | PROT_WRITE, MAP_SHARED, frame->fds[0], 0);
        if (peer->slots == MAP_FAILED)
            abort();
        peer->channel = frame->fds[1];
        frame->fds[1] = -1;
        (void)fcntl(peer->channel, F_SETFL, O_NONBLOCK);
    }
    gw__group_ready__free_unpacked(ready, NULL);
}

static void take_answer(peer_t *peer, gw_frame_t *frame) {
    Gw__BufferReady *handle;
    Gw__UniqueId *id;

    switch (frame->header.type) {
    case GW_MSG_UNIQUE_ID:
        id = gw__unique_id__unpack(NULL, frame->header.body_bytes, frame->body);
        if (!id || id->id.len != sizeof(peer_unique_id))
            abort();
        memcpy(&peer_unique_id, id->id.data, sizeof(peer_unique_id));
        gw__unique_id__free_unpacked(id, NULL);
        break;
    case GW_MSG_GROUP_READY:
        take_group(peer, frame);
        break;
    case GW_MSG_BUFFER_READY:
    case GW_MSG_BUCKET_READY:
        handle = gw__buffer_ready__unpack(NULL, frame->header.body_bytes, frame->body);
        if (!handle)
            abort();
        *(frame->header.type == GW_MSG_BUFFER_READY ? &peer->buffer : &peer->bucket) = handle->buffer;
        gw__buffer_ready__free_unpacked(handle, NULL);
        break;
    default:
        break;
    }
}

void peer_listen(peer_t *peer) {
    static uint8_t storage[GW_PACKET_MAX];
    gw_frame_result_t result;
    const char *why;
    gw_frame_t frame;

    while (peer->socket >= 0 && (result = gw_frame_recv(peer->socket, storage, &frame, &why)) == GW_FRAME_OK) {
        take_answer(peer, &frame);
        gw_frame_close_fds(&frame);
    }
    if (peer->socket >= 0 && result == GW_FRAME_MALFORMED)
        abort();
    while (peer->channel >= 0 && (result = gw_frame_recv(peer->channel, storage, &frame, &why)) == GW_FRAME_OK)
        if (frame.header.type != GW_MSG_COMPLETE)
            abort();
}
