/* group_split.c - who has called split, what the nodes say of it, and how it ends. See split.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "escape.h"
#include "gradwire.pb-c.h"
#include "log.h"
#include "server.h"
#include "split.h"
#include "status.h"

enum {
    SPLITS_AHEAD = 2, /* of which a node may speak before this one has ended the first of them */
    CAUSE_S = 1,      /* how long the cause of a lost connection may take to come from another node */
};

struct gwd_split_later {
    gwd_split_later_t *next;
    uint32_t node;
    gwd_split_message_t message;
    size_t bytes;
    uint8_t data[];
};

static void look_at_later(gwd_split_t *split);

/* ---- life --------------------------------------------------------------------------------------- */

static void forget_calls(gwd_split_t *split) {
    for (uint32_t r = 0; r < split->group->nranks; r++)
        split->calls[r] = (gwd_split_call_t){.rank = r};
    for (uint32_t n = 0; n < gwd_split_nodes(split); n++)
        split->nodes[n].prepared = false;
    split->n_called = 0;
    split->made = false;
    split->broke = GW_OK;
    split->parts = NULL;
    split->n_parts = 0;
}

/* NULL: out of memory. */
static gwd_split_t *split_of(gwd_group_t *group) {
    gwd_split_t *split = group->split;

    if (split)
        return split;
    split = calloc(1, sizeof(*split));
    if (!split)
        return NULL;
    split->group = group;
    split->number = 1;
    split->later_end = &split->later;
    split->calls = calloc(group->nranks, sizeof(*split->calls));
    split->nodes = calloc(gwd_split_nodes(split), sizeof(*split->nodes));
    group->split = split;
    if (split->calls && split->nodes) {
        forget_calls(split);
        return split;
    }
    gwd_group_free_split(group);
    return NULL;
}

void gwd_group_free_split(gwd_group_t *group) {
    gwd_split_t *split = group->split;

    if (!split)
        return;
    while (split->later) {
        gwd_split_later_t *later = split->later;

        split->later = later->next;
        free(later);
    }
    free(split->parts);
    free(split->nodes);
    free(split->calls);
    free(split);
    group->split = NULL;
}

void gwd_split_tell(gwd_split_t *split, uint32_t node, gwd_split_message_t message, const void *data, size_t bytes) {
    gwd_group_t *group = split->group;
    gwd_command_t command = {
        .kind = GWD_COMMAND_TELL, .group = group->id, .node = node, .bytes = sizeof(message) + bytes};
    uint8_t *copy;

    if (!group->map)
        return;
    message.number = split->number;
    command.data = copy = malloc(command.bytes);
    if (copy) {
        memcpy(copy, &message, sizeof(message));
        if (bytes > 0)
            memcpy(copy + sizeof(message), data, bytes);
    }
    if (copy && gwd_lane_send(group->server->lanes[group->lane], &command))
        return;
    free(copy);
    gwd_group_fail(group, GW_ERR_NO_MEMORY, "the daemon is out of memory"); /* else the others would wait */
}

/* ---- how it ends -------------------------------------------------------------------------------- */

/* The next one may begin. The caller has what the old one has made. Answers that follow may close sessions, which must
 * not find anything half done. */
static gwd_split_part_t *end(gwd_split_t *split, uint32_t *n_out) {
    gwd_split_part_t *parts = split->parts;

    if (split->group->state == GWD_GROUP_ACTIVE) /* before, it is bootstrap's */
        (void)uv_timer_stop(&split->group->timer);
    *n_out = split->n_parts;
    for (uint32_t i = 0; i < split->n_parts; i++)
        parts[i].group->split_from = NULL;
    forget_calls(split);
    split->number++;
    return parts;
}

static void fail(gwd_split_t *split, gw_status_t status, const char *text) {
    gwd_group_t *group = split->group;
    uint32_t n_parts;
    gwd_split_part_t *parts = end(split, &n_parts);

    for (uint32_t i = 0; i < n_parts; i++)
        parts[i].group->giving_up = true; /* so that none of them ends before its turn */
    for (uint32_t i = 0; i < n_parts; i++)
        gwd_group_give_up(parts[i].group, status, text);
    free(parts);
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_member_t *member = group->members[r];
        uint32_t request = member ? member->split_request : 0;

        if (!request)
            continue;
        member->split_request = 0;
        gwd_session_error(member->session, request, status, "split: %s", text);
    }
    look_at_later(split);
}

void gwd_group_give_up_split(gwd_group_t *group, gw_status_t status, const char *text) {
    if (!group->split || group->split->n_called == 0)
        return;
    gwd_split_tell(group->split, GWD_ALL_NODES,
                   (gwd_split_message_t){.kind = GWD_SPLIT_FAILED, .status = (uint32_t)status}, text, strlen(text));
    fail(group->split, status, text);
}

static void answer_none(gwd_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++) {
        gwd_member_t *member = group->members[r];
        Gw__GroupReady none = GW__GROUP_READY__INIT; /* group 0: it is in none */
        uint32_t request = member ? member->split_request : 0;
        uint8_t body[16];

        if (!request)
            continue;
        member->split_request = 0;
        gwd_session_send(member->session, GW_MSG_GROUP_READY, request, body, gw__group_ready__pack(&none, body), NULL,
                         0);
    }
}

static void go(gwd_split_t *split) {
    gwd_group_t *group = split->group;
    uint32_t n_parts;
    gwd_split_part_t *parts = end(split, &n_parts);

    answer_none(group);
    for (uint32_t i = 0; i < n_parts; i++)
        if (!parts[i].group->giving_up)
            gwd_group_go(parts[i].group);
    free(parts);
    look_at_later(split);
}

/* ---- from the last call to the new groups ------------------------------------------------------- */

/* Something has gone wrong here. */
static void fail_here(gwd_split_t *split, gw_status_t status, const char *why) {
    char text[GWD_TEXT_BYTES];

    snprintf(text, sizeof(text), "host %s: %.400s", split->group->server->host, why);
    gwd_group_give_up_split(split->group, status, split->group->map ? text : why);
}

/* Not when a part has broken: the timer that runs since then ends the split. */
static void go_if_all_prepared(gwd_split_t *split) {
    if (split->broke != GW_OK)
        return;
    for (uint32_t n = 0; n < gwd_split_nodes(split); n++)
        if (!split->nodes[n].prepared)
            return;
    go(split);
}

static void prepare(gwd_split_t *split) {
    char text[GWD_TEXT_BYTES];

    for (uint32_t i = 0; i < split->n_parts; i++) {
        gw_status_t status = gwd_group_prepare(split->parts[i].group, text, sizeof(text));

        if (status == GW_OK)
            continue;
        fail_here(split, status, text);
        return;
    }
    split->nodes[gwd_split_own(split)].prepared = true;
    gwd_split_tell(split, GWD_ALL_NODES, (gwd_split_message_t){.kind = GWD_SPLIT_PREPARED}, NULL, 0);
    go_if_all_prepared(split);
}

static void take_call(gwd_split_t *split, const gwd_split_call_t *call) {
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    split->calls[call->rank] = *call;
    if (++split->n_called < split->group->nranks)
        return;
    gwd_group_start_timer(split->group); /* again, for the other nodes */
    status = gwd_split_make(split, text, sizeof(text));
    if (status != GW_OK)
        fail_here(split, status, text);
    else if (gwd_split_has_addresses(split))
        prepare(split);
}

/* ---- calls of this node's ranks ----------------------------------------------------------------- */

/* The host of a rank that has left, as far as is known here; NULL: there is none. */
static const char *find_leaver(const gwd_split_t *split) {
    const gwd_group_t *group = split->group;

    for (uint32_t n = 0; n < gwd_split_nodes(split); n++)
        if (split->nodes[n].left)
            return group->map->nodes[n].host;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (gwd_split_is_here(split, r) && (!group->members[r] || group->members[r]->leaving))
            return group->server->host;
    return NULL;
}

static bool has_leaver(const gwd_split_t *split, char *text, size_t text_bytes) {
    const char *host = find_leaver(split);

    if (host)
        snprintf(text, text_bytes, "a rank of host %s has left the group", host);
    return host != NULL;
}

static bool is_waiting(const gwd_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->members[r] && group->members[r]->split_request)
            return true;
    return false;
}

gw_status_t gwd_group_split(gwd_member_t *member, uint32_t request, int32_t color, int32_t key, char *text,
                            size_t text_bytes) {
    const gwd_split_call_t call = {member->rank, true, color, key};
    gwd_group_t *group = member->group;
    gwd_split_t *split = split_of(group);

    if (group->status != GW_OK) {
        snprintf(text, text_bytes, "%s", group->message);
        return group->status;
    }
    if (!split) {
        snprintf(text, text_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    if (has_leaver(split, text, text_bytes))
        return GW_ERR_RANK_LEFT;
    if (split->n_called > 0 && (split->made || split->calls[member->rank].called)) {
        snprintf(text, text_bytes, "rank %u waits for a split already", member->rank);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (!is_waiting(group))
        gwd_group_start_timer(group);
    member->split_request = request;
    gwd_split_tell(split, GWD_ALL_NODES,
                   (gwd_split_message_t){.kind = GWD_SPLIT_CALL, .rank = call.rank, .color = color, .key = key}, NULL,
                   0);
    take_call(split, &call);
    return GW_OK;
}

/* ---- the deadline ------------------------------------------------------------------------------- */

static bool has_called(const gwd_group_t *group, uint32_t rank) {
    return group->split->calls[rank].called;
}

/* Others that wait for the same node are not to be named. */
static bool is_late(const gwd_split_t *split, uint32_t node) {
    uint32_t own = gwd_split_own(split);

    return node != own &&
           (split->nodes[own].prepared ? !split->nodes[node].prepared : !gwd_split_has_addresses_of(split, node));
}

static void name_unprepared(const gwd_split_t *split, char *text, size_t text_bytes) {
    const gwd_group_t *group = split->group;
    size_t used = 0;

    text[0] = 0;
    for (uint32_t n = 0; n < gwd_split_nodes(split) && used < text_bytes; n++)
        if (is_late(split, n))
            used += (size_t)snprintf(text + used, text_bytes - used, "%snode %u (host %s, its lowest rank is %u)",
                                     used ? ", " : "", n, group->map->nodes[n].host, group->map->nodes[n].lowest_rank);
    if (used < text_bytes)
        snprintf(text + used, text_bytes - used,
                 " did not get ready within %lld s of the last rank's call (deadline.bootstrap_s)",
                 (long long)group->server->config.deadline_bootstrap_s);
}

void gwd_group_split_late(gwd_group_t *group) {
    gwd_split_t *split = group->split;
    char text[GWD_TEXT_BYTES];

    if (split->broke != GW_OK) {
        snprintf(text, sizeof(text), "%s", split->broke_text);
        gwd_group_give_up_split(group, split->broke, text);
        return;
    }
    if (split->made)
        name_unprepared(split, text, sizeof(text));
    else
        gwd_group_name_missing(group, has_called, "call split", text, sizeof(text));
    gwd_group_give_up_split(group, GW_ERR_BOOTSTRAP, text);
}

/* A node that gives up ends its wires: connections may break, or not be made any more, before the reason is here. */
void gwd_group_split_broke(gwd_group_t *part, gw_status_t status, const char *text) {
    gwd_group_t *group = part->split_from;
    gwd_split_t *split = group->split;

    if (status != GW_ERR_NODE_LOST) {
        gwd_group_give_up_split(group, status, text);
        return;
    }
    if (split->broke != GW_OK)
        return;
    split->broke = status;
    snprintf(split->broke_text, sizeof(split->broke_text), "%s", text);
    gwd_group_start_timer_s(group, CAUSE_S);
}

/* ---- what other nodes say ----------------------------------------------------------------------- */

static bool hear_call(gwd_split_t *split, uint32_t node, const gwd_split_message_t *message) {
    const gwd_split_call_t call = {message->rank, true, message->color, message->key};
    gwd_group_t *group = split->group;
    char text[GWD_TEXT_BYTES];

    if (split->made || call.rank >= group->nranks || group->map->node_of[call.rank] != node ||
        split->calls[call.rank].called)
        return false;
    take_call(split, &call);
    if (split->n_called > 0 && !split->made && has_leaver(split, text, sizeof(text)))
        gwd_group_give_up_split(group, GW_ERR_RANK_LEFT, text);
    return true;
}

static bool hear_address(gwd_split_t *split, uint32_t node, const gwd_split_message_t *message, const uint8_t *data,
                         size_t bytes) {
    if (!gwd_split_take_address(split, node, message->color, data, bytes))
        return false;
    if (gwd_split_has_addresses(split))
        prepare(split);
    return true;
}

static bool hear_prepared(gwd_split_t *split, uint32_t node) {
    if (split->nodes[node].prepared)
        return false;
    split->nodes[node].prepared = true;
    go_if_all_prepared(split);
    return true;
}

static bool hear_failed(gwd_split_t *split, const gwd_split_message_t *message, const uint8_t *data, size_t bytes) {
    char raw[GWD_TEXT_BYTES] = "", text[GWD_TEXT_BYTES];

    if (bytes >= sizeof(raw))
        return false;
    memcpy(raw, data, bytes);
    gw_escape(raw, strlen(raw), text, sizeof(text));
    fail(split, gw_status_failure(message->status, GW_ERR_BOOTSTRAP), text);
    return true;
}

static void hear(gwd_split_t *split, uint32_t node, const gwd_split_message_t *message, const uint8_t *data,
                 size_t bytes) {
    gwd_group_t *group = split->group;
    char text[GWD_TEXT_BYTES];
    bool good = false;

    if (message->kind == GWD_SPLIT_CALL)
        good = hear_call(split, node, message);
    else if (message->kind == GWD_SPLIT_ADDRESS)
        good = hear_address(split, node, message, data, bytes);
    else if (message->kind == GWD_SPLIT_PREPARED)
        good = hear_prepared(split, node);
    else if (message->kind == GWD_SPLIT_FAILED)
        good = hear_failed(split, message, data, bytes);
    if (good)
        return;
    snprintf(text, sizeof(text), "the daemon of host %s broke the protocol of splits", group->map->nodes[node].host);
    gwd_group_fail(group, GW_ERR_PROTOCOL_RANK, text);
}

/* Addresses need the parts that they are of. */
static bool is_early(const gwd_split_t *split, const gwd_split_message_t *message) {
    return message->number > split->number || (message->kind == GWD_SPLIT_ADDRESS && !split->made);
}

/* What a node may have said of this split and of the next: of each of its ranks a call, and the address of the new
 * group that it is in; that it has prepared, or that it failed, and why. */
static size_t later_max(const gwd_split_t *split, uint32_t node) {
    const gwd_group_t *group = split->group;
    size_t n = 0;

    for (uint32_t r = 0; r < group->nranks; r++)
        n += group->map->node_of[r] == node;
    return SPLITS_AHEAD * (n * (2 * sizeof(gwd_split_later_t) + GWD_WIRE_ADDRESS_MAX) + 2 * sizeof(gwd_split_later_t) +
                           GWD_TEXT_BYTES);
}

static void keep(gwd_split_t *split, uint32_t node, const gwd_split_message_t *message, const uint8_t *data,
                 size_t bytes) {
    gwd_split_later_t *later = NULL;

    if (split->nodes[node].later_bytes + sizeof(*later) + bytes <= later_max(split, node))
        later = malloc(sizeof(*later) + bytes);
    if (!later) { /* the split that it is of will meet its deadline, if it is not this one */
        fail_here(split, GW_ERR_NO_MEMORY, "no memory for what other nodes say of splits to come");
        return;
    }
    *later = (gwd_split_later_t){.node = node, .message = *message, .bytes = bytes};
    memcpy(later->data, data, bytes);
    split->nodes[node].later_bytes += sizeof(*later) + bytes;
    *split->later_end = later;
    split->later_end = &later->next;
}

/* The first that is not early any more, taken out; NULL: there is none. */
static gwd_split_later_t *take_later(gwd_split_t *split) {
    gwd_split_later_t **at = &split->later, *later;

    while (*at && is_early(split, &(*at)->message))
        at = &(*at)->next;
    later = *at;
    if (!later)
        return NULL;
    *at = later->next;
    if (!later->next)
        split->later_end = at;
    split->nodes[later->node].later_bytes -= sizeof(*later) + later->bytes;
    return later;
}

static void look_at_later(gwd_split_t *split) {
    gwd_split_later_t *later;

    if (split->looking)
        return;
    split->looking = true;
    while ((later = take_later(split)) != NULL) {
        if (later->message.number == split->number)
            hear(split, later->node, &later->message, later->data, later->bytes);
        free(later);
    }
    split->looking = false;
}

void gwd_group_split_told(gwd_group_t *group, uint32_t node, const uint8_t *data, size_t bytes) {
    gwd_split_t *split = split_of(group);
    gwd_split_message_t message = {0}; /* there is no such kind */
    bool whole = bytes >= sizeof(message);
    size_t rest = whole ? bytes - sizeof(message) : 0;

    if (group->status != GW_OK || group->giving_up)
        return;
    if (!split) {
        gwd_group_fail(group, GW_ERR_NO_MEMORY, "the daemon is out of memory");
        return;
    }
    if (whole)
        memcpy(&message, data, sizeof(message));
    if (whole && message.number < split->number)
        return;
    if (is_early(split, &message))
        keep(split, node, &message, data + bytes - rest, rest);
    else
        hear(split, node, &message, data + bytes - rest, rest);
    look_at_later(split);
}

void gwd_group_split_node_left(gwd_group_t *group, uint32_t node) {
    gwd_split_t *split = split_of(group);
    char text[GWD_TEXT_BYTES];

    if (!split)
        return; /* a split will meet its deadline */
    split->nodes[node].left = true;
    if (split->n_called > 0 && !split->nodes[node].prepared && has_leaver(split, text, sizeof(text)))
        gwd_group_give_up_split(group, GW_ERR_RANK_LEFT, text);
}
