/* lane_rail.c - the lanes that carry a group on several nodes together. See rails.h and lane_wire.h
 *
 * The group lives on one lane, with its ranks; that is its first rail. Each further lane has a group of the same id, with
 * a wire of its own, whose ranks never submit. It is told of every large operation, on all nodes in the order of their
 * numbers, counts them itself, and carries every n-th chunk; the operation ends when all rails have ended their chunks.
 * Which lane carries a chunk changes nothing of its result. A failure on any rail fails all; the group has ended when all
 * have.
 */
#include <stdlib.h>
#include <string.h>

#include "lane_flight.h"
#include "transport.h"

static void tell_failure(gwd_lane_t *lane, const gwd_lane_group_t *group, gw_status_t status, const char *text) {
    const gwd_command_t command = {
        .kind = GWD_COMMAND_FAIL, .group = group->id, .status = status, .text = strdup(text)};

    gwd_lane_must_send(lane, &command);
}

/* ---- the first rail ------------------------------------------------------------------------------------- */

static bool open_rail(const gwd_lane_group_t *group, const gwd_group_seed_t *from, uint32_t rail) {
    size_t bytes = sizeof(*from) + from->n_local * sizeof(from->ranks[0]);
    gwd_group_seed_t *seed = malloc(bytes);
    gwd_command_t command = {.kind = GWD_COMMAND_GROUP, .group = group->id, .seed = seed};

    if (!seed)
        return false;
    memcpy(seed, from, bytes);
    memset(seed->wires, 0, sizeof(seed->wires));
    seed->rail = rail;
    seed->wires[rail] = from->wires[rail];
    for (uint32_t r = 0; r < seed->n_local; r++) {
        seed->ranks[r].channel_fd = -1;
        seed->ranks[r].slots = NULL;
    }
    if (gwd_lane_send(from->lanes[rail], &command))
        return true;
    free(seed);
    return false;
}

void gwd_rails_open(gwd_lane_group_t *group, const gwd_group_seed_t *seed) {
    bool all = true;

    for (uint32_t rail = 1; rail < seed->n_rails && group->rail == 0; rail++) {
        if (group->wire && open_rail(group, seed, rail)) {
            group->wire->rails_open++;
            continue;
        }
        gwd_wire_free(seed->wires[rail]);
        all = false;
    }
    if (!all)
        gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon has no memory for a group on several nodes");
}

static void hand_out(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    const gwd_command_t command = {.kind = GWD_COMMAND_RAIL_RUN, .group = group->id, .op = op, .lane = group->lane};

    for (uint32_t rail = 1; rail < op->n_rails; rail++) {
        gwd_lane_must_send(group->wire->lanes[rail], &command);
        op->rails_left++;
    }
}

/* In the order of their numbers: the other rails number what they hear of, which must be the same on all nodes. */
void gwd_rails_run(gwd_lane_group_t *group) {
    uint64_t *next = &group->wire->rail_sequence;

    if (group->rail > 0 || group->wire->n_rails == 1)
        return;
    for (*next = *next < group->tail ? group->tail : *next; *next < group->tail + group->credits; (*next)++) {
        gwd_op_t *op = gwd_op_at(group, *next);

        if (op->sequence != *next || op->state == GWD_OP_GATHERING || op->state == GWD_OP_WAITING ||
            op->state == GWD_OP_MEETING)
            return;
        if (op->state == GWD_OP_RUNNING)
            hand_out(op);
    }
}

/* They hear it after they have heard of the group. */
void gwd_rails_probe(const gwd_lane_group_t *group) {
    const gwd_command_t command = {.kind = GWD_COMMAND_PROBE, .group = group->id};

    for (uint32_t rail = 1; group->rail == 0 && rail <= group->wire->rails_open; rail++)
        gwd_lane_must_send(group->wire->lanes[rail], &command);
}

/* Those that were not opened, since there was no memory, are the last. */
void gwd_rails_fail(const gwd_lane_group_t *group, const char *text) {
    for (uint32_t rail = 1; group->rail == 0 && rail <= group->wire->rails_open; rail++)
        tell_failure(group->wire->lanes[rail], group, group->status, text);
}

void gwd_rails_leave(gwd_lane_group_t *group) {
    const gwd_command_t command = {.kind = GWD_COMMAND_RAIL_LEAVE, .group = group->id, .lane = group->lane};

    if (group->rail > 0)
        return;
    group->n_running += group->wire->rails_open;
    for (uint32_t rail = 1; rail <= group->wire->rails_open; rail++)
        gwd_lane_must_send(group->wire->lanes[rail], &command);
}

static void part_done(gwd_op_t *op) {
    op->rails_left--;
    gwd_wire_check_end(op);
}

static void rail_left(gwd_lane_group_t *group) {
    group->wire->rails_open--;
    group->n_running--;
    gwd_lane_group_release(group);
}

/* ---- the others ----------------------------------------------------------------------------------------- */

static void copy_operation(gwd_op_t *op, const gwd_op_t *whole, uint32_t nranks) {
    gwd_exchange_t *x = &op->job.exchange;
    const void **send = x->send;
    void **recv = x->recv;

    *x = whole->job.exchange;
    x->send = send;
    x->recv = recv;
    memcpy(send, whole->job.exchange.send, nranks * sizeof(send[0]));
    memcpy(recv, whole->job.exchange.recv, nranks * sizeof(recv[0]));
    memcpy(op->parts, whole->parts, nranks * sizeof(op->parts[0]));
    op->job.priority = whole->job.priority;
    op->wire_chunks = whole->wire_chunks;
    op->wire_codec = whole->wire_codec;
    op->wire_round = whole->wire_round;
    op->wire_counters = whole->wire_counters;
    op->wire_residual = whole->wire_residual;
    op->n_rails = whole->n_rails;
}

static void carry(gwd_lane_group_t *group, gwd_op_t *whole) {
    uint64_t sequence = ++group->wire->rail_sequence;
    gwd_op_t *op = gwd_op_at(group, sequence);

    copy_operation(op, whole, group->nranks);
    op->sequence = sequence;
    op->state = GWD_OP_RUNNING;
    op->whole = whole;
    op->next_chunk = group->rail;
    op->n_flights = op->rails_left = 0;
    group->n_running++;
    if (!group->wire->flights && !gwd_flights_make(group))
        gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon has no memory to exchange data with other nodes");
    else
        gwd_wire_go_on(group);
}

static void answer_done(gwd_lane_t *first, uint32_t id, gwd_op_t *whole) {
    const gwd_command_t command = {.kind = GWD_COMMAND_RAIL_DONE, .group = id, .op = whole};

    gwd_lane_must_send(first, &command);
}

void gwd_rail_part_ended(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    gwd_op_t *whole = op->whole;

    op->whole = NULL;
    op->state = GWD_OP_FREE;
    gwd_lane_advance_tail(group);
    group->n_running--;
    answer_done(group->first_rail, group->id, whole);
    gwd_lane_group_release(group);
}

/* There was no memory for the rail, or it has failed. */
static void refuse(const gwd_lane_group_t *group, const gwd_command_t *command) {
    if (!group) {
        gwd_command_t fail = {.kind = GWD_COMMAND_FAIL, .group = command->group, .status = GW_ERR_NO_MEMORY};

        fail.text = strdup("the daemon has no memory for a group on several nodes");
        gwd_lane_must_send(command->lane, &fail);
    }
    answer_done(command->lane, command->group, command->op);
}

static void leave(gwd_lane_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        group->ranks[r].release_wanted = true;
    gwd_lane_group_release(group);
}

void gwd_lane_rail_freed(gwd_lane_t *first, uint32_t id) {
    const gwd_command_t command = {.kind = GWD_COMMAND_RAIL_LEFT, .group = id};

    gwd_lane_must_send(first, &command);
}

void gwd_lane_rail_failed(const gwd_lane_group_t *group, const char *text) {
    tell_failure(group->first_rail, group, group->status, text);
}

/* ---- commands ------------------------------------------------------------------------------------------- */

void gwd_lane_take_rail_command(gwd_lane_group_t *group, const gwd_command_t *command) {
    switch (command->kind) {
    case GWD_COMMAND_RAIL_RUN:
        if (group && group->status == GW_OK)
            carry(group, command->op);
        else
            refuse(group, command);
        break;
    case GWD_COMMAND_RAIL_DONE:
        part_done(command->op);
        break;
    case GWD_COMMAND_RAIL_LEAVE:
        if (group)
            leave(group);
        else
            gwd_lane_rail_freed(command->lane, command->group);
        break;
    case GWD_COMMAND_RAIL_LEFT:
        rail_left(group);
        break;
    default:
        break;
    }
}
