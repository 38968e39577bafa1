/* lane_flight_in.c - data that comes from other nodes: into its chunk, or kept until that begins. See lane_flight.h */
#include <stdio.h>
#include <stdlib.h>

#include "lane_flight.h"

static bool keep(gwd_lane_group_t *group, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message) {
    gwd_early_t *early = group->wire->n_early < group->wire->early_max ? malloc(sizeof(*early)) : NULL;

    if (!early)
        return false;
    *early = (gwd_early_t){group->wire->early, *header, message, bytes};
    group->wire->early = early;
    group->wire->n_early++;
    gwd_message_keep(message);
    return true;
}

static gwd_wire_flight_t *find_flight(const gwd_lane_group_t *group, const gwd_op_t *op, uint64_t chunk) {
    for (uint32_t i = 0; i < group->wire->window && group->wire->flights; i++)
        if (group->wire->flights[i].op == op && group->wire->flights[i].chunk == chunk)
            return &group->wire->flights[i];
    return NULL;
}

static void broke(gwd_lane_group_t *group, const gwd_wire_header_t *header) {
    char text[GWD_TEXT_BYTES];

    snprintf(text, sizeof(text), "host %s sent data of operation %llu, chunk %llu that was not asked for",
             group->wire->map->nodes[header->node].host, (unsigned long long)header->sequence,
             (unsigned long long)header->chunk);
    gwd_lane_group_fail(group, GW_ERR_PROTOCOL_RANK, text);
}

/* Takes a message of a chunk that is under way. `kept`: it is not dropped by itself. */
static void take(gwd_wire_flight_t *flight, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message,
                 bool kept) {
    bool is_part = header->kind == GWD_WIRE_PART, raw = header->status == GWD_FLIGHT_RAW;
    gwd_shard_t *shard = &flight->shards[header->node];
    gwd_transfer_t *transfer = is_part ? &shard->part_in : &shard->result_in;
    gwd_peer_t *peer = &flight->op->group->wire->peers[header->node];
    gwd_load_t load = {NULL, 0};
    gw_status_t status;

    if (transfer->step == GWD_STEP_EXPECTED)
        load = is_part ? gwd_code_part_in(flight, header->node, raw) : gwd_flight_result_in(flight, shard, raw);
    if (!load.data || bytes != load.bytes) {
        if (kept)
            gwd_message_drop(message);
        broke(flight->op->group, header);
        return;
    }
    peer->taken++;
    transfer->raw = raw;
    transfer->sealed = header->payload;
    transfer->step = GWD_STEP_UNDERWAY;
    gwd_flight_count_received(transfer, bytes);
    status = gwd_message_receive(message, load.data, transfer);
    if (status != GW_IN_PROGRESS)
        transfer->pending.ended(&transfer->pending, status);
    if (peer->taken - peer->said_taken >= GWD_AHEAD_SAY)
        gwd_wire_say_taken(peer);
}

void gwd_wire_hear_taken(gwd_peer_t *peer, uint64_t taken) {
    if (taken > peer->data_sent) {
        gwd_wire_broke(peer->group, peer->node, "it has taken more than it was sent");
        return;
    }
    if (taken <= peer->data_taken)
        return; /* messages overtake each other */
    peer->data_taken = taken;
    if (peer->group->wire->is_ahead)
        gwd_wire_go_on(peer->group);
}

void gwd_wire_data(gwd_lane_group_t *group, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message) {
    gwd_op_t *op = gwd_op_at(group, header->sequence);
    gwd_wire_flight_t *flight;
    bool is_op;

    gwd_wire_hear_taken(&group->wire->peers[header->node], header->taken); /* which may begin that chunk */
    if (group->status != GW_OK)
        return;
    is_op = op->sequence == header->sequence && op->state == GWD_OP_RUNNING;
    flight = is_op ? find_flight(group, op, header->chunk) : NULL;
    if (flight)
        take(flight, header, bytes, message, false);
    else if (header->sequence < group->tail || (is_op && header->chunk < op->next_chunk))
        broke(group, header);
    else if (!keep(group, header, bytes, message))
        gwd_lane_group_fail(group, GW_ERR_NO_MEMORY,
                            "too many messages of other nodes came before their operation: raise wire.chunk_bytes");
}

void gwd_flight_take_early(gwd_wire_flight_t *flight) {
    struct gwd_wire_group *wire = flight->op->group->wire;
    gwd_early_t **at = &wire->early;

    while (*at) {
        gwd_early_t *early = *at;

        if (early->header.sequence != flight->op->sequence || early->header.chunk != flight->chunk) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        wire->n_early--;
        take(flight, &early->header, early->bytes, early->message, true);
        free(early);
    }
}
