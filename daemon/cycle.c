/* cycle.c - groups that wait for each other
 *
 * A rank that blocks in one group cannot submit to another. If rank a blocks in group G and lacks in H, while
 * rank b blocks in H and lacks in G, neither ever comes. The lanes report what waits; here the reports are
 * joined to a graph of sessions, "a blocked session waits for one that is missing", and a circle in it is
 * an order that no waiting can mend. Only a session that blocks (its Submit named a queue) on the queue it
 * also uses for the group where it is missing can close a circle: another thread may still submit there.
 */
#include <stdio.h>

#include "group.h"
#include "log.h"
#include "server.h"

enum { PATH_MAX_GROUPS = 16 };

static bool waits(const gwd_group_t *group) {
    return group->state == GWD_GROUP_ACTIVE && group->status == GW_OK && group->waiting.waiters &&
           atomic_load_explicit(&group->counters->last_completed, memory_order_relaxed) < group->waiting.sequence;
}

/* The queue that `session` is blocked on in this group; 0: none. */
static uint64_t blocked_on(const gwd_group_t *group, uint64_t session) {
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->waiting.waiters[r].session == session && group->waiting.waiters[r].submitted)
            return group->waiting.waiters[r].queue;
    return 0;
}

/* Whether the session's rank that is missing in `group` cannot come while `queue` is blocked. */
static bool held_up(const gwd_waiter_t *missing, uint64_t queue) {
    return !missing->submitted && queue != 0 && (missing->last_queue == 0 || missing->last_queue == queue);
}

/* Follows who is missing in `group` to the groups they are blocked in. Returns the length of a path that
 * ends where it began, or 0. */
static unsigned follow(gwd_server_t *server, gwd_group_t **path, unsigned depth) {
    const gwd_group_t *group = path[depth - 1];

    for (uint32_t r = 0; r < group->nranks; r++) {
        const gwd_waiter_t *missing = &group->waiting.waiters[r];

        for (gwd_group_t *next = missing->submitted ? NULL : server->groups; next; next = next->next) {
            unsigned length = 0;

            if (next == group || !waits(next) || !held_up(missing, blocked_on(next, missing->session)))
                continue;
            if (next == path[0])
                return depth;
            for (unsigned i = 0; i < depth; i++)
                if (path[i] == next)
                    goto known; /* a circle that does not hold path[0]: found from one of its own groups */
            if (depth < PATH_MAX_GROUPS) {
                path[depth] = next;
                length = follow(server, path, depth + 1);
            }
            if (length)
                return length;
        known:;
        }
    }
    return 0;
}

static void fail_path(gwd_group_t **path, unsigned length) {
    char text[GWD_TEXT_BYTES];
    size_t used = 0;

    used += (size_t)snprintf(text, sizeof(text), "groups wait for each other:");
    for (unsigned i = 0; i < length && used < sizeof(text); i++) {
        const gwd_group_t *group = path[i];

        for (uint32_t r = 0; r < group->nranks && used < sizeof(text); r++) {
            const gwd_waiter_t *waiter = &group->waiting.waiters[r];
            const gwd_session_t *session = gwd_session_find(group->server, waiter->session);

            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s pid %d %s operation %llu of group %u",
                                     r || i ? "," : "", session ? (int)session->pid : 0,
                                     waiter->submitted ? "is blocked in" : "is missing in",
                                     (unsigned long long)group->waiting.sequence, group->id);
        }
    }
    for (unsigned i = 0; i < length; i++)
        gwd_group_fail(path[i], GW_ERR_CYCLE, text);
}

void gwd_cycle_check(struct gwd_server *server) {
    uint64_t limit_ns = (uint64_t)server->config.deadline_cycle_ms * 1000000u;

    for (gwd_group_t *group = server->groups; group; group = group->next) {
        gwd_group_t *path[PATH_MAX_GROUPS] = {group};
        unsigned length = waits(group) ? follow(server, path, 1) : 0;
        bool stands = length > 0;

        for (unsigned i = 0; i < length; i++)
            stands = stands && path[i]->waiting.waited_ns >= limit_ns;
        if (stands) {
            fail_path(path, length);
            return;
        }
    }
}
