/* lane_late.c - who is waited for. See lane_group.h
 *
 * While any operation waits for a rank the lane looks at all of them a few times within the late limit,
 * and not at all otherwise. Who is late is named in the log, and the loop hears of it at each look, since it
 * alone can see that groups wait for each other.
 */
#include "lane_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

static uint64_t limit(const _Atomic uint64_t *value) {
    return atomic_load_explicit(value, memory_order_relaxed);
}

static uint64_t check_period_ns(const gwd_lane_t *lane) {
    uint64_t late = limit(&lane->limits->late_ns), deadline = limit(&lane->limits->deadline_ns);

    return (late < deadline ? late : deadline) / 4 + 1000000;
}

void gwd_lane_arm_check(gwd_lane_t *lane, uint64_t now_ns) {
    if (lane->next_check_ns == 0)
        lane->next_check_ns = now_ns + check_period_ns(lane);
}

static bool is_missing(const gwd_op_t *op, uint32_t rank) {
    gw_slot_t *slot;

    if (!op->parts[rank].bucket)
        return true;
    slot = gw_slots_at(op->group->ranks[rank].info.slots, op->sequence, op->group->credits);
    return !gw_slots_reached(atomic_load_explicit(&slot->ready, memory_order_relaxed), op->sequence);
}

/* "rank 2 (host h, pid 5), rank 3 (...)": who has not submitted, or has not made the input ready. */
static void name_missing(const gwd_op_t *op, char *text, size_t text_bytes) {
    size_t used = 0;
    uint32_t named = 0, missing = 0;

    text[0] = 0;
    for (uint32_t r = 0; r < op->group->nranks; r++) {
        const gwd_lane_rank_t *rank = &op->group->ranks[r];
        int n;

        if (rank->left || !is_missing(op, r))
            continue;
        missing++;
        if (named == 4 || used >= text_bytes)
            continue;
        n = snprintf(text + used, text_bytes - used, "%s%s", named ? ", " : "", rank->info.identity);
        used += n > 0 ? (size_t)n : 0;
        named++;
    }
    if (missing > named && used < text_bytes)
        snprintf(text + used, text_bytes - used, " and %u more", missing - named);
}

static void tell_loop(const gwd_op_t *op, uint64_t waited_ns) {
    gwd_lane_group_t *group = op->group;
    gwd_event_t event = {
        .kind = GWD_EVENT_WAITING, .group = group->id, .sequence = op->sequence, .waited_ns = waited_ns};

    event.waiters = calloc(group->nranks_all, sizeof(*event.waiters));
    if (!event.waiters)
        return; /* told again at the next check */
    for (uint32_t r = 0; r < group->nranks_all; r++)
        event.waiters[r].submitted = true; /* of ranks on other nodes nothing is known here */
    for (uint32_t r = 0; r < group->nranks; r++)
        event.waiters[group->ranks[r].info.rank] = (gwd_waiter_t){.queue = op->parts[r].queue,
                                                                  .last_queue = group->ranks[r].last_queue,
                                                                  .ever = group->ranks[r].submitted > 0,
                                                                  .submitted = !is_missing(op, r)};
    gwd_lane_event(group->lane, &event);
}

static void describe_wait(const gwd_op_t *op, uint64_t waited_ns, char *text, size_t text_bytes) {
    char missing[GWD_TEXT_BYTES / 2], description[160];
    uint32_t r = 0;

    while (!op->parts[r].bucket)
        r++;
    gwd_bucket_describe(op->parts[r].bucket, description, sizeof(description));
    if (op->state == GWD_OP_MEETING)
        gwd_lane_wire_name_missing(op, missing, sizeof(missing));
    else
        name_missing(op, missing, sizeof(missing));
    snprintf(text, text_bytes, "operation %llu, %s, waits since %.1f s for %s", (unsigned long long)op->sequence,
             description, (double)waited_ns * 1e-9, missing);
}

/* Names those who are missing in an operation that is newly late. */
static void name_late(const gwd_op_t *op, uint64_t waited_ns) {
    char text[GWD_TEXT_BYTES];

    describe_wait(op, waited_ns, text, sizeof(text));
    gwd_log(GWD_LOG_WARNING, "lane", "group %u: %s", op->group->id, text);
}

/* Not while it only waits for the group's state to be saved or loaded. */
static bool waits_for_ranks(const gwd_op_t *op, uint64_t sequence) {
    if (op->sequence != sequence)
        return false;
    if (op->state == GWD_OP_MEETING)
        return !gwd_lane_wire_is_held(op);
    return op->state == GWD_OP_GATHERING || op->state == GWD_OP_WAITING;
}

/* Whether a rank has come to the operation: a stream's has when its input is ready. */
static bool has_come(const gwd_op_t *op) {
    uint32_t r = 0;

    while (r < op->group->nranks && is_missing(op, r))
        r++;
    return r < op->group->nranks;
}

/* Looks at all operations of a group; of those that are newly late one is named, and of those that are late the
 * newest that a rank has come to is told to the loop: it is the one that the rank may be blocked in. Returns whether
 * any is waiting. */
static bool check_group(gwd_lane_group_t *group, uint64_t now_ns) {
    gwd_lane_t *lane = group->lane;
    const gwd_op_t *named = NULL, *newest = NULL;
    bool any = false;

    for (uint64_t sequence = group->tail; sequence < group->tail + group->credits; sequence++) {
        gwd_op_t *op = gwd_op_at(group, sequence);
        uint64_t waited_ns = now_ns - op->first_ns;
        char text[GWD_TEXT_BYTES];

        any = any || (op->sequence == sequence && op->state != GWD_OP_FREE);
        if (!waits_for_ranks(op, sequence) || waited_ns < limit(&lane->limits->late_ns))
            continue;
        if (waited_ns >= limit(&lane->limits->deadline_ns)) {
            describe_wait(op, waited_ns, text, sizeof(text));
            gwd_lane_group_fail(group, GW_ERR_DEADLINE, text);
            return false;
        }
        if (!op->late_reported && !named)
            named = op;
        gwd_stats_add(&lane->stats.late_reports, !op->late_reported);
        op->late_reported = true;
        newest = has_come(op) ? op : newest;
    }
    if (named)
        name_late(named, now_ns - named->first_ns);
    if (newest)
        tell_loop(newest, now_ns - newest->first_ns);
    return any;
}

void gwd_lane_check_late(gwd_lane_t *lane, uint64_t now_ns) {
    gwd_lane_group_t *group = lane->groups, *next;
    bool waits = false;

    for (; group; group = next) {
        next = group->next;
        if (group->status == GW_OK && check_group(group, now_ns))
            waits = true;
    }
    lane->next_check_ns = waits ? now_ns + check_period_ns(lane) : 0;
}
