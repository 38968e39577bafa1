/* trace.h - the last events of a lane, for `gwctl trace`
 *
 * A bounded ring that the lane writes and the loop reads at any time. Every word is atomic and each entry
 * carries its own number before and after the data, so a reader that meets an entry being overwritten
 * sees that and skips it; the writer never waits.
 */
#ifndef GWD_TRACE_H
#define GWD_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum gwd_trace_kind {
    /* Moments. */
    GWD_TRACE_SUBMIT,  /* a rank's Submit was read */
    GWD_TRACE_MATCHED, /* all ranks of this node have submitted */
    GWD_TRACE_READY,   /* all inputs are complete */
    GWD_TRACE_MET,     /* and so they are on all other nodes */
    GWD_TRACE_REDUCED, /* the result is there */
    GWD_TRACE_DONE,    /* the ranks have been told */
    GWD_TRACE_FAILED,  /* the operation ended with an error */
    /* What takes time, added when it has ended. */
    GWD_TRACE_COPY_IN,  /* a chunk's inputs, from devices to the host, from when the copies were started */
    GWD_TRACE_COPY_OUT, /* its results, back */
    GWD_TRACE_REDUCE,   /* of the operation, or of a chunk; what was encoded elsewhere is decoded as it is added */
    GWD_TRACE_ENCODE,   /* a shard, for other nodes; what the cipher does counts as part of a step, too */
    GWD_TRACE_DECODE,   /* a shard's result, into the ranks' memory */
    GWD_TRACE_SENT,     /* to another node, from when it was handed to the transport */
    GWD_TRACE_RECEIVED, /* from another node, from when it was announced */
} gwd_trace_kind_t;

enum { GWD_TRACE_NAME_BYTES = 48 }; /* longer names are cut */

typedef struct gwd_trace_event {
    uint64_t time_ns;     /* CLOCK_MONOTONIC */
    uint64_t duration_ns; /* of what takes time; else 0 */
    gwd_trace_kind_t kind;
    uint32_t group;
    uint32_t index; /* SUBMIT: the rank; MATCHED: the last rank; SENT, RECEIVED: the other node; FAILED: the status */
    uint32_t codec; /* SUBMIT only, as the next */
    uint64_t sequence;
    uint64_t bytes;
    char name[GWD_TRACE_NAME_BYTES]; /* of the bucket */
} gwd_trace_event_t;

typedef struct gwd_trace gwd_trace_t;

/* For at least 1 event. Returns NULL when memory is exhausted. */
gwd_trace_t *gwd_trace_new(uint64_t events);
void gwd_trace_free(gwd_trace_t *trace);

/* Thread: the lane. */
void gwd_trace_add(gwd_trace_t *trace, const gwd_trace_event_t *event);

/* The numbers of the events that may still be there: first to end, without end. Thread: any. */
void gwd_trace_range(const gwd_trace_t *trace, uint64_t *first_out, uint64_t *end_out);

/* False when event `number` has been overwritten. Thread: any. */
bool gwd_trace_read(const gwd_trace_t *trace, uint64_t number, gwd_trace_event_t *event_out);

/* Whether events of this kind have a duration. */
static inline bool gwd_trace_takes_time(gwd_trace_kind_t kind) {
    return kind >= GWD_TRACE_COPY_IN;
}

const char *gwd_trace_kind_name(gwd_trace_kind_t kind);

#endif
