/* test_quota.c - limits hold for each user alone, are named, and come back */
#include "quota.h"

#include <string.h>

#include "cunit_main.h"

static void a_limit_holds_and_is_named(void) {
    gwd_config_t config;
    gwd_quota_t quota = {.config = &config};
    gwd_user_t *user = gwd_quota_get(&quota, 1000);
    char text[256] = "";

    gwd_config_set_defaults(&config);
    config.limits_buffer_bytes_per_uid = 100;
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUFFER_BYTES, 60, text, sizeof(text)), GW_OK);
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUFFER_BYTES, 41, text, sizeof(text)), GW_ERR_QUOTA);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "limits.buffer_bytes_per_uid"));
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUFFER_BYTES, UINT64_MAX, text, sizeof(text)),
                    GW_ERR_QUOTA);
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUFFER_BYTES, 40, text, sizeof(text)), GW_OK);
    gwd_quota_refund(user, GWD_QUOTA_BUFFER_BYTES, 60);
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUFFER_BYTES, 60, text, sizeof(text)), GW_OK);
    gwd_quota_put(&quota, user);
}

static void users_do_not_share(void) {
    gwd_config_t config;
    gwd_quota_t quota = {.config = &config};
    gwd_user_t *one = gwd_quota_get(&quota, 1), *two = gwd_quota_get(&quota, 2);
    char text[256];

    gwd_config_set_defaults(&config);
    config.limits_groups_per_uid = 1;
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, one, GWD_QUOTA_GROUPS, 1, text, sizeof(text)), GW_OK);
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, one, GWD_QUOTA_GROUPS, 1, text, sizeof(text)), GW_ERR_QUOTA);
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, two, GWD_QUOTA_GROUPS, 1, text, sizeof(text)), GW_OK);
    CU_ASSERT_PTR_EQUAL(gwd_quota_get(&quota, 1), one);
    gwd_quota_put(&quota, one);
    gwd_quota_put(&quota, one);
    gwd_quota_put(&quota, two);
    CU_ASSERT_PTR_NULL(quota.users);
}

static void a_limit_that_sinks_applies_to_what_is_new(void) {
    gwd_config_t config;
    gwd_quota_t quota = {.config = &config};
    gwd_user_t *user = gwd_quota_get(&quota, 1);
    char text[256];

    gwd_config_set_defaults(&config);
    config.limits_buckets_per_uid = 10;
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUCKETS, 10, text, sizeof(text)), GW_OK);
    config.limits_buckets_per_uid = 5;
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUCKETS, 1, text, sizeof(text)), GW_ERR_QUOTA);
    gwd_quota_refund(user, GWD_QUOTA_BUCKETS, 6);
    CU_ASSERT_EQUAL(gwd_quota_charge(&quota, user, GWD_QUOTA_BUCKETS, 1, text, sizeof(text)), GW_OK);
    gwd_quota_put(&quota, user);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a limit holds and is named", a_limit_holds_and_is_named},
        {"users do not share", users_do_not_share},
        {"a limit that sinks applies to what is new", a_limit_that_sinks_applies_to_what_is_new},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("quota", tests);
}
