/* test_table.c - handles count from 1, are used again, and are never confused */
#include "table.h"

#include "cunit_main.h"

static void handles_count_from_one_and_come_back(void) {
    gwd_table_t table = {0};
    int a, b, c;
    uint32_t first = gwd_table_add(&table, &a), second = gwd_table_add(&table, &b);

    CU_ASSERT_EQUAL(first, 1);
    CU_ASSERT_EQUAL(second, 2);
    CU_ASSERT_PTR_EQUAL(gwd_table_get(&table, first), &a);
    gwd_table_remove(&table, first);
    CU_ASSERT_PTR_NULL(gwd_table_get(&table, first));
    CU_ASSERT_EQUAL(gwd_table_add(&table, &c), first);
    CU_ASSERT_PTR_EQUAL(gwd_table_get(&table, first), &c);
    CU_ASSERT_EQUAL(table.count, 2);
    gwd_table_fini(&table);
}

static void what_is_no_handle_gives_nothing(void) {
    gwd_table_t table = {0};
    int item;

    CU_ASSERT_PTR_NULL(gwd_table_get(&table, 0));
    CU_ASSERT_PTR_NULL(gwd_table_get(&table, 1));
    CU_ASSERT_EQUAL(gwd_table_add(&table, &item), 1);
    CU_ASSERT_PTR_NULL(gwd_table_get(&table, 0));
    CU_ASSERT_PTR_NULL(gwd_table_get(&table, 2));
    CU_ASSERT_PTR_NULL(gwd_table_get(&table, UINT32_MAX));
    gwd_table_fini(&table);
}

static void remove_self(void *item, void *context) {
    gwd_table_remove(context, (uint32_t) * (int *)item);
}

static void items_may_remove_themselves_while_visited(void) {
    gwd_table_t table = {0};
    int items[100];

    for (int i = 0; i < 100; i++) {
        items[i] = i + 1;
        CU_ASSERT_EQUAL(gwd_table_add(&table, &items[i]), (uint32_t)i + 1);
    }
    gwd_table_each(&table, remove_self, &table);
    CU_ASSERT_EQUAL(table.count, 0);
    gwd_table_fini(&table);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"handles count from one and come back", handles_count_from_one_and_come_back},
        {"what is no handle gives nothing", what_is_no_handle_gives_nothing},
        {"items may remove themselves while visited", items_may_remove_themselves_while_visited},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("table", tests);
}
