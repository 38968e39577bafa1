/* lane_group.c - ranks come and go, groups fail. See lane_group.h */
#include "lane_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frame.h"
#include "lane_wire.h"
#include "log.h"

/* One allocation for the parts, and one for the two span tables, of all operations. */
static gw_status_t new_ops(gwd_lane_group_t *group) {
    size_t n = (size_t)group->credits * group->nranks;
    gwd_part_t *parts = calloc(n, sizeof(*parts));
    void **spans = calloc(2 * n, sizeof(*spans));

    group->ops = calloc(group->credits, sizeof(*group->ops));
    if (!group->ops || !parts || !spans) {
        free(parts);
        free(spans);
        return GW_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < group->credits; i++) {
        gwd_op_t *op = &group->ops[i];

        op->group = group;
        op->parts = parts + (size_t)i * group->nranks;
        op->job.share = &group->share;
        op->job.finished = &group->lane->finished;
        op->job.exchange.nranks = op->job.exchange.n_recv = group->nranks_all;
        op->job.exchange.send = (const void **)(spans + (size_t)i * group->nranks);
        op->job.exchange.recv = spans + n + (size_t)i * group->nranks;
    }
    return GW_OK;
}

gw_status_t gwd_lane_group_new(gwd_lane_t *lane, gwd_group_seed_t *seed, gwd_lane_group_t **group_out) {
    gwd_lane_group_t *group = calloc(1, sizeof(*group));

    if (!group)
        return GW_ERR_NO_MEMORY;
    *group = (gwd_lane_group_t){.lane = lane,
                                .id = seed->id,
                                .epoch = seed->epoch,
                                .credits = seed->credits,
                                .nranks = seed->n_local,
                                .rail = seed->rail,
                                .first_rail = seed->lanes[0],
                                .nranks_all = seed->nranks,
                                .plan = seed->plan,
                                .silence_ns = seed->silence_ns,
                                .counters = seed->counters,
                                .share = {.parent = seed->user_share},
                                .tail = 1};
    group->ranks = calloc(group->nranks, sizeof(*group->ranks));
    if (!group->ranks || new_ops(group) != GW_OK) {
        free(group->ranks);
        free(group->ops);
        free(group);
        return GW_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < group->nranks; r++) {
        group->ranks[r].group = group;
        group->ranks[r].index = r;
        group->ranks[r].info = seed->ranks[r];
        group->ranks[r].left = seed->rail > 0;
        group->ranks[r].counters = &seed->counters->ranks[seed->ranks[r].rank];
    }
    *group_out = group;
    return GW_OK;
}

static void free_group(gwd_lane_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        free(group->ranks[r].buckets);
    gwd_lane_free_staged(group);
    gwd_lane_wire_free(group);
    free(group->ops[0].parts);
    free(group->ops[0].job.exchange.send);
    free(group->ops);
    free(group->ranks);
    free(group);
}

gwd_lane_group_t *gwd_lane_group_find(const gwd_lane_t *lane, uint32_t id) {
    gwd_lane_group_t *group = lane->groups;

    while (group && group->id != id)
        group = group->next;
    return group;
}

/* The loop names ranks by their number in the group. */
gwd_lane_rank_t *gwd_lane_group_rank(const gwd_lane_group_t *group, uint32_t number) {
    uint32_t i = 0;

    while (group->ranks[i].info.rank != number)
        i++;
    return &group->ranks[i];
}

gw_status_t gwd_lane_group_add_bucket(gwd_lane_group_t *group, uint32_t rank_number, gwd_bucket_t *bucket) {
    gwd_lane_rank_t *rank = gwd_lane_group_rank(group, rank_number);

    if (bucket->id > rank->n_buckets) {
        uint32_t wanted = bucket->id < 16 ? 16 : bucket->id * 2;
        gwd_bucket_t **table = realloc(rank->buckets, wanted * sizeof(*table));

        if (!table)
            return GW_ERR_NO_MEMORY;
        memset(table + rank->n_buckets, 0, (wanted - rank->n_buckets) * sizeof(*table));
        rank->buckets = table;
        rank->n_buckets = wanted;
    }
    rank->buckets[bucket->id - 1] = bucket;
    return GW_OK;
}

void gwd_lane_bucket_ended(gwd_lane_rank_t *rank, gwd_bucket_t *bucket) {
    gwd_event_t event = {.kind = GWD_EVENT_DETACHED, .group = rank->group->id, .cookie = bucket->lane.cookie};

    if (!bucket->lane.detaching || bucket->lane.in_flight > 0)
        return;
    rank->buckets[bucket->id - 1] = NULL;
    gwd_lane_event(rank->group->lane, &event);
}

void gwd_lane_group_detach_bucket(gwd_lane_group_t *group, uint32_t rank_number, uint32_t bucket_id, uint64_t cookie) {
    gwd_lane_rank_t *rank = gwd_lane_group_rank(group, rank_number);
    gwd_bucket_t *bucket = bucket_id <= rank->n_buckets ? rank->buckets[bucket_id - 1] : NULL;

    if (!bucket) { /* there was no memory to take it in */
        gwd_lane_event(group->lane, &(gwd_event_t){.kind = GWD_EVENT_DETACHED, .group = group->id, .cookie = cookie});
        return;
    }
    bucket->lane.detaching = true;
    bucket->lane.cookie = cookie;
    gwd_lane_bucket_ended(rank, bucket);
}

/* Ends all operations that have been begun. What a reduce thread works on is ended when it has stopped. */
static void end_ops(gwd_lane_group_t *group) {
    for (uint64_t sequence = group->tail; sequence < group->tail + group->credits; sequence++) {
        gwd_op_t *op = gwd_op_at(group, sequence);

        if (op->sequence != sequence)
            continue;
        if (op->state == GWD_OP_RUNNING && op->staged)
            continue; /* it starts no further chunk, and ends when those under way have */
        if (op->state == GWD_OP_RUNNING && group->wire)
            gwd_wire_cancel(op);
        else if (op->state == GWD_OP_RUNNING)
            gwd_reduce_cancel(group->lane->reduce, &op->job);
        else if (op->state != GWD_OP_FREE)
            gwd_lane_op_end(op, group->status);
    }
}

/* A rank that waits for a free entry, or watches its channel instead of its slots, hears of the failure. */
static void tell_rank(gwd_lane_rank_t *rank) {
    gwd_lane_group_t *group = rank->group;

    if (rank->stalled) {
        rank->stalled = false;
        group->n_stalled--;
        gwd_lane_watch_channel(group->lane, rank, true);
        gwd_lane_submit(rank, &rank->stalled_submit);
    }
    gwd_lane_notify(rank, &(gwd_complete_t){.sequence = 0, .status = group->status});
}

static void write_failure(const gwd_lane_rank_t *rank, gw_status_t status, const char *text) {
    snprintf(rank->info.slots->message, GW_SLOTS_MESSAGE_BYTES, "%s", text);
    atomic_store_explicit(&rank->info.slots->status, (uint32_t)status, memory_order_release);
}

void gwd_lane_group_fail(gwd_lane_group_t *group, gw_status_t status, const char *text) {
    gwd_event_t event = {.kind = GWD_EVENT_FAILED, .group = group->id, .status = status};

    if (group->status != GW_OK)
        return;
    group->status = status;
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_lane_rank_t *rank = &group->ranks[r];

        if (rank->left)
            continue;
        write_failure(rank, status, text);
    }
    if (group->wire)
        gwd_lane_wire_fail(group, text);
    end_ops(group);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->ranks[r].left)
            tell_rank(&group->ranks[r]);
    if (group->rail > 0) {
        gwd_lane_rail_failed(group, text);
        return;
    }
    gwd_stats_add(&group->lane->stats.groups_failed, 1);
    event.text = strdup(text);
    gwd_lane_event(group->lane, &event);
}

/* What the group was doing when a rank went away: the oldest operation tells. */
static void describe_loss(const gwd_lane_group_t *group, const gwd_lane_rank_t *rank, const char *why, char *text,
                          size_t text_bytes) {
    const gwd_op_t *op = gwd_op_at(group, group->tail);
    char description[224];
    uint32_t r = 0;

    /* The buckets of an operation that failed alone may be gone. */
    if (op->sequence != group->tail || op->state == GWD_OP_FREE || op->state == GWD_OP_FAILED) {
        snprintf(text, text_bytes, "%s; no bucket was in flight, %llu are complete", why,
                 (unsigned long long)group->tail - 1);
        return;
    }
    while (!op->parts[r].bucket)
        r++;
    gwd_bucket_describe(op->parts[r].bucket, description, sizeof(description));
    snprintf(text, text_bytes, "%s; operation %llu, %s, %s", why, (unsigned long long)op->sequence, description,
             op->parts[rank->index].bucket ? "was in flight" : "waited for it");
}

/* Operations that failed alone have ended for it, though other ranks have yet to submit them. */
static bool has_unfinished(const gwd_lane_group_t *group, const gwd_lane_rank_t *rank) {
    for (uint64_t s = group->tail; s <= rank->submitted; s++) {
        const gwd_op_t *op = gwd_op_at(group, s);

        if (op->sequence == s && op->state != GWD_OP_FREE && op->parts[rank->index].bucket &&
            !op->parts[rank->index].ended)
            return true;
    }
    return false;
}

/* Leaving in good order is no failure as long as nobody needs the rank. */
static bool leave_hurts(const gwd_lane_group_t *group, const gwd_lane_rank_t *rank, gw_status_t status) {
    uint32_t others = group->nranks_all - group->nranks;

    for (uint32_t r = 0; r < group->nranks; r++)
        others += !group->ranks[r].left && r != rank->index;
    if (status != GW_ERR_RANK_LEFT)
        return others > 0 || has_unfinished(group, rank);
    if (has_unfinished(group, rank))
        return true;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->ranks[r].left && group->ranks[r].submitted > rank->submitted)
            return true;
    return false;
}

void gwd_lane_group_leave(gwd_lane_group_t *group, const gwd_command_t *command) {
    gwd_lane_rank_t *rank = gwd_lane_group_rank(group, command->rank);
    bool hurts = leave_hurts(group, rank, command->status);
    char text[GWD_TEXT_BYTES];

    if (hurts)
        describe_loss(group, rank, command->text, text, sizeof(text));
    if (command->status != GW_ERR_RANK_LEFT &&
        group->status == GW_OK) /* a rank that was removed is told so, like the others */
        write_failure(rank, command->status, command->text);
    gwd_lane_watch_channel(group->lane, rank, false);
    close(rank->info.channel_fd);
    rank->info.channel_fd = -1;
    rank->left = true;
    group->n_left++;
    group->n_stalled -= rank->stalled;
    rank->stalled = false;
    rank->release_wanted = true;
    rank->release_cookie = command->cookie;
    if (hurts)
        gwd_lane_group_fail(group, command->status, text);
    gwd_lane_group_release(group);
}

static bool all_want_release(const gwd_lane_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->ranks[r].release_wanted)
            return false;
    return true;
}

void gwd_lane_group_release(gwd_lane_group_t *group) {
    gwd_lane_t *lane = group->lane;
    gwd_lane_group_t **at = &lane->groups;

    if (group->n_running > 0)
        return; /* a reduce thread may be reading any rank's memory */
    if (group->wire && all_want_release(group) && !gwd_lane_wire_leave(group))
        return; /* it comes here again */
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_lane_rank_t *rank = &group->ranks[r];
        gwd_event_t event = {.kind = GWD_EVENT_RELEASED, .group = group->id, .cookie = rank->release_cookie};

        if (!rank->release_wanted || rank->released)
            continue;
        rank->released = true;
        group->n_released++;
        if (group->rail == 0)
            gwd_lane_event(lane, &event);
    }
    if (group->n_released < group->nranks)
        return;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    group->next = lane->ended;
    lane->ended = group;
}

/* Operations of groups that ended may still be in the list of those whose inputs are not ready. */
static void forget_ended_waiting(gwd_lane_t *lane) {
    gwd_op_t **at = &lane->waiting;

    lane->last_waiting = NULL;
    while (*at) {
        gwd_op_t *op = *at;

        if (op->state == GWD_OP_WAITING) {
            lane->last_waiting = op;
            at = &op->next_waiting;
        } else {
            *at = op->next_waiting;
        }
    }
}

void gwd_lane_free_ended(gwd_lane_t *lane) {
    if (lane->ended)
        forget_ended_waiting(lane);
    while (lane->ended) {
        gwd_lane_group_t *group = lane->ended;
        gwd_lane_t *first = group->rail > 0 ? group->first_rail : NULL;
        uint32_t id = group->id;

        lane->ended = group->next;
        free_group(group);
        if (first)
            gwd_lane_rail_freed(first, id);
    }
}
