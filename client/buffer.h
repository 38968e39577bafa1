/* buffer.h - memory that trainer and daemon share */
#ifndef GW_BUFFER_H
#define GW_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "device.h"
#include "gradwire.h"

struct gw_buffer {
    gw_context_t *context;
    uint32_t handle; /* the daemon's; 0: it knows nothing of this memory, which goes by streams */
    uint8_t *data;   /* what the caller sees */
    uint64_t bytes;
    gw_arena_t arena;    /* of host memory what the daemon sees: `data` itself, or what is behind registered memory */
    gw_device_t *device; /* NULL: host memory */
    gw_export_t export;  /* of device memory */
};

/* Finds the buffer in which all of the span lies, and where in it. The span has at least 1 byte.
 * `name` says in the message which span it is. */
gw_status_t gw_buffer_find(gw_context_t *context, const void *data, uint64_t bytes, const char *name,
                           gw_buffer_t **buffer_out, uint64_t *offset_out);

/* Ends a buffer without asking whether it is in use: for the end of the whole context. */
void gw_buffer_end(gw_buffer_t *buffer);

#endif
