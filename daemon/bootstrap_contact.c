/* bootstrap_contact.c - see bootstrap_contact.h */
#include "bootstrap_contact.h"

#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "clock.h"
#include "log.h"
#include "server.h"

enum { LENGTH_BYTES = 4, IN_BYTES = LENGTH_BYTES + GWD_FRAME_MAX + GWD_SEAL_BYTES };

enum { KEEPALIVE_PROBES = 2, KEEPALIVE_MAX_S = 32767 /* of Linux */ };

/* ---- life --------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle) {
    gwd_contact_t *peer = handle->data;

    if (--peer->open_handles > 0)
        return;
    if (peer->in != peer->small)
        free(peer->in);
    sodium_memzero(peer, sizeof(*peer)); /* keys */
    free(peer);
}

static void unlink_peer(gwd_contact_t *peer) {
    gwd_contact_t **at = &peer->server->contacts;

    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
}

void gwd_contact_close(gwd_contact_t *peer) {
    if (peer->state == GWD_CONTACT_CLOSED)
        return;
    peer->state = GWD_CONTACT_CLOSED;
    peer->owner = NULL;
    unlink_peer(peer);
    uv_close((uv_handle_t *)&peer->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&peer->timer, on_handle_closed);
}

/* Closes, and tells the owner. */
static void gone(gwd_contact_t *peer, const char *why) {
    void *owner = peer->owner;

    if (owner && peer->state != GWD_CONTACT_CLOSED) {
        peer->state = GWD_CONTACT_FINISHING; /* nothing more is sent by what the owner does now */
        peer->events->on_gone(peer, why);
    }
    gwd_contact_close(peer);
}

/* One that has not proved itself. It gets no answer: it may be anybody. */
static void drop(gwd_contact_t *peer, const char *why) {
    gwd_server_t *server = peer->server;
    uint64_t now = gwd_now_ns();

    if (peer->side == GWD_SIDE_BRANCH) {
        gone(peer, why);
        return;
    }
    server->n_dropped++;
    if (now - server->dropped_ns > 1000000000u) { /* a scan of ports must not fill the disk */
        gwd_log(GWD_LOG_WARNING, "wire", "a connection from %s %s; %llu such since the last message", peer->text, why,
                (unsigned long long)server->n_dropped);
        server->dropped_ns = now;
        server->n_dropped = 0;
    }
    gwd_contact_close(peer);
}

static void end(gwd_contact_t *peer, const char *why) {
    if (peer->state == GWD_CONTACT_FINISHING)
        gwd_contact_close(peer);
    else if (peer->state == GWD_CONTACT_OPEN)
        gone(peer, why);
    else
        drop(peer, why);
}

static void on_timer(uv_timer_t *timer) {
    gwd_contact_t *peer = timer->data;

    end(peer,
        peer->state == GWD_CONTACT_CONNECTING ? "timed out" : "did not say who it is in time (deadline.hello_ms)");
}

static void start_timer(gwd_contact_t *peer) {
    (void)uv_timer_start(&peer->timer, on_timer, (uint64_t)peer->server->config.deadline_hello_ms, 0);
}

void gwd_contact_settle(gwd_contact_t *peer) {
    (void)uv_timer_stop(&peer->timer);
}

static gwd_contact_t *new_peer(gwd_server_t *server, gwd_side_t side, const gwd_contact_events_t *events) {
    gwd_contact_t *peer = calloc(1, sizeof(*peer));
    gwd_contact_t **at = &server->contacts;

    if (!peer)
        return NULL;
    peer->server = server;
    peer->side = side;
    peer->events = events;
    peer->in = peer->small;
    peer->open_handles = 2;
    (void)uv_tcp_init(&server->loop, &peer->tcp); /* neither can fail */
    (void)uv_timer_init(&server->loop, &peer->timer);
    peer->tcp.data = peer->timer.data = peer->connect.data = peer->shutdown.data = peer;
    while (*at)
        at = &(*at)->next;
    *at = peer;
    start_timer(peer);
    return peer;
}

/* A host that has vanished is noticed as soon as later, when the group's lanes look after each other. TCP counts in
 * seconds; what it is to send is given up at the same time. */
static void watch_connection(gwd_contact_t *peer) {
    unsigned silence_ms = (unsigned)peer->server->config.deadline_silence_ms;
    int fd, on = 1, probes = KEEPALIVE_PROBES, idle = (int)(silence_ms / ((KEEPALIVE_PROBES + 1) * 1000));

    if (idle < 1)
        idle = 1;
    if (idle > KEEPALIVE_MAX_S)
        idle = KEEPALIVE_MAX_S;
    (void)uv_tcp_nodelay(&peer->tcp, 1);
    if (uv_fileno((uv_handle_t *)&peer->tcp, &fd) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms)) != 0)
        gwd_log(GWD_LOG_WARNING, "wire", "keep-alive of the connection to %s: %m", peer->text);
}

/* ---- sending ------------------------------------------------------------------------------------ */

typedef struct outgoing {
    uv_write_t request;
    uint8_t data[];
} outgoing_t;

static void on_written(uv_write_t *request, int status) {
    (void)status; /* a broken connection is seen by reading */
    free(request->data);
}

static void on_no_memory(uv_timer_t *timer) {
    end(timer->data, "found this daemon out of memory");
}

/* Takes `out` over. */
static void write_out(gwd_contact_t *peer, outgoing_t *out, size_t bytes) {
    uv_buf_t buf;

    if (out) {
        buf = uv_buf_init((char *)out->data, (unsigned)bytes);
        out->request.data = out;
        if (uv_write(&out->request, (uv_stream_t *)&peer->tcp, &buf, 1, on_written) == 0)
            return;
        free(out);
    }
    /* The peer would wait for what never comes. The owner hears of it from the timer, not inside its own call. */
    (void)uv_timer_start(&peer->timer, on_no_memory, 0, 0);
}

static void send_raw(gwd_contact_t *peer, const void *data, size_t bytes) {
    outgoing_t *out = malloc(sizeof(*out) + bytes);

    if (out)
        memcpy(out->data, data, bytes);
    write_out(peer, out, bytes);
}

void gwd_contact_send(gwd_contact_t *peer, gwd_frame_type_t type, const ProtobufCMessage *message) {
    size_t bytes = 1 + protobuf_c_message_get_packed_size(message);
    outgoing_t *out = NULL;
    size_t sealed = bytes + GWD_SEAL_BYTES;

    if (peer->state != GWD_CONTACT_OPEN)
        return;
    if (bytes <= GWD_FRAME_MAX)
        out = malloc(sizeof(*out) + LENGTH_BYTES + sealed);
    if (out) {
        for (int i = 0; i < LENGTH_BYTES; i++)
            out->data[i] = (uint8_t)(sealed >> (8 * i));
        out->data[LENGTH_BYTES] = (uint8_t)type;
        (void)protobuf_c_message_pack(message, out->data + LENGTH_BYTES + 1);
        gwd_seal_close(&peer->send, out->data + LENGTH_BYTES, bytes);
    }
    write_out(peer, out, LENGTH_BYTES + sealed);
}

/* ---- receiving ---------------------------------------------------------------------------------- */

static void expect(gwd_contact_t *peer, gwd_contact_state_t state, size_t bytes) {
    peer->state = state;
    peer->used = 0;
    peer->needed = bytes;
}

static void open_peer(gwd_contact_t *peer) {
    gwd_side_t other = peer->side == GWD_SIDE_ROOT ? GWD_SIDE_BRANCH : GWD_SIDE_ROOT;
    uint8_t *in = malloc(IN_BYTES);

    if (!in) {
        drop(peer, "found this daemon out of memory");
        return;
    }
    peer->in = in;
    gwd_proof_key(peer->token, peer->side, &peer->transcript, &peer->send);
    gwd_proof_key(peer->token, other, &peer->transcript, &peer->receive);
    sodium_memzero(peer->token, sizeof(peer->token));
    expect(peer, GWD_CONTACT_OPEN, LENGTH_BYTES);
    peer->events->on_proven(peer);
}

static void wrong_version(gwd_contact_t *peer, const char *who, uint32_t version) {
    char why[160];

    snprintf(why, sizeof(why),
             "is of %s that speaks version %u between daemons, and this one %d: install the same gradwire on all hosts",
             who, version, GWD_BOOTSTRAP_VERSION);
    drop(peer, why);
}

static void take_knock(gwd_contact_t *peer) {
    gwd_knock_t *knock = &peer->transcript.knock;
    uint32_t version;

    memcpy(knock, peer->in, sizeof(*knock));
    if (!gwd_proof_is_ours(knock->magic, knock->version, &version)) {
        drop(peer, "is of no gradwire daemon");
        return;
    }
    if (version == GWD_BOOTSTRAP_VERSION && !gwd_bootstrap_token(peer->server, knock->name, peer->token)) {
        drop(peer, "names no group that forms here");
        return;
    }
    gwd_proof_challenge(peer->server->node, &peer->transcript.challenge);
    send_raw(peer, &peer->transcript.challenge, sizeof(peer->transcript.challenge));
    expect(peer, GWD_CONTACT_PROOF, GWD_PROOF_BYTES);
    if (version != GWD_BOOTSTRAP_VERSION) { /* the challenge tells it ours */
        gwd_log(GWD_LOG_WARNING, "wire", "the daemon at %s speaks version %u between daemons, this one %d", peer->text,
                version, GWD_BOOTSTRAP_VERSION);
        gwd_contact_finish(peer);
    }
}

static void take_challenge(gwd_contact_t *peer) {
    gwd_challenge_t *challenge = &peer->transcript.challenge;
    uint8_t proof[GWD_PROOF_BYTES];
    uint32_t version;

    memcpy(challenge, peer->in, sizeof(*challenge));
    if (!gwd_proof_is_ours(challenge->magic, challenge->version, &version)) {
        drop(peer, "is of no gradwire daemon");
    } else if (version != GWD_BOOTSTRAP_VERSION) {
        wrong_version(peer, "a daemon", version);
    } else if (memcmp(challenge->node, peer->root, sizeof(peer->root)) != 0) {
        drop(peer, "is of another daemon than the one that made the unique id: was it restarted?");
    } else {
        gwd_proof_make(peer->token, GWD_SIDE_BRANCH, &peer->transcript, proof);
        send_raw(peer, proof, sizeof(proof));
        expect(peer, GWD_CONTACT_PROOF, GWD_PROOF_BYTES);
    }
}

static void take_proof(gwd_contact_t *peer) {
    gwd_side_t other = peer->side == GWD_SIDE_ROOT ? GWD_SIDE_BRANCH : GWD_SIDE_ROOT;
    uint8_t proof[GWD_PROOF_BYTES];

    if (!gwd_proof_check(peer->token, other, &peer->transcript, peer->in)) {
        drop(peer, "does not prove that it has the unique id");
        return;
    }
    if (peer->side == GWD_SIDE_ROOT) {
        gwd_proof_make(peer->token, GWD_SIDE_ROOT, &peer->transcript, proof);
        send_raw(peer, proof, sizeof(proof));
    }
    open_peer(peer);
}

/* The length, then the rest. */
static void take_frame(gwd_contact_t *peer) {
    uint32_t length = 0;

    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint32_t)peer->in[i] << (8 * i);
    if (length <= GWD_SEAL_BYTES || length > GWD_FRAME_MAX + GWD_SEAL_BYTES) {
        gone(peer, "sent a frame that is forged or damaged");
        return;
    }
    if (peer->needed == LENGTH_BYTES) {
        peer->needed += length;
        return;
    }
    if (!gwd_seal_open(&peer->receive, peer->in + LENGTH_BYTES, length)) {
        gone(peer, "sent a frame that is forged or damaged");
        return;
    }
    expect(peer, GWD_CONTACT_OPEN, LENGTH_BYTES);
    peer->events->on_frame(peer, peer->in[LENGTH_BYTES], peer->in + LENGTH_BYTES + 1, length - GWD_SEAL_BYTES - 1);
}

static void take(gwd_contact_t *peer) {
    switch (peer->state) {
    case GWD_CONTACT_KNOCK:
        take_knock(peer);
        break;
    case GWD_CONTACT_CHALLENGE:
        take_challenge(peer);
        break;
    case GWD_CONTACT_PROOF:
        take_proof(peer);
        break;
    case GWD_CONTACT_OPEN:
        take_frame(peer);
        break;
    case GWD_CONTACT_FINISHING: /* thrown away: an unread byte would make the close a reset, and lose what we sent */
        peer->used = 0;
        break;
    case GWD_CONTACT_CONNECTING:
    case GWD_CONTACT_CLOSED:
        break;
    }
}

/* Never more than the packet that is due: what follows is read when it is known what it is. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    gwd_contact_t *peer = handle->data;

    (void)suggested;
    *buf = uv_buf_init((char *)peer->in + peer->used, (unsigned)(peer->needed - peer->used));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    gwd_contact_t *peer = stream->data;

    (void)buf;
    if (n < 0) {
        end(peer, n == UV_EOF ? "was closed by the other side" : uv_strerror((int)n));
        return;
    }
    peer->used += (size_t)n;
    if (peer->used == peer->needed)
        take(peer);
}

/* ---- beginning and end -------------------------------------------------------------------------- */

void gwd_contact_accept(gwd_server_t *server, uv_stream_t *listener, const gwd_contact_events_t *events) {
    gwd_contact_t *peer = new_peer(server, GWD_SIDE_ROOT, events);
    gwd_address_t address = {0};
    int address_bytes = sizeof(address);
    gwd_contact_t *oldest = NULL;
    unsigned unproven = 0;

    if (!peer) {
        gwd_log(GWD_LOG_ERROR, "wire", "out of memory: other daemons cannot connect any more");
        return;
    }
    if (uv_accept(listener, (uv_stream_t *)&peer->tcp) != 0) {
        gwd_contact_close(peer);
        return;
    }
    if (uv_tcp_getpeername(&peer->tcp, &address.any, &address_bytes) == 0)
        gwd_address_text(&address, peer->text, sizeof(peer->text));
    watch_connection(peer);
    expect(peer, GWD_CONTACT_KNOCK, sizeof(gwd_knock_t));
    if (uv_read_start((uv_stream_t *)&peer->tcp, on_alloc, on_read) != 0) {
        gwd_contact_close(peer);
        return;
    }
    for (gwd_contact_t *other = server->contacts; other; other = other->next) {
        if (other->side != GWD_SIDE_ROOT || other->in != other->small)
            continue;
        oldest = oldest ? oldest : other;
        unproven++;
    }
    if (unproven > GWD_UNPROVEN_MAX)
        drop(oldest, "had to give way: too many have not proved themselves");
}

static void on_connected(uv_connect_t *request, int status) {
    gwd_contact_t *peer = request->data;

    if (peer->state != GWD_CONTACT_CONNECTING) /* closed before */
        return;
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&peer->tcp, on_alloc, on_read);
    if (status != 0) {
        drop(peer, uv_strerror(status));
        return;
    }
    watch_connection(peer);
    expect(peer, GWD_CONTACT_CHALLENGE, sizeof(gwd_challenge_t));
    gwd_proof_knock(peer->token, peer->server->node, &peer->transcript.knock);
    send_raw(peer, &peer->transcript.knock, sizeof(peer->transcript.knock));
}

static void on_connect_failed(uv_timer_t *timer) {
    gwd_contact_t *peer = timer->data;

    drop(peer, uv_strerror(-(int)peer->needed));
}

gwd_contact_t *gwd_contact_connect(gwd_server_t *server, const gwd_address_t *address, const gwd_id_layout_t *id,
                                   const gwd_contact_events_t *events, void *owner) {
    gwd_contact_t *peer = new_peer(server, GWD_SIDE_BRANCH, events);
    int error;

    if (!peer)
        return NULL;
    peer->owner = owner;
    memcpy(peer->token, id->token, sizeof(peer->token));
    memcpy(peer->root, id->node, sizeof(peer->root));
    gwd_address_text(address, peer->text, sizeof(peer->text));
    error = uv_tcp_connect(&peer->connect, &peer->tcp, &address->any, on_connected);
    if (error != 0) {
        peer->needed = (size_t)-error;
        (void)uv_timer_start(&peer->timer, on_connect_failed, 0, 0);
    }
    return peer;
}

static void on_shutdown(uv_shutdown_t *request, int status) {
    gwd_contact_t *peer = request->data;

    if (status != 0 && peer->state == GWD_CONTACT_FINISHING)
        gwd_contact_close(peer);
}

void gwd_contact_finish(gwd_contact_t *peer) {
    if (peer->state == GWD_CONTACT_CLOSED || peer->state == GWD_CONTACT_FINISHING)
        return;
    peer->owner = NULL;
    if (peer->state == GWD_CONTACT_CONNECTING ||
        uv_shutdown(&peer->shutdown, (uv_stream_t *)&peer->tcp, on_shutdown) != 0) {
        gwd_contact_close(peer);
        return;
    }
    expect(peer, GWD_CONTACT_FINISHING, sizeof(peer->small)); /* until the other side closes, or its time is over */
    start_timer(peer);
}
