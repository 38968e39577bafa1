/* cycle.c - groups that wait for each other
 *
 * A rank that blocks in one group cannot submit to another. If rank a blocks in group G and lacks in H, while
 * rank b blocks in H and lacks in G, neither ever comes. The lanes report what waits; here the reports are
 * edges, "G waits for a rank whose session is blocked in H", and a circle of them is an order that no waiting
 * can mend. Only a session that blocks (its Submit named a queue) on the queue it also uses for the group
 * where it is missing makes an edge: another thread may still submit there.
 *
 * The search is breadth first, from the group that was reported, and looks at a bounded number of edges: a
 * circle too large for that ends by the deadline.
 */
#include <stdio.h>

#include "group.h"
#include "log.h"
#include "server.h"

enum { LOOKS_MAX = 20000 };

typedef struct search {
    gwd_group_t *start, *last; /* of the queue, linked by search_next */
    uint64_t number;           /* marks what this search has seen */
    uint64_t limit_ns;
    unsigned looks;
} search_t;

/* Whether the group has waited for a rank as long as a circle must stand. */
static bool waits(const gwd_group_t *group, uint64_t limit_ns) {
    return gwd_group_is_late(group) && group->waiting.waited_ns >= limit_ns;
}

/* Whether the session of a missing rank cannot come because it is blocked as `other`. */
static bool held_up(const gwd_waiter_t *missing, const gwd_waiter_t *other) {
    return other->submitted && other->queue != 0 && (!missing->ever || missing->last_queue == other->queue);
}

/* Looks at one membership of a missing rank's session. Returns true when it closes a circle. */
static bool look(search_t *search, gwd_group_t *from, const gwd_waiter_t *missing, const gwd_member_t *member) {
    gwd_group_t *to = member->group;

    if (to == from || !waits(to, search->limit_ns) || !held_up(missing, &to->waiting.waiters[member->rank]))
        return false;
    if (to == search->start) {
        to->search_from = from;
        return true;
    }
    if (to->search == search->number)
        return false;
    to->search = search->number;
    to->search_from = from;
    to->search_next = NULL;
    search->last->search_next = to;
    search->last = to;
    return false;
}

/* Looks at everybody who is missing in a group. */
static bool look_at_group(search_t *search, gwd_group_t *group) {
    for (uint32_t r = 0; r < group->nranks && search->looks < LOOKS_MAX; r++) {
        const gwd_waiter_t *missing = &group->waiting.waiters[r];
        const gwd_table_t *members;

        if (missing->submitted || !group->members[r])
            continue;
        members = &group->members[r]->session->members;
        for (uint32_t i = 0; i < members->capacity && search->looks++ < LOOKS_MAX; i++)
            if (members->items[i] && look(search, group, missing, members->items[i]))
                return true;
    }
    return false;
}

static void fail_circle(gwd_group_t *start) {
    char text[GWD_TEXT_BYTES];
    size_t used = (size_t)snprintf(text, sizeof(text), "groups wait for each other:");
    gwd_group_t *group = start;

    do {
        for (uint32_t r = 0; r < group->nranks && used < sizeof(text); r++) {
            const gwd_waiter_t *waiter = &group->waiting.waiters[r];

            if (!group->members[r])
                continue;
            used +=
                (size_t)snprintf(text + used, sizeof(text) - used, " pid %d %s operation %llu of group %u;",
                                 (int)group->members[r]->session->pid, waiter->submitted ? "is in" : "is missing in",
                                 (unsigned long long)group->waiting.sequence, group->id);
        }
        group = group->search_from;
    } while (group != start);
    do {
        gwd_group_fail(group, GW_ERR_CYCLE, text);
        group = group->search_from;
    } while (group != start);
}

void gwd_cycle_check(gwd_group_t *start) {
    gwd_server_t *server = start->server;
    search_t search = {.start = start,
                       .last = start,
                       .number = ++server->last_search,
                       .limit_ns = (uint64_t)server->config.deadline_cycle_ms * 1000000u};

    if (!waits(start, search.limit_ns))
        return;
    start->search = search.number;
    start->search_next = NULL;
    for (gwd_group_t *group = start; group; group = group->search_next)
        if (look_at_group(&search, group)) {
            fail_circle(start);
            return;
        }
}
