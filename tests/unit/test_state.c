/* test_state.c - states of groups: what is written is read again, and nothing else is */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#include "cunit_main.h"

static const uint32_t nodes[] = {0, 1, 0, 1};
static const gwd_placement_t placement = {4, 2, 1, 1 << 20, nodes};

enum { HEAD_BYTES = 48, TABLE_AT = HEAD_BYTES + sizeof(nodes), ENTRY_BYTES = 32, SUM_BYTES = 32 };

static gwd_residual_t *make(uint64_t fingerprint, uint64_t count, gwd_residual_t *next) {
    gwd_residual_t *residual = gwd_residual_new(fingerprint, count);

    CU_ASSERT_PTR_NOT_NULL_FATAL(residual);
    for (uint64_t i = 0; i < 2 * count; i++)
        residual->parts[i] = (float)(fingerprint + i);
    residual->n_ops = 10 * fingerprint;
    residual->rule = (gwd_residual_rule_t){GW_CODEC_INT8, (uint8_t)(fingerprint % 5), 1, fingerprint % 2};
    residual->next = next;
    return residual;
}

static unsigned char *write_state(const gwd_placement_t *where, const gwd_residual_t *list, uint64_t *bytes_out) {
    unsigned char *state;

    *bytes_out = gwd_state_bytes(where, list);
    state = malloc(*bytes_out);
    CU_ASSERT_PTR_NOT_NULL_FATAL(state);
    gwd_state_write(where, list, state);
    return state;
}

static gw_status_t read_state(const unsigned char *state, uint64_t bytes, const gwd_placement_t *where,
                              const char *said) {
    gwd_residual_t *list = NULL;
    char text[512] = "";
    gw_status_t status = gwd_state_read(state, bytes, where, &list, text, sizeof(text));

    if (!strstr(text, said))
        fprintf(stderr, "'%s' is not in '%s'\n", said, text);
    CU_ASSERT(strstr(text, said) != NULL);
    gwd_residual_free_list(list);
    return status;
}

/* As if it had been written so. */
static void sign(unsigned char *state, uint64_t bytes) {
    crypto_generichash(state + bytes - SUM_BYTES, SUM_BYTES, state, bytes - SUM_BYTES, NULL, 0);
}

static void what_is_written_is_read_again(void) {
    gwd_residual_t *list = make(7, 1000000, make(8, 3, NULL)), *read = NULL;
    uint64_t bytes;
    unsigned char *state = write_state(&placement, list, &bytes);
    char text[512];

    CU_ASSERT_EQUAL(bytes, TABLE_AT + 2 * ENTRY_BYTES + 8 * 1000003 + SUM_BYTES);
    CU_ASSERT_EQUAL_FATAL(gwd_state_read(state, bytes, &placement, &read, text, sizeof(text)), GW_OK);
    for (const gwd_residual_t *a = list, *b = read; a; a = a->next, b = b->next) {
        CU_ASSERT_PTR_NOT_NULL_FATAL(b);
        CU_ASSERT(a->fingerprint == b->fingerprint && a->count == b->count && a->n_ops == b->n_ops);
        CU_ASSERT(b->results == b->parts + b->count);
        CU_ASSERT_EQUAL(memcmp(a->parts, b->parts, 8 * a->count), 0);
        CU_ASSERT_EQUAL(memcmp(&a->rule, &b->rule, sizeof(a->rule)), 0);
        CU_ASSERT((a->next == NULL) == (b->next == NULL));
    }
    gwd_residual_free_list(list);
    gwd_residual_free_list(read);
    free(state);
}

static void every_bit_counts(void) {
    gwd_residual_t *list = make(7, 2, NULL);
    uint64_t bytes;
    unsigned char *state = write_state(&placement, list, &bytes);

    for (uint64_t bit = 0; bit < 8 * bytes; bit++) {
        state[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CU_ASSERT_EQUAL(read_state(state, bytes, &placement, ""), GW_ERR_STATE);
        state[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (uint64_t cut = 0; cut < bytes; cut++)
        CU_ASSERT_EQUAL(read_state(state, cut, &placement, ""), GW_ERR_STATE);
    CU_ASSERT_EQUAL(read_state(state, bytes, &placement, ""), GW_OK);
    gwd_residual_free_list(list);
    free(state);
}

static void other_placements_are_named(void) {
    static const uint32_t turned[] = {0, 0, 1, 1};
    gwd_placement_t other = placement;
    uint64_t bytes;
    unsigned char *state = write_state(&placement, NULL, &bytes);

    other.node_of = turned;
    CU_ASSERT_EQUAL(read_state(state, bytes, &other,
                               "4 ranks on 2 nodes (0 1 0 1), and the group has 4 ranks on 2 nodes (0 0 1 1)"),
                    GW_ERR_STATE);
    other = (gwd_placement_t){.nranks = 4, .n_nodes = 1, .rank = 1};
    CU_ASSERT_EQUAL(read_state(state, bytes, &other, "the group has 4 ranks on 1 node (0 0 0 0)"), GW_ERR_STATE);
    other = placement;
    other.nranks = 3;
    CU_ASSERT_EQUAL(read_state(state, bytes, &other, "the group has 3 ranks on 2 nodes (0 1 0)"), GW_ERR_STATE);
    other = placement;
    other.rank = 3;
    CU_ASSERT_EQUAL(read_state(state, bytes, &other, "of rank 1, and was given to rank 3"), GW_ERR_STATE);
    other = placement;
    other.chunk_bytes = 65536;
    CU_ASSERT_EQUAL(read_state(state, bytes, &other, "chunks of 1048576 bytes between nodes, and here they have 65536"),
                    GW_ERR_STATE);
    free(state);
}

/* Many ranks do not fit into a message. */
static void long_placements_are_cut(void) {
    static uint32_t many[1000];
    gwd_placement_t where = {1000, 1000, 0, 1, many};
    uint64_t bytes;
    unsigned char *state;

    for (uint32_t r = 0; r < 1000; r++)
        many[r] = r;
    state = write_state(&where, NULL, &bytes);
    CU_ASSERT_EQUAL(read_state(state, bytes, &placement, "22 23 ...), and the group has 4 ranks"), GW_ERR_STATE);
    free(state);
}

static void set_u64(unsigned char *at, uint64_t value) {
    memcpy(at, &value, sizeof(value));
}

/* With a good checksum: whoever makes states can sign them. */
static void numbers_that_cannot_be_are_refused(void) {
    gwd_residual_t *list = make(7, 4, make(8, 4, NULL));
    uint64_t bytes;
    unsigned char *state = write_state(&placement, list, &bytes);
    static const uint64_t counts[] = {0, 3, 5, 8, UINT64_MAX / 8 + 1, UINT64_MAX / 8 + 5, UINT64_MAX};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        set_u64(state + TABLE_AT + 8, counts[i]);
        sign(state, bytes);
        CU_ASSERT_EQUAL(read_state(state, bytes, &placement, "do not add up"), GW_ERR_STATE);
    }
    set_u64(state + TABLE_AT + 8, 4);
    set_u64(state + TABLE_AT, 8);
    sign(state, bytes);
    CU_ASSERT_EQUAL(read_state(state, bytes, &placement, "a residual twice"), GW_ERR_STATE);
    set_u64(state + TABLE_AT, 7);
    sign(state, bytes);
    CU_ASSERT_EQUAL(read_state(state, bytes, &placement, ""), GW_OK);
    set_u64(state + 40, 5000); /* n_residuals */
    sign(state, bytes);
    CU_ASSERT_EQUAL(read_state(state, bytes, &placement, "cannot be"), GW_ERR_STATE);
    gwd_residual_free_list(list);
    free(state);
}

static void only_the_lowest_rank_of_a_node_carries(void) {
    gwd_residual_t *list = make(7, 4, NULL);
    gwd_placement_t higher = placement, alone = {.nranks = 2, .n_nodes = 1};
    uint64_t bytes;
    unsigned char *state;

    CU_ASSERT_TRUE(gwd_placement_carries(&placement));
    higher.rank = 3;
    CU_ASSERT_FALSE(gwd_placement_carries(&higher));
    state = write_state(&higher, list, &bytes);
    CU_ASSERT_EQUAL(read_state(state, bytes, &higher, "does not keep"), GW_ERR_STATE);
    free(state);
    state = write_state(&alone, list, &bytes);
    CU_ASSERT_EQUAL(read_state(state, bytes, &alone, "does not keep"), GW_ERR_STATE);
    free(state);
    gwd_residual_free_list(list);
}

static void residuals_are_found_exchanged_and_cleared(void) {
    gwd_residual_t *list = make(7, 4, make(7, 5, NULL)), *other = make(9, 5, NULL);
    gwd_residual_t *second = gwd_residual_find(list, 7, 5);

    CU_ASSERT_PTR_EQUAL(second, list->next);
    CU_ASSERT_PTR_NULL(gwd_residual_find(list, 8, 5));
    gwd_residual_swap(second, other);
    CU_ASSERT(second->parts[0] == 9.0f && second->results[0] == 14.0f && second->n_ops == 90 &&
              second->fingerprint == 7);
    CU_ASSERT(other->parts[0] == 7.0f && other->n_ops == 70);
    other->next = list;
    list = other;
    gwd_residual_clear(second, &list);
    CU_ASSERT(list != other && list->n_ops == 90 && list->parts[0] == 9.0f && list->next == other);
    CU_ASSERT(second->parts[0] == 0.0f && second->results[4] == 0.0f && second->n_ops == 0);
    CU_ASSERT_EQUAL(gwd_residual_numbers(GW_CODEC_INT4, false, 5), 5);
    CU_ASSERT_EQUAL(gwd_residual_numbers(GW_CODEC_INT4, true, 5), 0);
    CU_ASSERT_EQUAL(gwd_residual_numbers(GW_CODEC_BF16, false, 5), 0);
    CU_ASSERT_EQUAL(gwd_residual_bytes(1), 4096);
    CU_ASSERT_EQUAL(gwd_residual_bytes(513), 8192);
    gwd_residual_free_list(list);
}

static void many_are_found(void) {
    enum { N = 500 };
    gwd_residual_t *list = NULL;
    gwd_residual_index_t index;

    CU_ASSERT(gwd_residual_index(NULL, &index) && !gwd_residual_look_up(&index, 0, 0));
    for (uint64_t i = 0; i < N; i++)
        list = make(i * 7919 % N / 2 << 40, 1 + i % 2, list);
    CU_ASSERT_FATAL(gwd_residual_index(list, &index));
    for (uint64_t i = 0; i < N; i++)
        for (uint64_t count = 0; count < 4; count++)
            CU_ASSERT_PTR_EQUAL(gwd_residual_look_up(&index, i << 40, count), gwd_residual_find(list, i << 40, count));
    gwd_residual_free_index(&index);
    gwd_residual_free_list(list);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"what is written is read again", what_is_written_is_read_again},
        {"every bit counts", every_bit_counts},
        {"other placements are named", other_placements_are_named},
        {"long placements are cut", long_placements_are_cut},
        {"numbers that cannot be are refused", numbers_that_cannot_be_are_refused},
        {"only the lowest rank of a node carries", only_the_lowest_rank_of_a_node_carries},
        {"residuals are found, exchanged and cleared", residuals_are_found_exchanged_and_cleared},
        {"many are found", many_are_found},
        CU_TEST_INFO_NULL,
    };

    if (sodium_init() < 0)
        return 1;
    return cunit_run("state", tests);
}
