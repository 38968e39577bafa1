/* test_rails.c - the addresses of a node's wires in one */
#include <stdlib.h>
#include <string.h>

#include "cunit_main.h"
#include "rails.h"

static void what_is_packed_is_found(void) {
    static const char *const addresses[] = {"one", "a longer one", "x", "the last"};
    void *packed = NULL;
    size_t bytes = 0, found_bytes;

    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT(gwd_rails_pack(&packed, &bytes, addresses[i], strlen(addresses[i])));
        CU_ASSERT_EQUAL(gwd_rails_count(packed, bytes), i + 1);
    }
    for (uint32_t i = 0; i < 4; i++) {
        const void *found = gwd_rails_address(packed, i, &found_bytes);

        CU_ASSERT_EQUAL(found_bytes, strlen(addresses[i]));
        CU_ASSERT(memcmp(found, addresses[i], found_bytes) == 0);
    }
    CU_ASSERT(gwd_rails_pack(&packed, &bytes, "one too many", 12));
    CU_ASSERT_EQUAL(gwd_rails_count(packed, bytes), 0);
    free(packed);
}

static void what_is_cut_or_empty_is_refused(void) {
    static const uint8_t good[] = {2, 0, 'a', 'b', 1, 0, 'c'}, empty[] = {0, 0, 1, 0, 'c'}, huge[] = {255, 255, 'a'};
    void *packed = NULL;
    size_t bytes = 0;

    CU_ASSERT_EQUAL(gwd_rails_count(good, sizeof(good)), 2);
    for (size_t n = 0; n < sizeof(good); n++)
        CU_ASSERT_EQUAL(gwd_rails_count(good, n), n == 4 ? 1 : 0);
    CU_ASSERT_EQUAL(gwd_rails_count(empty, sizeof(empty)), 0);
    CU_ASSERT_EQUAL(gwd_rails_count(huge, sizeof(huge)), 0);
    CU_ASSERT_FALSE(gwd_rails_pack(&packed, &bytes, "", 0));
    CU_ASSERT_FALSE(gwd_rails_pack(&packed, &bytes, good, 65536));
    CU_ASSERT_PTR_NULL(packed);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"what is packed is found", what_is_packed_is_found},
        {"what is cut or empty is refused", what_is_cut_or_empty_is_refused},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("rails", tests);
}
