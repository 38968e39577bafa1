/* group_split.c - a group's ranks make new groups of themselves, as MPI_Comm_split does. See group.h */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#include "gradwire.pb-c.h"
#include "group.h"
#include "server.h"

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
    gw_status_t status = gwd_group_new(parent->server, parent->user, &group, text, text_bytes);

    if (status != GW_OK)
        return status;
    /* Nobody else can join: the id is random and is told to nobody. */
    randombytes_buf(&group->unique_id, sizeof(group->unique_id));
    group->state = GWD_GROUP_FORMING;
    group->members = calloc(n, sizeof(gwd_member_t *));
    group->nranks = n;
    group->policy = parent->policy;
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

/* The colors of ranks on other nodes are not known here. */
static gw_status_t refuse_split(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "split of a group over several nodes");
    return GW_ERR_UNSUPPORTED;
}

gw_status_t gwd_group_split(gwd_member_t *member, uint32_t request, int32_t color, int32_t key, char *text,
                            size_t text_bytes) {
    gwd_group_t *group = member->group;

    if (group->map)
        return refuse_split(text, text_bytes);
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
        gwd_group_start_timer(group);
    if (group->n_split == group->nranks)
        finish_split(group);
    return GW_OK;
}
