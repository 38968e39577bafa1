/* group.c - groups come together. See group.h */
#include "group.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire.pb-c.h"
#include "log.h"
#include "server.h"

/* The 128 bytes of a unique id. What is left is zero, and will hold the address of the root daemon. */
typedef struct id_layout {
    char magic[4];
    uint32_t version;
    uint8_t node[16];
    uint8_t token[32];
    uint8_t zero[72];
} id_layout_t;

_Static_assert(sizeof(id_layout_t) == sizeof(gw_unique_id_t), "the id is part of the protocol");

static const char id_magic[4] = {'G', 'W', 'I', 'D'};

/* ---- life --------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static gw_status_t new_group(gwd_server_t *server, gwd_user_t *user, gwd_group_t **group_out, char *text,
                             size_t text_bytes) {
    gw_status_t status = gwd_quota_charge(&server->quota, user, GWD_QUOTA_GROUPS, 1, text, text_bytes);
    gwd_group_t *group;

    if (status != GW_OK)
        return status;
    group = calloc(1, sizeof(*group));
    if (!group) {
        gwd_quota_refund(user, GWD_QUOTA_GROUPS, 1);
        snprintf(text, text_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    user->refs++;
    group->server = server;
    group->user = user;
    group->id = ++server->last_group_id;
    group->epoch = 1;
    group->credits = (uint32_t)server->config.group_credits;
    group->timer.data = group;
    (void)uv_timer_init(&server->loop, &group->timer); /* cannot fail */
    group->next = server->groups;
    server->groups = group;
    server->n_groups++;
    *group_out = group;
    return GW_OK;
}

static void on_timer_closed(uv_handle_t *handle) {
    gwd_group_t *group = handle->data;
    gwd_server_t *server = group->server;

    free(group->members);
    free(group->counters);
    free(group->waiting.waiters);
    free(group);
    gwd_server_settle(server);
}

void gwd_group_end(gwd_group_t *group) {
    gwd_server_t *server = group->server;
    gwd_group_t **at = &server->groups;

    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    server->n_groups--;
    if (group->state == GWD_GROUP_ACTIVE)
        server->lane_groups[group->lane]--;
    gwd_quota_refund(group->user, GWD_QUOTA_GROUPS, 1);
    gwd_quota_put(&server->quota, group->user);
    gwd_log(GWD_LOG_INFO, "group", "group %u has ended", group->id);
    uv_close((uv_handle_t *)&group->timer, on_timer_closed);
}

void gwd_group_fail(gwd_group_t *group, gw_status_t status, const char *text) {
    gwd_command_t command = {.kind = GWD_COMMAND_FAIL, .group = group->id, .status = status, .text = strdup(text)};

    if (!command.text || !gwd_lane_send(group->server->lanes[group->lane], &command)) {
        free(command.text);
        gwd_log(GWD_LOG_ERROR, "group", "out of memory: group %u could not be told that it failed", group->id);
    }
}

bool gwd_group_is_late(const gwd_group_t *group) {
    return group->state == GWD_GROUP_ACTIVE && group->status == GW_OK && group->waiting.waiters &&
           atomic_load_explicit(&group->counters->last_completed, memory_order_relaxed) < group->waiting.sequence;
}

/* ---- giving up ---------------------------------------------------------------------------------- */

void gwd_group_give_up(gwd_group_t *group, gw_status_t status, const char *text) {
    uint32_t nranks = group->nranks;

    gwd_log(GWD_LOG_NOTICE, "group", "group %u did not come together: %s", group->id, text);
    gwd_stats_add(&group->server->stats.groups_expired, 1);
    group->giving_up = true;
    if (group->n_members == 0) {
        gwd_group_end(group);
        return;
    }
    for (uint32_t r = 0; r < nranks; r++) {
        gwd_member_t *member = group->members[r];
        bool last;

        if (!member)
            continue;
        gwd_session_error(member->session, member->request, status, "%s", text);
        last = group->n_members == 1;
        gwd_member_free(member); /* the last one ends the group */
        if (last)
            return;
    }
}

void gwd_group_give_up_split(gwd_group_t *group, gw_status_t status, const char *text) {
    (void)uv_timer_stop(&group->timer);
    group->n_split = 0;
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_member_t *member = group->members[r];
        uint32_t request = member ? member->split_request : 0;

        if (!request)
            continue;
        member->split_request = 0;
        gwd_session_error(member->session, request, status, "split: %s", text);
    }
}

/* "ranks 1, 3 of 4 did not join in 300 s": the deadline has passed. */
static void on_timer(uv_timer_t *timer) {
    gwd_group_t *group = timer->data;
    bool splitting = group->state == GWD_GROUP_ACTIVE;
    char text[GWD_TEXT_BYTES];
    int used = 0;
    uint32_t missing = 0;

    text[0] = 0;
    for (uint32_t r = 0; r < group->nranks; r++) {
        const gwd_member_t *member = group->members[r];

        if (splitting ? member && member->split_request : member != NULL)
            continue;
        if (missing++ < 16)
            used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%u", missing == 1 ? "rank " : ", ", r);
    }
    snprintf(text + used, sizeof(text) - (size_t)used, "%s of %u did not %s within %lld s (deadline.bootstrap_s)",
             missing > 16 ? ", ..." : "", group->nranks, splitting ? "call split" : "join",
             (long long)group->server->config.deadline_bootstrap_s);
    if (splitting)
        gwd_group_give_up_split(group, GW_ERR_BOOTSTRAP, text);
    else
        gwd_group_give_up(group, GW_ERR_BOOTSTRAP, text);
}

static void start_timer(gwd_group_t *group) {
    uint64_t ms = (uint64_t)group->server->config.deadline_bootstrap_s * 1000;

    (void)uv_timer_start(&group->timer, on_timer, ms, 0);
}

/* ---- unique ids and joining --------------------------------------------------------------------- */

gw_status_t gwd_group_make_id(gwd_session_t *session, gw_unique_id_t *id_out, char *text, size_t text_bytes) {
    gwd_server_t *server = session->server;
    id_layout_t layout = {.version = 1};
    gwd_group_t *group;
    gw_status_t status = new_group(server, session->user, &group, text, text_bytes);

    if (status != GW_OK)
        return status;
    memcpy(layout.magic, id_magic, sizeof(layout.magic));
    memcpy(layout.node, server->node, sizeof(layout.node));
    randombytes_buf(layout.token, sizeof(layout.token));
    memcpy(&group->unique_id, &layout, sizeof(layout));
    group->state = GWD_GROUP_ID;
    start_timer(group); /* an id that nobody uses does not stay for ever */
    *id_out = group->unique_id;
    return GW_OK;
}

static gwd_group_t *find_by_id(const gwd_server_t *server, const gw_unique_id_t *id) {
    gwd_group_t *group = server->groups;

    /* The token is a secret: the comparison must not tell how much of a guess was right. */
    while (group && sodium_memcmp(&group->unique_id, id, sizeof(*id)) != 0)
        group = group->next;
    return group;
}

static gw_status_t check_join(const gwd_server_t *server, const gwd_group_t *group, const gw_unique_id_t *id,
                              uint32_t nranks, uint32_t rank, char *text, size_t text_bytes) {
    const id_layout_t *layout = (const id_layout_t *)id;
    const gwd_member_t *holder;

    if (memcmp(layout->magic, id_magic, sizeof(id_magic)) != 0) {
        snprintf(text, text_bytes, "the unique id was not made by gw_get_unique_id");
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (memcmp(layout->node, server->node, sizeof(server->node)) != 0) {
        snprintf(text, text_bytes, "it was made by another daemon, or before this one was restarted");
        return GW_ERR_UNKNOWN_ID;
    }
    if (!group) {
        snprintf(text, text_bytes, "it is wrong, or its group has ended");
        return GW_ERR_UNKNOWN_ID;
    }
    if (nranks == 0 || nranks > (uint64_t)server->config.limits_ranks_per_group || rank >= nranks) {
        snprintf(text, text_bytes, "rank %u of %u: ranks count from 0, and limits.ranks_per_group is %lld", rank,
                 nranks, (long long)server->config.limits_ranks_per_group);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (group->state == GWD_GROUP_ACTIVE) {
        snprintf(text, text_bytes, "the group is complete: all its %u ranks have joined", group->nranks);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (group->nranks && group->nranks != nranks) {
        snprintf(text, text_bytes, "rank %u says the group has %u ranks, others said %u", rank, nranks, group->nranks);
        return GW_ERR_INVALID_ARGUMENT;
    }
    holder = group->members ? group->members[rank] : NULL;
    if (holder) {
        snprintf(text, text_bytes, "rank %u is taken by pid %d", rank, (int)holder->session->pid);
        return GW_ERR_INVALID_ARGUMENT;
    }
    return GW_OK;
}

gw_status_t gwd_group_join(gwd_session_t *session, uint32_t request, const gw_unique_id_t *id, uint32_t nranks,
                           uint32_t rank, char *text, size_t text_bytes) {
    gwd_server_t *server = session->server;
    gwd_group_t *group = find_by_id(server, id);
    gw_status_t status = check_join(server, group, id, nranks, rank, text, text_bytes);
    gwd_member_t *member;

    if (status != GW_OK)
        return status;
    if (!group->members) {
        group->members = calloc(nranks, sizeof(gwd_member_t *));
        if (!group->members) {
            snprintf(text, text_bytes, "out of memory");
            return GW_ERR_NO_MEMORY;
        }
        group->nranks = nranks;
    }
    status = gwd_member_new(session, group, rank, request, &member, text, text_bytes);
    if (status != GW_OK)
        return status;
    if (group->state == GWD_GROUP_ID) {
        group->state = GWD_GROUP_FORMING;
        start_timer(group); /* from the first rank on */
    }
    if (group->n_members == group->nranks)
        gwd_group_start(group);
    return GW_OK;
}

/* ---- splitting ---------------------------------------------------------------------------------- */

typedef struct split_entry {
    int32_t color, key;
    gwd_member_t *member;
} split_entry_t;

static int compare_entries(const void *a, const void *b) {
    const split_entry_t *x = a, *y = b;

    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->member->rank < y->member->rank ? -1 : 1;
}

/* Makes the group of one color from `n` entries. */
static gw_status_t make_part(gwd_group_t *parent, const split_entry_t *entries, uint32_t n, char *text,
                             size_t text_bytes) {
    gwd_group_t *group;
    gw_status_t status = new_group(parent->server, parent->user, &group, text, text_bytes);

    if (status != GW_OK)
        return status;
    /* Nobody else can join: the id is random and is told to nobody. */
    randombytes_buf(&group->unique_id, sizeof(group->unique_id));
    group->state = GWD_GROUP_FORMING;
    group->members = calloc(n, sizeof(gwd_member_t *));
    group->nranks = n;
    if (!group->members) {
        group->nranks = 0;
        snprintf(text, text_bytes, "out of memory");
        status = GW_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n && status == GW_OK; i++) {
        gwd_member_t *member;

        status = gwd_member_new(entries[i].member->session, group, i, entries[i].member->split_request, &member, text,
                                text_bytes);
        if (status == GW_OK)
            entries[i].member->split_request = 0; /* the new member answers from now on */
    }
    if (status == GW_OK)
        gwd_group_start(group);
    else
        gwd_group_give_up(group, status, text);
    return status;
}

static void finish_split(gwd_group_t *parent) {
    split_entry_t *entries = calloc(parent->nranks, sizeof(*entries));
    char text[GWD_TEXT_BYTES] = "out of memory";
    gw_status_t status = entries ? GW_OK : GW_ERR_NO_MEMORY;
    uint32_t first = 0;

    (void)uv_timer_stop(&parent->timer);
    parent->n_split = 0;
    for (uint32_t r = 0; r < parent->nranks && entries; r++)
        entries[r] = (split_entry_t){parent->members[r]->color, parent->members[r]->key, parent->members[r]};
    if (entries)
        qsort(entries, parent->nranks, sizeof(*entries), compare_entries);
    while (first < parent->nranks && status == GW_OK) {
        uint32_t end = first + 1;

        while (end < parent->nranks && entries[end].color == entries[first].color && entries[first].color >= 0)
            end++;
        if (entries[first].color < 0) {
            Gw__GroupReady none = GW__GROUP_READY__INIT; /* group 0: it is in none */
            uint8_t body[16];

            gwd_session_send(entries[first].member->session, GW_MSG_GROUP_READY, entries[first].member->split_request,
                             body, gw__group_ready__pack(&none, body), NULL, 0);
            entries[first].member->split_request = 0;
        } else {
            status = make_part(parent, entries + first, end - first, text, sizeof(text));
        }
        first = end;
    }
    if (status != GW_OK)
        gwd_group_give_up_split(parent, status, text);
    free(entries);
}

static bool has_leaver(const gwd_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->members[r] || group->members[r]->leaving)
            return true;
    return false;
}

gw_status_t gwd_group_split(gwd_member_t *member, uint32_t request, int32_t color, int32_t key, char *text,
                            size_t text_bytes) {
    gwd_group_t *group = member->group;

    if (group->status != GW_OK || has_leaver(group)) {
        snprintf(text, text_bytes, "%s", group->message[0] ? group->message : "a rank has left the group");
        return group->status != GW_OK ? group->status : GW_ERR_RANK_LEFT;
    }
    if (member->split_request) {
        snprintf(text, text_bytes, "rank %u waits for a split already", member->rank);
        return GW_ERR_INVALID_ARGUMENT;
    }
    member->split_request = request;
    member->color = color;
    member->key = key;
    if (group->n_split++ == 0)
        start_timer(group);
    if (group->n_split == group->nranks)
        finish_split(group);
    return GW_OK;
}
