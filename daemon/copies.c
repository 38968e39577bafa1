/* copies.c - see copies.h */
#include "copies.h"

gw_status_t gwd_copies_start(gwd_copies_t *copies, void *to, const void *from, uint64_t bytes, void *tag, char *text,
                             size_t text_bytes) {
    gw_status_t status = copies->backend->copy(copies->stream, to, from, bytes, text, text_bytes);

    if (status != GW_OK)
        return status;
    copies->tags[copies->started++ % GWD_STREAM_DEPTH] = tag;
    return GW_OK;
}

gw_status_t gwd_copies_poll(gwd_copies_t *copies, void (*on_end)(void *tag), char *text, size_t text_bytes) {
    uint64_t n;
    gw_status_t status;

    if (copies->ended == copies->started)
        return GW_OK;
    status = copies->backend->ended(copies->stream, &n, text, text_bytes);
    while (status == GW_OK && copies->ended < n)
        on_end(copies->tags[copies->ended++ % GWD_STREAM_DEPTH]);
    return status;
}

void gwd_copies_abandon(gwd_copies_t *copies, void (*on_lost)(struct gwd_device *device, void *tag)) {
    while (copies->ended < copies->started)
        on_lost(copies->device, copies->tags[copies->ended++ % GWD_STREAM_DEPTH]);
}
