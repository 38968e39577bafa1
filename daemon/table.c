/* table.c - see table.h */
#include "table.h"

#include <stdlib.h>
#include <string.h>

uint32_t gwd_table_add(gwd_table_t *table, void *item) {
    uint32_t i = table->hint;

    if (table->count == table->capacity) {
        uint32_t wanted = table->capacity ? table->capacity * 2 : 4;
        void **items = realloc(table->items, wanted * sizeof(*items));

        if (!items)
            return 0;
        memset(items + table->capacity, 0, (wanted - table->capacity) * sizeof(*items));
        i = table->capacity;
        table->items = items;
        table->capacity = wanted;
    }
    while (table->items[i])
        i++;
    table->items[i] = item;
    table->hint = i + 1;
    table->count++;
    return i + 1;
}

void *gwd_table_get(const gwd_table_t *table, uint32_t handle) {
    return handle >= 1 && handle <= table->capacity ? table->items[handle - 1] : NULL;
}

void gwd_table_remove(gwd_table_t *table, uint32_t handle) {
    table->items[handle - 1] = NULL;
    if (handle - 1 < table->hint)
        table->hint = handle - 1;
    table->count--;
}

void gwd_table_each(gwd_table_t *table, void (*visit)(void *item, void *context), void *context) {
    for (uint32_t i = 0; i < table->capacity; i++)
        if (table->items[i])
            visit(table->items[i], context);
}

void gwd_table_fini(gwd_table_t *table) {
    free(table->items);
    *table = (gwd_table_t){0};
}
