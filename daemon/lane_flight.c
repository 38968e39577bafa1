/* lane_flight.c - the data of operations on several nodes: chunks under way. See lane_wire.h
 *
 * A chunk goes through these steps; a step that nothing is to be done for is left out:
 *   partial   the inputs of this node's ranks are combined (not where there is one, and it is sent as it is)
 *   PART      each shard's partial result goes to its owner; those of the own shard come in
 *   final     the partial results of the own shard are combined, into the outputs of this node's ranks
 *   RESULT    the own shard goes to the other nodes; theirs come in, into the output of the first rank that wants them
 *   spread    and are copied to the other ranks'
 * Before the first the inputs of devices are copied to the host, and the results back after the last.
 * `left` counts what has not ended; the chunk ends with the last.
 */
#include "lane_flight.h"

#include "kernels.h"

enum {
    SHARD_ROUND = 16, /* elements; with a codec its blocks */
    RAIL_CHUNKS = 4,  /* at least, for each rail that carries an operation */
    RAW_SHARD_BYTES =
        64 << 10, /* of a chunk without codec, at most: with one less travels, and a message costs as much */
};

/* ---- ends --------------------------------------------------------------------------------------------- */

static void end_one(gwd_wire_flight_t *flight) {
    gwd_op_t *op = flight->op;
    gwd_lane_group_t *group = op->group;

    if (--flight->left > 0)
        return;
    if (!flight->is_going_out && group->status == GW_OK) {
        flight->is_going_out = true;
        flight->left = 1;
        gwd_flight_copy(flight, false, end_one);
        return;
    }
    flight->op = NULL;
    op->n_flights--;
    gwd_wire_check_end(op);
    gwd_wire_go_on(group);
}

void gwd_wire_check_end(gwd_op_t *op) {
    if (op->n_flights > 0 || op->rails_left > 0 || (op->next_chunk < op->wire_chunks && op->group->status == GW_OK))
        return;
    if (op->whole) {
        gwd_rail_part_ended(op);
        return;
    }
    gwd_flight_count_end(op);
    gwd_lane_op_finished(op);
}

/* A transfer that failed: the link has, or was ended since the group has. */
static void transfer_ended(gwd_transfer_t *transfer, gw_status_t status) {
    gwd_wire_flight_t *flight = transfer->shard->flight;

    transfer->step = GWD_STEP_ENDED;
    if (status == GW_OK)
        gwd_flight_count_ended(transfer);
    else
        gwd_wire_lost(flight->op->group, transfer->shard->node, "a transfer failed");
    end_one(flight);
}

static void expect(gwd_wire_flight_t *flight, gwd_step_t *step) {
    *step = GWD_STEP_EXPECTED;
    flight->left++;
}

static void give_up(gwd_step_t *step, uint32_t *n_io) {
    if (*step != GWD_STEP_EXPECTED)
        return;
    *step = GWD_STEP_ENDED;
    (*n_io)++;
}

/* What has not begun will not. The flight may be gone afterwards. */
static void cancel_flight(gwd_wire_flight_t *flight) {
    uint32_t given_up = 0, n = gwd_flight_nodes(flight);

    give_up(&flight->partial, &given_up);
    for (uint32_t i = 0; i < n; i++) {
        gwd_shard_t *shard = &flight->shards[i];

        give_up(&shard->part_out.step, &given_up);
        give_up(&shard->part_in.step, &given_up);
        give_up(&shard->result_out.step, &given_up);
        give_up(&shard->result_in.step, &given_up);
        give_up(&shard->job_step, &given_up);
    }
    while (given_up-- > 0)
        end_one(flight);
}

void gwd_wire_cancel(gwd_op_t *op) {
    const struct gwd_wire_group *wire = op->group->wire;

    if (op->n_flights == 0) { /* its turn has not come, or this rail's part has ended */
        gwd_wire_check_end(op);
        return;
    }
    for (uint32_t i = 0; i < wire->window && wire->flights; i++)
        if (wire->flights[i].op == op)
            cancel_flight(&wire->flights[i]);
}

/* ---- jobs --------------------------------------------------------------------------------------------- */

static gwd_shard_t *shard_of(gwd_job_t *job) {
    return (gwd_shard_t *)(void *)((char *)job - offsetof(gwd_shard_t, job));
}

static gwd_wire_flight_t *flight_of(gwd_job_t *job) {
    return (gwd_wire_flight_t *)(void *)((char *)job - offsetof(gwd_wire_flight_t, job));
}

/* Small work is done at once, else threads do it. */
static void start_job(gwd_wire_flight_t *flight, gwd_job_t *job, uint64_t n_chunks, uint64_t bytes) {
    gwd_lane_group_t *group = flight->op->group;

    job->priority = flight->op->job.priority;
    job->share = &group->share;
    job->finished = &group->lane->finished;
    job->n_chunks = n_chunks;
    if (bytes <= group->plan.inline_bytes) {
        for (uint64_t i = 0; i < n_chunks; i++)
            job->work(job, i);
        job->on_finished(job);
        return;
    }
    group->lane->n_running++;
    gwd_reduce_start(group->lane->reduce, job, true);
}

static void job_came_back(const gwd_wire_flight_t *flight, uint64_t bytes) {
    gwd_lane_group_t *group = flight->op->group;

    if (bytes > group->plan.inline_bytes)
        group->lane->n_running--;
}

/* ---- sending and receiving ------------------------------------------------------------------------------ */

/* `what` tells how the load is encoded and sealed: of a result the own shard's. */
static void send_load(gwd_shard_t *shard, gwd_transfer_t *transfer, gwd_wire_kind_t kind, gwd_load_t load,
                      const gwd_transfer_t *what) {
    gwd_wire_flight_t *flight = shard->flight;
    gwd_lane_group_t *group = flight->op->group;
    gwd_wire_header_t header = {.wire_id = group->wire->map->wire_id,
                                .sequence = flight->op->sequence,
                                .chunk = flight->chunk,
                                .taken = group->wire->peers[shard->node].taken,
                                .epoch = group->epoch,
                                .node = group->wire->map->own_node,
                                .kind = kind,
                                .status = what->raw && gwd_code_is_coded(flight) ? GWD_FLIGHT_RAW : 0,
                                .payload = what->sealed};
    gwd_peer_t *peer = &group->wire->peers[shard->node];
    gw_status_t status = GW_ERR_ABORTED;

    if (transfer->step != GWD_STEP_EXPECTED)
        return; /* given up */
    transfer->step = GWD_STEP_UNDERWAY;
    gwd_flight_count_sent(transfer, kind, load.bytes);
    peer->data_sent++;
    peer->said_taken = peer->taken;
    if (peer->link)
        status = gwd_wire_post(peer, &header, load.data, load.bytes, transfer);
    if (status != GW_IN_PROGRESS)
        transfer->pending.ended(&transfer->pending, status);
}

static void sent(gwd_pending_t *pending, gw_status_t status) {
    transfer_ended((gwd_transfer_t *)pending, status);
}

/* A flight is not over while it is worked on, so what follows from its first step may end it only here. */
static void hold(gwd_wire_flight_t *flight) {
    flight->left++;
}

/* ---- final -------------------------------------------------------------------------------------------- */

static void do_final(gwd_job_t *job, uint64_t chunk) {
    gwd_shard_t *shard = shard_of(job);

    (void)chunk;
    if (!gwd_flight_open_parts(shard->flight))
        return;
    gwd_code_final(shard->flight, shard);
    gwd_flight_seal_result(shard->flight);
}

static void final_ended(gwd_job_t *job) {
    gwd_shard_t *shard = shard_of(job);
    gwd_wire_flight_t *flight = shard->flight;

    job_came_back(flight, gwd_flight_shard_bytes(shard));
    shard->job_step = GWD_STEP_ENDED;
    gwd_flight_count_job(shard);
    gwd_flight_check_parts(flight);
    for (uint32_t i = 0; i < gwd_flight_nodes(flight); i++)
        if (flight->shards[i].result_out.step == GWD_STEP_EXPECTED)
            send_load(&flight->shards[i], &flight->shards[i].result_out, GWD_WIRE_RESULT,
                      gwd_flight_result_out(flight, shard->result_out.raw), &shard->result_out);
    end_one(flight);
}

static void try_final(gwd_wire_flight_t *flight) {
    gwd_shard_t *own = gwd_flight_own(flight);

    if (own->job_step != GWD_STEP_EXPECTED || flight->parts_missing > 0 || flight->inputs_missing ||
        flight->partial == GWD_STEP_UNDERWAY)
        return;
    own->job_step = GWD_STEP_UNDERWAY;
    own->job.work = do_final;
    own->job.on_finished = final_ended;
    start_job(flight, &own->job, 1, gwd_flight_shard_bytes(own));
}

static void part_came(gwd_pending_t *pending, gw_status_t status) {
    gwd_transfer_t *transfer = (gwd_transfer_t *)pending;
    gwd_wire_flight_t *flight = transfer->shard->flight;

    flight->parts_missing--;
    hold(flight);
    transfer_ended(transfer, status);
    try_final(flight);
    end_one(flight);
}

/* ---- spread ------------------------------------------------------------------------------------------- */

static void do_spread(gwd_job_t *job, uint64_t chunk) {
    gwd_shard_t *shard = shard_of(job);

    (void)chunk;
    if (gwd_flight_open_result(shard->flight, shard))
        gwd_code_spread(shard->flight, shard);
}

static void spread_ended(gwd_job_t *job) {
    gwd_shard_t *shard = shard_of(job);

    job_came_back(shard->flight, gwd_flight_shard_bytes(shard));
    shard->job_step = GWD_STEP_ENDED;
    gwd_flight_count_job(shard);
    if (shard->result_in.forged)
        gwd_wire_forged(shard->flight->op->group, shard->node);
    end_one(shard->flight);
}

static void result_came(gwd_pending_t *pending, gw_status_t status) {
    gwd_transfer_t *transfer = (gwd_transfer_t *)pending;
    gwd_shard_t *shard = transfer->shard;
    gwd_wire_flight_t *flight = shard->flight;

    hold(flight);
    transfer_ended(transfer, status);
    if (shard->job_step == GWD_STEP_EXPECTED) {
        shard->job_step = GWD_STEP_UNDERWAY;
        shard->job.work = do_spread;
        shard->job.on_finished = spread_ended;
        start_job(flight, &shard->job, 1, gwd_flight_shard_bytes(shard));
    }
    end_one(flight);
}

/* ---- partial ------------------------------------------------------------------------------------------ */

static void partial_is_there(gwd_wire_flight_t *flight) {
    uint32_t n = gwd_flight_nodes(flight);

    for (uint32_t i = 0; i < n; i++) {
        gwd_shard_t *shard = &flight->shards[i];

        if (shard->part_out.step == GWD_STEP_EXPECTED)
            send_load(shard, &shard->part_out, GWD_WIRE_PART, gwd_flight_part_out(flight, shard), &shard->part_out);
    }
    try_final(flight);
}

/* Chunk i of the job is node i's shard. */
static void do_partial(gwd_job_t *job, uint64_t chunk) {
    gwd_wire_flight_t *flight = flight_of(job);

    gwd_code_partial(flight, &flight->shards[chunk]);
    gwd_flight_seal_part(flight, &flight->shards[chunk]);
}

static void partial_ended(gwd_job_t *job) {
    gwd_wire_flight_t *flight = flight_of(job);

    job_came_back(flight, gwd_flight_chunk_bytes(flight));
    flight->partial = GWD_STEP_ENDED;
    for (uint32_t i = 0; i < gwd_flight_nodes(flight); i++)
        gwd_flight_count_job(&flight->shards[i]);
    if (!flight->mine)
        flight->mine = flight->partials;
    partial_is_there(flight);
    end_one(flight);
}

/* ---- beginning ---------------------------------------------------------------------------------------- */

static void reset(gwd_shard_t *shard) {
    shard->part_out = (gwd_transfer_t){.pending = {sent}, .shard = shard};
    shard->part_in = (gwd_transfer_t){.pending = {part_came}, .shard = shard};
    shard->result_out = (gwd_transfer_t){.pending = {sent}, .shard = shard};
    shard->result_in = (gwd_transfer_t){.pending = {result_came}, .shard = shard};
    shard->job_step = GWD_STEP_NONE;
}

/* An all_reduce has a shard a node; elsewhere one node has all: the one with the result, or with the input. */
static void cut(gwd_wire_flight_t *flight) {
    const gwd_exchange_t *x = gwd_flight_exchange(flight);
    const gwd_group_map_t *map = flight->op->group->wire->map;
    uint64_t each = (flight->at.count - 1) / map->n_nodes + 1, first = 0;
    uint64_t round = gwd_code_is_coded(flight) ? GW_CODEC_BLOCK : SHARD_ROUND;
    bool sharded = x->collective == GW_ALL_REDUCE;
    uint32_t owner = map->node_of[flight->combines ? flight->at.first_out : flight->at.first_in];

    each = (each + round - 1) / round * round;
    for (uint32_t i = 0; i < map->n_nodes; i++) {
        gwd_shard_t *shard = &flight->shards[i];
        uint64_t left = flight->at.count - first;

        shard->first = sharded ? first : 0;
        shard->count = sharded ? (left < each ? left : each) : i == owner ? flight->at.count : 0;
        first += sharded ? shard->count : 0;
        reset(shard);
    }
}

static void plan_steps(gwd_wire_flight_t *flight) {
    const gwd_exchange_t *x = gwd_flight_exchange(flight);
    uint32_t n = gwd_flight_nodes(flight);
    gwd_shard_t *own = gwd_flight_own(flight);
    bool to_all = flight->at.n_out > 1;
    bool changes = gwd_code_is_coded(flight) || flight->op->group->wire->cipher; /* what travels is not what is used */

    flight->left = flight->parts_missing = 0;
    flight->mine = NULL;
    flight->partial = GWD_STEP_NONE;
    if (own->count > 0)
        expect(flight, &own->job_step);
    for (uint32_t i = 0; i < n; i++) {
        gwd_shard_t *shard = &flight->shards[i];

        if (shard == own)
            continue;
        if (own->count > 0 && flight->combines) {
            expect(flight, &shard->part_in.step);
            flight->parts_missing++;
        }
        if (own->count > 0 && to_all)
            expect(flight, &shard->result_out.step);
        if (shard->count > 0 && flight->combines)
            expect(flight, &shard->part_out.step);
        if (shard->count > 0 && to_all) {
            expect(flight, &shard->result_in.step);
            if (flight->n_out > 1 || changes)
                expect(flight, &shard->job_step);
        }
    }
    if (!flight->combines)
        return;
    if (flight->n_in == 1 && gw_kernel_partial_is_input(x->type, x->redop))
        flight->mine = flight->in[0];
    if (!flight->mine || changes)
        expect(flight, &flight->partial);
}

/* Those of devices, too. */
static void inputs_are_there(gwd_wire_flight_t *flight) {
    flight->inputs_missing = false;
    if (flight->partial == GWD_STEP_EXPECTED) {
        flight->partial = GWD_STEP_UNDERWAY;
        flight->job.work = do_partial;
        flight->job.on_finished = partial_ended;
        start_job(flight, &flight->job, gwd_flight_nodes(flight), gwd_flight_chunk_bytes(flight));
    } else if (flight->combines) {
        partial_is_there(flight);
    } else {
        try_final(flight);
    }
    end_one(flight); /* it was held for them */
}

static void begin_chunk(gwd_wire_flight_t *flight, gwd_op_t *op) {
    const gwd_exchange_t *x = &op->job.exchange;

    flight->op = op;
    flight->chunk = op->next_chunk;
    op->next_chunk += op->n_rails;
    op->n_flights++;
    gwd_exchange_chunk_at(x, flight->chunk, &flight->at);
    flight->combines = flight->at.n_in > 1;
    flight->partial_bytes = gw_kernel_partial_bytes(x->type, x->redop);
    flight->codec = op->wire_codec;
    flight->residual = op->wire_residual;
    cut(flight);
    gwd_flight_find_spans(flight);
    plan_steps(flight);
    hold(flight);
    hold(flight); /* until its inputs are there */
    flight->is_going_out = false;
    flight->inputs_missing = true;
    gwd_flight_copy(flight, true, inputs_are_there);
    if (op->group->status == GW_OK)
        gwd_flight_take_early(flight);
    else
        cancel_flight(flight);
    end_one(flight);
}

/* Whether no other node has too much that it has not taken. */
static bool may_go_ahead(struct gwd_wire_group *wire) {
    wire->is_ahead = false;
    for (uint32_t n = 0; n < wire->n_peers; n++)
        if (wire->peers[n].data_sent - wire->peers[n].data_taken >= GWD_AHEAD_MAX)
            wire->is_ahead = true;
    return !wire->is_ahead;
}

/* One for the next chunk of the operation, if it may have one. */
static gwd_wire_flight_t *free_flight(const gwd_op_t *op) {
    const struct gwd_wire_group *wire = op->group->wire;
    bool shares = op->n_rails > 1 || wire->n_rails == 1; /* else the other rails leave it their part */
    uint32_t most = op->wire_codec == GW_CODEC_NONE && shares ? op->group->plan.wire_window_raw : wire->window;
    uint32_t n_used = 0;
    gwd_wire_flight_t *found = NULL;

    for (uint32_t i = 0; i < wire->window; i++) {
        if (wire->flights[i].op)
            n_used++;
        else
            found = &wire->flights[i];
    }
    return n_used < most ? found : NULL;
}

/* Begins what can begin, in the order of sequence numbers: all nodes have the same chunks under way, so none waits for
 * one that another node has no flight for. Returns whether the operation after this one may begin. */
static bool begin_chunks(gwd_op_t *op) {
    uint64_t sequence = op->sequence;
    gwd_wire_flight_t *flight;

    if (op->state == GWD_OP_FREE || op->state == GWD_OP_FAILED)
        return true;
    if (op->state != GWD_OP_RUNNING)
        return false;
    while (op->group->status == GW_OK && op->next_chunk < op->wire_chunks && may_go_ahead(op->group->wire) &&
           (flight = free_flight(op)) != NULL) {
        begin_chunk(flight, op);
        if (op->sequence != sequence || op->state != GWD_OP_RUNNING)
            return true; /* it has ended with that, and its place may be another's already, whose turn comes later */
    }
    return op->next_chunk >= op->wire_chunks;
}

/* What begins may end at once, and come back here. */
void gwd_wire_go_on(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;

    wire->go_on_again = true;
    if (wire->going_on)
        return;
    wire->going_on = true;
    while (wire->go_on_again && group->status == GW_OK) {
        uint64_t sequence = group->tail;

        wire->go_on_again = false;
        do
            gwd_rails_run(group); /* before each: one may run only now, and is not to end before others carry it */
        while (group->status == GW_OK && gwd_op_at(group, sequence)->sequence == sequence &&
               begin_chunks(gwd_op_at(group, sequence)) && sequence++ < group->tail + group->credits);
    }
    wire->going_on = false;
}

/* Where one node gets the whole chunk of every other, chunks are smaller, so that they find room. */
static void plan_chunks(gwd_op_t *op) {
    gwd_exchange_t *x = &op->job.exchange;
    const struct gwd_wire_group *wire = op->group->wire;
    uint64_t raw_bytes = (uint64_t)RAW_SHARD_BYTES * wire->map->n_nodes;
    uint64_t bytes = op->wire_codec == GW_CODEC_NONE && raw_bytes < wire->chunk_bytes ? raw_bytes : wire->chunk_bytes;
    uint64_t type_bytes = gw_type_bytes(x->type);
    uint64_t partial_bytes = gw_kernel_partial_bytes(x->type, x->redop);

    if (x->collective == GW_REDUCE || x->collective == GW_REDUCE_SCATTER) {
        bytes /= wire->map->n_nodes;
        bytes = bytes < GWD_CHUNK_BYTES_MIN ? GWD_CHUNK_BYTES_MIN : bytes;
    }
    op->next_chunk = 0;
    op->wire_chunks = gwd_exchange_plan(x, partial_bytes > type_bytes ? bytes / partial_bytes * type_bytes : bytes);
}

/* The bucket's codec, with what is kept for it. */
static void choose_codec(gwd_op_t *op) {
    const gwd_bucket_t *bucket = op->parts[0].bucket;

    op->wire_codec = bucket->codec;
    op->wire_residual = bucket->residual;
    op->wire_round = op->wire_residual ? op->wire_residual->n_ops++ : 0;
}

/* All nodes come to the same. Small operations end before other lanes have woken up. */
static uint32_t rails_of(const gwd_op_t *op) {
    uint64_t n = op->wire_chunks / RAIL_CHUNKS;

    return n < 1 ? 1 : n < op->group->wire->n_rails ? (uint32_t)n : op->group->wire->n_rails;
}

void gwd_wire_run(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;

    op->state = GWD_OP_RUNNING;
    op->n_flights = op->rails_left = 0;
    group->n_running++;
    choose_codec(op);
    plan_chunks(op);
    if (op->wire_chunks > 0 && !group->wire->flights && !gwd_flights_make(group)) {
        gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon has no memory to exchange data with other nodes");
        return;
    }
    gwd_flight_count_begin(op);
    op->n_rails = rails_of(op);
    if (gwd_lane_is_staged(op) && group->nranks > GWD_STREAM_DEPTH) {
        gwd_lane_group_fail(group, GW_ERR_UNSUPPORTED, "more ranks of one node than copies can be under way");
        return;
    }
    if (gwd_lane_is_staged(op))
        atomic_fetch_add_explicit(&group->counters->staged, 1, memory_order_relaxed);
    if (op->wire_chunks == 0)
        gwd_lane_op_finished(op);
    gwd_wire_go_on(group);
}
