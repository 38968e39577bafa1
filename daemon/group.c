/* group.c - groups come together. See group.h */
#include "group.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "clock.h"
#include "gradwire.pb-c.h"
#include "group_codec.h"
#include "log.h"
#include "server.h"
#include "transport.h"

static const char id_magic[4] = {'G', 'W', 'I', 'D'};

enum { ID_VERSION = 1 };

/* ---- life --------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

gw_status_t gwd_group_new(gwd_server_t *server, gwd_user_t *user, gwd_group_t **group_out, char *text,
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

    gwd_wires_free(group, 0);
    free(group->wire_address);
    gwd_bootstrap_free_map(group);
    free(group->pids);
    free(group->members);
    free(group->counters);
    free(group->waiting.waiters);
    free(group);
    gwd_server_settle(server);
}

void gwd_group_end(gwd_group_t *group) {
    gwd_server_t *server = group->server;
    gwd_group_t **at = &server->groups;

    gwd_bootstrap_end(group, GW_OK, NULL);
    gwd_group_free_split(group);
    gwd_group_give_back(group);
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    server->n_groups--;
    if (group->has_lane)
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

/* On a branch nothing is kept: a rank that comes late asks the root, which may know better, or still wait. */
static void remember(const gwd_group_t *group, gw_status_t status, const char *text) {
    gwd_server_t *server = group->server;
    gwd_unmade_t unmade = {.unique_id = group->unique_id, .status = status};

    if (group->branch)
        return;
    memcpy(unmade.name, group->name, sizeof(unmade.name));
    unmade.until_ns = gwd_now_ns() + (uint64_t)server->config.deadline_bootstrap_s * 1000000000u;
    snprintf(unmade.text, sizeof(unmade.text), "%s", text);
    gwd_unmade_add(&server->unmade, &unmade);
}

void gwd_group_give_up(gwd_group_t *group, gw_status_t status, const char *text) {
    uint32_t nranks = group->nranks;

    if (group->split_from) { /* together with all that this split makes, which comes here again */
        gwd_group_give_up_split(group->split_from, status, text);
        return;
    }
    gwd_log(GWD_LOG_NOTICE, "group", "group %u did not come together: %s", group->id, text);
    gwd_stats_add(&group->server->stats.groups_expired, 1);
    group->giving_up = true;
    remember(group, status, text);
    (void)uv_timer_stop(&group->timer);
    gwd_bootstrap_end(group, status, text);
    if (group->n_members == 0) {
        gwd_group_end(group);
        return;
    }
    if (group->state == GWD_GROUP_PREPARED && group->map)
        gwd_group_fail(group, status, text); /* other nodes may have begun: they hear why */
    for (uint32_t r = 0; r < nranks; r++) {
        gwd_member_t *member = group->members[r];
        bool last;

        if (!member)
            continue;
        gwd_session_error(member->session, member->request, status, "%s", text);
        if (group->state == GWD_GROUP_PREPARED) {
            gwd_member_withdraw(member, status, text);
            continue;
        }
        last = group->n_members == 1;
        gwd_member_free(member); /* the last one ends the group */
        if (last)
            return;
    }
}

static bool has_joined(const gwd_group_t *group, uint32_t rank) {
    const uint8_t *node;

    return group->members[rank] || gwd_group_remote_host(group, rank, &node);
}

void gwd_group_name_missing(const gwd_group_t *group, bool (*is_there)(const gwd_group_t *group, uint32_t rank),
                            const char *what, char *text, size_t text_bytes) {
    size_t used = 0;
    uint32_t missing = 0;

    text[0] = 0;
    for (uint32_t r = 0; r < group->nranks; r++) {
        if (is_there(group, r))
            continue;
        if (missing++ < 16)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", missing == 1 ? "rank " : ", ", r);
    }
    snprintf(text + used, text_bytes - used, "%s of %u did not %s within %lld s (deadline.bootstrap_s)",
             missing > 16 ? ", ..." : "", group->nranks, what, (long long)group->server->config.deadline_bootstrap_s);
}

static void on_timer(uv_timer_t *timer) {
    gwd_group_t *group = timer->data;
    char text[GWD_TEXT_BYTES];

    if (group->state == GWD_GROUP_ACTIVE) {
        gwd_group_split_late(group);
        return;
    }
    if (group->branch)
        gwd_branch_late(group, text, sizeof(text));
    else if (!gwd_root_late(group, text, sizeof(text)))
        gwd_group_name_missing(group, has_joined, "join", text, sizeof(text));
    gwd_group_give_up(group, GW_ERR_BOOTSTRAP, text);
}

void gwd_group_start_timer_s(gwd_group_t *group, uint64_t seconds) {
    (void)uv_timer_start(&group->timer, on_timer, seconds * 1000, 0);
}

void gwd_group_start_timer(gwd_group_t *group) {
    gwd_group_start_timer_s(group, (uint64_t)group->server->config.deadline_bootstrap_s);
}

/* ---- unique ids and joining --------------------------------------------------------------------- */

gw_status_t gwd_group_make_id(gwd_session_t *session, gw_unique_id_t *id_out, char *text, size_t text_bytes) {
    gwd_server_t *server = session->server;
    gwd_id_layout_t layout = {.version = ID_VERSION};
    gwd_group_t *group;
    gw_status_t status = gwd_group_new(server, session->user, &group, text, text_bytes);

    if (status != GW_OK)
        return status;
    memcpy(layout.magic, id_magic, sizeof(layout.magic));
    memcpy(layout.node, server->node, sizeof(layout.node));
    randombytes_buf(layout.token, sizeof(layout.token));
    gwd_address_to_id(&server->reached_at, &layout);
    memcpy(&group->unique_id, &layout, sizeof(layout));
    gwd_proof_name(layout.token, group->name);
    group->state = GWD_GROUP_ID;
    gwd_group_start_timer(group); /* an id that nobody uses does not stay for ever */
    *id_out = group->unique_id;
    return GW_OK;
}

static gwd_group_t *find_by_id(const gwd_server_t *server, const gw_unique_id_t *id) {
    gwd_group_t *group = server->groups;

    /* The token is a secret: the comparison must not tell how much of a guess was right. */
    while (group && (group->giving_up || sodium_memcmp(&group->unique_id, id, sizeof(*id)) != 0))
        group = group->next;
    return group;
}

gw_status_t gwd_group_expect(gwd_group_t *group, uint32_t nranks, const char *who, char *text, size_t text_bytes) {
    if (nranks == 0 || nranks > (uint64_t)group->server->config.limits_ranks_per_group) {
        snprintf(text, text_bytes, "a group of %u ranks: limits.ranks_per_group is %lld", nranks,
                 (long long)group->server->config.limits_ranks_per_group);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (group->nranks && group->nranks != nranks) {
        snprintf(text, text_bytes, "%s says the group has %u ranks, others said %u", who, nranks, group->nranks);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (!group->members) {
        group->members = calloc(nranks, sizeof(gwd_member_t *));
        if (!group->members) {
            snprintf(text, text_bytes, "out of memory");
            return GW_ERR_NO_MEMORY;
        }
        group->nranks = nranks;
    }
    if (group->state == GWD_GROUP_ID) {
        group->state = GWD_GROUP_FORMING;
        gwd_group_start_timer(group); /* from the first rank on */
    }
    return GW_OK;
}

const char *gwd_group_remote_host(const gwd_group_t *group, uint32_t rank, const uint8_t **node_out) {
    const gwd_group_map_t *map = group->map;

    if (!map || group->state < GWD_GROUP_PREPARED)
        return gwd_root_holder(group, rank, node_out);
    *node_out = map->nodes[map->node_of[rank]].id;
    return map->node_of[rank] == map->own_node ? NULL : map->nodes[map->node_of[rank]].host;
}

bool gwd_group_is_taken(const gwd_group_t *group, uint32_t rank, char *text, size_t text_bytes) {
    const gwd_member_t *holder = rank < group->nranks ? group->members[rank] : NULL;
    const uint8_t *node;
    const char *host;

    if (rank >= group->nranks) {
        snprintf(text, text_bytes, "rank %u of %u: ranks count from 0", rank, group->nranks);
        return true;
    }
    host = holder ? group->server->host : gwd_group_remote_host(group, rank, &node);
    if (host)
        snprintf(text, text_bytes, "rank %u is taken by pid %u on host %s", rank,
                 holder ? (unsigned)holder->session->pid : group->pids[rank], host);
    return host != NULL;
}

void gwd_group_check_complete(gwd_group_t *group) {
    uint32_t remote = gwd_root_ranks(group);

    if (group->branch || group->n_members + remote < group->nranks)
        return;
    if (group->status != GW_OK)
        gwd_group_give_up(group, group->status, group->message);
    else if (remote > 0)
        gwd_root_complete(group);
    else
        gwd_group_start(group);
}

static gw_status_t check_id(const gwd_server_t *server, const gw_unique_id_t *id, bool *own_out, char *text,
                            size_t text_bytes) {
    const gwd_id_layout_t *layout = (const gwd_id_layout_t *)id;

    if (memcmp(layout->magic, id_magic, sizeof(id_magic)) != 0) {
        snprintf(text, text_bytes, "the unique id was not made by gw_get_unique_id");
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (layout->version != ID_VERSION) {
        snprintf(text, text_bytes,
                 "the unique id has version %u, and this daemon knows %d: install the same gradwire "
                 "on all hosts",
                 layout->version, ID_VERSION);
        return GW_ERR_INVALID_ARGUMENT;
    }
    *own_out = memcmp(layout->node, server->node, sizeof(server->node)) == 0;
    return GW_OK;
}

/* A group here for the ranks that join one of another daemon. */
static gw_status_t new_branch(gwd_session_t *session, const gw_unique_id_t *id, gwd_group_t **group_out, char *text,
                              size_t text_bytes) {
    gw_status_t status;

    if (session->server->draining) {
        snprintf(text, text_bytes, "no new group");
        return GW_ERR_DRAINING;
    }
    status = gwd_group_new(session->server, session->user, group_out, text, text_bytes);
    if (status != GW_OK)
        return status;
    (*group_out)->unique_id = *id;
    status = gwd_branch_new(*group_out, text, text_bytes);
    if (status != GW_OK)
        gwd_group_end(*group_out);
    return status;
}

/* Everything about a rank but the group itself. */
static gw_status_t add_rank(gwd_session_t *session, uint32_t request, gwd_group_t *group, uint32_t nranks,
                            uint32_t rank, const gwd_codec_choice_t *codec, char *text, size_t text_bytes) {
    gwd_member_t *member;
    gw_status_t status;
    char who[32];

    if (group->state >= GWD_GROUP_PREPARED) {
        snprintf(text, text_bytes, "the group is complete: all its %u ranks have joined", group->nranks);
        return GW_ERR_INVALID_ARGUMENT;
    }
    snprintf(who, sizeof(who), "rank %u", rank);
    status = gwd_group_expect(group, nranks, who, text, text_bytes);
    if (status == GW_OK && gwd_group_is_taken(group, rank, text, text_bytes))
        status = GW_ERR_INVALID_ARGUMENT;
    if (status == GW_OK)
        status = gwd_member_new(session, group, rank, request, &member, text, text_bytes);
    if (status != GW_OK)
        return status;
    member->codec = *codec;
    if (group->branch)
        gwd_branch_add(group, member);
    return GW_OK;
}

/* Of one that was made here and has no group any more. */
static gw_status_t say_what_became(const gwd_server_t *server, const gw_unique_id_t *id, char *text,
                                   size_t text_bytes) {
    const gwd_unmade_t *unmade = gwd_unmade_by_id(&server->unmade, id, gwd_now_ns());

    snprintf(text, text_bytes, "%s", unmade ? unmade->text : "it is wrong, or its group has ended");
    return unmade ? unmade->status : GW_ERR_UNKNOWN_ID;
}

gw_status_t gwd_group_join(gwd_session_t *session, uint32_t request, const gw_unique_id_t *id, uint32_t nranks,
                           uint32_t rank, const gwd_codec_choice_t *codec, char *text, size_t text_bytes) {
    gwd_server_t *server = session->server;
    gwd_group_t *group = find_by_id(server, id);
    bool own;
    gw_status_t status = check_id(server, id, &own, text, text_bytes);

    if (status == GW_OK && own && !group)
        status = say_what_became(server, id, text, text_bytes);
    if (status == GW_OK && !group)
        status = new_branch(session, id, &group, text, text_bytes);
    if (status != GW_OK)
        return status;
    status = add_rank(session, request, group, nranks, rank, codec, text, text_bytes);
    if (status == GW_OK && !group->branch) /* else the root sees to it */
        gwd_group_agree(group, rank, server->host, codec);
    if (status == GW_OK)
        gwd_group_check_complete(group);
    else if (group->branch && group->n_members == 0)
        gwd_group_end(group);
    return status;
}
