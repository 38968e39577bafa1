/* test_run.c - programs that gwctl runs for an answer: what comes back, and that each run ends */
#include "client/ctl/run.h"
#include "cunit_main.h"

#include <string.h>
#include <time.h>

static char output[64];
static char why[128];

static int run(const char *script, const char *input, int limit_s) {
    const char *const argv[] = {"sh", "-c", script, NULL};
    memset(output, 'x', sizeof(output));
    why[0] = '\0';
    return gwctl_run("sh", argv, input, limit_s, output, sizeof(output), why, sizeof(why));
}

static void what_it_prints_comes_back(void) {
    CU_ASSERT_EQUAL(run("read a; read b; echo $b; echo $a; exit 3", "one\ntwo\n", 10), 3);
    CU_ASSERT_STRING_EQUAL(output, "two\none\n");
    CU_ASSERT_EQUAL(run("cat", "", 10), 0);
    CU_ASSERT_STRING_EQUAL(output, "");
}

static void what_does_not_fit_is_dropped(void) {
    CU_ASSERT_EQUAL(run("head -c 200000 /dev/zero | tr '\\0' y", "", 10), 0);
    CU_ASSERT_EQUAL(strlen(output), sizeof(output) - 1);
    CU_ASSERT_EQUAL(strspn(output, "y"), sizeof(output) - 1);
}

static void one_that_does_not_start(void) {
    const char *const argv[] = {"no-such-program", NULL};
    CU_ASSERT_EQUAL(gwctl_run(argv[0], argv, "", 10, output, sizeof(output), why, sizeof(why)), -1);
    CU_ASSERT_PTR_NOT_NULL(strstr(why, "no-such-program"));
    CU_ASSERT_STRING_EQUAL(output, "");
}

static void one_that_is_killed(void) {
    CU_ASSERT_EQUAL(run("echo before; kill -SEGV $$", "", 10), -1);
    CU_ASSERT_PTR_NOT_NULL(strstr(why, "signal 11"));
    CU_ASSERT_STRING_EQUAL(output, "before\n");
    CU_ASSERT_EQUAL(run("kill -ALRM $$", "", 10), -1);
    CU_ASSERT_PTR_NOT_NULL(strstr(why, "did not end in time"));
}

static void one_that_hangs(void) {
    time_t begin = time(NULL);
    CU_ASSERT_EQUAL(run("echo before; exec sleep 60", "", 1), -1);
    CU_ASSERT(time(NULL) - begin < 30);
    CU_ASSERT_PTR_NOT_NULL(strstr(why, "within 1 s"));
    CU_ASSERT_STRING_EQUAL(output, "before\n");
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"what it prints comes back", what_it_prints_comes_back},
        {"what does not fit is dropped", what_does_not_fit_is_dropped},
        {"one that does not start", one_that_does_not_start},
        {"one that is killed", one_that_is_killed},
        {"one that hangs", one_that_hangs},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("run", tests);
}
