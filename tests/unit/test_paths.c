/* test_paths.c - which connection a message takes */
#include "cunit_main.h"
#include "lane_paths.h"

static void without_answers_all_are_used_by_turns(void) {
    gwd_paths_t paths = {0};
    uint32_t used[4] = {0};

    for (int i = 0; i < 40; i++)
        used[gwd_paths_next(&paths, 4).path]++;
    for (int i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(used[i], 10);
}

/* Path 0 answers at once, the others every fourth time. */
static void a_slow_path_gets_less(void) {
    gwd_paths_t here = {0}, there = {0};
    uint32_t used[2] = {0}, waiting = 0;

    for (int i = 0; i < 400; i++) {
        gwd_paths_word_t word = gwd_paths_next(&here, 2), answer;

        used[word.path]++;
        if (word.path == 0)
            gwd_paths_heard(&there, &word);
        else
            waiting++;
        for (; i % 4 == 0 && waiting > 0; waiting = 0) /* one of those under way comes; all the same */
            gwd_paths_heard(&there, &(gwd_paths_word_t){.path = 1});
        answer = gwd_paths_next(&there, 1);
        gwd_paths_heard(&here, &answer);
    }
    CU_ASSERT_EQUAL(used[0] + used[1], 400);
    CU_ASSERT(used[0] > 280);
    CU_ASSERT(used[1] > 50);
}

static void every_message_is_answered_once(void) {
    gwd_paths_t here = {0}, there = {0};
    gwd_paths_word_t word;

    for (int i = 0; i < 30; i++) {
        word = gwd_paths_next(&here, 16);
        gwd_paths_heard(&there, &word);
    }
    for (int i = 0; i < 10; i++) {
        word = gwd_paths_next(&there, 16);
        gwd_paths_heard(&here, &word);
    }
    for (uint32_t path = 0; path < 16; path++) {
        CU_ASSERT_EQUAL(here.n_sent[path], 0);
        CU_ASSERT_EQUAL(there.n_came[path], 0);
    }
}

static void nonsense_changes_nothing(void) {
    gwd_paths_t paths = {0};
    const gwd_paths_word_t word = {.path = 200, .answers = {0, 1, 16, 17, 255, 3, 3}};

    gwd_paths_heard(&paths, &word);
    for (uint32_t path = 0; path < 16; path++) {
        CU_ASSERT_EQUAL(paths.n_sent[path], 0);
        CU_ASSERT_EQUAL(paths.n_came[path], 0);
    }
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"without answers all are used by turns", without_answers_all_are_used_by_turns},
        {"a slow path gets less", a_slow_path_gets_less},
        {"every message is answered once", every_message_is_answered_once},
        {"nonsense changes nothing", nonsense_changes_nothing},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("paths", tests);
}
