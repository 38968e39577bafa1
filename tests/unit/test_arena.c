/* test_arena.c - blocks of pinned memory are given out once */
#include "arena.h"

#include <string.h>

#include "cunit_main.h"

enum { BLOCK_BYTES = 65536, BLOCKS = 64 };

static void every_block_is_given_out_once(void) {
    char text[128];
    gwd_arena_t arena;
    void *blocks[BLOCKS], *one;

    CU_ASSERT_EQUAL_FATAL(
        gwd_arena_init(&arena, BLOCKS * BLOCK_BYTES, BLOCK_BYTES, -1, "some.bytes", text, sizeof(text)), GW_OK);
    CU_ASSERT_EQUAL(gwd_arena_blocks(&arena), BLOCKS);
    CU_ASSERT(gwd_arena_take(&arena, blocks, BLOCKS));
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i], i, BLOCK_BYTES);
    for (int i = 0; i < BLOCKS; i++)
        CU_ASSERT(((unsigned char *)blocks[i])[0] == i && ((unsigned char *)blocks[i])[BLOCK_BYTES - 1] == i);
    CU_ASSERT_FALSE(gwd_arena_take(&arena, &one, 1));
    gwd_arena_give(&arena, blocks[17]);
    CU_ASSERT_FALSE(gwd_arena_take(&arena, blocks, 2)); /* all or none */
    CU_ASSERT(gwd_arena_take(&arena, &one, 1));
    CU_ASSERT_PTR_EQUAL(one, blocks[17]); /* the last one used may still be cached */
    gwd_arena_fini(&arena);
}

static void an_arena_has_at_least_one_block(void) {
    char text[128];
    gwd_arena_t arena;

    CU_ASSERT_EQUAL_FATAL(gwd_arena_init(&arena, 1, 3 << 20, 0, "some.bytes", text, sizeof(text)), GW_OK);
    CU_ASSERT_EQUAL(gwd_arena_blocks(&arena), 1);
    gwd_arena_fini(&arena);
}

static void more_than_there_is_is_refused(void) {
    char text[128] = "";
    gwd_arena_t arena;

    CU_ASSERT_EQUAL(gwd_arena_init(&arena, UINT64_C(1) << 46, 1 << 20, -1, "some.bytes", text, sizeof(text)),
                    GW_ERR_NO_MEMORY);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "some.bytes"));
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"every block is given out once", every_block_is_given_out_once},
        {"an arena has at least one block", an_arena_has_at_least_one_block},
        {"more than there is is refused", more_than_there_is_is_refused},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("arena", tests);
}
