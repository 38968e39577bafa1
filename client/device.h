/* device.h - memory and streams of a device: what the plugin does for the library
 *
 * Buffers of a device and streams go through these two tables. The plugin libgradwire-cuda.so brings them; it
 * is loaded when the process has a driver loaded already, since otherwise no pointer can be a device's. Headers of the
 * driver appear in client/cuda/ only.
 */
#ifndef GW_DEVICE_H
#define GW_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

enum { GW_DRIVER_TEXT_BYTES = 256, GW_WHY_BYTES = 160, GW_HANDLE_DATA_BYTES = 128 };

/* A context of a device that this process uses. One each, made on first use, for the life of the process. */
typedef struct gw_device gw_device_t;

/* A piece of memory, as the daemon can open it. */
typedef struct gw_part {
    uint32_t kind; /* HandleKind of gradwire.proto */
    int fd;        /* -1: none */
    uint64_t offset, bytes, handle_bytes;
    uint8_t data[GW_HANDLE_DATA_BYTES];
    size_t data_bytes;
} gw_part_t;

/* One allocation that a span touches: as long as the driver knows it by this id it is still the same memory. */
typedef struct gw_identity {
    const void *at; /* where the span begins in it */
    uint64_t bytes; /* of the span that are in it */
    uint64_t id;
} gw_identity_t;

/* How a span of device memory can be reached. */
typedef struct gw_export {
    gw_device_t *device;
    size_t n_parts; /* 0: the daemon cannot open it, `why` says why */
    gw_part_t *parts;
    size_t n_identities;
    gw_identity_t *identities;
    const char *path; /* "ipc", "vmm", "pool", "stream"; static memory */
    char why[GW_WHY_BYTES];
} gw_export_t;

/* Errors of all functions: GW_ERR_INVALID_ARGUMENT, GW_ERR_NO_MEMORY, GW_ERR_SYSTEM (the driver's, by name), each with
 * its details written to `text` of `text_bytes` bytes. But for drain none of them harms a capture that is under way. */
typedef struct gw_device_memory {
    /* Asks the driver about a pointer. *device_out NULL: it is host memory. */
    gw_status_t (*find)(const void *data, gw_device_t **device_out, char *text, size_t text_bytes);
    const char *(*uuid)(const gw_device_t *device); /* "GPU-..." or "MIG-..." */

    /* Finds out how the span can be reached, and makes the handles. End it with drop. */
    gw_status_t (*export_span)(gw_device_t *device, const void *data, uint64_t bytes, gw_export_t *export_out,
                               char *text, size_t text_bytes);
    void (*close_parts)(gw_export_t *export); /* once the daemon has them: fds and parts; the identities stay */
    void (*drop)(gw_export_t *export);        /* the rest; calls no driver */

    /* Whether the `bytes` at `data` still are the memory that was exported. Blocking: never. */
    bool (*is_same)(const gw_export_t *export, const void *data, uint64_t bytes);

    /* Makes host memory (whole pages) known to all devices of this process, so that streams can copy it and write and
     * await words in it. *address_out is what the functions below take for it on this device. Memory that is known
     * already only gets its address on another device. */
    gw_status_t (*pin)(gw_device_t *device, void *memory, size_t bytes, void **address_out, char *text,
                       size_t text_bytes);
    void (*unpin)(gw_device_t *device, void *memory);

    /* Waits until the device has done all that was enqueued in its context, or has failed. This does harm a capture in
     * that context. */
    void (*drain)(gw_device_t *device);
} gw_device_memory_t;

typedef struct gw_event gw_event_t; /* a CUevent */

/* What leave puts back. */
typedef struct gw_entered {
    gw_device_t *device;
    int capture_mode;
} gw_entered_t;

/* Streams. `stream` is the caller's gw_queue_t: NULL is the default stream. All are asynchronous; a driver's queue that
 * is full makes them wait. Between enter and leave the device's context is current, and calls are allowed although
 * another stream is being captured. All but enter, leave, check, side, back and the ranges are called in between. */
typedef struct gw_device_streams {
    gw_status_t (*enter)(gw_device_t *device, gw_entered_t *entered_out, char *text, size_t text_bytes);
    void (*leave)(const gw_entered_t *entered);

    /* GW_ERR_CAPTURE when the stream is being captured, or cannot be used because another is;
     * GW_ERR_INVALID_ARGUMENT when it is not one of the device's. */
    gw_status_t (*check)(gw_device_t *device, gw_queue_t stream, char *text, size_t text_bytes);

    gw_status_t (*copy)(gw_queue_t stream, void *to, const void *from, uint64_t bytes, char *text, size_t text_bytes);
    gw_status_t (*write_word)(gw_queue_t stream, void *word, uint32_t value, char *text, size_t text_bytes);

    /* The same when the stream has come here, by another one: later by some microseconds, but the stream goes on. */
    gw_status_t (*write_behind)(gw_device_t *device, gw_queue_t stream, void *word, uint32_t value, char *text,
                                size_t text_bytes);
    gw_status_t (*await_word)(gw_queue_t stream, void *word, uint32_t value, char *text, size_t text_bytes); /* GEQ */

    /* The device's side stream for waits: `urgent` has one of its own. */
    gw_queue_t (*side)(gw_device_t *device, bool urgent);
    gw_queue_t (*back)(gw_device_t *device); /* another, on which nothing ever waits */

    gw_status_t (*event_new)(gw_event_t **event_out, char *text, size_t text_bytes); /* without timing */
    void (*event_free)(gw_event_t *event);
    gw_status_t (*event_record)(gw_event_t *event, gw_queue_t stream, char *text, size_t text_bytes);
    gw_status_t (*event_await)(gw_queue_t stream, gw_event_t *event, char *text, size_t text_bytes);
    gw_status_t (*event_test)(gw_event_t *event, char *text, size_t text_bytes); /* GW_OK or GW_IN_PROGRESS */

    /* Around calls that a profiler is to show under a name, at any time; nothing without one. */
    void (*range_begin)(const char *what, const char *name, uint64_t bytes);
    void (*range_end)(void);
} gw_device_streams_t;

/* What the plugin exports, under the name gw_client_cuda. */
typedef struct gw_device_api {
    uint32_t version; /* GW_DEVICE_API */
    const gw_device_memory_t *memory;
    const gw_device_streams_t *streams;
} gw_device_api_t;

enum { GW_DEVICE_API = 3 };

/* ---- device.c: loading the plugin ---- */

/* Whose memory this is: *device_out NULL for the host's. Loads the plugin if the process has a driver loaded.
 * Errors: GW_ERR_UNSUPPORTED (it may be a device's, but the plugin cannot be loaded), those of find. */
gw_status_t gw_device_find(const void *data, uint64_t bytes, gw_device_t **device_out);

/* The tables. Valid once a device has been found. */
const gw_device_memory_t *gw_device_memory(void);
const gw_device_streams_t *gw_device_streams(void);

#endif
