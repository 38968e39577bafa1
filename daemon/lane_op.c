/* lane_op.c - operations: matched, run, ended. See lane_group.h */
#include "lane_group.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "frame.h"
#include "lane_trace.h"
#include "log.h"

enum {
    DESCRIPTION_BYTES = 224,
    MISMATCHES_LOGGED = 4, /* of a group; statistics count them all */
    POLLED_AT_ONCE = 64,   /* operations whose inputs are not ready, in one turn of the lane */
};

static void futex_wake_all(_Atomic uint32_t *word) {
    /* Nobody waiting is no error, and a bad address cannot be: the daemon mapped it. */
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gwd_lane_notify(const gwd_lane_rank_t *rank, const gwd_complete_t *complete) {
    uint8_t body[GWD_COMPLETE_BYTES];

    /* A reader so slow that its queue is full loses the message, not the completion: the slot has it. */
    if (gw_frame_send(rank->info.channel_fd, GW_MSG_COMPLETE, 0, body, gwd_complete_pack(complete, body), NULL, 0) !=
        GW_FRAME_OK)
        gwd_stats_add(&rank->group->lane->stats.completes_dropped, 1);
}

/* Writes the end of an operation where the rank sees it. */
static void end_slot(const gwd_lane_rank_t *rank, const gwd_complete_t *complete, bool notify) {
    gw_slot_t *slot = gw_slots_at(rank->info.slots, complete->sequence, rank->group->credits);

    atomic_store_explicit(&slot->status, (uint32_t)complete->status, memory_order_relaxed);
    atomic_store_explicit(&slot->done, (uint32_t)complete->sequence, memory_order_release);
    futex_wake_all(&slot->done);
    if (notify)
        gwd_lane_notify(rank, complete);
}

/* Tells one rank that its part has ended. */
static void end_part(gwd_op_t *op, uint32_t index, gw_status_t status, uint64_t now_ns) {
    gwd_lane_rank_t *rank = &op->group->ranks[index];
    gwd_part_t *part = &op->parts[index];
    gwd_bucket_t *bucket = part->bucket;
    gwd_complete_t complete = {.sequence = op->sequence, .status = status, .last_rank = op->last_rank};

    part->ended = true;
    if (op->matched_ns) {
        complete.matched_ns = op->matched_ns - part->submit_ns;
        complete.reduce_ns = now_ns - op->matched_ns;
    }
    if (!rank->left)
        end_slot(rank, &complete, part->notify);
    bucket->lane.in_flight--;
    atomic_fetch_add_explicit(&bucket->rounds, 1, memory_order_relaxed);
    atomic_store_explicit(&bucket->last_ns, now_ns - part->submit_ns, memory_order_relaxed);
    gwd_lane_bucket_ended(rank, bucket);
}

void gwd_lane_advance_tail(gwd_lane_group_t *group) {
    while (gwd_op_at(group, group->tail)->sequence == group->tail &&
           gwd_op_at(group, group->tail)->state == GWD_OP_FREE)
        group->tail++;
}

static void publish_progress(gwd_lane_group_t *group) {
    atomic_store_explicit(&group->counters->last_completed, group->tail - 1, memory_order_relaxed);
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_lane_rank_t *rank = &group->ranks[r];

        if (rank->left)
            continue;
        atomic_store_explicit(&rank->info.slots->last_completed, group->tail - 1, memory_order_release);
        atomic_store_explicit(&rank->info.slots->failed_ops, group->failed_ops, memory_order_release);
    }
}

static void free_op(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;

    op->state = GWD_OP_FREE;
    atomic_fetch_sub_explicit(&group->counters->in_flight, 1, memory_order_relaxed);
    gwd_stats_subtract(&group->lane->stats.ops_in_flight, 1);
    gwd_lane_advance_tail(group);
    if (group->status == GW_OK) /* once it has failed, the number stays what all survivors have read */
        publish_progress(group);
}

static void count_end(gwd_op_t *op, gw_status_t status, uint64_t now_ns) {
    gwd_stats_t *stats = &op->group->lane->stats;

    gwd_lane_trace_moment(op, status == GW_OK ? GWD_TRACE_DONE : GWD_TRACE_FAILED, (uint32_t)status, 0, now_ns);
    if (status != GW_OK) {
        gwd_stats_add(status == GW_ERR_MISMATCH ? &stats->ops_mismatched : &stats->ops_lost, 1);
        return;
    }
    gwd_stats_add(&stats->ops_completed, 1);
    gwd_stats_observe(&stats->submit_to_matched_ns, op->matched_ns - op->first_ns);
    gwd_stats_observe(&stats->matched_to_reduced_ns, now_ns - op->matched_ns);
    gwd_stats_observe(&stats->submit_to_done_ns, now_ns - op->first_ns);
}

void gwd_lane_op_end(gwd_op_t *op, gw_status_t status) {
    gwd_lane_group_t *group = op->group;
    uint64_t now_ns = gwd_now_ns();

    op->status = status;
    if (op->state != GWD_OP_FAILED) /* else this is a late rank's part in what was counted */
        count_end(op, status, now_ns);
    if (op->n_submitted == group->nranks || group->status != GW_OK)
        free_op(op);
    else
        op->state = GWD_OP_FAILED;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (op->parts[r].bucket && !op->parts[r].ended)
            end_part(op, r, status, now_ns);
}

static void on_job_finished(gwd_job_t *job) {
    gwd_op_t *op = (gwd_op_t *)(void *)job;

    op->group->lane->n_running--;
    gwd_lane_trace_span(op, GWD_TRACE_REDUCE, 0, op->run_bytes, op->run_ns, gwd_now_ns());
    gwd_lane_op_finished(op);
}

static void run(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;
    const gwd_bucket_desc_t *desc = &op->parts[0].bucket->desc;
    gwd_exchange_t *x = &op->job.exchange;
    const gwd_plan_row_t *row;
    uint64_t bytes = 0, now_ns;

    for (uint32_t r = 0; r < group->nranks; r++) {
        const gwd_bucket_t *bucket = op->parts[r].bucket;

        x->send[r] = bucket->send;
        x->recv[r] = bucket->recv;
        if (bucket->bytes > bytes)
            bytes = bucket->bytes;
        if (r == 0 || bucket->desc.priority > op->job.priority)
            op->job.priority = bucket->desc.priority;
    }
    x->collective = desc->collective;
    x->type = desc->type;
    x->redop = desc->redop;
    x->root = desc->root;
    x->count = desc->count;
    op->run_ns = gwd_now_ns();
    op->run_bytes = bytes;
    gwd_lane_trace_moment(op, GWD_TRACE_READY, 0, bytes, op->run_ns);
    gwd_stats_add(&group->lane->stats.bytes_reduced, bytes);
    if (group->wire) {
        gwd_lane_wire_meet(op);
        return;
    }
    row = gwd_plan_row(&group->plan, bytes);
    if (bytes > 0 && gwd_lane_is_staged(op)) {
        gwd_lane_stage(op, bytes);
        return;
    }
    op->job.n_chunks = gwd_exchange_plan(x, row->chunk_bytes);
    gwd_stats_add(&group->lane->stats.chunks_reduced, op->job.n_chunks);
    if (row->chunk_bytes != 0 && op->job.n_chunks != 0) {
        op->state = GWD_OP_RUNNING;
        group->n_running++;
        group->lane->n_running++;
        op->job.on_finished = on_job_finished;
        gwd_reduce_start(group->lane->reduce, &op->job, !group->lane->staged);
        return;
    }
    gwd_stats_add(&group->lane->stats.ops_inline, 1);
    for (uint64_t i = 0; i < op->job.n_chunks; i++)
        gwd_exchange_chunk(x, i);
    now_ns = gwd_now_ns();
    gwd_lane_trace_span(op, GWD_TRACE_REDUCE, 0, bytes, bytes > 0 ? op->run_ns : 0, now_ns);
    gwd_lane_trace_moment(op, GWD_TRACE_REDUCED, 0, bytes, now_ns);
    gwd_lane_op_end(op, GW_OK);
}

void gwd_lane_op_finished(gwd_op_t *op) {
    gwd_lane_group_t *group = op->group;

    if (group->status == GW_OK)
        gwd_lane_trace_moment(op, GWD_TRACE_REDUCED, 0, op->run_bytes, gwd_now_ns());
    group->n_running--;
    gwd_lane_op_end(op, group->status);
    gwd_lane_unstall(group);
    gwd_lane_group_release(group);
}

static bool inputs_ready(const gwd_op_t *op) {
    const gwd_lane_group_t *group = op->group;

    for (uint32_t r = 0; r < group->nranks; r++) {
        gw_slot_t *slot = gw_slots_at(group->ranks[r].info.slots, op->sequence, group->credits);

        if (!gw_slots_reached(atomic_load_explicit(&slot->ready, memory_order_acquire), op->sequence))
            return false;
    }
    return true;
}

/* Appends to the lane's list. */
static void wait_for_inputs(gwd_op_t *op) {
    gwd_lane_t *lane = op->group->lane;

    op->next_waiting = NULL;
    if (lane->waiting)
        lane->last_waiting->next_waiting = op;
    else
        lane->waiting = op;
    lane->last_waiting = op;
}

/* A bounded number in one turn, since ranks may have any number of them. */
void gwd_lane_poll_waiting(gwd_lane_t *lane) {
    gwd_op_t *last = lane->last_waiting, *op = NULL;

    for (int n = 0; n < POLLED_AT_ONCE && lane->waiting && op != last; n++) {
        op = lane->waiting;
        lane->waiting = op->next_waiting;
        if (op->state != GWD_OP_WAITING)
            continue; /* its group has failed */
        if (inputs_ready(op)) {
            gwd_lane_group_t *group = op->group;

            run(op);
            gwd_lane_unstall(group);
        } else {
            wait_for_inputs(op);
        }
    }
    gwd_stats_add(&lane->stats.lane_polls, 1);
}

static void count_last(gwd_op_t *op, gwd_lane_rank_t *last) {
    atomic_fetch_add_explicit(&last->counters->last_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&last->counters->last_ns, op->matched_ns - op->first_ns, memory_order_relaxed);
}

static void matched(gwd_op_t *op, gwd_lane_rank_t *last, uint64_t now_ns) {
    op->matched_ns = now_ns;
    count_last(op, last);
    gwd_lane_trace_moment(op, GWD_TRACE_MATCHED, last->info.rank, 0, now_ns);
    if (inputs_ready(op)) {
        run(op);
        return;
    }
    op->state = GWD_OP_WAITING;
    wait_for_inputs(op);
}

/* The first bucket that a rank has submitted under this number: the one others are compared with. */
static const gwd_part_t *reference(const gwd_op_t *op, uint32_t *rank_out) {
    uint32_t r = 0;

    while (!op->parts[r].bucket)
        r++;
    *rank_out = r;
    return &op->parts[r];
}

void gwd_lane_op_mismatch(gwd_op_t *op, const char *text) {
    gwd_lane_group_t *group = op->group;

    if (group->failed_ops++ < MISMATCHES_LOGGED)
        gwd_log(GWD_LOG_WARNING, "group", "group %u: %s", group->id, text);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->ranks[r].left)
            snprintf(group->ranks[r].info.slots->message, GW_SLOTS_MESSAGE_BYTES, "%s", text);
    publish_progress(group);
    gwd_lane_op_end(op, GW_ERR_MISMATCH);
}

static void mismatch(gwd_op_t *op, const gwd_lane_rank_t *rank, const gwd_bucket_t *bucket, uint32_t other,
                     const gwd_bucket_t *expected) {
    char mine[DESCRIPTION_BYTES], theirs[DESCRIPTION_BYTES], text[GWD_TEXT_BYTES];

    gwd_bucket_describe(bucket, mine, sizeof(mine));
    gwd_bucket_describe(expected, theirs, sizeof(theirs));
    snprintf(text, sizeof(text), "operation %llu differs: rank %u submitted %s, rank %u submitted %s",
             (unsigned long long)op->sequence, op->group->ranks[other].info.rank, theirs, rank->info.rank, mine);
    if (op->group->wire)
        gwd_lane_wire_mismatch(op, text);
    if (op->group->status == GW_OK) /* else other nodes could not be told, and the operation has ended */
        gwd_lane_op_mismatch(op, text);
}

static void begin_op(gwd_op_t *op, uint64_t sequence, uint64_t now_ns) {
    op->sequence = sequence;
    op->state = GWD_OP_GATHERING;
    op->status = GW_OK;
    op->n_submitted = 0;
    op->first_ns = now_ns;
    op->matched_ns = 0;
    op->late_reported = false;
    for (uint32_t r = 0; r < op->group->nranks; r++)
        op->parts[r] = (gwd_part_t){0};
    atomic_fetch_add_explicit(&op->group->counters->in_flight, 1, memory_order_relaxed);
    gwd_stats_add(&op->group->lane->stats.ops_in_flight, 1);
    gwd_lane_arm_check(op->group->lane, now_ns);
}

/* Puts a checked submit into its operation. */
static void join_op(gwd_op_t *op, gwd_lane_rank_t *rank, gwd_bucket_t *bucket, const gwd_submit_t *submit) {
    uint64_t now_ns = gwd_now_ns();
    const gwd_part_t *first = NULL;
    uint32_t first_rank = 0;

    if (op->state == GWD_OP_FREE)
        begin_op(op, submit->sequence, now_ns);
    else
        first = reference(op, &first_rank);
    op->parts[rank->index] = (gwd_part_t){bucket, now_ns, submit->queue, submit->notify, false};
    op->n_submitted++;
    op->last_rank = rank->info.rank;
    bucket->lane.in_flight++;
    rank->submitted = submit->sequence;
    rank->last_queue = submit->queue;
    atomic_store_explicit(&rank->counters->submitted, submit->sequence, memory_order_relaxed);
    gwd_lane_trace_submit(op, rank, bucket, now_ns);

    if (op->state == GWD_OP_FAILED)
        gwd_lane_op_end(op, op->status);
    else if (first && !gwd_bucket_matches(bucket, first->bucket))
        mismatch(op, rank, bucket, first_rank, first->bucket);
    else if (op->n_submitted == op->group->nranks)
        matched(op, rank, now_ns);
}

void gwd_lane_broke_protocol(gwd_lane_rank_t *rank, const char *how) {
    char text[GWD_TEXT_BYTES];

    gwd_lane_watch_channel(rank->group->lane, rank, false); /* nothing it says is understood any more */
    rank->broken = true;
    snprintf(text, sizeof(text), "%s broke the protocol: %s", rank->info.identity, how);
    gwd_stats_add(&rank->group->lane->stats.messages_malformed, 1);
    gwd_lane_group_fail(rank->group, GW_ERR_PROTOCOL_RANK, text);
    (void)shutdown(rank->info.channel_fd, SHUT_RDWR); /* what it still waits for will not end: let it see that */
}

static gwd_bucket_t *find_bucket(const gwd_lane_rank_t *rank, uint32_t id) {
    return id >= 1 && id <= rank->n_buckets ? rank->buckets[id - 1] : NULL;
}

/* A rank that left before this operation can never join it. */
static const gwd_lane_rank_t *absent_rank(const gwd_lane_group_t *group, uint64_t sequence) {
    for (uint32_t r = 0; r < group->nranks && group->n_left > 0; r++)
        if (group->ranks[r].left && group->ranks[r].submitted < sequence)
            return &group->ranks[r];
    return NULL;
}

void gwd_lane_submit(gwd_lane_rank_t *rank, const gwd_submit_t *submit) {
    gwd_lane_group_t *group = rank->group;
    const gwd_lane_rank_t *absent;
    gwd_bucket_t *bucket;
    char text[GWD_TEXT_BYTES], description[DESCRIPTION_BYTES];

    if (submit->epoch != group->epoch || submit->sequence != rank->submitted + 1) {
        snprintf(text, sizeof(text), "submit %llu of epoch %u came where %llu of epoch %u was due",
                 (unsigned long long)submit->sequence, submit->epoch, (unsigned long long)rank->submitted + 1,
                 group->epoch);
        gwd_lane_broke_protocol(rank, text);
        return;
    }
    if (group->status != GW_OK) { /* it was on its way when the group failed */
        rank->submitted = submit->sequence;
        end_slot(rank, &(gwd_complete_t){.sequence = submit->sequence, .status = group->status}, submit->notify);
        return;
    }
    if (submit->sequence >= group->tail + group->credits) {
        rank->stalled = true;
        group->n_stalled++;
        rank->stalled_submit = *submit;
        gwd_lane_watch_channel(group->lane, rank, false);
        return;
    }
    bucket = find_bucket(rank, submit->bucket);
    /* The loop's message about it may be on its way: it was sent before the client's reply. No further ones are taken:
     * one may be that this rank leaves, before what it says here has been heard. */
    while (!bucket && gwd_lane_take_command(group->lane))
        bucket = find_bucket(rank, submit->bucket);
    if (rank->left)
        return;
    if (group->status != GW_OK) { /* one of those commands failed it */
        gwd_lane_submit(rank, submit);
        return;
    }
    if (!bucket || bucket->lane.detaching) {
        gwd_lane_broke_protocol(rank, "submit of a bucket that does not exist");
        return;
    }
    absent = absent_rank(group, submit->sequence);
    if (absent) {
        gwd_bucket_describe(bucket, description, sizeof(description));
        snprintf(text, sizeof(text), "%s has left the group, but %s submitted %.150s", absent->info.identity,
                 rank->info.identity, description);
        gwd_lane_group_fail(group, GW_ERR_RANK_LEFT, text);
        gwd_lane_submit(rank, submit); /* and this operation ends like all others */
        return;
    }
    join_op(gwd_op_at(group, submit->sequence), rank, bucket, submit);
}

/* Lets one stalled rank go on; false when there is none that can. */
static bool unstall_one(gwd_lane_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_lane_rank_t *rank = &group->ranks[r];

        if (!rank->stalled || rank->stalled_submit.sequence >= group->tail + group->credits)
            continue;
        rank->stalled = false;
        group->n_stalled--;
        gwd_lane_watch_channel(group->lane, rank, true);
        gwd_lane_submit(rank, &rank->stalled_submit);
        return true;
    }
    return false;
}

void gwd_lane_unstall(gwd_lane_group_t *group) {
    while (group->n_stalled > 0 && group->status == GW_OK && unstall_one(group))
        ;
}
