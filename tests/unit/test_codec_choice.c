/* test_codec_choice.c - what a choice of codec may say, and which codec a size takes on which link */
#include "codec_choice.h"

#include <string.h>

#include "cunit_main.h"

enum { CHUNK_BYTES = 1 << 20 };

static gwd_codec_policy_t measured(const char *text, double bytes_per_s) {
    gwd_codec_policy_t policy = {.is_measured = true};
    char why[256];

    CU_ASSERT_FATAL(gwd_choice_parse(text, &policy.choice, why, sizeof(why)));
    policy.figures.bytes_per_s = (uint64_t)bytes_per_s;
    policy.figures.latency_ns = 30000;
    for (int codec = GW_CODEC_FP16; codec < GW_CODECS; codec++)
        policy.figures.coding[codec] = UINT64_C(2000000000);
    return policy;
}

static gw_codec_t codec_of(const char *text, double bytes_per_s, uint64_t bytes) {
    gwd_codec_policy_t policy = measured(text, bytes_per_s);
    gw_codec_t table[GWD_SIZE_CLASSES];

    gwd_codec_table(&policy, 2, CHUNK_BYTES, table);
    return table[gwd_size_class(bytes)];
}

/* ---- words -------------------------------------------------------------------------------------- */

static void choices_are_read_and_written(void) {
    static const char *const pairs[][2] = {{"none", "none"},
                                           {"int4", "int4"},
                                           {"auto:bf16,int8", "auto:none,bf16,int8"},
                                           {"auto:int8,none,bf16,int8", "auto:none,bf16,int8"},
                                           {"auto:fp16,bf16,fp8,int8,int4", "auto:none,fp16,bf16,fp8,int8,int4"}};
    char text[GWD_CHOICE_BYTES], why[256];
    gwd_codec_choice_t choice;

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        CU_ASSERT_TRUE_FATAL(gwd_choice_parse(pairs[i][0], &choice, why, sizeof(why)));
        gwd_choice_format(&choice, text);
        CU_ASSERT_STRING_EQUAL(text, pairs[i][1]);
        CU_ASSERT_TRUE(gwd_choice_parse(text, &choice, why, sizeof(why)));
    }
}

static void what_is_no_choice_is_refused(void) {
    static const char *const bad[] = {
        "",           "int7",           "auto",
        "auto:",      "auto:int8,",     "auto:,int8",
        "INT8",       "default",        "bf16,int8",
        "auto:int99", "auto:default",   " int8",
        "none ",      "auto:int8;bf16", "auto:none,fp16,bf16,fp8,int8,int4,aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    gwd_codec_choice_t choice = {.permitted = 77};
    char why[256];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        why[0] = 0;
        CU_ASSERT_FALSE(gwd_choice_parse(bad[i], &choice, why, sizeof(why)));
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "auto:bf16,int8"));
    }
    CU_ASSERT_EQUAL(choice.permitted, 77);
}

static void equal_choices_say_the_same(void) {
    gwd_codec_choice_t a, b;
    char why[256];

    CU_ASSERT_TRUE(gwd_choice_parse("auto:int8,bf16", &a, why, sizeof(why)));
    CU_ASSERT_TRUE(gwd_choice_parse("auto:bf16,int8", &b, why, sizeof(why)));
    b.is_configured = true;
    CU_ASSERT_TRUE(gwd_choice_equal(&a, &b));
    b.is_stochastic = true;
    CU_ASSERT_FALSE(gwd_choice_equal(&a, &b));
    CU_ASSERT_TRUE(gwd_choice_parse("auto:bf16", &b, why, sizeof(why)));
    CU_ASSERT_FALSE(gwd_choice_equal(&a, &b));
    CU_ASSERT_TRUE(gwd_choice_parse("none", &a, why, sizeof(why)));
    CU_ASSERT_TRUE(gwd_choice_parse("auto:none", &b, why, sizeof(why)));
    CU_ASSERT_FALSE(gwd_choice_equal(&a, &b)); /* one measures */
}

/* ---- sizes -------------------------------------------------------------------------------------- */

static void every_size_has_a_class(void) {
    CU_ASSERT_EQUAL(gwd_size_class(0), 0);
    CU_ASSERT_EQUAL(gwd_size_class(4096), 0);
    CU_ASSERT_EQUAL(gwd_size_class(4097), 1);
    CU_ASSERT_EQUAL(gwd_size_class(UINT64_MAX), GWD_SIZE_CLASSES - 1);
    CU_ASSERT_EQUAL(gwd_size_class_max(GWD_SIZE_CLASSES - 2), UINT64_C(1) << 30);
    for (uint32_t i = 0; i + 1 < GWD_SIZE_CLASSES; i++) {
        CU_ASSERT_EQUAL(gwd_size_class(gwd_size_class_max(i)), i);
        CU_ASSERT_EQUAL(gwd_size_class(gwd_size_class_max(i) + 1), i + 1);
    }
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static void a_fast_link_takes_none_and_a_slow_one_the_smallest(void) {
    CU_ASSERT_EQUAL(codec_of("auto:bf16,int8", 10e9, 25 << 20), GW_CODEC_NONE);
    CU_ASSERT_EQUAL(codec_of("auto:bf16,int8", 117e6, 25 << 20), GW_CODEC_INT8);
    CU_ASSERT_EQUAL(codec_of("auto:bf16", 117e6, 25 << 20), GW_CODEC_BF16);
    CU_ASSERT_EQUAL(codec_of("auto:bf16,fp8,int8,int4", 117e6, 25 << 20), GW_CODEC_INT4);
    CU_ASSERT_EQUAL(codec_of("auto:none", 117e6, 25 << 20), GW_CODEC_NONE); /* the others are not permitted */
    CU_ASSERT_EQUAL(codec_of("auto:bf16,int8", 300e6, 25 << 20), GW_CODEC_INT8);
    CU_ASSERT_EQUAL(codec_of("auto:bf16,int8", 300e6, 1000), GW_CODEC_NONE); /* latency is most of it */
    CU_ASSERT_EQUAL(codec_of("int8", 10e9, 1000), GW_CODEC_INT8);            /* not asked to choose */
}

/* The negative control: with slow cores, or without figures, nothing is gained. */
static void slow_cores_take_none(void) {
    gwd_codec_policy_t policy = measured("auto:bf16,int8", 117e6);
    gw_codec_t table[GWD_SIZE_CLASSES];

    for (int codec = GW_CODEC_FP16; codec < GW_CODECS; codec++)
        policy.figures.coding[codec] = 20000000;
    gwd_codec_table(&policy, 2, CHUNK_BYTES, table);
    CU_ASSERT_EQUAL(table[gwd_size_class(25 << 20)], GW_CODEC_NONE);
    policy = measured("auto:bf16,int8", 117e6);
    policy.is_measured = false;
    gwd_codec_table(&policy, 2, CHUNK_BYTES, table);
    CU_ASSERT_EQUAL(table[gwd_size_class(25 << 20)], GW_CODEC_NONE);
    policy = measured("auto:bf16,int8", 117e6);
    policy.figures.coding[GW_CODEC_INT8] = 0;
    gwd_codec_table(&policy, 2, CHUNK_BYTES, table);
    CU_ASSERT_EQUAL(table[gwd_size_class(25 << 20)], GW_CODEC_BF16);
}

/* Bytes an element, as the plan may only get fewer. */
static uint64_t size_of(gw_codec_t codec) {
    return gw_codec_bytes(codec, GW_CODEC_BLOCK);
}

static void a_slower_link_never_takes_a_finer_codec(void) {
    static const char all[] = "auto:fp16,bf16,fp8,int8,int4";

    for (uint32_t n_nodes = 2; n_nodes <= 64; n_nodes *= 2)
        for (double latency = 1e3; latency < 1e6; latency *= 10) {
            uint64_t before[GWD_SIZE_CLASSES];
            unsigned wrong = 0, changes = 0;

            memset(before, 0xff, sizeof(before));
            for (double rate = 100e9; rate > 1e6; rate /= 1.3) {
                gwd_codec_policy_t policy = measured(all, rate);
                gw_codec_t table[GWD_SIZE_CLASSES];

                policy.figures.latency_ns = (uint64_t)latency;
                gwd_codec_table(&policy, n_nodes, CHUNK_BYTES, table);
                for (size_t i = 0; i < GWD_SIZE_CLASSES; i++) {
                    wrong += size_of(table[i]) > before[i];
                    changes += size_of(table[i]) < before[i];
                    before[i] = size_of(table[i]);
                }
            }
            CU_ASSERT_EQUAL(wrong, 0);
            CU_ASSERT(changes > 2 * GWD_SIZE_CLASSES); /* none at first, and others later */
        }
}

static void more_bytes_take_longer(void) {
    gwd_codec_policy_t policy = measured("auto:int8", 117e6);

    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++) {
        double before = 0;

        for (uint64_t bytes = 1 << 12; bytes < UINT64_C(1) << 34; bytes *= 2) {
            double s = gwd_codec_predict_s(&policy.figures, (gw_codec_t)codec, bytes, 3, CHUNK_BYTES);

            CU_ASSERT(s > before);
            before = s;
        }
    }
    /* 25 MiB between 2 nodes at 125 MB/s: each sends 25 MiB. */
    policy.figures.bytes_per_s = 125000000;
    policy.figures.latency_ns = 0;
    CU_ASSERT_DOUBLE_EQUAL(gwd_codec_predict_s(&policy.figures, GW_CODEC_NONE, 25 << 20, 2, CHUNK_BYTES),
                           (25 << 20) / 125e6, 1e-9);
}

static void the_slowest_node_counts(void) {
    gwd_codec_figures_t one = measured("none", 100).figures, other = measured("none", 200).figures;

    one.latency_ns = 5;
    other.latency_ns = 7;
    other.coding[GW_CODEC_INT8] = 3;
    gwd_figures_join(&other, &one);
    CU_ASSERT_EQUAL(other.bytes_per_s, 100);
    CU_ASSERT_EQUAL(other.latency_ns, 7);
    CU_ASSERT_EQUAL(other.coding[GW_CODEC_INT8], 3);
    CU_ASSERT_EQUAL(other.coding[GW_CODEC_INT4], UINT64_C(2000000000));
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"choices are read and written", choices_are_read_and_written},
        {"what is no choice is refused", what_is_no_choice_is_refused},
        {"equal choices say the same", equal_choices_say_the_same},
        {"every size has a class", every_size_has_a_class},
        {"a fast link takes none, and a slow one the smallest", a_fast_link_takes_none_and_a_slow_one_the_smallest},
        {"slow cores take none", slow_cores_take_none},
        {"a slower link never takes a finer codec", a_slower_link_never_takes_a_finer_codec},
        {"more bytes take longer", more_bytes_take_longer},
        {"the slowest node counts", the_slowest_node_counts},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("codec_choice", tests);
}
