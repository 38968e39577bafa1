/* lane_meet.c - operations of groups on several nodes meet: what each node announces, and whether all say the same. See
 * lane_wire.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lane_wire.h"

enum { DESCRIPTION_BYTES = 224 };

#define CODEC_MIX UINT64_C(0x9e3779b97f4a7c15) /* odd: no two codecs of a bucket give the same */

/* What all nodes must say alike: the bucket, and the codec that is used. Each node has reckoned that for itself where the
 * bucket leaves it to its group. */
static uint64_t fingerprint_of(const gwd_op_t *op) {
    const gwd_bucket_t *bucket = op->parts[0].bucket;

    return bucket->fingerprint + (uint64_t)bucket->codec * CODEC_MIX;
}

static void describe(const gwd_op_t *op, char text[DESCRIPTION_BYTES]) {
    const gwd_bucket_t *bucket = op->parts[0].bucket;
    size_t used;

    gwd_bucket_describe(bucket, text, DESCRIPTION_BYTES);
    used = strlen(text);
    if (bucket->desc.codec == GW_CODEC_DEFAULT && bucket->codec != GW_CODEC_NONE)
        snprintf(text + used, DESCRIPTION_BYTES - used, " by the group's codec %s", gw_codec_name(bucket->codec));
}

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

    describe(op, mine);
    if (begin->status != GW_OK)
        snprintf(text, sizeof(text), "%s", begin->text ? begin->text : "ranks of another node differ");
    else
        snprintf(text, sizeof(text),
                 "operation %llu differs: host %s (rank %u) submitted %s, host %s (rank %u) submitted %s",
                 (unsigned long long)op->sequence, map->nodes[node].host, map->nodes[node].lowest_rank,
                 begin->text ? begin->text : "another", map->nodes[map->own_node].host,
                 map->nodes[map->own_node].lowest_rank, mine);
    gwd_lane_op_mismatch(op, text);
    gwd_wire_go_on(group); /* later ones may have met before it, and waited for their turn */
}

/* The op has been announced by all nodes, or one of them differs: it goes on. */
static void meet(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    const struct gwd_wire_group *wire = group->wire;
    uint64_t fingerprint = fingerprint_of(op);
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
        gwd_wire_name_node(group, n, who, sizeof(who));
        describe(op, mine);
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
    describe(op, description);
    gwd_wire_say_to_all(op->group, GWD_WIRE_BEGIN, op->sequence, fingerprint_of(op), GW_OK, description);
    if (op->group->status == GW_OK) /* else there was no memory for that, and the operation has ended */
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
    gwd_wire_say_to_all(op->group, GWD_WIRE_BEGIN, op->sequence, 0, GW_ERR_MISMATCH, text);
}

void gwd_lane_wire_name_missing(const gwd_op_t *op, char *text, size_t text_bytes) {
    gwd_lane_group_t *group = op->group;
    size_t used = 0;

    text[0] = 0;
    for (uint32_t n = 0; n < group->wire->map->n_nodes && used + 1 < text_bytes; n++) {
        char who[GWD_IDENTITY_BYTES];

        if (n == group->wire->map->own_node || has_begun(&group->wire->peers[n], op->sequence))
            continue;
        gwd_wire_name_node(group, n, who, sizeof(who));
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? ", " : "", who);
    }
}

void gwd_wire_hear_begin(gwd_peer_t *peer, const gwd_wire_header_t *header, char *text) {
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

void gwd_wire_check_left(gwd_lane_group_t *group) {
    for (uint64_t s = group->tail; s < group->tail + group->credits && group->status == GW_OK; s++) {
        gwd_op_t *op = gwd_op_at(group, s);

        if (op->sequence == s && op->state == GWD_OP_MEETING)
            (void)is_missed(op);
    }
}

bool gwd_lane_wire_is_held(const gwd_op_t *op) {
    const struct gwd_wire_group *wire = op->group->wire;

    for (uint32_t n = 0; n < wire->map->n_nodes; n++)
        if (n != wire->map->own_node && !has_begun(&wire->peers[n], op->sequence))
            return false;
    return wire->held;
}
