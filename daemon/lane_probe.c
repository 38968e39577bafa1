/* lane_probe.c - what the wire of a group can do: latency and bytes a second, measured while the group forms
 *
 * A few short messages go to each other node and back (PING, PONG). Then data goes to all of them at once, as in an
 * exchange, for PROBE_NS or PROBE_BYTES a node, and the receiver says how fast it came (DATA, END, RATE). All nodes do
 * that at about the same time. A node answers before it has been told to measure, too. When its own data has been judged
 * by all, and it has judged that of all, the loop hears of it, and the memory is given back.
 */
#include <stdlib.h>

#include "clock.h"
#include "lane_wire.h"

typedef enum step { STEP_PING = 1, STEP_PONG, STEP_DATA, STEP_END, STEP_RATE } step_t;

enum {
    PINGS = 8, /* the first ones make the connection */
    WINDOW = 4,
    MESSAGE_BYTES_MIN = 16 << 10, /* at first: a slow link is not to be filled for long */
    MESSAGE_BYTES_MAX = 256 << 10,
    MESSAGES_MIN = 16,
    PROBE_BYTES = 32 << 20, /* to all nodes together */
};

#define PROBE_NS UINT64_C(100000000)

typedef struct target {
    uint32_t pings;
    uint64_t ping_ns, round_trip_ns;
    uint32_t n_under_way;
    uint64_t n_sent, bytes_sent;
    bool is_due; /* there is more to send, in the lane's next turn */
    bool said_end, is_judged;
    uint64_t rate; /* bytes a second that came there */
    /* Of what comes from there: */
    uint64_t n_begun, n_came, bytes_came, n_expected; /* n_begun: whose receiving has begun; n_expected 0: not known */
    uint64_t first_ns, first_bytes, last_ns;
    bool has_judged;
} target_t;

struct gwd_probe {
    bool is_asked;
    bool is_due; /* a target is */
    uint64_t begin_ns;
    unsigned char *memory; /* what is sent, and where to what comes: it means nothing; NULL once all is known */
    target_t targets[];    /* by node */
};

/* A message under way, which keeps the wire from being freed. */
typedef struct transfer {
    gwd_pending_t pending;
    gwd_peer_t *peer;
    uint64_t bytes;
} transfer_t;

static void fail(gwd_lane_group_t *group) {
    gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon has no memory to measure the way to other nodes");
}

/* Made when the first message of it comes or goes. NULL: the group has failed. */
static struct gwd_probe *probe_of(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;
    struct gwd_probe *probe = wire->probe;

    if (probe)
        return probe;
    probe = calloc(1, sizeof(*probe) + wire->map->n_nodes * sizeof(probe->targets[0]));
    if (probe)
        probe->memory = calloc(1, MESSAGE_BYTES_MAX);
    if (!probe || !probe->memory) {
        free(probe);
        fail(group);
        return NULL;
    }
    wire->probe = probe;
    return probe;
}

void gwd_wire_free_probe(struct gwd_wire_group *wire) {
    if (wire->probe)
        free(wire->probe->memory);
    free(wire->probe);
    wire->probe = NULL;
}

static target_t *target_of(const gwd_peer_t *peer) {
    return &peer->group->wire->probe->targets[peer->node];
}

static void say(gwd_peer_t *peer, step_t step, uint64_t number) {
    gwd_wire_say(peer, GWD_WIRE_PROBE, number, 0, (gw_status_t)step, NULL);
}

/* What is under way ends with errors that mean nothing. */
static bool is_ending(const gwd_lane_group_t *group) {
    return group->status != GW_OK || group->wire->close_ns != 0;
}

static transfer_t *new_transfer(gwd_peer_t *peer, uint64_t bytes, void (*ended)(gwd_pending_t *, gw_status_t)) {
    transfer_t *transfer = malloc(sizeof(*transfer));

    if (!transfer) {
        fail(peer->group);
        return NULL;
    }
    *transfer = (transfer_t){{ended}, peer, bytes};
    peer->group->wire->n_notes++;
    return transfer;
}

static gwd_peer_t *end_transfer(gwd_pending_t *pending) {
    transfer_t *transfer = (transfer_t *)pending;
    gwd_peer_t *peer = transfer->peer;

    peer->group->wire->n_notes--;
    free(transfer);
    return peer;
}

/* ---- the end ------------------------------------------------------------------------------------ */

/* Once all is known both ways. */
static void try_end(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;
    struct gwd_probe *probe = wire->probe;
    gwd_event_t event = {.kind = GWD_EVENT_PROBED, .group = group->id, .bytes_per_s = UINT64_MAX};

    if (!probe->is_asked)
        return;
    for (uint32_t n = 0; n < wire->map->n_nodes; n++) {
        const target_t *target = &probe->targets[n];

        if (n == wire->map->own_node)
            continue;
        if (!target->is_judged || !target->has_judged)
            return;
        if (target->rate < event.bytes_per_s)
            event.bytes_per_s = target->rate;
        if (target->round_trip_ns / 2 > event.latency_ns)
            event.latency_ns = target->round_trip_ns / 2;
    }
    event.bytes_per_s *= wire->map->n_nodes - 1; /* shards are of one size: the slowest way counts */
    probe->is_asked = false;
    free(probe->memory); /* nothing is under way: no more is received than END has said, and all of that has come */
    probe->memory = NULL;
    gwd_lane_event(group->lane, &event);
}

/* ---- sending ------------------------------------------------------------------------------------ */

static void send_more(gwd_peer_t *peer);

static void data_sent(gwd_pending_t *pending, gw_status_t status) {
    gwd_peer_t *peer = end_transfer(pending);
    gwd_lane_group_t *group = peer->group;

    if (is_ending(group))
        return;
    target_of(peer)->n_under_way--;
    if (status != GW_OK)
        gwd_wire_lost(group, peer->node, "a measurement failed");
    else
        send_more(peer);
}

/* Twice as much with every window. */
static uint64_t next_bytes(const target_t *target) {
    uint64_t doubled = target->n_sent / WINDOW, bytes = MESSAGE_BYTES_MIN;

    while (doubled-- > 0 && bytes < MESSAGE_BYTES_MAX)
        bytes *= 2;
    return bytes;
}

static bool is_enough(const gwd_lane_group_t *group, const target_t *target) {
    return target->n_sent >= MESSAGES_MIN && (gwd_now_ns() - group->wire->probe->begin_ns >= PROBE_NS ||
                                              target->bytes_sent >= PROBE_BYTES / (group->wire->map->n_nodes - 1));
}

static bool send_one(gwd_peer_t *peer, target_t *target) {
    gwd_lane_group_t *group = peer->group;
    gwd_wire_header_t header = {.wire_id = group->wire->map->wire_id,
                                .epoch = group->epoch,
                                .node = group->wire->map->own_node,
                                .kind = GWD_WIRE_PROBE,
                                .status = STEP_DATA};
    uint64_t bytes = next_bytes(target);
    transfer_t *transfer = new_transfer(peer, bytes, data_sent);
    gw_status_t status;

    if (!transfer)
        return false;
    target->n_sent++;
    target->bytes_sent += bytes;
    target->n_under_way++;
    status = gwd_wire_post(peer, &header, group->wire->probe->memory, bytes, transfer);
    if (status == GW_IN_PROGRESS)
        return true;
    (void)end_transfer(&transfer->pending);
    target->n_under_way--;
    if (status != GW_OK)
        gwd_wire_lost(group, peer->node, "a measurement failed");
    return status == GW_OK;
}

/* A window at most: when sends end at once, others must have their turn all the same. */
static void send_more(gwd_peer_t *peer) {
    gwd_lane_group_t *group = peer->group;
    target_t *target = target_of(peer);
    unsigned n = 0;

    if (target->said_end || !peer->link)
        return;
    while (target->n_under_way < WINDOW && !is_enough(group, target)) {
        if (n++ == WINDOW) {
            target->is_due = group->wire->probe->is_due = true;
            return;
        }
        if (!send_one(peer, target))
            return;
    }
    if (target->n_under_way > 0)
        return;
    target->said_end = true;
    say(peer, STEP_END, target->n_sent);
}

bool gwd_wire_probe_more(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;

    if (!wire->probe || !wire->probe->is_due || is_ending(group))
        return false;
    wire->probe->is_due = false;
    for (uint32_t n = 0; n < wire->n_peers && group->status == GW_OK; n++) {
        bool is_due = wire->probe->targets[n].is_due;

        wire->probe->targets[n].is_due = false;
        if (is_due)
            send_more(&wire->peers[n]);
    }
    return true;
}

/* ---- pings -------------------------------------------------------------------------------------- */

static void ping(gwd_peer_t *peer) {
    target_of(peer)->ping_ns = gwd_now_ns();
    say(peer, STEP_PING, 0);
}

/* All at once, when the last one is well known. */
static void try_data(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;

    for (uint32_t n = 0; n < wire->n_peers; n++)
        if (n != wire->map->own_node && wire->probe->targets[n].pings < PINGS)
            return;
    wire->probe->begin_ns = gwd_now_ns();
    for (uint32_t n = 0; n < wire->n_peers && group->status == GW_OK; n++)
        if (n != wire->map->own_node)
            send_more(&wire->peers[n]);
}

static bool take_pong(gwd_peer_t *peer, target_t *target) {
    uint64_t took_ns = gwd_now_ns() - target->ping_ns;

    if (target->ping_ns == 0 || target->pings == PINGS)
        return false;
    if (target->pings == 0 || took_ns < target->round_trip_ns)
        target->round_trip_ns = took_ns;
    if (++target->pings < PINGS)
        ping(peer);
    else
        try_data(peer->group);
    return true;
}

void gwd_lane_wire_probe(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;

    if (group->status != GW_OK || !probe_of(group) || wire->probe->is_asked)
        return;
    wire->probe->is_asked = true;
    gwd_rails_probe(group);
    for (uint32_t n = 0; n < wire->n_peers && group->status == GW_OK; n++)
        if (n != wire->map->own_node)
            ping(&wire->peers[n]);
}

/* ---- what comes --------------------------------------------------------------------------------- */

/* Says how fast it came once all has: without the first message, which began before the clock. */
static void try_judge(gwd_peer_t *peer, target_t *target) {
    uint64_t ns = target->last_ns - target->first_ns, rate;

    if (target->has_judged || target->n_expected == 0 || target->n_came < target->n_expected)
        return;
    target->has_judged = true;
    rate = (uint64_t)((double)(target->bytes_came - target->first_bytes) * 1e9 / (double)(ns ? ns : 1));
    say(peer, STEP_RATE, rate ? rate : 1);
    try_end(peer->group);
}

static void count_data(gwd_peer_t *peer, uint64_t bytes) {
    target_t *target = target_of(peer);

    target->last_ns = gwd_now_ns();
    if (target->n_came++ == 0) {
        target->first_ns = target->last_ns;
        target->first_bytes = bytes;
    }
    target->bytes_came += bytes;
    try_judge(peer, target);
}

static void data_came(gwd_pending_t *pending, gw_status_t status) {
    uint64_t bytes = ((transfer_t *)pending)->bytes;
    gwd_peer_t *peer = end_transfer(pending);

    if (is_ending(peer->group))
        return;
    if (status != GW_OK)
        gwd_wire_lost(peer->group, peer->node, "a measurement failed");
    else
        count_data(peer, bytes);
}

static bool take_data(gwd_peer_t *peer, target_t *target, uint64_t bytes, gwd_message_t *message) {
    transfer_t *transfer;
    gw_status_t status;

    if (bytes == 0 || bytes > MESSAGE_BYTES_MAX || (target->n_expected > 0 && target->n_begun == target->n_expected))
        return false;
    transfer = new_transfer(peer, bytes, data_came);
    if (!transfer)
        return true;
    target->n_begun++;
    status = gwd_message_receive(message, peer->group->wire->probe->memory, transfer);
    if (status != GW_IN_PROGRESS)
        transfer->pending.ended(&transfer->pending, status);
    return true;
}

static bool take_end(gwd_peer_t *peer, target_t *target, uint64_t n_sent) {
    if (target->n_expected > 0 || n_sent < target->n_begun || n_sent < 2)
        return false;
    target->n_expected = n_sent;
    try_judge(peer, target);
    return true;
}

static bool take_rate(gwd_peer_t *peer, target_t *target, uint64_t rate) {
    if (!target->said_end || target->is_judged || rate == 0)
        return false;
    target->is_judged = true;
    target->rate = rate;
    try_end(peer->group);
    return true;
}

void gwd_wire_probed(gwd_peer_t *peer, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message) {
    target_t *target;
    bool good = false;

    if (!probe_of(peer->group))
        return;
    target = target_of(peer);
    if (header->status == STEP_PING) {
        say(peer, STEP_PONG, 0);
        good = true;
    } else if (header->status == STEP_PONG) {
        good = take_pong(peer, target);
    } else if (header->status == STEP_DATA) {
        good = take_data(peer, target, bytes, message);
    } else if (header->status == STEP_END) {
        good = take_end(peer, target, header->sequence);
    } else if (header->status == STEP_RATE) {
        good = take_rate(peer, target, header->sequence);
    }
    if (!good && peer->group->status == GW_OK)
        gwd_wire_broke(peer->group, peer->node, "a measurement that nobody asked for");
}
