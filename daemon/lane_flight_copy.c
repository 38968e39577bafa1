/* lane_flight_copy.c - copies between devices and the chunks of operations on several nodes. See lane_flight.h
 *
 * What a rank has on a device goes through a block of its own, before the chunk's first step and after its last. All
 * results on devices are made in one block, the first rank's, and copied to each from there. How many copies a lane has
 * under way is bounded; chunks wait for room in the order in which they came.
 */
#include "lane_flight.h"
#include "wire_blocks.h"

static bool is_input(const gwd_wire_flight_t *flight, uint32_t i) {
    uint32_t rank = flight->op->group->ranks[i].info.rank;

    return rank >= flight->at.first_in && rank - flight->at.first_in < flight->at.n_in;
}

static bool is_output(const gwd_wire_flight_t *flight, uint32_t i) {
    uint32_t rank = flight->op->group->ranks[i].info.rank;

    return rank >= flight->at.first_out && rank - flight->at.first_out < flight->at.n_out;
}

static void *block_of(const gwd_wire_flight_t *flight, uint32_t i) {
    return flight->op->parts[i].bucket->wire_blocks->blocks[flight->index];
}

static const unsigned char *sent_by(const gwd_wire_flight_t *flight, uint32_t i) {
    return (const unsigned char *)flight->op->parts[i].bucket->send + flight->at.in_bytes;
}

static unsigned char *received_by(const gwd_wire_flight_t *flight, uint32_t i) {
    return (unsigned char *)flight->op->parts[i].bucket->recv + flight->at.out_bytes;
}

void gwd_flight_find_spans(gwd_wire_flight_t *flight) {
    const gwd_op_t *op = flight->op;

    flight->n_in = flight->n_out = 0;
    flight->result = NULL;
    for (uint32_t i = 0; i < op->group->nranks; i++) {
        const gwd_bucket_t *bucket = op->parts[i].bucket;

        if (is_input(flight, i))
            flight->in[flight->n_in++] = bucket->send_device ? block_of(flight, i) : sent_by(flight, i);
        if (!is_output(flight, i))
            continue;
        if (!bucket->recv_device)
            flight->out[flight->n_out++] = received_by(flight, i);
        else if (!flight->result)
            flight->out[flight->n_out++] = flight->result = block_of(flight, i);
    }
}

static uint32_t count_copies(const gwd_wire_flight_t *flight) {
    const gwd_op_t *op = flight->op;
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->group->nranks; i++)
        n += flight->copies_in ? is_input(flight, i) && op->parts[i].bucket->send_device
                               : is_output(flight, i) && op->parts[i].bucket->recv_device;
    return n;
}

static void copies_ended(gwd_copying_t *copying) {
    gwd_wire_flight_t *flight = (gwd_wire_flight_t *)(void *)((char *)copying - offsetof(gwd_wire_flight_t, copying));

    gwd_lane_copies_unreserve(flight->op->group->lane, flight->n_copies);
    if (copying->lost && flight->op->group->status == GW_OK)
        gwd_lane_device_lost(flight->op, copying->lost);
    flight->copied(flight);
}

static void start(gwd_wire_flight_t *flight) {
    const gwd_op_t *op = flight->op;
    gwd_copying_t *copying = &flight->copying;
    uint64_t bytes = flight->at.count * gw_type_bytes(op->job.exchange.type);

    gwd_lane_copying_begin(copying, op, flight->copies_in, copies_ended);
    for (uint32_t i = 0; i < op->group->nranks && op->group->status == GW_OK && !copying->lost; i++) {
        const gwd_bucket_t *bucket = op->parts[i].bucket;

        if (flight->copies_in && is_input(flight, i) && bucket->send_device)
            gwd_lane_copy(copying, bucket->send_device, block_of(flight, i), sent_by(flight, i), bytes);
        if (!flight->copies_in && is_output(flight, i) && bucket->recv_device)
            gwd_lane_copy(copying, bucket->recv_device, received_by(flight, i), flight->result, bytes);
    }
    gwd_lane_copying_started(copying);
}

void gwd_flight_copy(gwd_wire_flight_t *flight, bool in, void (*copied)(gwd_wire_flight_t *flight)) {
    gwd_lane_t *lane = flight->op->group->lane;
    gwd_wire_flight_t **at = &lane->copies_due;

    flight->copies_in = in;
    flight->copied = copied;
    flight->n_copies = count_copies(flight);
    if (flight->n_copies == 0) {
        copied(flight);
        return;
    }
    while (*at)
        at = &(*at)->next_due;
    flight->next_due = NULL;
    *at = flight;
    gwd_lane_wire_copies_turn(lane);
}

void gwd_lane_wire_copies_turn(gwd_lane_t *lane) {
    gwd_wire_flight_t *flight;

    while ((flight = lane->copies_due) != NULL) {
        if (flight->op->group->status != GW_OK)
            flight->n_copies = 0; /* none will be started */
        if (!gwd_lane_copies_reserve(lane, flight->n_copies))
            return;
        lane->copies_due = flight->next_due;
        start(flight);
    }
}
