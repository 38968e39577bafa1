/* group_map.h - which node each rank of a group is on, and the maps of groups that a split makes
 *
 * Only computations: all nodes of a split come to the same from the same calls.
 */
#ifndef GWD_GROUP_MAP_H
#define GWD_GROUP_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "lane.h"

/* What a rank of the group that is split has said. */
typedef struct gwd_split_call {
    uint32_t rank;
    bool called;
    int32_t color, key;
} gwd_split_call_t;

/* An empty map, without nodes' addresses. NULL: out of memory. */
gwd_group_map_t *gwd_group_map_new(uint64_t wire_id, uint32_t nranks, uint32_t n_nodes);
void gwd_group_map_free(gwd_group_map_t *map); /* or NULL */

/* The node of that id, or n_nodes. */
uint32_t gwd_group_map_find(const gwd_group_map_t *map, const uint8_t id[16]);

/* Orders calls by color, key and rank: each color's new ranks stand side by side, those of no color first. */
void gwd_split_order(gwd_split_call_t *calls, uint32_t n);

/* How many calls from the first on, which are in order, have its color. */
uint32_t gwd_split_run(const gwd_split_call_t *calls, uint32_t n);

/* The map of the new group of the calls of one color, `color`'s in the so-manieth split of the group with the map
 * `from`. *map_out is NULL if they are all on one node. False: out of memory. */
bool gwd_split_map(const gwd_group_map_t *from, uint64_t split, const gwd_split_call_t *calls, uint32_t n,
                   gwd_group_map_t **map_out);

#endif
