/* lane_copy.c - see lane_copy.h */
#include "lane_copy.h"

#include <stdio.h>

#include "clock.h"
#include "lane_trace.h"
#include "log.h"

static void watch(gwd_lane_t *lane, gwd_copies_t *copies) {
    if (copies->watched)
        return;
    copies->watched = true;
    copies->next = lane->copying;
    lane->copying = copies;
}

static void device_failed(gwd_device_t *device, const char *text) {
    if (!atomic_exchange(&device->failed, true))
        gwd_log(GWD_LOG_ERROR, "device",
                "%s has failed: %s; its groups end, and it is opened again once all buffers on it are released",
                device->uuid, text);
}

void gwd_lane_copying_begin(gwd_copying_t *copying, const gwd_op_t *op, bool in,
                            void (*ended)(gwd_copying_t *copying)) {
    *copying = (gwd_copying_t){.op = op, .in = in, .ended = ended, .n = 1, .begin_ns = gwd_now_ns()};
}

/* One that cannot be started says nothing of those under way: they end, or the next look at their stream says that they
 * are lost. Until then they may still read and write. */
void gwd_lane_copy(gwd_copying_t *copying, gwd_device_t *device, void *to, const void *from, uint64_t bytes) {
    gwd_lane_t *lane = copying->op->group->lane;
    gwd_copies_t *copies = copying->in ? &device->in[lane->index] : &device->out[lane->index];
    char text[GWD_TEXT_BYTES / 2];
    gw_status_t status;

    if (!atomic_load(&device->failed)) {
        copies->backend->range_begin(copying->in ? "copy in" : "copy out", copying->op->parts[0].bucket->desc.name,
                                     bytes);
        status = gwd_copies_start(copies, to, from, bytes, copying, text, sizeof(text));
        copies->backend->range_end();
        if (status == GW_OK) {
            copying->n++;
            copying->bytes += bytes;
            gwd_stats_add(copying->in ? &lane->stats.bytes_copied_in : &lane->stats.bytes_copied_out, bytes);
            watch(lane, copies);
            return;
        }
        device_failed(device, text);
    }
    copying->lost = device;
}

void gwd_lane_copying_started(gwd_copying_t *copying) {
    if (--copying->n > 0)
        return;
    if (copying->bytes > 0)
        gwd_lane_trace_span(copying->op, copying->in ? GWD_TRACE_COPY_IN : GWD_TRACE_COPY_OUT, 0, copying->bytes,
                            copying->begin_ns, gwd_now_ns());
    copying->ended(copying);
}

static void on_copied(void *tag) {
    gwd_lane_copying_started(tag);
}

static void on_lost(gwd_device_t *device, void *tag) {
    gwd_copying_t *copying = tag;

    copying->lost = device;
    on_copied(copying);
}

void gwd_lane_poll_copies(gwd_lane_t *lane) {
    gwd_copies_t *copies = lane->copying, *next;
    char text[GWD_TEXT_BYTES / 2];

    lane->copying = NULL; /* those with copies under way come back, by themselves or by what is started here */
    for (; copies; copies = next) {
        next = copies->next;
        copies->watched = false;
        if (gwd_copies_poll(copies, on_copied, text, sizeof(text)) != GW_OK) {
            device_failed(copies->device, text);
            gwd_copies_abandon(copies, on_lost);
        }
        if (copies->started != copies->ended)
            watch(lane, copies);
    }
}

bool gwd_lane_copies_reserve(gwd_lane_t *lane, uint32_t n) {
    if (lane->copies_reserved + n > GWD_STREAM_DEPTH)
        return false;
    lane->copies_reserved += n;
    return true;
}

void gwd_lane_copies_unreserve(gwd_lane_t *lane, uint32_t n) {
    lane->copies_reserved -= n;
}

void gwd_lane_device_lost(const gwd_op_t *op, const gwd_device_t *device) {
    char text[GWD_TEXT_BYTES];

    snprintf(text, sizeof(text), "device %s failed while operation %llu was under way", device->uuid,
             (unsigned long long)gwd_op_number(op));
    gwd_lane_group_fail(op->group, GW_ERR_DEVICE, text);
}
