/* split.h - a group's ranks make new groups of themselves, as MPI_Comm_split does
 *
 * Inner header of group_split.c (who has called, what the nodes say to each other, and how it ends) and split_part.c
 * (the new groups).
 *
 * Every node tells all others what its ranks have called (CALL). Once all ranks have, each node comes to the same new
 * groups and makes those in which it has ranks. Each of them that spans nodes has a wire of its own, whose address goes
 * to the nodes that take part (ADDRESS). With all addresses a node hands its new groups to lanes (PREPARED); when all
 * nodes have, each lets its groups begin and answers its ranks. Until then whatever goes wrong anywhere ends the split
 * on all nodes (FAILED), and the parent goes on. On one node all of this is one step.
 *
 * Splits of a group are counted from 1 on, on all nodes alike, whether they succeed or not: what is said of an earlier
 * one is dropped, what is said of a later one waits.
 */
#ifndef GWD_SPLIT_H
#define GWD_SPLIT_H

#include "group.h"
#include "group_map.h"

typedef enum gwd_split_kind {
    GWD_SPLIT_CALL = 1, /* rank, color, key */
    GWD_SPLIT_ADDRESS,  /* color; and the address */
    GWD_SPLIT_PREPARED,
    GWD_SPLIT_FAILED, /* status; and text */
} gwd_split_kind_t;

/* What a tell begins with. Little endian, as every host that this runs on. */
typedef struct gwd_split_message {
    uint64_t number; /* of the split */
    uint32_t kind, rank, status;
    int32_t color, key;
    uint32_t reserved;
} gwd_split_message_t;

/* A new group with ranks of this node. */
typedef struct gwd_split_part {
    int32_t color;
    gwd_group_t *group;
    uint32_t n_missing; /* nodes whose address has not come */
} gwd_split_part_t;

typedef struct gwd_split_node {
    bool prepared, left;
    size_t later_bytes; /* of it that wait for their split */
} gwd_split_node_t;

typedef struct gwd_split_later gwd_split_later_t; /* group_split.c */

typedef struct gwd_split {
    gwd_group_t *group;
    uint64_t number;
    gwd_split_call_t *calls; /* nranks */
    uint32_t n_called;       /* 0: none is under way */
    bool made;               /* all have called: the parts are there */
    gwd_split_part_t *parts; /* nranks at most */
    uint32_t n_parts;
    gwd_split_node_t *nodes;
    gwd_split_later_t *later, **later_end;
    bool looking;      /* at what has waited */
    gw_status_t broke; /* a part broke, and the cause may still come from another node; GW_OK: no */
    char broke_text[GWD_TEXT_BYTES];
} gwd_split_t;

static inline uint32_t gwd_split_nodes(const gwd_split_t *split) {
    return split->group->map ? split->group->map->n_nodes : 1;
}

static inline uint32_t gwd_split_own(const gwd_split_t *split) {
    return split->group->map ? split->group->map->own_node : 0;
}

/* Whether a rank of the group is of this node. */
static inline bool gwd_split_is_here(const gwd_split_t *split, uint32_t rank) {
    return !split->group->map || split->group->map->node_of[rank] == split->group->map->own_node;
}

/* group_split.c: to a node of the group, or GWD_ALL_NODES. */
void gwd_split_tell(gwd_split_t *split, uint32_t node, gwd_split_message_t message, const void *data, size_t bytes);

/* ---- split_part.c ------------------------------------------------------------------------------- */

/* Makes the groups of all colors in which this node has ranks, and tells the addresses of their wires. Its ranks'
 * requests are the new members' from then on. Errors, with text: GW_ERR_QUOTA, GW_ERR_NO_MEMORY, GW_ERR_RANK_DIED and
 * those of gwd_wires_make. */
gw_status_t gwd_split_make(gwd_split_t *split, char *text, size_t text_bytes);

/* An address has come from a node. False: it cannot come from there, or there was no memory. */
bool gwd_split_take_address(gwd_split_t *split, uint32_t node, int32_t color, const uint8_t *address, size_t bytes);

/* Whether the addresses of all parts have come, or those that a node has to send. */
bool gwd_split_has_addresses(const gwd_split_t *split);
bool gwd_split_has_addresses_of(const gwd_split_t *split, uint32_t node);

#endif
