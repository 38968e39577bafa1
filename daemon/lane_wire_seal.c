/* lane_wire_seal.c - the cipher of a group on several nodes: which messages are its nodes' own. See lane_wire.h
 *
 * Anybody who reaches UCX's ports can send messages in the name of a node. What is not of one of the group's nodes, or
 * has come before, changes nothing: it is dropped and counted. What was changed or taken away on the way between two
 * nodes ends the group.
 */
#include <stdlib.h>
#include <string.h>

#include "escape.h"
#include "lane_wire.h"
#include "log.h"

enum { SEEN_A_CREDIT = 8 };

_Static_assert((int)GWD_LINK_PATHS_MAX <= (int)GWD_PATHS_MAX, "every path is counted");

/* How many messages of a node may overtake one: announcements and data of small operations, and twice as many pieces as
 * are kept for later. A power of two. */
static uint64_t seen_window(uint32_t credits) {
    uint64_t least = 2 * (uint64_t)GWD_EARLY_MAX + SEEN_A_CREDIT * (uint64_t)credits, window = 2;

    while (window < least)
        window *= 2;
    return window;
}

bool gwd_wire_make_cipher(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;
    const gwd_group_map_t *map = wire->map;

    wire->cipher = gwd_cipher_new(
        map->wire_key, &(gwd_cipher_scope_t){.wire_id = map->wire_id, .epoch = group->epoch, .rail = group->rail},
        map->n_nodes, map->own_node, seen_window(group->credits));
    return wire->cipher != NULL;
}

gw_status_t gwd_wire_post(gwd_peer_t *peer, gwd_wire_header_t *header, const void *data, uint64_t bytes, void *cookie) {
    gwd_cipher_t *cipher = peer->group->wire->cipher;

    header->paths = gwd_paths_next(&peer->paths, gwd_link_paths(peer->link));
    if (!cipher)
        return gwd_link_send(peer->link, header->paths.path, header, GWD_WIRE_PLAIN_BYTES, data, bytes, cookie);
    gwd_cipher_stamp(cipher, peer->node, header, offsetof(gwd_wire_header_t, stamp), &header->stamp);
    return gwd_link_send(peer->link, header->paths.path, header, sizeof(*header), data, bytes, cookie);
}

static void refuse(gwd_peer_t *peer, bool is_again) {
    gwd_lane_group_t *group = peer->group;

    gwd_stats_add(&group->lane->stats.wire_refused, 1);
    if (!group->wire->has_refused)
        gwd_log(GWD_LOG_WARNING, "lane",
                "group %u: dropped a message that says it is of node %u, but %s; more are counted", group->id,
                peer->node, is_again ? "has come before" : "is not sealed by it (wire.cipher)");
    group->wire->has_refused = true;
}

bool gwd_wire_is_genuine(gwd_peer_t *peer, const gwd_wire_header_t *header, size_t header_bytes) {
    gwd_cipher_t *cipher = peer->group->wire->cipher;
    gwd_stamp_check_t check = GWD_STAMP_FORGED;

    if (!cipher)
        return header_bytes == GWD_WIRE_PLAIN_BYTES;
    if (header_bytes == sizeof(*header))
        check = gwd_cipher_check(cipher, peer->node, header, offsetof(gwd_wire_header_t, stamp), &header->stamp);
    if (check == GWD_STAMP_AHEAD)
        gwd_wire_lost(peer->group, peer->node, "a message that it sent long ago has not come");
    else if (check != GWD_STAMP_GOOD)
        refuse(peer, check == GWD_STAMP_REPEATED);
    return check == GWD_STAMP_GOOD;
}

bool gwd_wire_read_text(const gwd_peer_t *peer, const gwd_wire_header_t *header, const void *data, uint64_t bytes,
                        char **text_out) {
    const gwd_cipher_t *cipher = peer->group->wire->cipher;
    char text[GWD_TEXT_BYTES], safe[GWD_TEXT_BYTES];

    *text_out = NULL;
    if (!data || bytes == 0 || bytes >= sizeof(text))
        return true;
    if (!cipher)
        memcpy(text, data, bytes);
    else if (!gwd_cipher_open(cipher, peer->node, data, bytes, &header->payload, text))
        return false;
    gw_escape(text, bytes, safe, sizeof(safe));
    *text_out = strdup(safe);
    return true;
}

/* UCX loses nothing: what does not come, though later messages have, was taken away or changed. */
void gwd_wire_check_missed(gwd_peer_t *peer, uint64_t now_ns, uint64_t silence) {
    uint64_t counter;

    if (!gwd_cipher_misses(peer->group->wire->cipher, peer->node, &counter)) {
        peer->missed_ns = 0;
    } else if (peer->missed_ns == 0 || peer->missed != counter) {
        peer->missed = counter;
        peer->missed_ns = now_ns;
    } else if (now_ns - peer->missed_ns >= silence) {
        gwd_wire_lost(peer->group, peer->node,
                      "a message has not come, though later ones have: it was changed or taken away on the way");
    }
}
