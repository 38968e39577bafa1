/* range.c - the table of all memory that the driver knows, by address */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

/* Writers first, or a busy queue would keep them out. */
pthread_rwlock_t fake_map_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static struct fake_range **table; /* by address */
static unsigned n_ranges, capacity;
static uint64_t last_id;

/* The first range that ends behind the address. */
static unsigned index_of(uintptr_t at) {
    unsigned low = 0, high = n_ranges;

    while (low < high) {
        unsigned middle = (low + high) / 2;

        if (table[middle]->base + table[middle]->bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct fake_range *fake_range_find(uintptr_t at) {
    unsigned i = index_of(at);

    return i < n_ranges && table[i]->base <= at ? table[i] : NULL;
}

bool fake_range_overlaps(uintptr_t at, size_t bytes) {
    unsigned i = index_of(at);

    return i < n_ranges && table[i]->base < at + bytes;
}

unsigned fake_range_count(void) {
    return n_ranges;
}

struct fake_range *fake_range_nth(unsigned index) {
    return table[index];
}

struct fake_range *fake_range_add(const struct fake_range *range) {
    struct fake_range *copy;
    unsigned i = index_of(range->base);

    if (n_ranges == capacity) {
        unsigned wanted = capacity ? 2 * capacity : 64;
        struct fake_range **larger = realloc(table, wanted * sizeof(*larger));

        if (!larger)
            return NULL;
        table = larger;
        capacity = wanted;
    }
    copy = malloc(sizeof(*copy));
    if (!copy)
        return NULL;
    *copy = *range;
    copy->id = ++last_id;
    memmove(&table[i + 1], &table[i], (n_ranges - i) * sizeof(*table));
    table[i] = copy;
    n_ranges++;
    return copy;
}

void fake_range_remove(struct fake_range *range) {
    unsigned i = index_of(range->base);

    n_ranges--;
    memmove(&table[i], &table[i + 1], (n_ranges - i) * sizeof(*table));
    free(range);
}

void fake_range_destroy(struct fake_range *range) {
    void *at = (void *)range->base;

    switch (range->kind) {
    case FAKE_DEVICE:
        fake_file_remove(range->name);
        fake_account_give(range->device, range->mapped_bytes);
        break;
    case FAKE_MANAGED:
        fake_account_give(range->device, range->mapped_bytes);
        break;
    case FAKE_POOL:
        fake_pool_return(range);
        break;
    case FAKE_MAPPED:
    case FAKE_IMPORTED:
    case FAKE_HOST:
    case FAKE_REGISTERED:
        break;
    }
    if (range->kind != FAKE_REGISTERED)
        fake_unplace(at, range->mapped_bytes);
    fake_range_remove(range);
}

/* What a context's queues may touch. */
static bool may_use(const struct fake_range *range, const struct CUctx_st *context) {
    switch (range->kind) {
    case FAKE_MAPPED:
        return (range->access >> context->device & 1) != 0;
    case FAKE_POOL:
        return fake_pool_allows(range->pool, context->device);
    case FAKE_REGISTERED:
        return range->context == context || (range->flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
    case FAKE_DEVICE:
    case FAKE_IMPORTED:
    case FAKE_MANAGED:
    case FAKE_HOST:
        break;
    }
    return true;
}

/* Whether known ranges, one behind the other, hold all of it. */
static bool covered(uintptr_t at, size_t bytes, const struct CUctx_st *context) {
    uintptr_t end = at + bytes;

    for (unsigned i = index_of(at); at < end; i++) {
        if (i == n_ranges || table[i]->base > at || (context && !may_use(table[i], context)))
            return false;
        at = table[i]->base + table[i]->bytes;
    }
    return true;
}

/* Addresses where there was memory, or will be. */
static bool is_nothing(uintptr_t at) {
    uintptr_t base;
    size_t bytes;

    return fake_place_is_spare(at) || fake_reservation_find(at, &base, &bytes);
}

CUresult fake_spot_take(uintptr_t at, size_t bytes, CUcontext context, struct fake_spot *spot_out) {
    const struct fake_range *range;
    CUresult result = CUDA_SUCCESS;

    if (at + bytes < at)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_map_lock);
    spot_out->at = at;
    spot_out->id = 0;
    range = fake_range_find(at);
    if (range && range->kind == FAKE_REGISTERED && !may_use(range, context))
        range = NULL; /* pinned for another context only: to this one it is ordinary memory */
    else if (range ? !covered(at, bytes, context) : fake_range_overlaps(at, bytes) || is_nothing(at))
        result = CUDA_ERROR_INVALID_VALUE;
    if (range)
        spot_out->id = range->id;
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

bool fake_spot_valid(const struct fake_spot *spot, size_t offset, size_t bytes) {
    const struct fake_range *range;

    if (spot->id == 0)
        return true;
    range = fake_range_find(spot->at);
    return range && range->id == spot->id && covered(spot->at + offset, bytes, NULL);
}
