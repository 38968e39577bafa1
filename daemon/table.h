/* table.h - small integers for objects: the handles that a client knows them by
 *
 * Handles count from 1; a free one is used again.
 */
#ifndef GWD_TABLE_H
#define GWD_TABLE_H

#include <stdint.h>

typedef struct gwd_table {
    void **items; /* by handle - 1; NULL where free */
    uint32_t capacity;
    uint32_t count;
    uint32_t hint; /* nothing below it is free */
} gwd_table_t;

/* Returns the handle, or 0 when memory is exhausted. */
uint32_t gwd_table_add(gwd_table_t *table, void *item);

/* NULL for a handle that does not exist. */
void *gwd_table_get(const gwd_table_t *table, uint32_t handle);

void gwd_table_remove(gwd_table_t *table, uint32_t handle);

/* Calls for each item, which may remove itself. */
void gwd_table_each(gwd_table_t *table, void (*visit)(void *item, void *context), void *context);

/* Frees the table's own memory, not its items. */
void gwd_table_fini(gwd_table_t *table);

#endif
