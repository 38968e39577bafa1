/* fake_node.c - a daemon of a group that sends what no daemon sends, for test_cipher.py
 *
 *   fake_node ID NRANKS RANK NAME=VALUE...     the settings that it says it has
 *   fake_node root NODE                        the other way round
 *
 * It joins with one rank at the root that the id names, says "ready" when the group begins, and then does a command a
 * line, answering "done" when UCX is through with it:
 *
 *   send HOW KIND    a message to node 0. HOW: good, again (the bytes of the last good one), forged (a bit of the tag
 *                    is wrong), returned (with the stamp of one from node 0), plain (no stamp), changed (a bit of the
 *                    text is), lost (a good one that is not sent)
 *   random N         N messages of any length in the name of this node
 *   fail STATUS      FAIL with this status, and words that a terminal would obey
 *
 * With GW_TEST_PROBE in its environment it asks for auto:int8 instead, and ends the measurement while that many messages
 * of it are on their way. As root it says its id, and that the group begins before anything has been measured.
 */
#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap_address.h"
#include "bootstrap_contact.h"
#include "bootstrap_proof.h"
#include "gradwire.pb-c.h"
#include "lane_wire.h"
#include "rails.h"
#include "transport.h"

enum { TEXT_BYTES = 40, LARGE_BYTES = 200000, WINDOW = 8192, EPOCH = 1 };
enum { PROBE_PING = 1, PROBE_PONG, PROBE_DATA, PROBE_END, PROBE_RATE }; /* lane_probe.c */

typedef struct fake {
    int fd;
    gwd_id_layout_t id;
    gwd_seal_t out, in;
    uint8_t frame[GWD_FRAME_MAX + GWD_SEAL_BYTES + 4];
    gwd_wire_t *wire;
    gwd_link_t *link;
    gwd_ip_list_t own;
    gwd_cipher_t *cipher, *other; /* this node's, and what node 0 has */
    uint32_t index;
    unsigned under_way, pings, ends; /* the last two: that have come */
    gwd_wire_header_t last;
    char last_text[TEXT_BYTES];
} fake_t;

static void must(bool is_true, const char *what) {
    if (is_true)
        return;
    fprintf(stderr, "fake_node: failed: %s\n", what);
    exit(1);
}

#define MUST(condition) must((condition), #condition)

/* ---- bootstrap ------------------------------------------------------------------------------------------ */

static void put(const fake_t *fake, const void *data, size_t bytes) {
    MUST(send(fake->fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static void get(const fake_t *fake, void *data, size_t bytes) {
    MUST(recv(fake->fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static void say_frame(fake_t *fake, gwd_frame_type_t type, const ProtobufCMessage *message) {
    uint32_t bytes = 1 + (uint32_t)protobuf_c_message_get_packed_size(message), length = bytes + GWD_SEAL_BYTES;

    fake->frame[4] = (uint8_t)type;
    protobuf_c_message_pack(message, fake->frame + 5);
    gwd_seal_close(&fake->out, fake->frame + 4, bytes);
    memcpy(fake->frame, &length, sizeof(length));
    put(fake, fake->frame, 4 + length);
}

/* The body is fake->frame + 1. */
static size_t hear_frame(fake_t *fake, gwd_frame_type_t type) {
    uint32_t length;

    get(fake, &length, sizeof(length));
    MUST(length > GWD_SEAL_BYTES && length < sizeof(fake->frame));
    get(fake, fake->frame, length);
    MUST(gwd_seal_open(&fake->in, fake->frame, length));
    MUST(fake->frame[0] == type);
    return length - GWD_SEAL_BYTES - 1;
}

static void shake_hands(fake_t *fake) {
    uint8_t node[GWD_NODE_BYTES] = "a fake node", proof[GWD_PROOF_BYTES];
    const uint8_t *token = fake->id.token;
    gwd_address_list_t at;
    gwd_transcript_t said;

    gwd_address_from_id(&fake->id, &at);
    MUST(at.n > 0);
    fake->fd = socket(at.items[0].any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(fake->fd >= 0 && connect(fake->fd, &at.items[0].any, gwd_address_bytes(&at.items[0])) == 0);
    gwd_proof_knock(token, node, &said.knock);
    put(fake, &said.knock, sizeof(said.knock));
    get(fake, &said.challenge, sizeof(said.challenge));
    gwd_proof_make(token, GWD_SIDE_BRANCH, &said, proof);
    put(fake, proof, sizeof(proof));
    get(fake, proof, sizeof(proof));
    MUST(gwd_proof_check(token, GWD_SIDE_ROOT, &said, proof));
    gwd_proof_key(token, GWD_SIDE_BRANCH, &said, &fake->out);
    gwd_proof_key(token, GWD_SIDE_ROOT, &said, &fake->in);
}

/* It has one rail. */
static void packed_address(const fake_t *fake, const void **address_out, size_t *bytes_out) {
    static void *packed;
    static size_t packed_bytes;

    if (!packed) {
        gwd_wire_address(fake->wire, address_out, bytes_out);
        MUST(gwd_rails_pack(&packed, &packed_bytes, *address_out, *bytes_out));
    }
    *address_out = packed;
    *bytes_out = packed_bytes;
}

static void greet(fake_t *fake, uint32_t nranks, char **words, size_t n) {
    Gw__NodeSetting settings[8], *list[8];
    Gw__NodeHello hello = GW__NODE_HELLO__INIT;
    const void *address;
    size_t bytes;

    MUST(n <= 8);
    for (size_t i = 0; i < n; i++) {
        gw__node_setting__init(list[i] = &settings[i]);
        settings[i].name = strtok(words[i], "=");
        settings[i].value = strtok(NULL, "=");
    }
    packed_address(fake, &address, &bytes);
    hello.nranks = nranks;
    hello.host = hello.isa = (char *)(uintptr_t) "fake";
    hello.version = getenv("GW_TEST_VERSION");
    hello.n_setting = n;
    hello.setting = list;
    hello.address.data = (uint8_t *)(uintptr_t)address;
    hello.address.len = bytes;
    gwd_ip_own(&fake->own);
    hello.from.data = (uint8_t *)fake->own.ips;
    hello.from.len = fake->own.n * sizeof(gwd_ip_t);
    say_frame(fake, GWD_FRAME_HELLO, &hello.base);
    (void)hear_frame(fake, GWD_FRAME_WELCOME);
}

static void take_table(fake_t *fake) {
    char text[GWD_WIRE_TEXT_BYTES];
    const void *address;
    uint32_t nodes = 1;

    for (uint32_t i = 0; i < nodes; i++) {
        size_t bytes = hear_frame(fake, GWD_FRAME_TABLE);
        Gw__NodeTable *row = gw__node_table__unpack(NULL, bytes, fake->frame + 1);

        MUST(row != NULL);
        nodes = row->nodes;
        if (i == 0) {
            MUST(gwd_rails_count(row->address.data, row->address.len) > 0);
            address = gwd_rails_address(row->address.data, 0, &bytes);
            MUST(gwd_link_new(fake->wire, address, bytes, NULL, &fake->link, text) == GW_OK);
        }
        if (strcmp(row->host, "fake") == 0)
            fake->index = row->index;
        gw__node_table__free_unpacked(row, NULL);
    }
}

/* ---- the wire ------------------------------------------------------------------------------------------- */

static void on_message(void *lane, const void *header, size_t header_bytes, const void *data, uint64_t bytes,
                       gwd_message_t *message) {
    gwd_wire_header_t said = {0}; /* where it lies it is not aligned */
    fake_t *fake = lane;

    (void)data, (void)bytes, (void)message;
    memcpy(&said, header, header_bytes < sizeof(said) ? header_bytes : sizeof(said));
    fake->pings += said.kind == GWD_WIRE_PROBE && said.status == PROBE_PING;
    fake->ends += said.kind == GWD_WIRE_PROBE && said.status == PROBE_END;
}

static void on_done(void *lane, void *cookie, gw_status_t status) {
    (void)cookie, (void)status;
    ((fake_t *)lane)->under_way--;
}

static void on_broken(void *lane, void *cookie, const char *text) {
    (void)lane, (void)cookie, (void)text;
}

static void send_out(fake_t *fake, const void *header, size_t header_bytes, const void *data, uint64_t bytes) {
    gw_status_t status = gwd_link_send(fake->link, 0, header, header_bytes, data, bytes, fake);

    fake->under_way += status == GW_IN_PROGRESS;
    while (fake->under_way > 0)
        gwd_wire_progress(fake->wire);
}

static void send_message(fake_t *fake, const char *how, uint32_t kind) {
    static uint64_t sequence;
    gwd_wire_header_t header = {.wire_id = gwd_proof_wire_id(fake->id.token), .epoch = EPOCH, .kind = kind};
    char text[TEXT_BYTES] = "words of a fake node";
    size_t stamped = offsetof(gwd_wire_header_t, stamp);

    if (strcmp(how, "again") == 0) {
        send_out(fake, &fake->last, sizeof(fake->last), fake->last_text, TEXT_BYTES);
        return;
    }
    header.node = fake->index;
    header.sequence = ++sequence;
    if (strcmp(how, "plain") == 0) {
        send_out(fake, &header, GWD_WIRE_PLAIN_BYTES, text, TEXT_BYTES);
        return;
    }
    gwd_cipher_seal(fake->cipher, text, TEXT_BYTES, text, &header.payload);
    if (strcmp(how, "returned") == 0)
        gwd_cipher_stamp(fake->other, fake->index, &header, stamped, &header.stamp);
    else
        gwd_cipher_stamp(fake->cipher, 0, &header, stamped, &header.stamp);
    fake->last = header;
    memcpy(fake->last_text, text, TEXT_BYTES);
    if (strcmp(how, "forged") == 0) {
        header.stamp.counter += 1000; /* so that it is nobody's */
        header.stamp.tag[7] ^= 4;
    }
    if (strcmp(how, "changed") == 0)
        text[3] ^= 1;
    if (strcmp(how, "lost") != 0)
        send_out(fake, &header, sizeof(header), text, TEXT_BYTES);
}

static void send_random(fake_t *fake, unsigned n) {
    uint8_t header[GWD_WIRE_HEADER_MAX], *data = malloc(LARGE_BYTES);
    gwd_wire_header_t named = {.wire_id = gwd_proof_wire_id(fake->id.token), .epoch = EPOCH};

    MUST(data != NULL);
    randombytes_buf(data, LARGE_BYTES);
    named.node = fake->index;
    for (unsigned i = 0; i < n; i++) {
        size_t bytes = i % 2 ? sizeof(named) : 1 + randombytes_uniform(sizeof(header) - 1);

        randombytes_buf(header, sizeof(header));
        if (i % 3 > 0) {
            named.kind = i % 7;
            memcpy(header, &named, offsetof(gwd_wire_header_t, status));
        }
        send_out(fake, header, bytes, data, i % 5 ? randombytes_uniform(300) : LARGE_BYTES);
    }
    free(data);
}

static void send_fail(fake_t *fake, uint32_t status) {
    static const char text[] = "words\033[2J of a fake node";
    gwd_wire_header_t header = {.wire_id = gwd_proof_wire_id(fake->id.token), .epoch = EPOCH, .kind = GWD_WIRE_FAIL};

    header.node = fake->index;
    header.status = status;
    send_out(fake, &header, GWD_WIRE_PLAIN_BYTES, text, sizeof(text) - 1);
}

static void send_step(fake_t *fake, uint32_t step, uint64_t number, const void *data, uint64_t bytes) {
    gwd_wire_header_t header = {.wire_id = gwd_proof_wire_id(fake->id.token), .epoch = EPOCH, .kind = GWD_WIRE_PROBE};

    header.node = fake->index;
    header.status = step;
    header.sequence = number;
    fake->under_way += gwd_link_send(fake->link, 0, &header, GWD_WIRE_PLAIN_BYTES, data, bytes, fake) == GW_IN_PROGRESS;
}

/* Says that two messages are all, and has sent more. */
static void probe(fake_t *fake, unsigned n) {
    static const unsigned char data[LARGE_BYTES];

    for (unsigned pongs = 0; fake->ends == 0; gwd_wire_progress(fake->wire))
        for (; pongs < fake->pings; pongs++)
            send_step(fake, PROBE_PONG, 0, NULL, 0);
    send_step(fake, PROBE_RATE, 1000000, NULL, 0);
    for (unsigned i = 0; i < n; i++)
        send_step(fake, PROBE_DATA, 0, data, sizeof(data));
    send_step(fake, PROBE_END, 2, NULL, 0);
    puts("done");
    fflush(stdout);
    for (;;) /* until it is ended */
        gwd_wire_progress(fake->wire);
}

/* ---- as root -------------------------------------------------------------------------------------------- */

static void accept_branch(fake_t *fake, const uint8_t node[GWD_NODE_BYTES]) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    gwd_address_list_t at = {.n = 1};
    socklen_t bytes = sizeof(at.items[0].ip4);
    const uint8_t *token = fake->id.token;
    uint8_t proof[GWD_PROOF_BYTES];
    gwd_transcript_t said;

    at.items[0].ip4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(bind(listener, &at.items[0].any, bytes) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, &at.items[0].any, &bytes) == 0);
    memcpy(fake->id.magic, "GWID", sizeof(fake->id.magic));
    fake->id.version = 1;
    memcpy(fake->id.node, node, GWD_NODE_BYTES);
    randombytes_buf(fake->id.token, sizeof(fake->id.token));
    gwd_address_to_id(&at, &fake->id);
    for (size_t i = 0; i < sizeof(fake->id); i++)
        printf("%02x", ((const uint8_t *)&fake->id)[i]);
    puts("");
    fflush(stdout);
    fake->fd = accept(listener, NULL, NULL);
    MUST(fake->fd >= 0);
    close(listener);
    get(fake, &said.knock, sizeof(said.knock));
    gwd_proof_challenge(node, &said.challenge);
    put(fake, &said.challenge, sizeof(said.challenge));
    get(fake, proof, sizeof(proof));
    MUST(gwd_proof_check(token, GWD_SIDE_BRANCH, &said, proof));
    gwd_proof_make(token, GWD_SIDE_ROOT, &said, proof);
    put(fake, proof, sizeof(proof));
    gwd_proof_key(token, GWD_SIDE_ROOT, &said, &fake->out);
    gwd_proof_key(token, GWD_SIDE_BRANCH, &said, &fake->in);
}

static void say_row(fake_t *fake, uint32_t index, const uint8_t *node) {
    Gw__NodeTable row = GW__NODE_TABLE__INIT;
    const void *address;
    size_t bytes;
    uint32_t pid = 1;

    packed_address(fake, &address, &bytes);
    row.index = index;
    row.nodes = 2;
    row.host = row.version = (char *)(uintptr_t) "fake";
    row.node.data = (uint8_t *)(uintptr_t)node;
    row.node.len = GWD_NODE_BYTES;
    row.address.data = (uint8_t *)(uintptr_t)address;
    row.address.len = bytes;
    gwd_ip_own(&fake->own);
    row.from.data = (uint8_t *)fake->own.ips;
    row.from.len = fake->own.n * sizeof(gwd_ip_t);
    row.n_rank = row.n_pid = 1;
    row.rank = &index;
    row.pid = &pid;
    say_frame(fake, GWD_FRAME_TABLE, &row.base);
}

static void be_root(fake_t *fake, const char *branch) {
    static const uint8_t own[GWD_NODE_BYTES] = "a fake root";
    uint8_t node[GWD_NODE_BYTES];
    uint32_t codecs[GWD_SIZE_CLASSES];
    Gw__NodeWelcome welcome = GW__NODE_WELCOME__INIT;
    Gw__NodeMeasure measure = GW__NODE_MEASURE__INIT;
    Gw__NodeGo go = GW__NODE_GO__INIT;

    MUST(sodium_hex2bin(node, sizeof(node), branch, strlen(branch), NULL, NULL, NULL) == 0);
    accept_branch(fake, own);
    (void)hear_frame(fake, GWD_FRAME_HELLO);
    welcome.host = welcome.version = (char *)(uintptr_t) "fake";
    welcome.deadline_s = 30;
    say_frame(fake, GWD_FRAME_WELCOME, &welcome.base);
    (void)hear_frame(fake, GWD_FRAME_RANK);
    say_row(fake, 0, own);
    say_row(fake, 1, node);
    (void)hear_frame(fake, GWD_FRAME_PREPARED);
    say_frame(fake, GWD_FRAME_MEASURE, &measure.base);
    for (size_t i = 0; i < GWD_SIZE_CLASSES; i++)
        codecs[i] = GW_CODEC_INT8;
    go.n_codec = GWD_SIZE_CLASSES;
    go.codec = codecs;
    say_frame(fake, GWD_FRAME_GO, &go.base);
}

int main(int argc, char **argv) {
    static const gwd_wire_events_t events = {on_message, on_done, on_broken};
    static const gwd_transport_config_t config = {.devices = "lo", .transports = "tcp", .ports = "", .paths = 1};
    static fake_t fake;
    char text[GWD_WIRE_TEXT_BYTES], line[128];
    uint8_t key[GWD_CIPHER_KEY_BYTES];
    gwd_transport_t *transport;
    gwd_cipher_scope_t scope;
    Gw__NodeRank rank = GW__NODE_RANK__INIT;
    char none[] = "none", chosen[] = "auto:int8";
    const char *probes = getenv("GW_TEST_PROBE");
    Gw__NodePrepared prepared = GW__NODE_PREPARED__INIT;

    MUST(argc > 2 && sodium_init() >= 0);
    MUST(gwd_transport_set_environment(&config, text) == GW_OK);
    MUST(gwd_transport_open(&config, &transport, text) == GW_OK);
    MUST(gwd_wire_new(transport, &events, &fake, &fake.wire, text) == GW_OK);
    if (strcmp(argv[1], "root") == 0) {
        be_root(&fake, argv[2]);
        for (;;) /* until it is ended */
            gwd_wire_progress(fake.wire);
    }
    MUST(argc > 3);
    MUST(sodium_hex2bin((uint8_t *)&fake.id, sizeof(fake.id), argv[1], strlen(argv[1]), NULL, NULL, NULL) == 0);
    shake_hands(&fake);
    greet(&fake, (uint32_t)atoi(argv[2]), argv + 4, (size_t)argc - 4);
    rank.rank = (uint32_t)atoi(argv[3]);
    rank.codec = probes ? chosen : none;
    say_frame(&fake, GWD_FRAME_RANK, &rank.base);
    take_table(&fake);
    gwd_proof_wire_key(fake.id.token, key);
    scope = (gwd_cipher_scope_t){.wire_id = gwd_proof_wire_id(fake.id.token), .epoch = EPOCH};
    fake.cipher = gwd_cipher_new(key, &scope, 2, fake.index, WINDOW);
    fake.other = gwd_cipher_new(key, &scope, 2, 0, WINDOW);
    MUST(fake.cipher != NULL && fake.other != NULL && fake.index == 1);
    say_frame(&fake, GWD_FRAME_PREPARED, &prepared.base);
    if (probes) {
        (void)hear_frame(&fake, GWD_FRAME_MEASURE);
        probe(&fake, (unsigned)atoi(probes));
    }
    (void)hear_frame(&fake, GWD_FRAME_GO);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        const char *command = strtok(line, " \n"), *how = strtok(NULL, " \n"), *kind = strtok(NULL, " \n");

        MUST(command != NULL && how != NULL);
        if (kind != NULL)
            send_message(&fake, how, (uint32_t)atoi(kind));
        else if (strcmp(command, "fail") == 0)
            send_fail(&fake, (uint32_t)atoi(how));
        else
            send_random(&fake, (unsigned)atoi(how));
        puts("done");
        fflush(stdout);
    }
    gwd_link_abort(fake.link);
    gwd_wire_free(fake.wire);
    gwd_transport_close(transport);
    gwd_cipher_free(fake.cipher);
    gwd_cipher_free(fake.other);
    close(fake.fd);
    return 0;
}
