/* lane_staged.c - engine `staged`: operations on memory of devices, in chunks through arenas
 *
 *   device --copy engine--> block --reduce threads--> block --copy engine--> device
 *
 * Each chunk goes its own way: in, reduced, out. Several are under way, so that both directions of every
 * device and the reduction work at once; how many is bounded for each operation, so that an urgent one finds room.
 * Ranks whose memory is the host's take part without copies. Nothing that depends on a client is ever put on a stream:
 * an operation comes here when its inputs are ready, and no kernel runs.
 *
 * The result of a chunk is made once, in the block of the first rank on a device, and copied to every device from
 * there. See lane_group.h
 */
#include "lane_group.h"

#include <stdlib.h>

#include "clock.h"
#include "lane_copy.h"
#include "lane_trace.h"

enum { PASSED_OVER_MAX = 16 }; /* groups, in one turn: each costs a look at all operations */

struct gwd_staged {
    gwd_job_t job; /* first: a finished job is its chunk */
    gwd_op_t *op;
    gwd_staged_t *next; /* in the group's list of free ones */
    gwd_chunk_t chunk;
    uint64_t bytes, reduce_ns; /* when the reduction began */
    gwd_copying_t copying;
    uint32_t reserved;         /* copies that it may have under way at most */
    void *result;              /* the block that goes out to devices; NULL: it goes to none */
    gwd_arena_t *result_arena; /* of a result that is no input's block */
    void **blocks;             /* of the inputs; NULL: host memory */
    const void **in;           /* of the reduction */
    void **out;
};

/* ---- what a group has of them ------------------------------------------------------------------------- */

static void put_staged(gwd_lane_group_t *group, gwd_staged_t *staged) {
    staged->next = group->free_staged;
    group->free_staged = staged;
}

/* Made when the group first has memory of a device, for all its later operations. Twice the window: while one
 * operation has all that it may have, another can start. */
static bool make_staged(gwd_lane_group_t *group) {
    uint32_t n = 2 * group->plan.device_window;
    size_t n_pointers = 3 * (size_t)group->nranks;
    void **pointers;

    group->staged = calloc(n, sizeof(*group->staged));
    pointers = calloc(n * n_pointers, sizeof(*pointers));
    if (!group->staged || !pointers) {
        free(group->staged);
        free(pointers);
        group->staged = NULL;
        return false;
    }
    for (uint32_t i = 0; i < n; i++, pointers += n_pointers) {
        group->staged[i].blocks = pointers;
        group->staged[i].in = (const void **)(pointers + group->nranks);
        group->staged[i].out = pointers + 2 * group->nranks;
        put_staged(group, &group->staged[i]);
    }
    return true;
}

void gwd_lane_free_staged(gwd_lane_group_t *group) {
    if (group->staged)
        free(group->staged[0].blocks);
    free(group->staged);
}

/* ---- devices ------------------------------------------------------------------------------------------- */

static gwd_device_t *in_device(const gwd_staged_t *staged, uint32_t i) {
    return staged->op->parts[staged->chunk.first_in + i].bucket->send_device;
}

static gwd_device_t *out_device(const gwd_staged_t *staged, uint32_t i) {
    return staged->op->parts[staged->chunk.first_out + i].bucket->recv_device;
}

static gwd_staged_t *staged_of(gwd_copying_t *copying) {
    return (gwd_staged_t *)(void *)((char *)copying - offsetof(gwd_staged_t, copying));
}

/* ---- a chunk ------------------------------------------------------------------------------------------- */

/* What a chunk may have under way counts for its lane, its group and its user. */
static bool reserve(const gwd_staged_t *staged) {
    gwd_share_t *share = &staged->op->group->share;

    if (!gwd_lane_copies_reserve(staged->op->group->lane, staged->reserved))
        return false;
    atomic_fetch_add_explicit(&share->n_copies, staged->reserved, memory_order_relaxed);
    atomic_fetch_add_explicit(&share->parent->n_copies, staged->reserved, memory_order_relaxed);
    return true;
}

static void unreserve(const gwd_staged_t *staged) {
    gwd_share_t *share = &staged->op->group->share;

    gwd_lane_copies_unreserve(staged->op->group->lane, staged->reserved);
    atomic_fetch_sub_explicit(&share->n_copies, staged->reserved, memory_order_relaxed);
    atomic_fetch_sub_explicit(&share->parent->n_copies, staged->reserved, memory_order_relaxed);
}

static void give_blocks(const gwd_staged_t *staged) {
    for (uint32_t i = 0; i < staged->chunk.n_in; i++)
        if (staged->blocks[i])
            gwd_arena_give(&in_device(staged, i)->arena, staged->blocks[i]);
    if (staged->result_arena)
        gwd_arena_give(staged->result_arena, staged->result);
}

static void end_staged(gwd_staged_t *staged) {
    gwd_op_t *op = staged->op;

    give_blocks(staged);
    unreserve(staged);
    op->n_flights--;
    put_staged(op->group, staged);
}

static bool goes_on(const gwd_op_t *op) {
    return op->group->status == GW_OK && !op->device_failed;
}

static void on_out(gwd_copying_t *copying) {
    gwd_staged_t *staged = staged_of(copying);

    if (copying->lost)
        staged->op->device_failed = copying->lost;
    end_staged(staged);
}

static void go_out(gwd_staged_t *staged) {
    gwd_lane_copying_begin(&staged->copying, staged->op, false, on_out);
    for (uint32_t i = 0; i < staged->chunk.n_out && goes_on(staged->op) && !staged->copying.lost; i++) {
        gwd_device_t *device = out_device(staged, i);

        if (device)
            gwd_lane_copy(&staged->copying, device,
                          (unsigned char *)staged->op->parts[staged->chunk.first_out + i].bucket->recv +
                              staged->chunk.out_bytes,
                          staged->result, staged->bytes);
    }
    gwd_lane_copying_started(&staged->copying);
}

static void reduced(gwd_staged_t *staged) {
    gwd_lane_trace_span(staged->op, GWD_TRACE_REDUCE, 0, staged->bytes, staged->reduce_ns, gwd_now_ns());
    go_out(staged);
}

static void on_reduced(gwd_job_t *job) {
    reduced((gwd_staged_t *)(void *)job);
}

/* Host memory of a rank is written by the reduction itself. */
static void go_reduce(gwd_staged_t *staged) {
    gwd_op_t *op = staged->op;
    gwd_exchange_t *x = &staged->job.exchange;
    uint32_t n_out = 0;

    for (uint32_t i = 0; i < staged->chunk.n_in; i++)
        staged->in[i] = staged->blocks[i] ? staged->blocks[i]
                                          : (const unsigned char *)op->parts[staged->chunk.first_in + i].bucket->send +
                                                staged->chunk.in_bytes;
    if (staged->result && (staged->chunk.n_in > 1 || staged->in[0] != staged->result))
        staged->out[n_out++] = staged->result;
    for (uint32_t i = 0; i < staged->chunk.n_out; i++)
        if (!out_device(staged, i))
            staged->out[n_out++] =
                (unsigned char *)op->parts[staged->chunk.first_out + i].bucket->recv + staged->chunk.out_bytes;
    if (n_out == 0) {
        go_out(staged);
        return;
    }
    staged->reduce_ns = gwd_now_ns();
    *x = (gwd_exchange_t){.collective = GW_ALL_REDUCE,
                          .type = op->job.exchange.type,
                          .redop = op->job.exchange.redop,
                          .nranks = staged->chunk.n_in,
                          .n_recv = n_out,
                          .count = staged->chunk.count,
                          .for_device = true,
                          .send = staged->in,
                          .recv = staged->out};
    if (staged->bytes * staged->chunk.n_in <= op->group->plan.inline_bytes) {
        (void)gwd_exchange_plan(x, 0);
        gwd_exchange_chunk(x, 0);
        reduced(staged);
        return;
    }
    staged->job.n_chunks = gwd_exchange_plan(x, op->group->plan.device_piece_bytes);
    staged->job.priority = op->job.priority;
    staged->job.share = &op->group->share;
    staged->job.finished = &op->group->lane->finished;
    staged->job.on_finished = on_reduced;
    gwd_reduce_start(op->group->lane->reduce, &staged->job, false);
}

static void on_in(gwd_copying_t *copying) {
    gwd_staged_t *staged = staged_of(copying);

    if (copying->lost)
        staged->op->device_failed = copying->lost;
    if (goes_on(staged->op))
        go_reduce(staged);
    else
        end_staged(staged);
}

/* One operation may hold blocks while it waits for more: else a chunk that takes many would never find them free
 * together beside chunks that take few. One in the daemon, whatever lane it is on, so that no two wait for each other. */
static atomic_bool somebody_saves;

/* The device that the result's own block is taken from: of the first output on one, if no input is on any. */
static gwd_device_t *result_device(const gwd_staged_t *staged) {
    gwd_device_t *device = NULL;

    for (uint32_t i = 0; i < staged->chunk.n_in; i++)
        if (in_device(staged, i))
            return NULL;
    for (uint32_t i = 0; i < staged->chunk.n_out && !device; i++)
        device = out_device(staged, i);
    return device;
}

static bool goes_out(const gwd_staged_t *staged) {
    for (uint32_t i = 0; i < staged->chunk.n_out; i++)
        if (out_device(staged, i))
            return true;
    return false;
}

/* Takes those of its blocks that it has not yet: one for each input on a device, and one for the result if no input's
 * can hold it. Returns whether it has all. */
static bool take_blocks(gwd_staged_t *staged) {
    gwd_device_t *device = result_device(staged);
    bool all = true;

    for (uint32_t i = 0; i < staged->chunk.n_in; i++)
        if (in_device(staged, i) && !staged->blocks[i])
            all = gwd_arena_take(&in_device(staged, i)->arena, &staged->blocks[i], 1) && all;
    if (device && !staged->result_arena) {
        if (gwd_arena_take(&device->arena, &staged->result, 1))
            staged->result_arena = &device->arena;
        else
            all = false;
    }
    for (uint32_t i = 0; i < staged->chunk.n_in && all && !staged->result && goes_out(staged); i++)
        staged->result = staged->blocks[i];
    return all;
}

/* Nothing of it is under way. */
static void stop_saving(gwd_op_t *op) {
    gwd_staged_t *staged = op->saved;

    op->saved = NULL;
    op->group->lane->saver = NULL;
    atomic_store(&somebody_saves, false);
    give_blocks(staged);
    put_staged(op->group, staged);
}

static gwd_staged_t *new_staged(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    gwd_staged_t *staged = group->free_staged;

    if (!staged)
        return NULL;
    group->free_staged = staged->next;
    staged->op = op;
    staged->result = NULL;
    staged->result_arena = NULL;
    gwd_exchange_chunk_at(&op->job.exchange, op->next_chunk, &staged->chunk);
    for (uint32_t i = 0; i < staged->chunk.n_in; i++)
        staged->blocks[i] = NULL;
    staged->bytes = staged->chunk.count * gw_type_bytes(op->job.exchange.type);
    staged->reserved = staged->chunk.n_in > staged->chunk.n_out ? staged->chunk.n_in : staged->chunk.n_out;
    return staged;
}

/* The next chunk, with its blocks and what it may have under way; NULL when some of what it takes is in use. */
static gwd_staged_t *prepare_staged(gwd_op_t *op) {
    gwd_lane_t *lane = op->group->lane;
    gwd_staged_t *staged = op->saved ? op->saved : new_staged(op);

    if (!staged)
        return NULL;
    if (reserve(staged)) {
        if (take_blocks(staged)) {
            if (op->saved) {
                op->saved = NULL;
                lane->saver = NULL;
                atomic_store(&somebody_saves, false);
            }
            return staged;
        }
        unreserve(staged);
    }
    if (op->saved)
        return NULL;
    if (!atomic_exchange(&somebody_saves, true)) {
        op->saved = staged;
        lane->saver = op;
        return NULL;
    }
    give_blocks(staged);
    put_staged(op->group, staged);
    return NULL;
}

/* Starts the next chunk of an operation; false when something that it takes is in use. */
static bool start_staged(gwd_op_t *op) {
    gwd_staged_t *staged = prepare_staged(op);

    if (!staged)
        return false;
    op->next_chunk++;
    op->n_flights++;
    gwd_lane_copying_begin(&staged->copying, op, true, on_in);
    for (uint32_t i = 0; i < staged->chunk.n_in && !staged->copying.lost; i++)
        if (staged->blocks[i])
            gwd_lane_copy(&staged->copying, in_device(staged, i), staged->blocks[i],
                          (const unsigned char *)op->parts[staged->chunk.first_in + i].bucket->send +
                              staged->chunk.in_bytes,
                          staged->bytes);
    gwd_lane_copying_started(&staged->copying);
    return true;
}

/* ---- operations ----------------------------------------------------------------------------------------- */

bool gwd_lane_is_staged(const gwd_op_t *op) {
    for (uint32_t r = 0; r < op->group->nranks; r++)
        if (op->parts[r].bucket->send_device || op->parts[r].bucket->recv_device)
            return true;
    return false;
}

/* A chunk's blocks must all fit at once. */
static bool fits(const gwd_op_t *op) {
    for (uint32_t r = 0; r < op->group->nranks; r++) {
        const gwd_device_t *device = op->parts[r].bucket->send_device;
        uint32_t n = 0;

        for (uint32_t i = 0; i < op->group->nranks && device; i++)
            n += op->parts[i].bucket->send_device == device;
        if (device && n > gwd_arena_blocks(&device->arena))
            return false;
    }
    return op->group->nranks <= GWD_STREAM_DEPTH;
}

/* By priority, then by age. */
static void line_up(gwd_lane_t *lane, gwd_op_t *op) {
    gwd_op_t **at = &lane->staged;

    while (*at && (*at)->job.priority >= op->job.priority)
        at = &(*at)->next_staged;
    op->next_staged = *at;
    *at = op;
}

void gwd_lane_stage(gwd_op_t *op, uint64_t bytes) {
    gwd_lane_group_t *group = op->group;

    if (!fits(op)) {
        gwd_lane_group_fail(group, GW_ERR_UNSUPPORTED,
                            "too many ranks have memory on one device for its arena: raise device.arena_bytes");
        return;
    }
    if (!group->staged && !make_staged(group)) {
        gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon is out of memory");
        return;
    }
    op->n_staged_chunks = gwd_exchange_plan_even(&op->job.exchange, gwd_plan_device_chunk(&group->plan, bytes));
    op->next_chunk = 0;
    op->n_flights = 0;
    op->device_failed = NULL;
    op->saved = NULL;
    op->state = GWD_OP_RUNNING;
    op->staged = true;
    group->n_running++;
    atomic_fetch_add_explicit(&group->counters->staged, 1, memory_order_relaxed);
    line_up(group->lane, op);
}

/* What can end: nothing left to start, nothing under way. */
static gwd_op_t *take_ended(gwd_lane_t *lane) {
    for (gwd_op_t **at = &lane->staged; *at; at = &(*at)->next_staged) {
        gwd_op_t *op = *at;

        if (op->n_flights == 0 && (op->next_chunk == op->n_staged_chunks || op->group->status != GW_OK)) {
            *at = op->next_staged;
            if (op->saved)
                stop_saving(op);
            return op;
        }
    }
    return NULL;
}

/* Whether an operation that comes later in the list is to start before another: the user who has the least under way
 * is next, and of a user's groups that which has. */
static bool is_before(const gwd_op_t *late, const gwd_op_t *early) {
    const gwd_share_t *a = &late->group->share, *b = &early->group->share;

    if (a == b)
        return false;
    if (a->parent != b->parent) {
        a = a->parent;
        b = b->parent;
    }
    return atomic_load_explicit(&a->n_copies, memory_order_relaxed) <
           atomic_load_explicit(&b->n_copies, memory_order_relaxed);
}

/* The operation whose turn it is. */
static gwd_op_t *next_to_start(const gwd_lane_t *lane) {
    gwd_op_t *best = NULL;

    for (gwd_op_t *op = lane->staged; op; op = op->next_staged)
        if (goes_on(op) && op->next_chunk < op->n_staged_chunks && op->n_flights < op->group->plan.device_window &&
            (op->group->free_staged || op->saved) && op->group->passed_over != lane->staged_turn &&
            (!best || is_before(op, best)))
            best = op;
    return best;
}

void gwd_lane_staged_turn(gwd_lane_t *lane) {
    gwd_op_t *op, *ended;

    lane->staged_turn++;
    if (lane->saver && goes_on(lane->saver)) /* what has come free is its own first */
        (void)start_staged(lane->saver);
    for (int n_passed = 0; n_passed < PASSED_OVER_MAX && (op = next_to_start(lane)) != NULL;)
        if (!start_staged(op)) { /* no blocks: another may need fewer, or those of other devices */
            op->group->passed_over = lane->staged_turn;
            n_passed++;
        }
    for (op = lane->staged; op; op = op->next_staged)
        if (op->device_failed && op->group->status == GW_OK)
            gwd_lane_device_lost(op,
                                 op->device_failed); /* after the last start, so that none ends as if it were good */
    while ((ended = take_ended(lane)) != NULL) {
        ended->staged = false;
        gwd_lane_op_finished(ended);
    }
}
