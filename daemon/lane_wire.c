/* lane_wire.c - who is there: announcements, heartbeats, failures and ends of groups on several nodes. See lane_wire.h */
#include "lane_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "clock.h"
#include "log.h"
#include "status.h"

enum {
    ALIVE_A_SILENCE = 5, /* heartbeats within the time after which a node is dead */
    DESCRIPTION_BYTES = 224,
};

#define GOOD_BYE_NS   UINT64_C(500000000) /* how long a group that ends waits for its last words to go out */
#define CUT_NS        UINT64_C(200000000) /* and then for what was under way to be given back */
#define LAST_WORDS_NS UINT64_C(20000000)  /* what has been sent may still be in a buffer that ends with its link */

typedef struct note {
    gwd_pending_t pending;
    struct gwd_wire_group *wire;
    bool is_last;
    char text[];
} note_t;

static uint64_t silence_ns(const gwd_lane_t *lane) {
    return atomic_load_explicit(&lane->limits->silence_ns, memory_order_relaxed);
}

/* "node 1 (host h, ranks from 2 on)" */
static void name_node(const gwd_lane_group_t *group, uint32_t node, char *text, size_t text_bytes) {
    const gwd_group_node_t *n = &group->wire->map->nodes[node];

    snprintf(text, text_bytes, "node %u (host %s, its lowest rank is %u)", node, n->host, n->lowest_rank);
}

/* ---- saying ------------------------------------------------------------------------------------------- */

static void note_ended(gwd_pending_t *pending, gw_status_t status) {
    note_t *note = (note_t *)pending;

    (void)status; /* a link that broke says so itself */
    note->wire->n_notes--;
    note->wire->n_last_words -= note->is_last;
    free(note);
}

bool gwd_wire_send(gwd_peer_t *peer, gwd_wire_header_t header, const void *data, size_t bytes) {
    gwd_lane_group_t *group = peer->group;
    note_t *note;

    if (!peer->link)
        return true;
    header.wire_id = group->wire->map->wire_id;
    header.epoch = group->epoch;
    header.node = group->wire->map->own_node;
    note = malloc(sizeof(*note) + bytes);
    if (!note)
        return false;
    note->pending.ended = note_ended;
    note->wire = group->wire;
    note->is_last = header.kind == GWD_WIRE_FAIL || header.kind == GWD_WIRE_BYE || header.kind == GWD_WIRE_TELL;
    if (group->wire->cipher && bytes > 0)
        gwd_cipher_seal(group->wire->cipher, data, bytes, note->text, &header.payload);
    else if (bytes > 0)
        memcpy(note->text, data, bytes);
    peer->said_ns = gwd_now_ns();
    if (gwd_wire_post(peer, &header, note->text, bytes, note) != GW_IN_PROGRESS) {
        free(note);
        return true; /* sent, or the link is broken and says so itself */
    }
    note->wire->n_notes++;
    note->wire->n_last_words += note->is_last;
    return true;
}

void gwd_wire_say(gwd_peer_t *peer, gwd_wire_kind_t kind, uint64_t sequence, uint64_t fingerprint, gw_status_t status,
                  const char *text) {
    const gwd_wire_header_t header = {.sequence = sequence,
                                      .chunk = kind == GWD_WIRE_BYE ? peer->n_said : 0,
                                      .fingerprint = fingerprint,
                                      .kind = kind,
                                      .status = (uint32_t)status};

    if (!gwd_wire_send(peer, header, text, text ? strlen(text) : 0)) /* the others will find that nothing comes */
        gwd_log(GWD_LOG_ERROR, "lane", "out of memory: group %u cannot say %d to node %u", peer->group->id, (int)kind,
                peer->node);
}

static void say_to_all(gwd_lane_group_t *group, gwd_wire_kind_t kind, uint64_t sequence, uint64_t fingerprint,
                       gw_status_t status, const char *text) {
    for (uint32_t n = 0; n < group->wire->n_peers; n++)
        gwd_wire_say(&group->wire->peers[n], kind, sequence, fingerprint, status, text);
}

/* ---- meeting ------------------------------------------------------------------------------------------ */

static gwd_begin_t *begin_at(gwd_peer_t *peer, uint64_t sequence) {
    return &peer->begins[sequence & (GWD_BEGINS * (uint64_t)peer->group->credits - 1)];
}

static bool has_begun(gwd_peer_t *peer, uint64_t sequence) {
    return begin_at(peer, sequence)->sequence == sequence;
}

static void mismatch(gwd_op_t *op, uint32_t node, const gwd_begin_t *begin) {
    gwd_lane_group_t *group = op->group;
    const gwd_group_map_t *map = group->wire->map;
    char mine[DESCRIPTION_BYTES], text[GWD_TEXT_BYTES];

    gwd_bucket_describe(op->parts[0].bucket, mine, sizeof(mine));
    if (begin->status != GW_OK)
        snprintf(text, sizeof(text), "%s", begin->text ? begin->text : "ranks of another node differ");
    else
        snprintf(text, sizeof(text),
                 "operation %llu differs: host %s (rank %u) submitted %s, host %s (rank %u) submitted %s",
                 (unsigned long long)op->sequence, map->nodes[node].host, map->nodes[node].lowest_rank,
                 begin->text ? begin->text : "another", map->nodes[map->own_node].host,
                 map->nodes[map->own_node].lowest_rank, mine);
    gwd_lane_op_mismatch(op, text);
}

/* The op has been announced by all nodes, or one of them differs: it goes on. */
static void meet(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    const struct gwd_wire_group *wire = group->wire;
    uint64_t fingerprint = op->parts[0].bucket->fingerprint;
    uint32_t missing = 0;

    for (uint32_t n = 0; n < wire->map->n_nodes; n++) {
        gwd_peer_t *peer = &wire->peers[n];
        const gwd_begin_t *begin;

        if (n == wire->map->own_node)
            continue;
        begin = begin_at(peer, op->sequence);
        if (begin->sequence != op->sequence) {
            missing++;
        } else if (begin->status != GW_OK || begin->fingerprint != fingerprint) {
            mismatch(op, n, begin);
            return;
        }
    }
    if (missing == 0 && !wire->held)
        gwd_wire_run(op);
}

/* A node whose ranks have left will never announce it. */
static bool is_missed(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES], mine[DESCRIPTION_BYTES];

    for (uint32_t n = 0; n < group->wire->map->n_nodes; n++) {
        const gwd_peer_t *peer = &group->wire->peers[n];

        if (!peer->has_left || peer->last_sequence >= op->sequence)
            continue;
        name_node(group, n, who, sizeof(who));
        gwd_bucket_describe(op->parts[0].bucket, mine, sizeof(mine));
        snprintf(text, sizeof(text), "all ranks of %s have left the group, but %s submitted %.100s", who,
                 group->ranks[0].info.identity, mine);
        gwd_lane_group_fail(group, GW_ERR_RANK_LEFT, text);
        return true;
    }
    return false;
}

void gwd_lane_wire_meet(gwd_op_t *op) {
    char description[DESCRIPTION_BYTES];

    op->state = GWD_OP_MEETING;
    if (is_missed(op))
        return;
    gwd_bucket_describe(op->parts[0].bucket, description, sizeof(description));
    say_to_all(op->group, GWD_WIRE_BEGIN, op->sequence, op->parts[0].bucket->fingerprint, GW_OK, description);
    meet(op);
}

gw_status_t gwd_lane_wire_hold(gwd_lane_group_t *group) {
    if (group->status != GW_OK)
        return group->status;
    if (group->n_running > 0 || group->wire->held)
        return GW_ERR_BUSY;
    group->wire->held = true;
    return GW_OK;
}

/* Operations that have met meanwhile begin. */
void gwd_lane_wire_go_on(gwd_lane_group_t *group) {
    uint64_t first = group->tail;

    group->wire->held = false;
    for (uint64_t s = first; s < first + group->credits && group->status == GW_OK; s++) {
        gwd_op_t *op = gwd_op_at(group, s);

        if (op->sequence == s && op->state == GWD_OP_MEETING)
            meet(op);
    }
}

void gwd_lane_wire_mismatch(gwd_op_t *op, const char *text) {
    say_to_all(op->group, GWD_WIRE_BEGIN, op->sequence, 0, GW_ERR_MISMATCH, text);
}

void gwd_lane_wire_name_missing(const gwd_op_t *op, char *text, size_t text_bytes) {
    gwd_lane_group_t *group = op->group;
    size_t used = 0;

    text[0] = 0;
    for (uint32_t n = 0; n < group->wire->map->n_nodes && used + 1 < text_bytes; n++) {
        char who[GWD_IDENTITY_BYTES];

        if (n == group->wire->map->own_node || has_begun(&group->wire->peers[n], op->sequence))
            continue;
        name_node(group, n, who, sizeof(who));
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? ", " : "", who);
    }
}

/* ---- hearing ------------------------------------------------------------------------------------------ */

void gwd_wire_broke(gwd_lane_group_t *group, uint32_t node, const char *how) {
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    name_node(group, node, who, sizeof(who));
    snprintf(text, sizeof(text), "%s broke the protocol between nodes: %s", who, how);
    gwd_lane_group_fail(group, GW_ERR_PROTOCOL_RANK, text);
}

void gwd_wire_forged(gwd_lane_group_t *group, uint32_t node) {
    gwd_wire_broke(group, node,
                   "the data of a message is not what its header was sealed with: it was changed on the way");
}

static void hear_begin(gwd_peer_t *peer, const gwd_wire_header_t *header, char *text) {
    gwd_lane_group_t *group = peer->group;
    gwd_begin_t *begin = begin_at(peer, header->sequence);
    gwd_op_t *op = gwd_op_at(group, header->sequence);

    if (header->sequence >= group->tail + (GWD_BEGINS - 1) * (uint64_t)group->credits ||
        header->sequence <= begin->sequence) {
        free(text);
        gwd_wire_broke(group, peer->node, "an announcement comes out of turn");
        return;
    }
    free(begin->text);
    *begin = (gwd_begin_t){header->sequence, header->fingerprint, header->status ? GW_ERR_MISMATCH : GW_OK, text};
    if (op->sequence == header->sequence && op->state == GWD_OP_MEETING)
        meet(op);
}

static void hear_bye(gwd_peer_t *peer, const gwd_wire_header_t *header) {
    gwd_lane_group_t *group = peer->group;

    peer->has_left = true;
    peer->last_sequence = header->sequence;
    gwd_wire_hear_last_tell(peer, header->chunk);
    for (uint64_t s = group->tail; s < group->tail + group->credits && group->status == GW_OK; s++) {
        gwd_op_t *op = gwd_op_at(group, s);

        if (op->sequence == s && op->state == GWD_OP_MEETING)
            (void)is_missed(op);
    }
}

static gwd_lane_group_t *find_group(gwd_lane_t *lane, uint64_t wire_id) {
    gwd_lane_group_t *group = lane->groups;

    while (group && (!group->wire || group->wire->map->wire_id != wire_id))
        group = group->next;
    return group;
}

static void hear_fail(gwd_peer_t *peer, const gwd_wire_header_t *header, char *text) {
    peer->has_left = true; /* it says no more, and need not */
    gwd_lane_group_fail(peer->group, gw_status_failure(header->status, GW_ERR_ABORTED),
                        text ? text : "another node has failed the group");
    free(text);
}

static void on_message(void *lane_, const void *bytes_of_header, size_t header_bytes, const void *data, uint64_t bytes,
                       gwd_message_t *message) {
    gwd_lane_t *lane = lane_;
    gwd_lane_group_t *group;
    gwd_wire_header_t header;
    gwd_peer_t *peer;
    char *text = NULL;

    if (header_bytes < GWD_WIRE_PLAIN_BYTES || header_bytes > sizeof(header)) {
        gwd_stats_add(&lane->stats.wire_dropped, 1);
        return;
    }
    memset(&header, 0, sizeof(header));
    memcpy(&header, bytes_of_header, header_bytes);
    group = find_group(lane, header.wire_id);
    if (!group || header.epoch != group->epoch || header.node >= group->wire->map->n_nodes ||
        header.node == group->wire->map->own_node || group->wire->closed) {
        gwd_stats_add(&lane->stats.wire_dropped, 1);
        return;
    }
    peer = &group->wire->peers[header.node];
    if (!gwd_wire_is_genuine(peer, &header, header_bytes))
        return;
    peer->heard_ns = gwd_now_ns();
    if (header.kind == GWD_WIRE_BYE)
        hear_bye(peer, &header);
    else if (group->status != GW_OK)
        return;
    else if ((header.kind == GWD_WIRE_BEGIN || header.kind == GWD_WIRE_FAIL) &&
             !gwd_wire_read_text(peer, &header, data, bytes, &text))
        gwd_wire_forged(group, header.node);
    else if (header.kind == GWD_WIRE_BEGIN)
        hear_begin(peer, &header, text);
    else if (header.kind == GWD_WIRE_PART || header.kind == GWD_WIRE_RESULT)
        gwd_wire_data(group, &header, bytes, message);
    else if (header.kind == GWD_WIRE_PROBE)
        gwd_wire_probed(peer, &header, bytes, message);
    else if (header.kind == GWD_WIRE_TELL)
        gwd_wire_hear_tell(peer, &header, bytes, message);
    else if (header.kind == GWD_WIRE_FAIL)
        hear_fail(peer, &header, text);
    else if (header.kind != GWD_WIRE_ALIVE)
        gwd_wire_broke(group, header.node, "a message of a kind that this version does not know");
}

static void on_done(void *lane, void *cookie, gw_status_t status) {
    gwd_pending_t *pending = cookie;

    (void)lane;
    pending->ended(pending, status);
}

void gwd_wire_lost(gwd_lane_group_t *group, uint32_t node, const char *why) {
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    name_node(group, node, who, sizeof(who));
    snprintf(text, sizeof(text), "the connection to %s broke: %.200s", who, why);
    gwd_lane_group_fail(group, GW_ERR_NODE_LOST, text);
}

static void on_broken(void *lane, void *cookie, const char *why) {
    const gwd_peer_t *peer = cookie;

    (void)lane;
    if (!peer->has_left && peer->group->wire->close_ns == 0) /* else it was about to end */
        gwd_wire_lost(peer->group, peer->node, why);
}

const gwd_wire_events_t gwd_lane_wire_events = {on_message, on_done, on_broken};

/* ---- life --------------------------------------------------------------------------------------------- */

/* All wires have one mark: it is enough to wake up. */
static void watch(const gwd_lane_t *lane, const gwd_wire_t *wire) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = (void *)(uintptr_t)&lane->wire_mark}};

    if (epoll_ctl(lane->epoll_fd, EPOLL_CTL_ADD, gwd_wire_fd(wire), &event) != 0)
        gwd_log(GWD_LOG_ERROR, "lane", "epoll_ctl for the wire of a group: %m");
}

gw_status_t gwd_lane_wire_group(gwd_lane_group_t *group, const gwd_group_map_t *map, gwd_wire_t *line, char *text) {
    struct gwd_wire_group *wire = calloc(1, sizeof(*wire));
    uint64_t now_ns = gwd_now_ns();

    snprintf(text, GWD_WIRE_TEXT_BYTES, "out of memory");
    if (!wire) {
        gwd_wire_free(line);
        return GW_ERR_NO_MEMORY;
    }
    group->wire = wire;
    group->lane->n_wires++;
    watch(group->lane, line);
    wire->wire = line;
    wire->map = map;
    if (map->has_cipher && !gwd_wire_make_cipher(group))
        return GW_ERR_NO_MEMORY;
    wire->chunk_bytes = group->plan.wire_chunk_bytes;
    wire->window = group->plan.wire_window;
    wire->peers = calloc(map->n_nodes, sizeof(*wire->peers));
    wire->n_peers = wire->peers ? map->n_nodes : 0;
    for (uint32_t n = 0; n < wire->n_peers; n++) /* all of them first: when one fails, the others are told */
        wire->peers[n] =
            (gwd_peer_t){.group = group, .node = n, .heard_ns = now_ns, .said_ns = now_ns, .last_tell = UINT64_MAX};
    for (uint32_t n = 0; n < wire->n_peers; n++) {
        gwd_peer_t *peer = &wire->peers[n];
        gw_status_t status;

        if (n == map->own_node)
            continue;
        peer->begins = calloc(GWD_BEGINS * (size_t)group->credits, sizeof(*peer->begins));
        if (!peer->begins)
            return GW_ERR_NO_MEMORY;
        status = gwd_link_new(line, map->nodes[n].address, map->nodes[n].address_bytes, peer, &peer->link, text);
        if (status != GW_OK)
            return status;
    }
    if (!wire->peers)
        return GW_ERR_NO_MEMORY;
    if (group->lane->next_alive_ns == 0)
        group->lane->next_alive_ns = now_ns;
    return GW_OK;
}

static void close_links(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;

    wire->closed = true;
    while (wire->early) {
        gwd_early_t *early = wire->early;

        wire->early = early->next;
        gwd_message_drop(early->message);
        free(early);
    }
    for (uint32_t n = 0; n < wire->n_peers; n++) {
        if (wire->peers[n].link)
            gwd_link_abort(wire->peers[n].link);
        wire->peers[n].link = NULL;
    }
}

static void free_line(gwd_lane_group_t *group) {
    gwd_wire_free(group->wire->wire);
    group->wire->wire = NULL;
    group->lane->n_wires--;
}

void gwd_lane_wire_free(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;

    if (!wire)
        return;
    close_links(group);
    for (uint32_t n = 0; n < wire->n_peers; n++) {
        for (uint64_t i = 0; wire->peers[n].begins && i < GWD_BEGINS * (uint64_t)group->credits; i++)
            free(wire->peers[n].begins[i].text);
        free(wire->peers[n].begins);
        gwd_wire_free_told(&wire->peers[n]);
    }
    gwd_wire_free_flights(wire);
    gwd_wire_free_probe(wire);
    if (wire->wire)
        free_line(group);
    gwd_cipher_free(wire->cipher);
    free(wire->peers);
    free(wire);
    group->wire = NULL;
}

/* From now on it only says its last words; what it waits for counts as running. */
static void begin_close(gwd_lane_group_t *group) {
    group->wire->close_ns = gwd_now_ns() + GOOD_BYE_NS;
    group->lane->next_alive_ns = 1; /* look at once */
    group->n_running++;
}

static bool all_have_left(const struct gwd_wire_group *wire) {
    for (uint32_t n = 0; n < wire->n_peers; n++)
        if (n != wire->map->own_node && !wire->peers[n].has_left)
            return false;
    return true;
}

static void go_on_closing(gwd_lane_group_t *group, uint64_t now_ns) {
    struct gwd_wire_group *wire = group->wire;
    bool said = wire->n_last_words == 0 && now_ns + GOOD_BYE_NS > wire->close_ns + LAST_WORDS_NS &&
                (group->status != GW_OK || all_have_left(wire));

    if (!wire->closed && !said && now_ns < wire->close_ns)
        return;
    if (!wire->closed)
        close_links(group);
    if (now_ns > wire->close_ns + CUT_NS)
        gwd_wire_cut(wire->wire);
    if (wire->n_notes > 0 || wire->is_over)
        return; /* what was under way ends one by one */
    wire->is_over = true;
    group->n_running--;
    gwd_lane_group_release(group);
}

bool gwd_lane_wire_progress(gwd_lane_t *lane) {
    gwd_lane_group_t *next;
    bool moved = false;

    for (gwd_lane_group_t *group = lane->groups; group && lane->n_wires > 0; group = next) {
        next = group->next; /* what comes may end the group */
        if (group->wire && group->wire->wire && gwd_wire_progress(group->wire->wire))
            moved = true;
        if (group->wire && gwd_wire_probe_more(group))
            moved = true;
    }
    return moved;
}

bool gwd_lane_wire_arm(gwd_lane_t *lane) {
    for (gwd_lane_group_t *group = lane->groups; group && lane->n_wires > 0; group = group->next)
        if (group->wire && group->wire->wire && !gwd_wire_arm(group->wire->wire))
            return false;
    return true;
}

void gwd_lane_wire_fail(gwd_lane_group_t *group, const char *text) {
    if (group->wire->close_ns)
        return;
    say_to_all(group, GWD_WIRE_FAIL, 0, 0, group->status, text);
    begin_close(group);
}

bool gwd_lane_wire_leave(gwd_lane_group_t *group) {
    if (group->wire->is_over)
        return true;
    if (group->wire->close_ns == 0) {
        say_to_all(group, GWD_WIRE_BYE, group->tail - 1, 0, GW_OK, NULL);
        begin_close(group);
    }
    return false;
}

static void check_peer(gwd_peer_t *peer, uint64_t now_ns, uint64_t silence) {
    gwd_lane_group_t *group = peer->group;
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    if (!peer->link || peer->has_left)
        return;
    if (now_ns - peer->said_ns >= silence / ALIVE_A_SILENCE)
        gwd_wire_say(peer, GWD_WIRE_ALIVE, 0, 0, GW_OK, NULL);
    if (group->wire->cipher)
        gwd_wire_check_missed(peer, now_ns, silence);
    if (now_ns - peer->heard_ns < silence || group->status != GW_OK)
        return;
    name_node(group, peer->node, who, sizeof(who));
    snprintf(text, sizeof(text),
             "%s has said nothing for %.1f s (deadline.silence_ms): its daemon, its host or the link is down", who,
             (double)(now_ns - peer->heard_ns) * 1e-9);
    gwd_lane_group_fail(group, GW_ERR_NODE_LOST, text);
}

/* Its ranks may hold the group for long. Meanwhile a node that had hung may come back to life, and UCX would answer it
 * for an endpoint that it does not know (1.13 then ends that node's process by an assertion). */
static void end_line(gwd_lane_group_t *group) {
    if (group->n_running == 0)
        free_line(group);
}

void gwd_lane_wire_tick(gwd_lane_t *lane, uint64_t now_ns) {
    uint64_t silence = silence_ns(lane), next_ns = now_ns + silence / ALIVE_A_SILENCE / 2;
    gwd_lane_group_t *next;
    bool any = false;

    lane->next_alive_ns = 0;
    for (gwd_lane_group_t *group = lane->groups; group; group = next) {
        next = group->next;
        if (!group->wire || !group->wire->wire)
            continue;
        any = true;
        if (group->wire->is_over) {
            next_ns = now_ns + 1000000;
            end_line(group);
            continue;
        }
        if (group->wire->close_ns == 0)
            for (uint32_t n = 0; n < group->wire->n_peers && group->status == GW_OK; n++)
                check_peer(&group->wire->peers[n], now_ns, silence);
        if (group->wire->close_ns) {
            next_ns = now_ns + 1000000;
            go_on_closing(group, now_ns);
        }
    }
    lane->next_alive_ns = any ? next_ns : 0;
}
