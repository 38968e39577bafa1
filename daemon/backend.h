/* backend.h - what kind of memory a bucket lies in, and who copies it
 *
 * The table of functions that a kind of memory brings. `host` maps memfds, and is all there is on a host without a GPU.
 * A device's comes as a plugin, with a second table: the device's context and its copy engines. Functions that can
 * block run on helper threads; the lane only starts copies and asks which have ended.
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
    uint64_t handle_bytes; /* of the whole handle; 0 where the kind does not say */
    uint8_t data[GWD_HANDLE_DATA_MAX];
    size_t data_bytes;
} gwd_handle_t;

/* Imported memory: one range of the daemon's addresses over all parts. */
typedef struct gwd_memory {
    void *address;         /* of the first byte; a device's address is not for the CPU */
    uint64_t mapped_bytes; /* of the whole range that was mapped */
    void *state;           /* the backend's */
} gwd_memory_t;

typedef struct gwd_context gwd_context_t; /* a device's context, owned by its backend; NULL for host memory */

typedef struct gwd_backend {
    /* Maps the parts, one after the other, as one range. The fds stay the caller's.
     * Thread: a helper. Blocking: yes.
     * Errors, with text: GW_ERR_BUFFER_*, GW_ERR_INVALID_ARGUMENT, GW_ERR_NO_MEMORY, GW_ERR_SYSTEM; nothing stays
     * mapped. */
    gw_status_t (*import)(gwd_context_t *context, const gwd_handle_t *parts, size_t n_parts, gwd_memory_t *memory_out,
                          char *text, size_t text_bytes);

    /* Unmaps it. Thread: a helper. Blocking: yes. Errors: none; memory must be the result of import. */
    void (*release)(gwd_context_t *context, const gwd_memory_t *memory);
} gwd_backend_t;

extern const gwd_backend_t gwd_backend_host;

/* One direction of copies between a device and pinned host memory, in order, used by one lane. */
typedef struct gwd_stream gwd_stream_t;

enum { GWD_STREAM_DEPTH = 256 }; /* copies that may be under way in one stream */

/* What a device can do beyond holding memory. */
typedef struct gwd_device_backend {
    const gwd_backend_t *memory;

    /* Makes the device's context. Thread: a helper. Blocking: up to seconds.
     * *node_out: the NUMA node next to it, -1 unknown; *bytes_out: device memory that the context takes.
     * Errors, with text: GW_ERR_UNSUPPORTED (no driver, no such device), GW_ERR_NO_MEMORY, GW_ERR_DEVICE. */
    gw_status_t (*open)(const char *uuid, gwd_context_t **context_out, int *node_out, uint64_t *bytes_out, char *text,
                        size_t text_bytes);

    /* Gives all of it back: streams freed, memory released and unpinned before. Thread: a helper. Blocking: yes. */
    void (*close)(gwd_context_t *context);

    /* Makes host memory (whole pages) reachable for copy engines. Thread: a helper. Blocking: yes. */
    gw_status_t (*pin)(gwd_context_t *context, void *address, uint64_t bytes, char *text, size_t text_bytes);
    void (*unpin)(gwd_context_t *context, void *address);

    gw_status_t (*stream_new)(gwd_context_t *context, gwd_stream_t **stream_out, char *text, size_t text_bytes);
    void (*stream_free)(gwd_stream_t *stream); /* waits for its copies */

    /* Starts a copy; fewer than GWD_STREAM_DEPTH may be under way. Thread: the lane's. Blocking: never.
     * Errors: GW_ERR_DEVICE: the context is broken, and no copy of it will end. */
    gw_status_t (*copy)(gwd_stream_t *stream, void *to, const void *from, uint64_t bytes, char *text,
                        size_t text_bytes);

    /* How many copies have ended since the stream was made. Thread: the lane's. Blocking: never. Errors: as copy. */
    gw_status_t (*ended)(gwd_stream_t *stream, uint64_t *n_out, char *text, size_t text_bytes);

    /* Around calls that a profiler is to show under a name; nothing without one. Ranges of a thread nest. */
    void (*range_begin)(const char *what, const char *name, uint64_t bytes);
    void (*range_end)(void);
} gwd_device_backend_t;

/* What a plugin exports under the name gwd_cuda. */
typedef struct gwd_plugin {
    uint32_t version; /* GWD_PLUGIN */
    const gwd_device_backend_t *device;
} gwd_plugin_t;

enum { GWD_PLUGIN = 3 };

#endif
