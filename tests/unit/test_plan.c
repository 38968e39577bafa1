/* test_plan.c - which row a size takes, and when two plans are one */
#include "plan.h"

#include "cunit_main.h"

static void small_buckets_are_the_lanes(void) {
    gwd_plan_t plan;

    gwd_plan_make(&plan, 4, &(gwd_plan_config_t){65536, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, false});
    CU_ASSERT_EQUAL(gwd_plan_row(&plan, 0)->chunk_bytes, 0);
    CU_ASSERT_EQUAL(gwd_plan_row(&plan, 16384)->chunk_bytes, 0); /* 4 of them are 64 KiB */
    CU_ASSERT_EQUAL(gwd_plan_row(&plan, 16385)->chunk_bytes, 1 << 18);
    CU_ASSERT_EQUAL(gwd_plan_row(&plan, UINT64_MAX)->chunk_bytes, 1 << 18);
}

static void the_hash_tells_plans_apart(void) {
    gwd_plan_t one, same, ranks, chunks, small;

    gwd_plan_make(&one, 4, &(gwd_plan_config_t){65536, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, false});
    gwd_plan_make(&same, 4, &(gwd_plan_config_t){65536, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, false});
    gwd_plan_make(&ranks, 5, &(gwd_plan_config_t){65536, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, false});
    gwd_plan_make(&chunks, 4, &(gwd_plan_config_t){65536, 1 << 19, 1 << 20, 8, 1 << 20, 4, 4, false});
    gwd_plan_make(&small, 4, &(gwd_plan_config_t){32768, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, false});
    CU_ASSERT_EQUAL(one.hash, same.hash);
    CU_ASSERT_NOT_EQUAL(one.hash, ranks.hash);
    CU_ASSERT_NOT_EQUAL(one.hash, chunks.hash);
    CU_ASSERT_NOT_EQUAL(one.hash, small.hash);
}

static void the_window_is_shared(void) {
    CU_ASSERT_EQUAL(gwd_plan_wire_window(16, 2, 1), 16);
    CU_ASSERT_EQUAL(gwd_plan_wire_window(16, 2, 4), 4);
    CU_ASSERT_EQUAL(gwd_plan_wire_window(16, 4, 1), 8);
    CU_ASSERT_EQUAL(gwd_plan_wire_window(16, 8, 1), 4);
    CU_ASSERT_EQUAL(gwd_plan_wire_window(1, 2, 4), 1);
    CU_ASSERT_EQUAL(gwd_plan_wire_window_raw(16, 2, 1), 16);
    CU_ASSERT_EQUAL(gwd_plan_wire_window_raw(16, 4, 1), 5);
    CU_ASSERT_EQUAL(gwd_plan_wire_window_raw(16, 2, 2), 4);
    CU_ASSERT_EQUAL(gwd_plan_wire_window_raw(16, 4, 4), 2);
}

static void the_hash_tells_codecs_apart(void) {
    gw_codec_t exact[GWD_SIZE_CLASSES], coarse[GWD_SIZE_CLASSES];
    gwd_plan_t plans[4];

    for (size_t i = 0; i < GWD_SIZE_CLASSES; i++)
        exact[i] = coarse[i] = GW_CODEC_NONE;
    coarse[GWD_SIZE_CLASSES - 1] = GW_CODEC_INT8;
    for (size_t i = 0; i < 4; i++) {
        gwd_plan_make(&plans[i], 4, &(gwd_plan_config_t){65536, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, i == 3});
        CU_ASSERT_FALSE(plans[i].is_complete);
        gwd_plan_set_codecs(&plans[i], i == 2 ? coarse : exact);
        CU_ASSERT_TRUE(plans[i].is_complete);
    }
    CU_ASSERT_EQUAL(plans[0].hash, plans[1].hash);
    CU_ASSERT_NOT_EQUAL(plans[0].hash, plans[2].hash);
    CU_ASSERT_NOT_EQUAL(plans[0].hash, plans[3].hash);
    CU_ASSERT_EQUAL(plans[2].codecs[GWD_SIZE_CLASSES - 1], GW_CODEC_INT8);
}

static void a_devices_bucket_is_cut_by_its_size(void) {
    gwd_plan_t plan;

    gwd_plan_make(&plan, 2, &(gwd_plan_config_t){65536, 1 << 18, 1 << 20, 8, 1 << 20, 4, 4, false});
    CU_ASSERT_EQUAL(gwd_plan_device_chunk(&plan, 1), 256 << 10); /* smaller ones would not be faster */
    CU_ASSERT_EQUAL(gwd_plan_device_chunk(&plan, 4 << 20), 512 << 10);
    CU_ASSERT_EQUAL(gwd_plan_device_chunk(&plan, UINT64_MAX), 1 << 20);
    gwd_plan_make(&plan, 2, &(gwd_plan_config_t){65536, 1 << 18, 65536, 8, 1 << 20, 4, 4, false});
    CU_ASSERT_EQUAL(gwd_plan_device_chunk(&plan, 1 << 20), 65536); /* a block holds no more */
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"small buckets are the lane's", small_buckets_are_the_lanes},
        {"the hash tells plans apart", the_hash_tells_plans_apart},
        {"the hash tells codecs apart", the_hash_tells_codecs_apart},
        {"the window is shared", the_window_is_shared},
        {"a device's bucket is cut by its size", a_devices_bucket_is_cut_by_its_size},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("plan", tests);
}
