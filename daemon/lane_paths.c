/* lane_paths.c - see lane_paths.h */
#include "lane_paths.h"

static uint32_t emptiest(gwd_paths_t *paths, uint32_t n) {
    uint32_t best = paths->turn % n;

    for (uint32_t i = 1; i < n; i++) {
        uint32_t path = (paths->turn + i) % n;

        if (paths->n_sent[path] < paths->n_sent[best])
            best = path;
    }
    paths->turn = best + 1;
    return best;
}

gwd_paths_word_t gwd_paths_next(gwd_paths_t *paths, uint32_t n) {
    gwd_paths_word_t word = {.path = (uint8_t)emptiest(paths, n)};
    uint32_t n_answers = 0;

    paths->n_sent[word.path]++;
    for (uint8_t path = 0; path < GWD_PATHS_MAX; path++)
        for (; paths->n_came[path] > 0 && n_answers < GWD_PATHS_ANSWERS; paths->n_came[path]--)
            word.answers[n_answers++] = path + 1;
    return word;
}

void gwd_paths_heard(gwd_paths_t *paths, const gwd_paths_word_t *word) {
    if (word->path < GWD_PATHS_MAX)
        paths->n_came[word->path]++;
    for (uint32_t i = 0; i < GWD_PATHS_ANSWERS; i++) {
        uint32_t path = word->answers[i] - 1u;

        if (path < GWD_PATHS_MAX && paths->n_sent[path] > 0)
            paths->n_sent[path]--;
    }
}
