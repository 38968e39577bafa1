/* bounce.c - see bounce.h */
#include "bounce.h"

#include <stdlib.h>

#include "error.h"

static bool overlap(const gw_span_t *send, const gw_span_t *recv) {
    return send->buffer != NULL && send->buffer == recv->buffer && send->offset < recv->offset + recv->bytes &&
           recv->offset < send->offset + send->bytes;
}

/* In place there is one region, with the spans as they lie to each other; else one for each. */
static uint64_t place(gw_bounce_t *bounce, const gw_span_t *send, const gw_span_t *recv) {
    if (!overlap(send, recv)) {
        bounce->recv_offset = gw_arena_round(send->bytes);
        return bounce->recv_offset + recv->bytes;
    }
    uint64_t start = send->offset < recv->offset ? send->offset : recv->offset;
    uint64_t send_end = send->offset + send->bytes, recv_end = recv->offset + recv->bytes;
    bounce->send_offset = send->offset - start;
    bounce->recv_offset = recv->offset - start;
    return (send_end > recv_end ? send_end : recv_end) - start;
}

static gw_status_t make_event(gw_bounce_t *bounce) {
    const gw_device_streams_t *streams = gw_device_streams();
    char text[GW_DRIVER_TEXT_BYTES];
    gw_entered_t entered;

    gw_status_t status = streams->enter(bounce->device, &entered, text, sizeof(text));
    if (status == GW_OK) {
        status = streams->event_new(&bounce->back, text, sizeof(text));
        streams->leave(&entered);
    }
    return status == GW_OK ? GW_OK : gw_fail(status, "%s", text);
}

gw_status_t gw_bounce_make(gw_context_t *context, const gw_span_t *send, const gw_span_t *recv, const char *why,
                           gw_bounce_t **bounce_out) {
    const gw_device_memory_t *memory = gw_device_memory();
    char text[GW_DRIVER_TEXT_BYTES];

    gw_bounce_t *bounce = calloc(1, sizeof(*bounce));
    if (bounce == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "the record of an arena");
    bounce->device = send->buffer != NULL ? send->buffer->device : recv->buffer->device;
    const gw_arena_use_t use = {.copied = true, .device = memory->uuid(bounce->device), .why = why};
    gw_status_t status = gw_arena_make(context, place(bounce, send, recv), &use, &bounce->arena);
    if (status != GW_OK)
        goto err_bounce;
    status = memory->pin(bounce->device, bounce->arena.shared, bounce->arena.bytes, (void **)&bounce->address, text,
                         sizeof(text));
    if (status != GW_OK) {
        status = gw_fail(status, "pinning the memory of a bucket: %s", text);
        goto err_arena;
    }
    status = make_event(bounce);
    if (status != GW_OK)
        goto err_pin;
    *bounce_out = bounce;
    return GW_OK;

err_pin:
    memory->unpin(bounce->device, bounce->arena.shared);
err_arena:
    (void)gw_arena_release(context, bounce->arena.handle); /* nothing uses it; a session that breaks ends it too */
    gw_arena_unmap(&bounce->arena);
err_bounce:
    free(bounce);
    return status;
}

/* A copy that comes too late must not find the memory gone. */
static void settle(gw_bounce_t *bounce) {
    if (bounce->failed || (bounce->back_sequence != 0 && !bounce->back_ended))
        gw_device_memory()->drain(bounce->device);
}

static void free_event(gw_bounce_t *bounce) {
    const gw_device_streams_t *streams = gw_device_streams();
    char text[GW_DRIVER_TEXT_BYTES];
    gw_entered_t entered;

    if (streams->enter(bounce->device, &entered, text, sizeof(text)) != GW_OK)
        return; /* the context is gone, and its events with it */
    streams->event_free(bounce->back);
    streams->leave(&entered);
}

void gw_bounce_end(gw_context_t *context, gw_bounce_t *bounce, bool forked) {
    if (!forked) {
        settle(bounce);
        free_event(bounce);
        gw_device_memory()->unpin(bounce->device, bounce->arena.shared);
        (void)gw_arena_release(context, bounce->arena.handle); /* if the daemon has gone, so has its part */
    }
    gw_arena_unmap(&bounce->arena);
    free(bounce);
}
