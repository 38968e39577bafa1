/* residual.c - see residual.h */
#include "residual.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

uint64_t gwd_residual_numbers(gw_codec_t codec, bool no_error_feedback, uint64_t count) {
    return gw_codec_pattern(codec) == GW_CODEC_SHARDED && !no_error_feedback ? count : 0;
}

uint64_t gwd_residual_bytes(uint64_t count) {
    return (2 * count * sizeof(float) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

gwd_residual_t *gwd_residual_new(uint64_t fingerprint, uint64_t count) {
    gwd_residual_t *residual = calloc(1, sizeof(*residual));
    void *numbers;

    if (!residual)
        return NULL;
    residual->fingerprint = fingerprint;
    if (count == 0)
        return residual;
    numbers = mmap(NULL, gwd_residual_bytes(count), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (numbers == MAP_FAILED) {
        free(residual);
        return NULL;
    }
    residual->count = count;
    residual->parts = numbers;
    residual->results = residual->parts + count;
    return residual;
}

gwd_residual_t *gwd_residual_find(gwd_residual_t *list, uint64_t fingerprint, uint64_t count) {
    while (list && (list->fingerprint != fingerprint || list->count != count))
        list = list->next;
    return list;
}

void gwd_residual_swap(gwd_residual_t *a, gwd_residual_t *b) {
    gwd_residual_t kept = *a;

    a->n_ops = b->n_ops;
    a->parts = b->parts;
    a->results = b->results;
    b->n_ops = kept.n_ops;
    b->parts = kept.parts;
    b->results = kept.results;
}

static int compare(const void *a_, const void *b_) {
    const gwd_residual_t *a = *(gwd_residual_t *const *)a_, *b = *(gwd_residual_t *const *)b_;
    int order = (a->fingerprint > b->fingerprint) - (a->fingerprint < b->fingerprint);

    return order ? order : (a->count > b->count) - (a->count < b->count);
}

bool gwd_residual_index(gwd_residual_t *list, gwd_residual_index_t *index_out) {
    size_t n = 0;

    *index_out = (gwd_residual_index_t){NULL, 0};
    for (const gwd_residual_t *r = list; r; r = r->next)
        n++;
    if (n == 0)
        return true;
    index_out->items = malloc(n * sizeof(gwd_residual_t *));
    if (!index_out->items)
        return false;
    for (gwd_residual_t *r = list; r; r = r->next)
        index_out->items[index_out->n++] = r;
    qsort(index_out->items, n, sizeof(gwd_residual_t *), compare);
    return true;
}

void gwd_residual_free_index(gwd_residual_index_t *index) {
    free(index->items);
}

gwd_residual_t *gwd_residual_look_up(const gwd_residual_index_t *index, uint64_t fingerprint, uint64_t count) {
    const gwd_residual_t wanted = {.fingerprint = fingerprint, .count = count}, *key = &wanted;
    gwd_residual_t **found = index->n ? bsearch(&key, index->items, index->n, sizeof(gwd_residual_t *), compare) : NULL;

    return found ? *found : NULL;
}

void gwd_residual_clear(gwd_residual_t *residual, gwd_residual_t **list) {
    gwd_residual_t *fresh = residual->count > 0 ? gwd_residual_new(residual->fingerprint, residual->count) : NULL;

    if (fresh) {
        gwd_residual_swap(residual, fresh);
        fresh->next = *list;
        *list = fresh;
        return;
    }
    residual->n_ops = 0;
    if (residual->count == 0)
        return;
    if (madvise(residual->parts, gwd_residual_bytes(residual->count), MADV_DONTNEED) != 0) /* it reads as zeros then */
        memset(residual->parts, 0, 2 * residual->count * sizeof(float));
}

void gwd_residual_free_list(gwd_residual_t *list) {
    while (list) {
        gwd_residual_t *residual = list;

        list = residual->next;
        if (residual->count > 0)
            (void)munmap(residual->parts, gwd_residual_bytes(residual->count)); /* cannot fail: it was mapped so */
        free(residual);
    }
}
