/* fuzz_messages.c - any sequence of messages into a whole daemon
 *
 * The daemon's server runs inside, loop, lane and all, and the input is a row of actions of three peers: two
 * clients and an operator. Some actions send any bytes; others send what a good client would, with a number of
 * the input in it, since otherwise no group would ever come together. When the input ends all peers hang up, and
 * the daemon must give back every session, group and file descriptor.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "fds.h"
#include "frame.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "log.h"
#include "server.h"
#include "slots.h"

enum { PEERS = 3, ADMIN = 2, MEMORY_BYTES = 1 << 16, BODY_BYTES = 8192 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct peer {
    int socket, channel;
    gw_slots_header_t *slots;
    uint32_t credits, epoch;
    uint32_t group, buffer, bucket; /* handles that were given last */
    uint64_t sequence;
    uint32_t request;
} peer_t;

typedef struct input {
    const uint8_t *at;
    size_t left;
} input_t;

static gwd_server_t server;
static char folder[] = "/tmp/gw-fuzz-XXXXXX";
static int memory_fd;
static peer_t peers[PEERS];
static gw_unique_id_t unique_id;
static bool waited;

/* ---- the input ---------------------------------------------------------------------------------- */

static uint8_t take(input_t *input) {
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->at++;
}

/* Small numbers most of the time, and now and then any. */
static uint64_t number(input_t *input) {
    uint8_t first = take(input);
    uint64_t value = 0;

    if (first < 240)
        return first;
    for (int i = 0; i < 8; i++)
        value = value << 8 | take(input);
    return first < 244 ? value : first < 248 ? value & 0xffffffff : UINT64_C(1) << (value & 63);
}

/* `good`, or any number. */
static uint64_t near(input_t *input, uint64_t good) {
    return take(input) & 15 ? good : number(input);
}

static const uint8_t *take_bytes(input_t *input, size_t *bytes_out) {
    size_t bytes = take(input) | (size_t)(take(input) & 15) << 8;
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

static void send_anything(peer_t *peer, input_t *input) {
    const int fds[GW_FDS_MAX] = {memory_fd, memory_fd, memory_fd, memory_fd, memory_fd, memory_fd, memory_fd, 2};
    uint8_t type = take(input), flags = take(input);
    size_t bytes;
    const uint8_t *body = take_bytes(input, &bytes);

    peer->request += flags >> 7;
    if (flags & 64)
        (void)send(peer->socket, body, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    else
        send_body(peer, type % 28, body, bytes, fds, flags % 9);
}

static void send_hello(peer_t *peer) {
    Gw__Hello hello = GW__HELLO__INIT;

    hello.client_name = (char *)(uintptr_t) "fuzz";
    send_message(peer, GW_MSG_HELLO, &hello.base);
}

static void send_join(peer_t *peer, input_t *input) {
    Gw__GroupJoin join = GW__GROUP_JOIN__INIT;

    join.id = (ProtobufCBinaryData){sizeof(unique_id), unique_id.bytes};
    join.nranks = (uint32_t)near(input, 2);
    join.rank = (uint32_t)near(input, (uint64_t)(peer - peers));
    send_message(peer, GW_MSG_GROUP_JOIN, &join.base);
}

static void send_buffer(peer_t *peer, input_t *input) {
    Gw__BufferCreate create = GW__BUFFER_CREATE__INIT;
    Gw__BufferPart part = GW__BUFFER_PART__INIT;
    uint8_t body[128];

    create.parts = (uint32_t)near(input, 1);
    part.bytes = near(input, MEMORY_BYTES / 2);
    create.bytes = near(input, part.bytes * (create.parts < 4 ? create.parts : 4));
    send_message(peer, GW_MSG_BUFFER_CREATE, &create.base);
    part.kind = near(input, GW__HANDLE_KIND__HANDLE_MEMFD) & 0xff;
    part.offset = near(input, 0);
    for (uint32_t i = 0; i < create.parts && i < 4; i++) {
        part.index = (uint32_t)near(input, i);
        send_body(peer, GW_MSG_BUFFER_PART, body, gw__buffer_part__pack(&part, body), &memory_fd, 1);
    }
}

static void send_bucket(peer_t *peer, input_t *input) {
    Gw__BucketCreate create = GW__BUCKET_CREATE__INIT;
    Gw__BucketLayout layout = GW__BUCKET_LAYOUT__INIT;
    Gw__Matrix matrix = GW__MATRIX__INIT, *matrices[2] = {&matrix, &matrix};
    uint8_t body[256], name[2] = {(uint8_t)(take(input) | 1), 0};

    create.group = (uint32_t)near(input, peer->group);
    create.name = (char *)name;
    create.collective = (uint32_t)near(input, 1 + take(input) % 6);
    create.type = (uint32_t)near(input, 1 + take(input) % 8);
    create.redop = (uint32_t)near(input, 1 + take(input) % 5);
    create.root = (uint32_t)near(input, take(input) & 1);
    create.count = create.collective == GW_BARRIER ? 0 : near(input, take(input) * 64u);
    create.send_buffer = (uint32_t)near(input, peer->buffer);
    create.recv_buffer = (uint32_t)near(input, peer->buffer);
    create.send_offset = near(input, 0);
    create.recv_offset = near(input, take(input) & 1 ? 0 : MEMORY_BYTES / 4);
    create.priority = (int32_t)near(input, 0);
    create.matrices = (uint32_t)near(input, take(input) & 3);
    send_message(peer, GW_MSG_BUCKET_CREATE, &create.base);
    layout.matrix = matrices;
    for (uint32_t left = create.matrices; left > 0 && left < 8; left -= (uint32_t)layout.n_matrix) {
        layout.n_matrix = left > 1 ? 2 : 1;
        matrix = (Gw__Matrix){matrix.base, number(input), number(input), number(input), number(input)};
        send_body(peer, GW_MSG_BUCKET_LAYOUT, body, gw__bucket_layout__pack(&layout, body), NULL, 0);
    }
}

/* An all-reduce that works, larger or smaller than what a lane does itself. */
static void send_usual_bucket(peer_t *peer, uint64_t count) {
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
static void send_small(peer_t *peer, input_t *input) {
    Gw__GroupSplit split = GW__GROUP_SPLIT__INIT;
    Gw__GroupAbort abort_group = GW__GROUP_ABORT__INIT;
    Gw__GroupLeave leave = GW__GROUP_LEAVE__INIT;
    Gw__BufferRelease release = GW__BUFFER_RELEASE__INIT;
    Gw__BucketFree free_bucket = GW__BUCKET_FREE__INIT;

    split.group = abort_group.group = leave.group = free_bucket.group = (uint32_t)near(input, peer->group);
    release.buffer = (uint32_t)near(input, peer->buffer);
    free_bucket.bucket = (uint32_t)near(input, peer->bucket);
    abort_group.reason = (char *)(uintptr_t) "\x1b fuzz \xff";
    switch (take(input) % 5) {
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
    case 3:
        send_message(peer, GW_MSG_BUFFER_RELEASE, &release.base);
        break;
    default:
        send_message(peer, GW_MSG_BUCKET_FREE, &free_bucket.base);
        break;
    }
}

static void send_admin(peer_t *peer, input_t *input) {
    static const char *const names[] = {"status", "clients", "groups", "buffers",   "buckets",
                                        "stats",  "config",  "trace",  "log-level", "kick"};
    Gw__AdminRequest request = GW__ADMIN_REQUEST__INIT;
    char argument[24], *arguments[1] = {argument};

    request.command = (char *)(uintptr_t)names[take(input) % 10];
    if (strcmp(request.command, "kick") == 0) {
        snprintf(argument, sizeof(argument), "%llu",
                 (unsigned long long)near(input, server.last_session_id - take(input) % PEERS));
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

static void submit(peer_t *peer, input_t *input) {
    Gw__Submit message = GW__SUBMIT__INIT;

    if (peer->channel < 0)
        return;
    message.bucket = (uint32_t)near(input, peer->bucket);
    message.epoch = (uint32_t)near(input, peer->epoch);
    message.sequence = near(input, peer->sequence + 1);
    send_submit(peer, &message, take(input));
}

/* What good clients do, as often as the input says. */
static void submit_all(input_t *input) {
    uint8_t flags = take(input), times = take(input);

    for (int n = 0; n <= (times < 240 ? times & 3 : times & 127); n++)
        for (int i = 0; i < ADMIN; i++) {
            Gw__Submit message = GW__SUBMIT__INIT;

            if (peers[i].channel < 0 || flags >> (4 + i) & 1)
                continue;
            message.bucket = peers[i].bucket;
            message.epoch = peers[i].epoch;
            message.sequence = peers[i].sequence + 1;
            send_submit(&peers[i], &message, flags & 15);
        }
}

static void channel_anything(const peer_t *peer, input_t *input) {
    uint8_t flags = take(input);
    size_t bytes;
    const uint8_t *body = take_bytes(input, &bytes);

    if (peer->channel >= 0)
        (void)gw_frame_send(peer->channel, flags & 1 ? GW_MSG_SUBMIT : take(input), 0, body, bytes, &memory_fd,
                            flags >> 7);
}

static void scribble(const peer_t *peer, input_t *input) {
    uint64_t at = number(input);

    if (peer->slots)
        ((uint8_t *)peer->slots)[at % gw_slots_bytes(peer->credits)] = take(input);
}

static void drop_group(peer_t *peer) {
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
        drop_group(peer);
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
        if (!id || id->id.len != sizeof(unique_id))
            abort();
        memcpy(&unique_id, id->id.data, sizeof(unique_id));
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

static void listen_to(peer_t *peer) {
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

/* ---- the daemon --------------------------------------------------------------------------------- */

static void turn(void) {
    (void)uv_run(&server.loop, UV_RUN_NOWAIT);
    for (int i = 0; i < PEERS; i++)
        listen_to(&peers[i]);
}

static void check_span(const gwd_bucket_t *bucket, const void *address, const gwd_buffer_t *buffer, uint64_t offset) {
    uint64_t bytes = address ? gwd_buffer_bytes(buffer) : 0;

    if (address && (offset > bytes || bucket->desc.count > (bytes - offset) / gw_type_bytes(bucket->desc.type)))
        abort();
}

/* What the daemon has accepted lies inside its buffers: mapped neighbours would hide a span that does not. */
static void check_bucket(void *item, void *context) {
    const gwd_bucket_t *bucket = item;

    (void)context;
    check_span(bucket, bucket->send, bucket->desc.send_buffer, bucket->desc.send_offset);
    check_span(bucket, bucket->recv, bucket->desc.recv_buffer, bucket->desc.recv_offset);
}

static void check_member(void *item, void *context) {
    gwd_table_each(&((gwd_member_t *)item)->buckets, check_bucket, context);
}

static void hang_up(peer_t *peer) {
    drop_group(peer);
    if (peer->socket >= 0)
        close(peer->socket);
    peer->socket = -1;
}

static void connect_peer(peer_t *peer, gwd_role_t role) {
    int sockets[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0)
        abort();
    *peer = (peer_t){.socket = sockets[1], .channel = -1};
    gwd_session_open(&server, sockets[0], role);
}

static void act(input_t *input) {
    uint8_t action = take(input);
    peer_t *peer = &peers[(action >> 6) % PEERS];
    Gw__GetUniqueId get = GW__GET_UNIQUE_ID__INIT;
    input_t same;

    switch (action & 15) {
    case 0:
        hang_up(peer);
        break;
    case 1:
        send_message(peer, GW_MSG_GET_UNIQUE_ID, &get.base);
        break;
    case 2:
        send_join(peer, input);
        break;
    case 3:
        send_buffer(peer, input);
        break;
    case 4:
        send_bucket(peer, input);
        break;
    case 5: /* the same on both, so that it can run */
        same = *input;
        send_bucket(&peers[0], input);
        send_bucket(&peers[1], &same);
        break;
    case 6:
        submit(peer, input);
        break;
    case 7:
    case 8:
        submit_all(input);
        break;
    case 9:
        channel_anything(peer, input);
        break;
    case 10:
        scribble(peer, input);
        break;
    case 11:
        send_small(peer, input);
        break;
    case 12:
        send_admin(&peers[ADMIN], input);
        break;
    case 13: /* time for the lane and the helper threads, or, once, even for a rank to be late */
        usleep(take(input) == 0x5a && !waited ? 15000 : 100);
        waited = true;
        break;
    case 14:
        drop_group(peer);
        break;
    default:
        send_anything(peer, input);
        break;
    }
}

/* A group of the two clients, with memory and a bucket: what most inputs want. */
static void begin(uint64_t count) {
    const input_t good = {(const uint8_t *)"\1\1\1\1\1\1\1\1", 8};

    send_message(&peers[0], GW_MSG_GET_UNIQUE_ID, &(Gw__GetUniqueId)GW__GET_UNIQUE_ID__INIT.base);
    turn();
    for (int i = 0; i < ADMIN; i++) {
        input_t join = good, buffer = good;

        send_join(&peers[i], &join);
        send_buffer(&peers[i], &buffer);
    }
    for (int n = 0; n < 1000 && (!peers[0].buffer || !peers[1].buffer || !peers[1].group); n++) {
        turn();
        usleep(20);
    }
    for (int i = 0; i < ADMIN; i++)
        send_usual_bucket(&peers[i], count);
    turn();
}

/* Ids that nobody joins live until a deadline; everything else must end by itself. */
static void settle(void) {
    gwd_group_t *group, *next;

    while (server.n_sessions > 0 || server.n_groups > 0) {
        for (group = server.groups; group; group = next) {
            next = group->next;
            if (group->state == GWD_GROUP_ID)
                gwd_group_give_up(group, GW_ERR_BOOTSTRAP, "the input has ended");
        }
        if (server.n_sessions > 0 || server.n_groups > 0)
            (void)uv_run(&server.loop, UV_RUN_ONCE);
    }
    while (uv_run(&server.loop, UV_RUN_NOWAIT) != 0 && server.quota.users) /* handles that are being closed */
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t input = {data, size};
    int floor_fd = lowest_free_fd();
    uint8_t greet;

    if (size == 0)
        return 0;
    memset(&unique_id, 0, sizeof(unique_id));
    waited = false;
    greet = take(&input);
    for (int i = 0; i < PEERS; i++) {
        connect_peer(&peers[i], i == ADMIN ? GWD_ROLE_ADMIN : GWD_ROLE_CLIENT);
        if (greet & 3)
            send_hello(&peers[i]);
    }
    turn();
    if (greet & 4)
        begin(greet & 8 ? 4000 : 16);
    while (input.left > 0) {
        turn();
        act(&input);
    }
    turn();
    usleep(100);
    for (gwd_session_t *session = server.sessions; session; session = session->next)
        gwd_table_each(&session->members, check_member, NULL);
    for (int i = 0; i < PEERS; i++)
        hang_up(&peers[i]);
    settle();
    expect_lowest_free_fd(floor_fd);
    return 0;
}

static void remove_folder(void) {
    gwd_listen_close(&server);
    if (chdir(folder) == 0)
        (void)unlink("lock");
    (void)rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static gwd_config_t config;
    const char *const settings[][2] = {{"socket.dir", folder},
                                       {"lane.count", "1"},
                                       {"reduce.threads", "1"},
                                       {"reduce.inline_bytes", "256"},
                                       {"reduce.chunk_bytes", "4096"},
                                       {"log.level", "error"},
                                       {"limits.buffer_bytes_per_uid", "1M"},
                                       {"limits.groups_per_uid", "20"},
                                       {"trace.events", "64"},
                                       {"deadline.late_ms", "10"},
                                       {"deadline.cycle_ms", "10"}};
    char text[GWD_CONFIG_ERROR_BYTES];

    (void)argc;
    (void)argv;
    memory_fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory_fd < 0 || fallocate(memory_fd, 0, 0, MEMORY_BYTES) != 0 ||
        fcntl(memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 || !mkdtemp(folder) || sodium_init() < 0)
        abort();
    gwd_log_init();
    gwd_config_set_defaults(&config);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        if (gwd_config_set(&config, settings[i][0], settings[i][1], "fuzz", text, sizeof(text)) != GW_OK)
            abort();
    if (gwd_server_init(&server, &config, text, sizeof(text)) != GW_OK)
        abort();
    atexit(remove_folder);
    (void)uv_signal_stop(&server.term); /* the fuzzer has handlers of its own */
    (void)uv_signal_stop(&server.interrupt);
    (void)LLVMFuzzerTestOneInput((const uint8_t *)"\7", 1); /* what is opened once, is opened now */
    return 0;
}
