/* bucket.h - a declared operation, and how it is submitted */
#ifndef GW_BUCKET_H
#define GW_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer.h"
#include "gradwire.h"

struct gw_waiter;

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
    uint64_t pending;    /* sequence of the operation that nobody has seen the end of; 0: none */
    bool released;       /* its memory has been released */
    unsigned pins;       /* one-call collectives that are using it now */
    uint64_t last_round; /* when one used it last */
};

/* Declares a bucket, as gw_bucket_create. */
gw_status_t gw_bucket_open(gw_group_t *group, const gw_bucket_desc_t *desc, gw_bucket_t **bucket_out);

/* Ends the daemon's side of the bucket, then ours. On failure nothing has changed. */
gw_status_t gw_bucket_end(gw_bucket_t *bucket);

/* Submits. `waiter` is the thread that will wait for it next, 0 if none does at once. */
gw_status_t gw_bucket_submit(gw_bucket_t *bucket, gw_queue_t queue, uint64_t thread, struct gw_waiter *waiter,
                             gw_op_t *op_out);

/* Waits for an operation that gw_bucket_submit gave `waiter` to. */
gw_status_t gw_bucket_await(gw_group_t *group, gw_op_t op, struct gw_waiter *waiter, int64_t deadline_ns);

/* Whether the bucket has no unfinished operation. One that has ended is settled: copied out, its status
 * recorded. The group's lock is held. */
bool gw_bucket_settle(gw_bucket_t *bucket);

#endif
