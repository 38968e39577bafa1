/* backend.h - what kind of memory a bucket lies in
 *
 * The table of functions that a kind of device brings. `host` maps memfds; a GPU's comes as a plugin. The
 * loop calls import and release on helper threads, since both may block.
 */
#ifndef GWD_BACKEND_H
#define GWD_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

enum { GWD_HANDLE_DATA_MAX = 128 };

/* One part of a buffer, as a client handed it over. Tags are those of HandleKind in gradwire.proto. */
typedef struct gwd_handle {
    uint32_t kind;
    int fd;          /* -1 where the kind needs none */
    uint64_t offset; /* of the part inside the handle */
    uint64_t bytes;
    uint8_t data[GWD_HANDLE_DATA_MAX];
    size_t data_bytes;
} gwd_handle_t;

/* Imported memory: one range of the daemon's addresses over all parts. */
typedef struct gwd_memory {
    void *address;
    uint64_t bytes;        /* as asked for */
    uint64_t mapped_bytes; /* rounded up to pages */
} gwd_memory_t;

typedef struct gwd_backend {
    const char *name;

    /* Whether it takes handles of this kind. Thread: any. Blocking: never. */
    int (*accepts)(uint32_t kind);

    /* Maps the parts, one after the other, as one range. The fds stay the caller's.
     * Thread: a helper. Blocking: yes.
     * Errors, with text: GW_ERR_BUFFER_*, GW_ERR_NO_MEMORY, GW_ERR_SYSTEM; nothing stays mapped. */
    gw_status_t (*import)(const gwd_handle_t *parts, size_t n_parts, gwd_memory_t *memory_out, char *text,
                          size_t text_bytes);

    /* Unmaps it. Thread: a helper. Blocking: yes. Errors: none; memory must be the result of import. */
    void (*release)(const gwd_memory_t *memory);
} gwd_backend_t;

extern const gwd_backend_t gwd_backend_host;

#endif
