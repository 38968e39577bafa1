/* fuzz_messages.c - any sequence of messages into a whole daemon
 *
 * The daemon's server runs inside, loop, lane and all, and the input is a row of actions of three peers: two
 * clients and an operator. When the input ends all peers hang up, and the daemon must give back every session,
 * group and file descriptor.
 */
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "fds.h"
#include "group.h"
#include "log.h"
#include "peer.h"
#include "server.h"

enum { PEERS = 3, ADMIN = 2 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static gwd_server_t server;
static char folder[] = "/tmp/gw-fuzz-XXXXXX";
static peer_t peers[PEERS];
static bool waited;

/* ---- the daemon --------------------------------------------------------------------------------- */

static void turn(void) {
    (void)uv_run(&server.loop, UV_RUN_NOWAIT);
    for (int i = 0; i < PEERS; i++)
        peer_listen(&peers[i]);
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
    peer_drop_group(peer);
    if (peer->socket >= 0)
        close(peer->socket);
    peer->socket = -1;
}

static void connect_peer(peer_t *peer, gwd_role_t role) {
    int sockets[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0)
        abort();
    *peer = (peer_t){.socket = sockets[1], .channel = -1, .rank = (uint32_t)(peer - peers)};
    gwd_session_open(&server, sockets[0], role);
}

static void act(input_t *input) {
    uint8_t action = input_take(input);
    peer_t *peer = &peers[(action >> 6) % PEERS];
    input_t same;

    switch (action & 15) {
    case 0:
        hang_up(peer);
        break;
    case 1:
        peer_send_get(peer);
        break;
    case 2:
        peer_send_join(peer, input);
        break;
    case 3:
        peer_send_buffer(peer, input);
        break;
    case 4:
        peer_send_bucket(peer, input);
        break;
    case 5: /* the same on both, so that it can run */
        same = *input;
        peer_send_bucket(&peers[0], input);
        peer_send_bucket(&peers[1], &same);
        break;
    case 6:
        peer_submit(peer, input);
        break;
    case 7:
    case 8:
        peer_submit_all(peers, input);
        break;
    case 9:
        peer_channel_anything(peer, input);
        break;
    case 10:
        peer_scribble(peer, input);
        break;
    case 11:
        peer_send_small(peer, input);
        break;
    case 12:
        peer_send_admin(&peers[ADMIN], input, server.last_session_id);
        break;
    case 13: /* time for the lane and the helper threads, or, once, even for a rank to be late */
        usleep(input_take(input) == 0x5a && !waited ? 15000 : 100);
        waited = true;
        break;
    case 14:
        peer_drop_group(peer);
        break;
    default:
        peer_send_anything(peer, input);
        break;
    }
}

/* A group of the two clients, with memory and a bucket: what most inputs want. */
static void begin(uint64_t count) {
    const input_t good = {(const uint8_t *)"\1\1\1\1\1\1\1\1", 8};

    peer_send_get(&peers[0]);
    turn();
    for (int i = 0; i < ADMIN; i++) {
        input_t join = good, buffer = good;

        peer_send_join(&peers[i], &join);
        peer_send_buffer(&peers[i], &buffer);
    }
    for (int n = 0; n < 1000 && (!peers[0].buffer || !peers[1].buffer || !peers[1].group); n++) {
        turn();
        usleep(20);
    }
    for (int i = 0; i < ADMIN; i++)
        peer_send_usual_bucket(&peers[i], count);
    turn();
}

/* Ids that nobody joins, or could join, live until a deadline; everything else must end by itself. */
static void settle(void) {
    gwd_group_t *group, *next;

    while (server.n_sessions > 0 || server.n_groups > 0) {
        for (group = server.groups; group; group = next) {
            next = group->next;
            if (group->state == GWD_GROUP_ID || (group->state == GWD_GROUP_FORMING && group->n_members == 0))
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
    memset(&peer_unique_id, 0, sizeof(peer_unique_id));
    waited = false;
    greet = input_take(&input);
    for (int i = 0; i < PEERS; i++) {
        connect_peer(&peers[i], i == ADMIN ? GWD_ROLE_ADMIN : GWD_ROLE_CLIENT);
        if (greet & 3)
            peer_send_hello(&peers[i]);
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
    peer_memory_fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (peer_memory_fd < 0 || fallocate(peer_memory_fd, 0, 0, PEER_MEMORY_BYTES) != 0 ||
        fcntl(peer_memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 || !mkdtemp(folder) || sodium_init() < 0)
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
