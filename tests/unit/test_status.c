/* test_status.c - names, sentences and sizes of the public tables */
#include "status.h"

#include "cunit_main.h"

#include <stdbool.h>
#include <string.h>

#include "gradwire.h"

typedef struct row {
    gw_status_t status;
    int code;
    const char *name, *lost, *text, *remedy;
} row_t;

static const row_t rows[] = {
#define GW_STATUS(name, code, lost, text, remedy) {GW_##name, code, "GW_" #name, #lost, text, remedy},
#include <gradwire/status.def>
#undef GW_STATUS
};

enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

static void every_status_has_its_name_and_sentence(void) {
    for (int i = 0; i < ROW_COUNT; i++) {
        const row_t *row = &rows[i];
        CU_ASSERT_EQUAL((int)row->status, row->code);
        CU_ASSERT_STRING_EQUAL(gw_status_name(row->status), row->name);
        CU_ASSERT_STRING_EQUAL(gw_status_text(row->status), row->text);
        CU_ASSERT_STRING_EQUAL(gw_status_remedy(row->status), row->remedy);
        CU_ASSERT_PTR_NOT_NULL(strstr(gw_status_string(row->status), row->text));
        CU_ASSERT_PTR_NOT_NULL(strstr(gw_status_string(row->status), row->remedy));
    }
    CU_ASSERT_STRING_EQUAL(gw_status_string(GW_OK), "success");
    CU_ASSERT_STRING_EQUAL(gw_status_string(GW_ERR_FORKED),
                           "this process was forked after gw_connect; connect again in the child, or fork first");
}

static void a_number_from_elsewhere_is_an_error(void) {
    for (int i = 0; i < ROW_COUNT; i++)
        CU_ASSERT_EQUAL(gw_status_failure((uint32_t)rows[i].code, GW_ERR_ABORTED),
                        rows[i].status > GW_IN_PROGRESS ? rows[i].status : GW_ERR_ABORTED);
    CU_ASSERT_EQUAL(gw_status_failure(9, GW_ERR_ABORTED), GW_ERR_ABORTED);
    CU_ASSERT_EQUAL(gw_status_failure(UINT32_MAX, GW_ERR_BOOTSTRAP), GW_ERR_BOOTSTRAP);
}

static void every_error_says_what_to_do(void) {
    for (int i = 0; i < ROW_COUNT; i++) {
        CU_ASSERT(rows[i].text[0] != '\0');
        CU_ASSERT(rows[i].status == GW_OK || rows[i].remedy[0] != '\0');
    }
}

/* Codes travel on the wire, so the groups that tell what is lost keep their ranges. */
static void codes_rise_and_stay_in_their_group(void) {
    static const struct {
        int first, last;
        const char *lost;
    } groups[] = {{0, 9, "nothing"}, {10, 29, "request"},    {30, 39, "buffer"}, {40, 49, "bucket"},
                  {50, 69, "group"}, {70, 89, "connection"}, {90, 99, "daemon"}};
    for (int i = 0; i < ROW_COUNT; i++) {
        bool found = rows[i].status == GW_ERR_TIMEOUT; /* a request that cost nothing */
        for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
            found = found || (rows[i].code >= groups[g].first && rows[i].code <= groups[g].last &&
                              strcmp(rows[i].lost, groups[g].lost) == 0);
        }
        CU_ASSERT(found);
        CU_ASSERT(i == 0 || rows[i].code > rows[i - 1].code);
    }
}

static void codes_of_the_first_release_are_kept(void) {
    CU_ASSERT_EQUAL((int)GW_OK, 0);
    CU_ASSERT_EQUAL((int)GW_IN_PROGRESS, 1);
    CU_ASSERT_EQUAL((int)GW_ERR_INVALID_ARGUMENT, 10);
    CU_ASSERT_EQUAL((int)GW_ERR_BUFFER_SEAL, 30);
    CU_ASSERT_EQUAL((int)GW_ERR_MISMATCH, 40);
    CU_ASSERT_EQUAL((int)GW_ERR_RANK_DIED, 50);
    CU_ASSERT_EQUAL((int)GW_ERR_DAEMON_GONE, 71);
    CU_ASSERT_EQUAL((int)GW_ERR_INTERNAL, 90);
}

static void unknown_status_is_named_so(void) {
    gw_status_t unknown = (gw_status_t)63; /* within the enumeration's bits, so a defined value */
    CU_ASSERT_STRING_EQUAL(gw_status_name(unknown), "GW_ERR_UNKNOWN");
    CU_ASSERT_PTR_NOT_NULL(strstr(gw_status_string(unknown), "unknown status"));
    CU_ASSERT_STRING_EQUAL(gw_status_text(unknown), "unknown status");
    CU_ASSERT(gw_status_remedy(unknown)[0] != '\0');
}

static void types_have_their_sizes(void) {
    CU_ASSERT_EQUAL(gw_type_bytes(GW_F32), 4);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_F64), 8);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_F16), 2);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_BF16), 2);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_I8), 1);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_U8), 1);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_I32), 4);
    CU_ASSERT_EQUAL(gw_type_bytes(GW_I64), 8);
    CU_ASSERT_EQUAL(gw_type_bytes((gw_type_t)0), 0);
    CU_ASSERT_EQUAL(gw_type_bytes((gw_type_t)9), 0);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"every status has its name and sentence", every_status_has_its_name_and_sentence},
        {"a number from elsewhere is an error", a_number_from_elsewhere_is_an_error},
        {"every error says what to do", every_error_says_what_to_do},
        {"codes rise and stay in their group", codes_rise_and_stay_in_their_group},
        {"codes of the first release are kept", codes_of_the_first_release_are_kept},
        {"an unknown status is named so", unknown_status_is_named_so},
        {"types have their sizes", types_have_their_sizes},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("status", tests);
}
