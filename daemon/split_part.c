/* split_part.c - the new groups of a split. See split.h */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "server.h"
#include "split.h"

static gw_status_t out_of_memory(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "out of memory");
    return GW_ERR_NO_MEMORY;
}

/* Where the ranks are, and who those of other nodes are. */
static bool add_map(const gwd_split_t *split, gwd_split_part_t *part, const gwd_split_call_t *calls, uint32_t n) {
    const gwd_group_t *parent = split->group;
    gwd_group_t *group = part->group;

    if (!parent->map)
        return true;
    if (!gwd_split_map(parent->map, split->number, calls, n, &group->map))
        return false;
    if (!group->map)
        return true;
    group->pids = calloc(n, sizeof(*group->pids));
    for (uint32_t i = 0; i < n && group->pids; i++)
        group->pids[i] = parent->pids[calls[i].rank];
    part->n_missing = group->map->n_nodes - 1;
    return group->pids != NULL;
}

/* Makes the group of one color from `n` calls. */
static gw_status_t make_part(gwd_split_t *split, const gwd_split_call_t *calls, uint32_t n, char *text,
                             size_t text_bytes) {
    gwd_group_t *parent = split->group, *group;
    gw_status_t status = gwd_group_new(parent->server, parent->user, &group, text, text_bytes);
    gwd_split_part_t *part;

    if (status != GW_OK)
        return status;
    part = &split->parts[split->n_parts++];
    *part = (gwd_split_part_t){.color = calls[0].color, .group = group};
    group->split_from = parent;
    group->policy = parent->policy;
    /* Nobody else can join: the id is random and is told to nobody. */
    randombytes_buf(&group->unique_id, sizeof(group->unique_id));
    group->state = GWD_GROUP_FORMING;
    group->members = calloc(n, sizeof(gwd_member_t *));
    if (!group->members)
        return out_of_memory(text, text_bytes);
    group->nranks = n;
    if (!add_map(split, part, calls, n))
        return out_of_memory(text, text_bytes);
    for (uint32_t i = 0; i < n && status == GW_OK; i++) {
        gwd_member_t *old = parent->members[calls[i].rank], *member;

        if (!gwd_split_is_here(split, calls[i].rank))
            continue;
        status = gwd_member_new(old->session, group, i, old->split_request, &member, text, text_bytes);
        if (status == GW_OK)
            old->split_request = 0; /* the new member answers from now on */
    }
    return status;
}

static gw_status_t open_wire(gwd_split_t *split, const gwd_split_part_t *part, char *text) {
    const gwd_group_map_t *map = part->group->map;
    const void *address;
    size_t bytes;
    gw_status_t status;

    gwd_group_choose_lane(part->group);
    status = gwd_wires_make(part->group, &address, &bytes, text);
    for (uint32_t n = 0; n < map->n_nodes && status == GW_OK; n++)
        if (n != map->own_node)
            gwd_split_tell(split, gwd_group_map_find(split->group->map, map->nodes[n].id),
                           (gwd_split_message_t){.kind = GWD_SPLIT_ADDRESS, .color = part->color}, address, bytes);
    return status;
}

static bool is_any_here(const gwd_split_t *split, const gwd_split_call_t *calls, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (gwd_split_is_here(split, calls[i].rank))
            return true;
    return false;
}

gw_status_t gwd_split_make(gwd_split_t *split, char *text, size_t text_bytes) {
    uint32_t nranks = split->group->nranks;
    gw_status_t status = GW_OK;

    split->made = true;
    split->parts = calloc(nranks, sizeof(*split->parts));
    if (!split->parts)
        return out_of_memory(text, text_bytes);
    gwd_split_order(split->calls, nranks);
    for (uint32_t i = 0, n; i < nranks && status == GW_OK; i += n) {
        n = gwd_split_run(split->calls + i, nranks - i);
        if (split->calls[i].color >= 0 && is_any_here(split, split->calls + i, n))
            status = make_part(split, split->calls + i, n, text, text_bytes);
    }
    for (uint32_t i = 0; i < split->n_parts && status == GW_OK; i++)
        if (split->parts[i].group->map)
            status = open_wire(split, &split->parts[i], text);
    return status;
}

bool gwd_split_take_address(gwd_split_t *split, uint32_t node, int32_t color, const uint8_t *address, size_t bytes) {
    const gwd_group_map_t *parent = split->group->map;
    gwd_split_part_t *part = split->parts;
    gwd_group_map_t *map;
    uint32_t n;

    while (part < split->parts + split->n_parts && part->color != color)
        part++;
    if (part == split->parts + split->n_parts || !part->group->map || bytes == 0 || bytes > GWD_WIRE_ADDRESS_MAX)
        return false;
    map = part->group->map;
    n = gwd_group_map_find(map, parent->nodes[node].id);
    if (n == map->n_nodes || map->nodes[n].address)
        return false;
    map->nodes[n].address = malloc(bytes);
    if (!map->nodes[n].address)
        return false;
    memcpy(map->nodes[n].address, address, bytes);
    map->nodes[n].address_bytes = bytes;
    part->n_missing--;
    return true;
}

bool gwd_split_has_addresses(const gwd_split_t *split) {
    for (uint32_t i = 0; i < split->n_parts; i++)
        if (split->parts[i].n_missing > 0)
            return false;
    return true;
}

bool gwd_split_has_addresses_of(const gwd_split_t *split, uint32_t node) {
    const uint8_t *id = split->group->map->nodes[node].id;

    for (uint32_t i = 0; i < split->n_parts; i++) {
        const gwd_group_map_t *map = split->parts[i].group->map;
        uint32_t n = map ? gwd_group_map_find(map, id) : 0;

        if (map && n < map->n_nodes && !map->nodes[n].address)
            return false;
    }
    return true;
}
