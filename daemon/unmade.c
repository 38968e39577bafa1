/* unmade.c - see unmade.h */
#include "unmade.h"

#include <sodium.h>

void gwd_unmade_add(gwd_unmade_list_t *list, const gwd_unmade_t *item) {
    list->items[list->oldest] = *item;
    list->oldest = (list->oldest + 1) % GWD_UNMADE_KEPT;
}

/* Ids are secret: no comparison tells how much of a guess was right. */
const gwd_unmade_t *gwd_unmade_by_id(const gwd_unmade_list_t *list, const gw_unique_id_t *id, uint64_t now_ns) {
    for (uint32_t i = 0; i < GWD_UNMADE_KEPT; i++)
        if (now_ns < list->items[i].until_ns && sodium_memcmp(&list->items[i].unique_id, id, sizeof(*id)) == 0)
            return &list->items[i];
    return NULL;
}

const gwd_unmade_t *gwd_unmade_by_name(const gwd_unmade_list_t *list, const uint8_t name[GWD_NAME_BYTES],
                                       uint64_t now_ns) {
    for (uint32_t i = 0; i < GWD_UNMADE_KEPT; i++)
        if (now_ns < list->items[i].until_ns && sodium_memcmp(list->items[i].name, name, GWD_NAME_BYTES) == 0)
            return &list->items[i];
    return NULL;
}
