/* arena.c - see arena.h */
#include "arena.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20, ALIGN_BYTES = 4096, NODES_MAX = 1024 };

/* A wish: where the node has no room, or the kernel knows no nodes, the memory comes from elsewhere. */
static void prefer_node(void *base, uint64_t bytes, int node) {
    unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    const unsigned bits = 8 * sizeof(mask[0]);

    if (node < 0 || node >= NODES_MAX)
        return;
    mask[(unsigned)node / bits] = 1ul << ((unsigned)node % bits);
    (void)syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX, 0u);
}

/* The whole range starts on a huge page, so that it can consist of them. */
static unsigned char *map(uint64_t bytes) {
    unsigned char *range = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t head;

    if (range == MAP_FAILED)
        return NULL;
    head = (HUGE_BYTES - (uintptr_t)range % HUGE_BYTES) % HUGE_BYTES;
    if (head)
        (void)munmap(range, head); /* cannot fail for a range just mapped */
    if (HUGE_BYTES - head)
        (void)munmap(range + head + bytes, HUGE_BYTES - head);
    return range + head;
}

gw_status_t gwd_arena_init(gwd_arena_t *arena, uint64_t bytes, uint64_t block_bytes, int node, const char *setting,
                           char *text, size_t text_bytes) {
    uint32_t n_blocks;

    block_bytes = (block_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (bytes < block_bytes)
        bytes = block_bytes;
    bytes = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    n_blocks = (uint32_t)(bytes / block_bytes);
    *arena = (gwd_arena_t){.bytes = bytes, .block_bytes = block_bytes, .n_free = n_blocks};
    arena->free = calloc(n_blocks, sizeof(*arena->free));
    if (!arena->free)
        goto err;
    for (uint32_t i = 0; i < n_blocks; i++)
        arena->free[i] = n_blocks - 1 - i;
    arena->base = map(bytes);
    if (!arena->base)
        goto err_free;
    (void)madvise(arena->base, bytes, MADV_HUGEPAGE); /* kernels may be built without */
    prefer_node(arena->base, bytes, node);
    if (madvise(arena->base, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL)
            goto err_map;
        memset(arena->base, 0, bytes); /* Linux before 5.14 */
    }
    if (pthread_mutex_init(&arena->mutex, NULL) != 0)
        goto err_map;
    return GW_OK;

err_map:
    munmap(arena->base, bytes);
err_free:
    free(arena->free);
err:
    *arena = (gwd_arena_t){0};
    snprintf(text, text_bytes, "an arena of %llu bytes (%s): %s", (unsigned long long)bytes, setting, strerror(ENOMEM));
    return GW_ERR_NO_MEMORY;
}

void gwd_arena_fini(gwd_arena_t *arena) {
    pthread_mutex_destroy(&arena->mutex);
    munmap(arena->base, arena->bytes);
    free(arena->free);
    *arena = (gwd_arena_t){0};
}

bool gwd_arena_take(gwd_arena_t *arena, void **blocks_out, uint32_t n) {
    bool enough;

    pthread_mutex_lock(&arena->mutex);
    enough = arena->n_free >= n;
    for (uint32_t i = 0; i < n && enough; i++)
        blocks_out[i] = arena->base + arena->free[--arena->n_free] * arena->block_bytes;
    pthread_mutex_unlock(&arena->mutex);
    return enough;
}

void gwd_arena_give(gwd_arena_t *arena, const void *block) {
    uint64_t number = (uint64_t)((const unsigned char *)block - arena->base) / arena->block_bytes;

    pthread_mutex_lock(&arena->mutex);
    arena->free[arena->n_free++] = (uint32_t)number;
    pthread_mutex_unlock(&arena->mutex);
}
