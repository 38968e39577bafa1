/* copies.h - copies of one lane in one direction of one device
 *
 * A stream of the backend with the names of its copies: what is started carries a tag, and the tags come back in the
 * same order as the copies end.
 */
#ifndef GWD_COPIES_H
#define GWD_COPIES_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"

struct gwd_device;

typedef struct gwd_copies {
    const gwd_device_backend_t *backend;
    gwd_stream_t *stream;
    uint64_t started, ended; /* ended: those whose tags have come back */
    void *tags[GWD_STREAM_DEPTH];
    struct gwd_device *device;
    struct gwd_copies *next; /* in the lane's list of those with copies under way */
    bool watched;            /* it is in that list */
} gwd_copies_t;

/* Starts one; fewer than GWD_STREAM_DEPTH may be under way. Errors: GW_ERR_DEVICE, with text: it was not started. */
gw_status_t gwd_copies_start(gwd_copies_t *copies, void *to, const void *from, uint64_t bytes, void *tag, char *text,
                             size_t text_bytes);

/* Asks the device, and calls `on_end` with the tag of each copy that has ended. Errors: GW_ERR_DEVICE, with text. */
gw_status_t gwd_copies_poll(gwd_copies_t *copies, void (*on_end)(void *tag), char *text, size_t text_bytes);

/* The device is broken: calls `on_lost` for all that were under way. */
void gwd_copies_abandon(gwd_copies_t *copies, void (*on_lost)(struct gwd_device *device, void *tag));

#endif
