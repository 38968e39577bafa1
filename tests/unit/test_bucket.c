/* test_bucket.c - what a bucket may be: numbers, spans, in place, layouts, and when two are the same */
#include "bucket.h"

#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "cunit_main.h"

static unsigned char memory[8192];
static gwd_buffer_t buffer = {.bytes = sizeof(memory), .memory = {memory, sizeof(memory)}};

/* rank 1 of 4: 100 floats in place */
static gwd_bucket_desc_t base(void) {
    return (gwd_bucket_desc_t){.name = "b",
                               .collective = GW_ALL_REDUCE,
                               .type = GW_F32,
                               .redop = GW_SUM,
                               .count = 100,
                               .send_buffer = &buffer,
                               .recv_buffer = &buffer};
}

static gw_status_t try_bucket(const gwd_bucket_desc_t *desc, char *text, size_t text_bytes) {
    gwd_bucket_t *bucket;
    gw_status_t status = gwd_bucket_new(desc, 1, 4, &bucket, text, text_bytes);

    if (status == GW_OK) {
        bucket->desc.matrices = NULL; /* the test's own */
        gwd_bucket_free(bucket);
    }
    return status;
}

static void refuse(const gwd_bucket_desc_t *desc, gw_status_t status, const char *word) {
    char text[512] = "";

    CU_ASSERT_EQUAL(try_bucket(desc, text, sizeof(text)), status);
    if (!strstr(text, word))
        printf("\n  no '%s' in: %s\n", word, text);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, word));
}

static void allow(const gwd_bucket_desc_t *desc) {
    char text[512] = "";

    CU_ASSERT_EQUAL(try_bucket(desc, text, sizeof(text)), GW_OK);
}

static void numbers_out_of_range_are_refused(void) {
    gwd_bucket_desc_t d = base();

    allow(&d);
    d.collective = (gw_collective_t)0;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "collective 0");
    d = base();
    d.type = (gw_type_t)99;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "type 99");
    d = base();
    d.redop = (gw_redop_t)6;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "reduce operation 6");
    d = base();
    d.collective = GW_BROADCAST;
    d.root = 4;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "root 4");
    d = base();
    d.priority = 128;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "priority 128");
    d = base();
    d.collective = GW_BARRIER;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "count of a barrier");
}

static void spans_must_lie_in_their_buffer(void) {
    gwd_bucket_desc_t d = base();

    d.count = 2048;
    allow(&d);
    d.count = 2049;
    refuse(&d, GW_ERR_SPAN, "leaves its buffer");
    d = base();
    d.send_offset = d.recv_offset = sizeof(memory) - 396;
    refuse(&d, GW_ERR_SPAN, "leaves its buffer");
    d.send_offset = d.recv_offset = UINT64_MAX - 3;
    refuse(&d, GW_ERR_SPAN, "leaves its buffer");
    d = base();
    d.count = UINT64_MAX / 4;
    refuse(&d, GW_ERR_SPAN, "leaves its buffer");
    d = base();
    d.send_offset = d.recv_offset = 2;
    refuse(&d, GW_ERR_SPAN, "not a multiple");
    d = base();
    d.send_buffer = NULL;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "no send buffer");
}

static void memory_that_is_not_used_need_not_be_there(void) {
    gwd_bucket_desc_t d = base();

    d.count = 0;
    d.send_buffer = d.recv_buffer = NULL;
    allow(&d);
    d = base();
    d.collective = GW_BROADCAST; /* rank 1 is not the root */
    d.send_buffer = NULL;
    allow(&d);
    d = base();
    d.collective = GW_REDUCE;
    d.recv_buffer = NULL;
    allow(&d);
    d.root = 1;
    refuse(&d, GW_ERR_INVALID_ARGUMENT, "no recv buffer");
}

static void only_in_place_may_overlap(void) {
    gwd_bucket_desc_t d = base();

    d.recv_offset = 4;
    refuse(&d, GW_ERR_SPAN, "overlap");
    d.recv_offset = 400; /* side by side */
    allow(&d);
    d = base();
    d.collective = GW_REDUCE_SCATTER;
    refuse(&d, GW_ERR_SPAN, "overlap"); /* rank 1's part is the second */
    d.recv_offset = 400;
    allow(&d);
    d = base();
    d.collective = GW_ALL_GATHER;
    refuse(&d, GW_ERR_SPAN, "overlap");
    d.send_offset = 400;
    allow(&d);
}

static void layouts_must_fit(void) {
    gw_matrix_t matrices[2] = {{0, 5, 10, 10}, {50, 5, 8, 10}};
    gwd_bucket_desc_t d = base();

    d.matrices = matrices;
    d.n_matrices = 2;
    allow(&d);
    matrices[1].columns = 11; /* wider than its stride */
    refuse(&d, GW_ERR_SPAN, "matrix 1");
    matrices[1] = (gw_matrix_t){49, 5, 8, 10}; /* overlaps the first */
    refuse(&d, GW_ERR_SPAN, "matrix 1");
    matrices[1] = (gw_matrix_t){50, 6, 10, 10}; /* ends behind the bucket */
    refuse(&d, GW_ERR_SPAN, "matrix 1");
    matrices[1] = (gw_matrix_t){50, UINT64_MAX, 8, 10};
    refuse(&d, GW_ERR_SPAN, "matrix 1");
    matrices[1] = (gw_matrix_t){50, 0, 8, 10}; /* empty ones are allowed */
    allow(&d);
}

static gwd_bucket_t *make(const gwd_bucket_desc_t *desc) {
    char text[512];
    gwd_bucket_t *bucket = NULL;

    CU_ASSERT_EQUAL_FATAL(gwd_bucket_new(desc, 0, 4, &bucket, text, sizeof(text)), GW_OK);
    return bucket;
}

static bool same(const gwd_bucket_desc_t *x, const gwd_bucket_desc_t *y) {
    gwd_bucket_t *a = make(x), *b = make(y);
    bool result = gwd_bucket_matches(a, b);

    a->desc.matrices = b->desc.matrices = NULL;
    gwd_bucket_free(a);
    gwd_bucket_free(b);
    return result;
}

static void what_must_agree_is_compared(void) {
    gw_matrix_t one = {0, 10, 10, 10}, other = {0, 5, 20, 20};
    gwd_bucket_desc_t a = base(), b = base();

    CU_ASSERT_TRUE(same(&a, &b));
    b.priority = 5; /* may differ, and so may the addresses */
    b.send_offset = b.recv_offset = 800;
    CU_ASSERT_TRUE(same(&a, &b));
    b = base();
    b.count = 99;
    CU_ASSERT_FALSE(same(&a, &b));
    b = base();
    b.type = GW_I32;
    CU_ASSERT_FALSE(same(&a, &b));
    b = base();
    b.redop = GW_AVG;
    CU_ASSERT_FALSE(same(&a, &b));
    b = base();
    strcpy(b.name, "c");
    CU_ASSERT_FALSE(same(&a, &b));
    b = base();
    a.matrices = &one;
    a.n_matrices = 1;
    CU_ASSERT_FALSE(same(&a, &b));
    b.matrices = &other;
    b.n_matrices = 1;
    CU_ASSERT_FALSE(same(&a, &b));
    b.matrices = &one;
    CU_ASSERT_TRUE(same(&a, &b));
}

static void a_redop_that_is_not_used_need_not_agree(void) {
    gwd_bucket_desc_t a = base(), b = base();

    a.collective = b.collective = GW_BROADCAST;
    b.redop = GW_MAX;
    CU_ASSERT_TRUE(same(&a, &b));
    b.root = 1;
    CU_ASSERT_FALSE(same(&a, &b));
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"numbers out of range are refused", numbers_out_of_range_are_refused},
        {"spans must lie in their buffer", spans_must_lie_in_their_buffer},
        {"memory that is not used need not be there", memory_that_is_not_used_need_not_be_there},
        {"only in place may overlap", only_in_place_may_overlap},
        {"layouts must fit", layouts_must_fit},
        {"what must agree is compared", what_must_agree_is_compared},
        {"a redop that is not used need not agree", a_redop_that_is_not_used_need_not_agree},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("bucket", tests);
}
