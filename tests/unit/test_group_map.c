/* test_group_map.c - which ranks a split puts together, in which order, and where they are */
#include "group_map.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap_proof.h"
#include "cunit_main.h"

enum { NRANKS = 6, N_NODES = 3 };

/* Ranks 0 1 2 3 4 5 on nodes 0 1 1 2 0 2; this one is `own`. */
static gwd_group_map_t *new_map(uint32_t own) {
    static const uint32_t node_of[NRANKS] = {0, 1, 1, 2, 0, 2};
    gwd_group_map_t *map = gwd_group_map_new(77, NRANKS, N_NODES);

    CU_ASSERT_PTR_NOT_NULL_FATAL(map);
    memcpy(map->node_of, node_of, sizeof(node_of));
    map->own_node = own;
    for (uint32_t n = 0; n < N_NODES; n++) {
        memset(map->nodes[n].id, (int)n + 1, sizeof(map->nodes[n].id));
        map->nodes[n].host[0] = (char)('a' + (int)n);
        if (n != own)
            CU_ASSERT_TRUE_FATAL(
                gwd_ip_copy(map->nodes[n].id, sizeof(gwd_ip_t), &map->nodes[n].ips, &map->nodes[n].n_ips));
    }
    return map;
}

static void ranks_are_ordered_by_color_key_and_rank(void) {
    gwd_split_call_t calls[NRANKS] = {{0, true, 5, 1}, {1, true, -1, 9},        {2, true, 5, -1},
                                      {3, true, 0, 0}, {4, true, 5, INT32_MIN}, {5, true, 5, 1}};
    static const uint32_t wanted[NRANKS] = {1, 3, 4, 2, 0, 5};

    gwd_split_order(calls, NRANKS);
    for (uint32_t i = 0; i < NRANKS; i++)
        CU_ASSERT_EQUAL(calls[i].rank, wanted[i]);
    CU_ASSERT_EQUAL(gwd_split_run(calls, NRANKS), 1);
    CU_ASSERT_EQUAL(gwd_split_run(calls + 1, NRANKS - 1), 1);
    CU_ASSERT_EQUAL(gwd_split_run(calls + 2, NRANKS - 2), 4);
}

static void nodes_are_ordered_by_their_lowest_new_rank(void) {
    static const gwd_split_call_t calls[4] = {{3, true, 8, 0}, {1, true, 8, 1}, {5, true, 8, 2}, {2, true, 8, 3}};
    static const uint32_t node_of[4] = {0, 1, 0, 1};

    for (uint32_t own = 1; own < N_NODES; own++) {
        gwd_group_map_t *from = new_map(own), *map;

        CU_ASSERT_TRUE_FATAL(gwd_split_map(from, 3, calls, 4, &map));
        CU_ASSERT_PTR_NOT_NULL_FATAL(map);
        CU_ASSERT_EQUAL(map->n_nodes, 2);
        CU_ASSERT_EQUAL(memcmp(map->node_of, node_of, sizeof(node_of)), 0);
        CU_ASSERT_EQUAL(map->own_node, own == 2 ? 0 : 1);
        CU_ASSERT_EQUAL(map->nodes[0].lowest_rank, 0);
        CU_ASSERT_EQUAL(map->nodes[1].lowest_rank, 1);
        CU_ASSERT_STRING_EQUAL(map->nodes[0].host, "c");
        CU_ASSERT_EQUAL(map->nodes[map->own_node].n_ips, 0);
        CU_ASSERT_EQUAL_FATAL(map->nodes[1 - map->own_node].n_ips, 1);
        CU_ASSERT_EQUAL(map->nodes[1 - map->own_node].ips->bytes[0], own == 2 ? 2 : 3);
        CU_ASSERT_STRING_EQUAL(map->nodes[1].host, "b");
        CU_ASSERT_EQUAL(gwd_group_map_find(map, from->nodes[2].id), 0);
        CU_ASSERT_EQUAL(gwd_group_map_find(map, from->nodes[1].id), 1);
        CU_ASSERT_EQUAL(gwd_group_map_find(map, from->nodes[0].id), 2); /* it is not in it */
        CU_ASSERT_EQUAL(map->wire_id, gwd_proof_split_id(77, 3, 8));
        gwd_group_map_free(map);
        gwd_group_map_free(from);
    }
}

static void one_node_needs_no_map(void) {
    static const gwd_split_call_t calls[2] = {{5, true, 1, 0}, {3, true, 1, 1}};
    gwd_group_map_t *from = new_map(2), *map = from;

    CU_ASSERT_TRUE(gwd_split_map(from, 1, calls, 2, &map));
    CU_ASSERT_PTR_NULL(map);
    gwd_group_map_free(from);
}

static void each_new_group_has_a_number_of_its_own(void) {
    uint64_t ids[27];
    int n = 0;

    for (uint64_t from = 1; from <= 3; from++)
        for (uint64_t split = 1; split <= 3; split++)
            for (int32_t color = 0; color < 3; color++)
                ids[n++] = gwd_proof_split_id(from, split, color);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            CU_ASSERT_NOT_EQUAL(ids[i], ids[j]);
    CU_ASSERT_EQUAL(gwd_proof_split_id(2, 3, 1), ids[16]); /* and every time the same */
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"ranks are ordered by color, key and rank", ranks_are_ordered_by_color_key_and_rank},
        {"nodes are ordered by their lowest new rank", nodes_are_ordered_by_their_lowest_new_rank},
        {"one node needs no map", one_node_needs_no_map},
        {"each new group has a number of its own", each_new_group_has_a_number_of_its_own},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("group map", tests);
}
