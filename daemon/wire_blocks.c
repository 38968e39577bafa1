/* wire_blocks.c - see wire_blocks.h */
#include "wire_blocks.h"

#include <stdio.h>
#include <stdlib.h>

#include "bucket.h"
#include "device.h"

static gw_status_t new_blocks(gwd_wire_blocks_t **list, struct gwd_device *device, uint32_t n, char *text,
                              size_t text_bytes) {
    gwd_wire_blocks_t *blocks = calloc(1, sizeof(*blocks) + n * sizeof(blocks->blocks[0]));

    if (!blocks) {
        snprintf(text, text_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    if (!device->wire_arena.base) {
        free(blocks);
        snprintf(
            text, text_bytes,
            "device %s has no arena for groups on several nodes, which takes wire.listen: set it on this host, too",
            device->uuid);
        return GW_ERR_UNSUPPORTED;
    }
    if (!gwd_arena_take(&device->wire_arena, blocks->blocks, n)) {
        free(blocks);
        snprintf(text, text_bytes,
                 "device %s: the arena for groups on several nodes has no %u blocks of %llu bytes for one more rank: "
                 "raise device.wire_bytes, or lower wire.window or wire.chunk_bytes",
                 device->uuid, n, (unsigned long long)device->wire_arena.block_bytes);
        return GW_ERR_QUOTA;
    }
    blocks->device = device;
    blocks->n = n;
    blocks->next = *list;
    *list = blocks;
    return GW_OK;
}

gw_status_t gwd_wire_blocks_take(gwd_wire_blocks_t **list, gwd_bucket_t *bucket, uint32_t n, char *text,
                                 size_t text_bytes) {
    struct gwd_device *device = bucket->send_device ? bucket->send_device : bucket->recv_device;
    gwd_wire_blocks_t *blocks = *list;
    gw_status_t status = GW_OK;

    if (!device)
        return GW_OK;
    while (blocks && blocks->device != device)
        blocks = blocks->next;
    if (!blocks) {
        status = new_blocks(list, device, n, text, text_bytes);
        blocks = *list;
    }
    if (status != GW_OK)
        return status;
    blocks->refs++;
    bucket->wire_blocks = blocks;
    return GW_OK;
}

void gwd_wire_blocks_give(gwd_wire_blocks_t **list, gwd_bucket_t *bucket) {
    gwd_wire_blocks_t *blocks = bucket->wire_blocks;

    if (!blocks)
        return;
    bucket->wire_blocks = NULL;
    if (--blocks->refs > 0)
        return;
    while (*list != blocks)
        list = &(*list)->next;
    *list = blocks->next;
    for (uint32_t i = 0; i < blocks->n; i++)
        gwd_arena_give(&blocks->device->wire_arena, blocks->blocks[i]);
    free(blocks);
}
