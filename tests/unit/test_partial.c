/* Reductions in two steps give what the one-step kernel gives where the order is the same, and exact integers always. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cunit_main.h"
#include "kernels.h"

enum { COUNT = 2500, RANKS = 5, BYTES = 8 };

static unsigned char input[RANKS][COUNT * BYTES], expected[COUNT * BYTES], result[2][COUNT * BYTES];
static _Alignas(16) unsigned char part[RANKS][COUNT * 16];

static void fill(void) {
    srand(7);
    for (int r = 0; r < RANKS; r++)
        for (size_t i = 0; i < sizeof(input[r]); i++)
            input[r][i] = (unsigned char)rand(); /* of floats these are all magnitudes, infinities and NaNs too */
}

/* Each rank alone on a node: the order is that of the ranks. */
static void nodes_of_one_rank_each(void) {
    const void *in[RANKS];
    void *out[2] = {result[0], result[1]}, *one = expected;

    fill();
    for (gw_type_t type = GW_F32; type <= GW_I64; type++)
        for (gw_redop_t op = GW_SUM; op <= GW_PROD; op++) {
            for (int r = 0; r < RANKS; r++) {
                const void *mine = input[r];

                if (gw_kernel_partial_is_input(type, op)) {
                    CU_ASSERT_EQUAL_FATAL(gw_kernel_partial_bytes(type, op), gw_type_bytes(type));
                    in[r] = mine;
                    continue;
                }
                gw_kernel_partial(type, op, &mine, 1, part[r], COUNT);
                in[r] = part[r];
            }
            gw_kernel_final(type, op, in, RANKS, RANKS, out, 2, COUNT);
            for (int r = 0; r < RANKS; r++)
                in[r] = input[r];
            gw_kernel_reduce(type, op, in, RANKS, &one, 1, COUNT);
            CU_ASSERT_EQUAL(memcmp(result[0], expected, COUNT * gw_type_bytes(type)), 0);
            CU_ASSERT_EQUAL(memcmp(result[1], expected, COUNT * gw_type_bytes(type)), 0);
        }
}

/* All ranks on one node: the partial result is everything. */
static void one_node(void) {
    const void *in[RANKS], *whole = part[0];
    void *out = result[0], *one = expected;

    fill();
    for (int r = 0; r < RANKS; r++)
        in[r] = input[r];
    for (gw_type_t type = GW_F32; type <= GW_I64; type++)
        for (gw_redop_t op = GW_SUM; op <= GW_PROD; op++) {
            gw_kernel_partial(type, op, in, RANKS, part[0], COUNT);
            gw_kernel_final(type, op, &whole, 1, RANKS, &out, 1, COUNT);
            gw_kernel_reduce(type, op, in, RANKS, &one, 1, COUNT);
            CU_ASSERT_EQUAL(memcmp(result[0], expected, COUNT * gw_type_bytes(type)), 0);
        }
}

static void sums_of_halves_keep_their_bits_between_nodes(void) {
    /* 2048 + 1 is no binary16, but 2048 + 1 + 1 is: rounding at the node would lose both. */
    const uint16_t large = 0x6800, unit = 0x3c00;
    const void *first[2] = {&large, &unit}, *second[1] = {&unit}, *parts[2];
    uint16_t sum = 0;
    float a, b;
    void *out = &sum;

    gw_kernel_partial(GW_F16, GW_SUM, first, 2, &a, 1);
    gw_kernel_partial(GW_F16, GW_SUM, second, 1, &b, 1);
    CU_ASSERT_EQUAL(a, 2049.0f);
    parts[0] = &a;
    parts[1] = &b;
    gw_kernel_final(GW_F16, GW_SUM, parts, 2, 3, &out, 1, 1);
    CU_ASSERT_EQUAL(sum, 0x6801);
}

static void averages_of_integers_are_exact(void) {
    const int64_t most = INT64_MAX;
    const void *in[3] = {&most, &most, &most}, *parts[1] = {part[0]};
    int64_t average = 0;
    void *out = &average;

    gw_kernel_partial(GW_I64, GW_AVG, in, 3, part[0], 1);
    gw_kernel_final(GW_I64, GW_AVG, parts, 1, 3, &out, 1, 1);
    CU_ASSERT_EQUAL(average, INT64_MAX);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"nodes of one rank each", nodes_of_one_rank_each},
        {"one node", one_node},
        {"sums of halves keep their bits between nodes", sums_of_halves_keep_their_bits_between_nodes},
        {"averages of integers are exact", averages_of_integers_are_exact},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("partial", tests);
}
