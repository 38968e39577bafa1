/* lane_wire.c - who is there: announcements, heartbeats, failures and ends of groups on several nodes. See lane_wire.h */
#include "lane_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "clock.h"
#include "log.h"
#include "status.h"

enum { ALIVE_A_SILENCE = 5 }; /* heartbeats within the time after which a node is dead */

#define GOOD_BYE_NS   UINT64_C(500000000) /* how long a group that ends waits for its last words to go out */
#define CUT_NS        UINT64_C(200000000) /* and then for what was under way to be given back */
#define LAST_WORDS_NS UINT64_C(20000000)  /* what has been sent may still be in a buffer that ends with its link */
#define LOOK_NS       UINT64_C(1000000)   /* how often a group that ends is looked after */

typedef struct note {
    gwd_pending_t pending;
    struct gwd_wire_group *wire;
    bool is_last;
    char text[];
} note_t;

void gwd_wire_name_node(const gwd_lane_group_t *group, uint32_t node, char *text, size_t text_bytes) {
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
    gw_status_t status;
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
    status = gwd_wire_post(peer, &header, note->text, bytes, note);
    if (status != GW_IN_PROGRESS) {
        free(note);
        return status != GW_ERR_NO_MEMORY; /* else it is sent, or the link is broken and says so itself */
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

    if (gwd_wire_send(peer, header, text, text ? strlen(text) : 0))
        return;
    gwd_log(GWD_LOG_ERROR, "lane", "out of memory: group %u cannot say %d to node %u", peer->group->id, (int)kind,
            peer->node);
    gwd_lane_group_fail(peer->group, GW_ERR_NO_MEMORY, "the daemon has no memory for what it must tell another node");
}

void gwd_wire_say_taken(gwd_peer_t *peer) {
    peer->said_taken = peer->taken;
    gwd_wire_say(peer, GWD_WIRE_ALIVE, 0, peer->taken, GW_OK, NULL);
}

void gwd_wire_say_to_all(gwd_lane_group_t *group, gwd_wire_kind_t kind, uint64_t sequence, uint64_t fingerprint,
                         gw_status_t status, const char *text) {
    gw_status_t before = group->status;

    for (uint32_t n = 0; n < group->wire->n_peers && group->status == before; n++)
        gwd_wire_say(&group->wire->peers[n], kind, sequence, fingerprint, status, text);
}

/* ---- hearing ------------------------------------------------------------------------------------------ */

void gwd_wire_broke(gwd_lane_group_t *group, uint32_t node, const char *how) {
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    gwd_wire_name_node(group, node, who, sizeof(who));
    snprintf(text, sizeof(text), "%s broke the protocol between nodes: %s", who, how);
    gwd_lane_group_fail(group, GW_ERR_PROTOCOL_RANK, text);
}

void gwd_wire_forged(gwd_lane_group_t *group, uint32_t node) {
    gwd_wire_broke(group, node,
                   "the data of a message is not what its header was sealed with: it was changed on the way");
}

static void hear_bye(gwd_peer_t *peer, const gwd_wire_header_t *header) {
    gwd_lane_group_t *group = peer->group;

    peer->has_left = true;
    if (group->rail > 0)
        return; /* what it says of the node's ranks is for the first */
    peer->last_sequence = header->sequence;
    gwd_wire_hear_last_tell(peer, header->chunk);
    gwd_wire_check_left(group);
}

static bool is_for_first_rail(uint32_t kind) {
    return kind == GWD_WIRE_BEGIN || kind == GWD_WIRE_TELL;
}

/* By the wire, and not by what the header says: a message is gone with its wire, which may be before a group that is not
 * its own. */
static gwd_lane_group_t *find_group(const gwd_lane_t *lane, const gwd_message_t *message) {
    gwd_lane_group_t *group = lane->groups;

    while (group && (!group->wire || group->wire->wire != gwd_message_wire(message)))
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
    group = find_group(lane, message);
    if (!group || header.wire_id != group->wire->map->wire_id || header.epoch != group->epoch ||
        header.node >= group->wire->map->n_nodes || header.node == group->wire->map->own_node || group->wire->closed) {
        gwd_stats_add(&lane->stats.wire_dropped, 1);
        return;
    }
    peer = &group->wire->peers[header.node];
    if (!gwd_wire_is_genuine(peer, &header, header_bytes))
        return;
    peer->heard_ns = gwd_now_ns();
    gwd_paths_heard(&peer->paths, &header.paths);
    if (header.kind == GWD_WIRE_BYE)
        hear_bye(peer, &header);
    else if (group->status != GW_OK)
        return;
    else if (group->rail > 0 && is_for_first_rail(header.kind))
        gwd_wire_broke(group, header.node, "what is for the first of its group's lanes goes to another");
    else if ((header.kind == GWD_WIRE_BEGIN || header.kind == GWD_WIRE_FAIL) &&
             !gwd_wire_read_text(peer, &header, data, bytes, &text))
        gwd_wire_forged(group, header.node);
    else if (header.kind == GWD_WIRE_BEGIN)
        gwd_wire_hear_begin(peer, &header, text);
    else if (header.kind == GWD_WIRE_PART || header.kind == GWD_WIRE_RESULT)
        gwd_wire_data(group, &header, bytes, message);
    else if (header.kind == GWD_WIRE_ALIVE)
        gwd_wire_hear_taken(peer, header.taken);
    else if (header.kind == GWD_WIRE_PROBE)
        gwd_wire_probed(peer, &header, bytes, message);
    else if (header.kind == GWD_WIRE_TELL)
        gwd_wire_hear_tell(peer, &header, bytes, message);
    else if (header.kind == GWD_WIRE_FAIL)
        hear_fail(peer, &header, text);
    else
        gwd_wire_broke(group, header.node, "a message of a kind that this version does not know");
}

static void on_done(void *lane, void *cookie, gw_status_t status) {
    gwd_pending_t *pending = cookie;

    (void)lane;
    pending->ended(pending, status);
}

void gwd_wire_lost(gwd_lane_group_t *group, uint32_t node, const char *why) {
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    gwd_wire_name_node(group, node, who, sizeof(who));
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

gw_status_t gwd_lane_wire_group(gwd_lane_group_t *group, const gwd_group_seed_t *seed, char *text) {
    struct gwd_wire_group *wire = calloc(1, sizeof(*wire));
    const gwd_group_map_t *map = seed->map;
    gwd_wire_t *line = seed->wires[seed->rail];
    uint64_t now_ns = gwd_now_ns();

    snprintf(text, GWD_WIRE_TEXT_BYTES, "out of memory");
    if (!wire) {
        gwd_wire_free(line);
        return GW_ERR_NO_MEMORY;
    }
    wire->n_rails = seed->n_rails;
    memcpy(wire->lanes, seed->lanes, sizeof(wire->lanes));
    group->wire = wire;
    group->lane->n_wires++;
    watch(group->lane, line);
    wire->wire = line;
    wire->map = map;
    wire->early_max = (uint64_t)GWD_EARLY_MAX * (map->n_nodes - 1);
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
        char who[GWD_IDENTITY_BYTES], why[GWD_WIRE_TEXT_BYTES];
        const void *address;
        gw_status_t status;
        size_t bytes;

        if (n == map->own_node)
            continue;
        peer->begins = calloc(GWD_BEGINS * (size_t)group->credits, sizeof(*peer->begins));
        if (!peer->begins)
            return GW_ERR_NO_MEMORY;
        address = gwd_rails_address(map->nodes[n].address, group->rail, &bytes);
        status = gwd_link_new(line, address, bytes, peer, &peer->link, why);
        if (status != GW_OK) {
            gwd_wire_name_node(group, n, who, sizeof(who));
            snprintf(text, GWD_WIRE_TEXT_BYTES, "%.120s cannot be reached: %.110s", who, why);
            return status;
        }
    }
    if (!wire->peers)
        return GW_ERR_NO_MEMORY;
    group->lane->next_alive_ns = now_ns; /* that of other groups may be far off */
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
    if (wire->wire)
        free_line(group);
    for (uint32_t n = 0; n < wire->n_peers; n++) {
        for (uint64_t i = 0; wire->peers[n].begins && i < GWD_BEGINS * (uint64_t)group->credits; i++)
            free(wire->peers[n].begins[i].text);
        free(wire->peers[n].begins);
        gwd_wire_free_told(&wire->peers[n]);
    }
    gwd_wire_free_flights(wire);
    gwd_wire_free_probe(wire);
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
    gwd_rails_leave(group);
}

static bool all_have_left(const struct gwd_wire_group *wire) {
    for (uint32_t n = 0; n < wire->n_peers; n++)
        if (n != wire->map->own_node && !wire->peers[n].has_left)
            return false;
    return true;
}

/* What UCX does not give back would hold the ranks' memory for good: data of operations, too, which is no note. */
static void cut_late(const gwd_lane_group_t *group, uint64_t now_ns) {
    if (now_ns > group->wire->close_ns + CUT_NS && group->n_running > group->wire->rails_open)
        gwd_wire_cut(group->wire->wire);
}

static void go_on_closing(gwd_lane_group_t *group, uint64_t now_ns) {
    struct gwd_wire_group *wire = group->wire;
    bool said = wire->n_last_words == 0 && now_ns + GOOD_BYE_NS > wire->close_ns + LAST_WORDS_NS &&
                (group->status != GW_OK || all_have_left(wire));

    if (!wire->closed && !said && now_ns < wire->close_ns)
        return;
    if (!wire->closed)
        close_links(group);
    cut_late(group, now_ns);
    if (wire->n_notes > 0)
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
    gwd_wire_say_to_all(group, GWD_WIRE_FAIL, 0, 0, group->status, text);
    gwd_rails_fail(group, text);
    begin_close(group);
}

bool gwd_lane_wire_leave(gwd_lane_group_t *group) {
    if (group->wire->is_over)
        return true;
    if (group->wire->close_ns == 0) {
        gwd_wire_say_to_all(group, GWD_WIRE_BYE, group->tail - 1, 0, GW_OK, NULL);
        if (group->wire->close_ns == 0) /* else there was no memory for that, and the group has failed */
            begin_close(group);
    }
    return false;
}

static void check_peer(gwd_peer_t *peer, uint64_t now_ns) {
    gwd_lane_group_t *group = peer->group;
    uint64_t silence = group->silence_ns;
    char who[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    if (!peer->link || peer->has_left)
        return;
    if (now_ns - peer->said_ns >= silence / ALIVE_A_SILENCE)
        gwd_wire_say_taken(peer);
    if (group->wire->cipher)
        gwd_wire_check_missed(peer, now_ns, silence);
    if (now_ns - peer->heard_ns < silence || group->status != GW_OK)
        return;
    gwd_wire_name_node(group, peer->node, who, sizeof(who));
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

/* Returns when to do it again. */
static uint64_t look_after(gwd_lane_group_t *group, uint64_t now_ns) {
    struct gwd_wire_group *wire = group->wire;

    if (wire->is_over) {
        cut_late(group, now_ns);
        end_line(group);
        return now_ns + LOOK_NS;
    }
    for (uint32_t n = 0; n < wire->n_peers && wire->close_ns == 0; n++)
        check_peer(&wire->peers[n], now_ns);
    if (wire->close_ns == 0)
        return now_ns + group->silence_ns / ALIVE_A_SILENCE / 2;
    go_on_closing(group, now_ns);
    return now_ns + LOOK_NS;
}

void gwd_lane_wire_tick(gwd_lane_t *lane, uint64_t now_ns) {
    uint64_t next_ns = UINT64_MAX;
    gwd_lane_group_t *next;

    for (gwd_lane_group_t *group = lane->groups; group; group = next) {
        uint64_t due_ns;

        next = group->next;
        if (!group->wire || !group->wire->wire)
            continue;
        due_ns = look_after(group, now_ns);
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    lane->next_alive_ns = next_ns == UINT64_MAX ? 0 : next_ns;
}
