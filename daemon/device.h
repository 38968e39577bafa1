/* device.h - the devices whose memory this daemon has opened
 *
 * A device is known by its UUID. Its context, its arena and its streams are made by the first import on it, on a
 * helper thread, and given back when no buffer has been on it for device.linger_s: a context takes hundreds of MiB of
 * the device's memory, which belong to training.
 *
 * The arena is pinned host memory next to the device, cut into blocks. A chunk of a bucket travels through one. Blocks
 * are never mapped by a client.
 */
#ifndef GWD_DEVICE_H
#define GWD_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "arena.h"
#include "backend.h"
#include "copies.h"

struct gwd_server;

enum { GWD_DEVICE_UUID_BYTES = 64 };

typedef struct gwd_device {
    struct gwd_device *next;
    struct gwd_server *server;
    char uuid[GWD_DEVICE_UUID_BYTES];
    const gwd_device_backend_t *backend; /* NULL until the plugin is loaded */

    /* The loop's. */
    uint32_t refs; /* buffers */
    uv_timer_t linger;
    uv_work_t work;
    bool closing;      /* `work` is under way */
    bool suspect;      /* an import found the context broken: no use in keeping it */
    uint64_t imported; /* bytes in buffers */

    /* Written on helper threads, one at a time, under `opening`; read by lanes while a buffer keeps it open. */
    pthread_mutex_t opening;
    gwd_context_t *context; /* NULL: not open */
    bool close_due;         /* whoever has `opening` first closes it */
    gwd_arena_t arena;
    gwd_arena_t wire_arena; /* of groups on several nodes; empty where there can be none. See wire_blocks.h */
    gwd_copies_t *in, *out; /* to the arena and from it; one each a lane */
    uint32_t n_lanes;
    int node;
    _Atomic uint64_t context_bytes; /* device memory that the context takes; 0: not known */

    _Atomic bool is_open; /* for those who only show it */
    _Atomic bool failed;  /* a copy said that the context is broken: until it is closed */
} gwd_device_t;

/* The device of this UUID, with one more reference: end it with gwd_device_unref. NULL: out of memory.
 * Thread: the loop. */
gwd_device_t *gwd_device_ref(struct gwd_server *server, const char *uuid);
void gwd_device_unref(gwd_device_t *device);

/* Opens it if it is not. Thread: a helper, holding a reference. Blocking: up to seconds.
 * Errors, with text: GW_ERR_UNSUPPORTED, GW_ERR_NO_MEMORY, GW_ERR_DEVICE. */
gw_status_t gwd_device_open(gwd_device_t *device, char *text, size_t text_bytes);

/* Closes those without buffers now: the daemon ends. */
void gwd_device_drain(struct gwd_server *server);

#endif
