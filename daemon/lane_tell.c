/* lane_tell.c - what the loops of a group's nodes tell each other, carried by its wire. See lane_wire.h
 *
 * Tells are numbered for each receiver, since messages may overtake each other: each waits here until it is whole and
 * those before it have been handed to the loop.
 */
#include <stdlib.h>

#include "lane_wire.h"

enum { TOLD_BYTES_MAX = 4 << 20 }; /* of one node, that wait for an earlier one */

struct gwd_told {
    gwd_pending_t pending;
    gwd_told_t *next;
    gwd_peer_t *peer;
    uint64_t number, bytes;
    gwd_sealed_t sealed; /* with a cipher */
    bool whole;
    void *data; /* malloc */
};

void gwd_lane_wire_tell(gwd_lane_group_t *group, uint32_t node, const void *data, size_t bytes) {
    struct gwd_wire_group *wire = group->wire;

    if (group->status != GW_OK || wire->close_ns)
        return;
    for (uint32_t n = 0; n < wire->n_peers; n++) {
        gwd_peer_t *peer = &wire->peers[n];

        if (n == wire->map->own_node || (node != n && node != GWD_ALL_NODES))
            continue;
        if (!gwd_wire_send(peer, (gwd_wire_header_t){.sequence = ++peer->n_said, .kind = GWD_WIRE_TELL}, data, bytes)) {
            gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon is out of memory");
            return;
        }
    }
}

static void say_left(gwd_peer_t *peer) {
    if (peer->n_told == peer->last_tell)
        gwd_lane_event(peer->group->lane,
                       &(gwd_event_t){.kind = GWD_EVENT_NODE_LEFT, .group = peer->group->id, .node = peer->node});
}

static void hand_over(gwd_peer_t *peer) {
    while (peer->told && peer->told->whole && peer->told->number == peer->n_told + 1) {
        gwd_told_t *told = peer->told;

        peer->told = told->next;
        peer->told_bytes -= sizeof(*told) + told->bytes;
        peer->n_told++;
        gwd_lane_event(peer->group->lane, &(gwd_event_t){.kind = GWD_EVENT_TOLD,
                                                         .group = peer->group->id,
                                                         .node = peer->node,
                                                         .data = told->data,
                                                         .bytes = (size_t)told->bytes});
        free(told);
        say_left(peer);
    }
}

/* All of it is here. */
static void is_here(gwd_told_t *told) {
    gwd_peer_t *peer = told->peer;
    const gwd_cipher_t *cipher = peer->group->wire->cipher;

    told->whole = !cipher || gwd_cipher_open(cipher, peer->node, told->data, told->bytes, &told->sealed, told->data);
    if (told->whole)
        hand_over(peer);
    else
        gwd_wire_forged(peer->group, peer->node);
}

static void came(gwd_pending_t *pending, gw_status_t status) {
    gwd_told_t *told = (gwd_told_t *)pending;

    told->peer->group->wire->n_notes--;
    if (status == GW_OK) /* else its link is broken, or ends */
        is_here(told);
}

/* Where it belongs among those that wait; NULL: that number has been here before. */
static gwd_told_t **place_of(gwd_peer_t *peer, uint64_t number) {
    gwd_told_t **at = &peer->told;

    while (*at && (*at)->number < number)
        at = &(*at)->next;
    return number <= peer->n_told || (*at && (*at)->number == number) ? NULL : at;
}

void gwd_wire_hear_tell(gwd_peer_t *peer, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message) {
    gwd_lane_group_t *group = peer->group;
    gwd_told_t **at = place_of(peer, header->sequence), *told;
    gw_status_t status;

    if (!at || bytes == 0 || bytes > GWD_TELL_MAX || peer->told_bytes + bytes > TOLD_BYTES_MAX) {
        gwd_wire_broke(group, peer->node, "what its daemon tells is too much, or comes twice");
        return;
    }
    told = calloc(1, sizeof(*told));
    if (told)
        told->data = malloc((size_t)bytes);
    if (!told || !told->data) {
        free(told);
        gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon is out of memory");
        return;
    }
    told->pending.ended = came;
    told->peer = peer;
    told->number = header->sequence;
    told->sealed = header->payload;
    told->bytes = bytes;
    told->next = *at;
    *at = told;
    peer->told_bytes += sizeof(*told) + bytes;
    status = gwd_message_receive(message, told->data, told);
    if (status == GW_IN_PROGRESS)
        group->wire->n_notes++;
    else if (status == GW_OK)
        is_here(told);
    else
        gwd_lane_group_fail(group, status, "what another node's daemon tells cannot be received");
}

void gwd_wire_hear_last_tell(gwd_peer_t *peer, uint64_t number) {
    peer->last_tell = number;
    say_left(peer);
}

void gwd_wire_free_told(gwd_peer_t *peer) {
    while (peer->told) {
        gwd_told_t *told = peer->told;

        peer->told = told->next;
        free(told->data);
        free(told);
    }
}
