/* bounce.h - the arena behind a bucket of device memory that goes by the trainer's stream
 *
 * The stream that submits copies the input to it, and whoever first waits copies the result back. An event says when
 * that copy has been made: others wait for it, and so does the next operation of the bucket, which writes there.
 */
#ifndef GW_BOUNCE_H
#define GW_BOUNCE_H

#include "arena.h"
#include "bucket.h"

struct gw_bounce {
    gw_device_t *device;
    gw_arena_t arena;
    uint8_t *address; /* of the arena, as the device sees it */
    uint64_t send_offset, recv_offset;

    /* Of the group's lock. */
    gw_event_t *back;       /* recorded after the last copy back */
    uint64_t back_sequence; /* whose result that was; 0: none has been copied */
    bool back_ended;        /* the event has been seen to be complete */
    bool failed;            /* an operation ended badly: copies may be enqueued that nobody knows the end of */
};

/* Makes the arena for the spans of a bucket. */
gw_status_t gw_bounce_make(gw_context_t *context, const gw_span_t *send, const gw_span_t *recv, const char *why,
                           gw_bounce_t **bounce_out);

/* Takes it back from the daemon and frees it; `forked`: without asking anybody. */
void gw_bounce_end(gw_context_t *context, gw_bounce_t *bounce, bool forked);

#endif
