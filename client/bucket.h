/* bucket.h - a declared operation, and how it is submitted */
#ifndef GW_BUCKET_H
#define GW_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer.h"
#include "gradwire.h"

struct gw_waiter;

typedef struct gw_bounce gw_bounce_t;

/* Where a bucket's memory is. */
typedef enum gw_place {
    GW_PLACE_NONE, /* it has none */
    GW_PLACE_HOST,
    GW_PLACE_DEVICE,
} gw_place_t;

/* The memory that a rank sends from or receives into; buffer NULL where it uses none. */
typedef struct gw_span {
    gw_buffer_t *buffer;
    uint64_t offset; /* bytes */
    uint64_t bytes;
} gw_span_t;

struct gw_bucket {
    gw_group_t *group;
    gw_bucket_t *next, **link; /* in group->buckets */
    uint32_t handle;
    gw_bucket_desc_t desc; /* name points to `name`; matrices is NULL */
    char name[GW_NAME_BYTES];
    gw_span_t send, recv;
    gw_place_t place;
    gw_device_t *device; /* of device memory */
    uint8_t *slots;      /* the group's, as the device sees them; NULL before the first operation */
    gw_bounce_t *bounce; /* NULL: the daemon uses the memory itself */
    uint64_t pending;    /* sequence of the last operation, if nobody has seen its end; 0: none */
    uint32_t open;       /* operations whose end nobody has seen: more than one if streams wait for the others */
    bool awaited;        /* the pending operation: by a stream */
    bool released;       /* its memory has been released */
    unsigned pins;       /* one-call collectives that are using it now */
    uint64_t last_round; /* when one used it last */
};

/* Whether it is registered host memory, with an arena behind it. */
static inline bool gw_span_is_copied(const gw_span_t *span) {
    return span->buffer != NULL && span->buffer->arena.shared != span->buffer->data;
}

/* Declares a bucket, as gw_bucket_create. */
gw_status_t gw_bucket_open(gw_group_t *group, const gw_bucket_desc_t *desc, gw_bucket_t **bucket_out);

/* Ends the daemon's side of the bucket, then ours. On failure nothing has changed. */
gw_status_t gw_bucket_end(gw_bucket_t *bucket);

/* Frees our side of a bucket that the daemon has no part of any more. `forked`: nothing but memory. */
void gw_bucket_drop(gw_bucket_t *bucket, bool forked);

/* Submits. `thread` is the one that will wait for it next with `waiter`, 0 if none does at once; for device memory it
 * only says that the stream does. */
gw_status_t gw_bucket_submit(gw_bucket_t *bucket, gw_queue_t queue, uint64_t thread, struct gw_waiter *waiter,
                             gw_op_t *op_out);

/* Waits for an operation that gw_bucket_submit gave `waiter` to. */
gw_status_t gw_bucket_await(gw_group_t *group, gw_op_t op, struct gw_waiter *waiter, int64_t deadline_ns);

/* Whether the bucket has no unfinished operation. Those that have ended are settled: copied out, their status
 * recorded. The group's lock is held. */
bool gw_bucket_settle(gw_bucket_t *bucket);

#endif
