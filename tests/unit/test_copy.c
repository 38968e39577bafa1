/* test_copy.c - copies of every alignment and size around the one where the method changes */
#include "copy.h"

#include <CUnit/Basic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE_BYTES = 8 << 20, MARGIN_BYTES = 256, ROOM_BYTES = LARGE_BYTES + 2 * MARGIN_BYTES, CANARY = 0xee };

static unsigned char *source, *target;

static bool all_canary(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != CANARY)
            return false;
    return true;
}

/* Copies, and looks that exactly the span was written. */
static bool copies(size_t to, size_t from, size_t bytes) {
    memset(target, CANARY, ROOM_BYTES);
    gw_copy(target + to, source + from, bytes);
    return all_canary(target, to) && memcmp(target + to, source + from, bytes) == 0 &&
           all_canary(target + to + bytes, ROOM_BYTES - to - bytes);
}

static void small_spans_are_copied(void) {
    for (size_t bytes = 0; bytes <= 200; bytes += 25)
        CU_ASSERT(copies(bytes % 7, bytes % 5, bytes));
}

static void large_spans_are_copied_at_any_alignment(void) {
    static const size_t offsets[] = {0, 1, 16, 63, 64, 65};
    for (size_t i = 0; i < 6; i++) {
        for (size_t extra = 0; extra <= 130; extra += 65) {
            CU_ASSERT(copies(offsets[i], 0, LARGE_BYTES - 1 + extra));
            CU_ASSERT(copies(offsets[5 - i], offsets[i], LARGE_BYTES + extra));
        }
    }
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"small spans are copied", small_spans_are_copied},
        {"large spans are copied at any alignment", large_spans_are_copied_at_any_alignment},
        CU_TEST_INFO_NULL,
    };
    static CU_SuiteInfo suites[] = {{"copy", NULL, NULL, NULL, NULL, tests}, CU_SUITE_INFO_NULL};

    source = malloc(ROOM_BYTES);
    target = malloc(ROOM_BYTES);
    if (source == NULL || target == NULL || CU_initialize_registry() != CUE_SUCCESS ||
        CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    for (size_t i = 0; i < ROOM_BYTES; i++)
        source[i] = (unsigned char)(i * 7 + (i >> 9));
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    int failed = CU_get_number_of_failures() != 0;
    CU_cleanup_registry();
    free(source);
    free(target);
    return failed;
}
