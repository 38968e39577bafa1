/* arena.h - pinned host memory that buckets of a device travel through
 *
 * One range, next to the device, in huge pages where the kernel gives them, cut into blocks of one size. A chunk of a
 * bucket takes a block for each rank on the device. No client ever maps an arena.
 */
#ifndef GWD_ARENA_H
#define GWD_ARENA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gradwire.h"

typedef struct gwd_arena {
    unsigned char *base;
    uint64_t bytes, block_bytes;
    pthread_mutex_t mutex; /* of what follows: lanes share the arena */
    uint32_t n_free;
    uint32_t *free; /* numbers of the free blocks, a stack: the last one used is the likeliest to be cached */
} gwd_arena_t;

/* Allocates at least one block of whole pages, all of it there, on NUMA node `node` if it has room (-1: wherever).
 * `setting` is what its size is set with.
 * Blocking: until the memory is there. Errors, with text that names the setting: GW_ERR_NO_MEMORY. */
gw_status_t gwd_arena_init(gwd_arena_t *arena, uint64_t bytes, uint64_t block_bytes, int node, const char *setting,
                           char *text, size_t text_bytes);
void gwd_arena_fini(gwd_arena_t *arena);

/* Takes `n` blocks, all or none. Thread: any. */
bool gwd_arena_take(gwd_arena_t *arena, void **blocks_out, uint32_t n);
void gwd_arena_give(gwd_arena_t *arena, const void *block);

static inline uint32_t gwd_arena_blocks(const gwd_arena_t *arena) {
    return (uint32_t)(arena->bytes / arena->block_bytes);
}

#endif
