/* group_map.c - see group_map.h */
#include "group_map.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap_proof.h"

gwd_group_map_t *gwd_group_map_new(uint64_t wire_id, uint32_t nranks, uint32_t n_nodes) {
    gwd_group_map_t *map = calloc(1, sizeof(*map));

    if (!map)
        return NULL;
    map->wire_id = wire_id;
    map->nodes = calloc(n_nodes, sizeof(*map->nodes));
    map->node_of = calloc(nranks, sizeof(*map->node_of));
    map->n_nodes = map->nodes ? n_nodes : 0;
    if (map->nodes && map->node_of)
        return map;
    gwd_group_map_free(map);
    return NULL;
}

void gwd_group_map_free(gwd_group_map_t *map) {
    if (!map)
        return;
    for (uint32_t i = 0; i < map->n_nodes; i++) {
        free(map->nodes[i].address);
        free(map->nodes[i].ips);
    }
    free(map->nodes);
    free(map->node_of);
    sodium_memzero(map->wire_key, sizeof(map->wire_key));
    free(map);
}

uint32_t gwd_group_map_find(const gwd_group_map_t *map, const uint8_t id[16]) {
    uint32_t n = 0;

    while (n < map->n_nodes && memcmp(map->nodes[n].id, id, sizeof(map->nodes[n].id)) != 0)
        n++;
    return n;
}

static int compare(const void *a, const void *b) {
    const gwd_split_call_t *x = a, *y = b;

    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

void gwd_split_order(gwd_split_call_t *calls, uint32_t n) {
    qsort(calls, n, sizeof(*calls), compare);
}

uint32_t gwd_split_run(const gwd_split_call_t *calls, uint32_t n) {
    uint32_t run = 1;

    while (run < n && calls[run].color == calls[0].color)
        run++;
    return run;
}

bool gwd_split_map(const gwd_group_map_t *from, uint64_t split, const gwd_split_call_t *calls, uint32_t n,
                   gwd_group_map_t **map_out) {
    uint32_t *lowest = malloc(from->n_nodes * sizeof(*lowest)), n_nodes = 0; /* new rank of each node, or n */
    gwd_group_map_t *map = NULL;
    bool good = lowest != NULL;

    for (uint32_t i = 0; i < from->n_nodes && good; i++)
        lowest[i] = n;
    for (uint32_t i = 0; i < n && good; i++) {
        uint32_t *of = &lowest[from->node_of[calls[i].rank]];

        n_nodes += *of == n;
        *of = *of == n ? i : *of;
    }
    if (good && n_nodes > 1) {
        map = gwd_group_map_new(gwd_proof_split_id(from->wire_id, split, calls[0].color), n, n_nodes);
        good = map != NULL;
    }
    if (map && from->has_cipher) {
        map->has_cipher = true;
        gwd_proof_child_key(from->wire_key, map->wire_id, map->wire_key);
    }
    n_nodes = 0;
    for (uint32_t i = 0; i < n && map && good; i++) {
        uint32_t of = from->node_of[calls[i].rank];
        gwd_group_node_t *node = &map->nodes[n_nodes];

        if (lowest[of] < i) {
            map->node_of[i] = map->node_of[lowest[of]];
            continue;
        }
        if (of == from->own_node)
            map->own_node = n_nodes;
        else
            good = gwd_ip_copy(from->nodes[of].ips, from->nodes[of].n_ips * sizeof(gwd_ip_t), &node->ips, &node->n_ips);
        memcpy(node->id, from->nodes[of].id, sizeof(node->id));
        memcpy(node->host, from->nodes[of].host, sizeof(node->host));
        node->lowest_rank = i;
        map->node_of[i] = n_nodes++;
    }
    free(lowest);
    if (!good)
        gwd_group_map_free(map);
    *map_out = good ? map : NULL;
    return good;
}
