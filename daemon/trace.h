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
    GWD_TRACE_SUBMIT,  /* a rank's Submit was read */
    GWD_TRACE_MATCHED, /* all ranks have submitted */
    GWD_TRACE_READY,   /* all inputs are complete; the reduction starts */
    GWD_TRACE_REDUCED, /* the result is there */
    GWD_TRACE_DONE,    /* the ranks have been told */
    GWD_TRACE_FAILED,  /* the operation ended with an error */
} gwd_trace_kind_t;

typedef struct gwd_trace_event {
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    gwd_trace_kind_t kind;
    uint32_t group;
    uint32_t rank; /* SUBMIT only; else 0 */
    uint64_t sequence;
    uint64_t bytes;
} gwd_trace_event_t;

typedef struct gwd_trace gwd_trace_t;

/* At least 1 event. Returns NULL when memory is exhausted. */
gwd_trace_t *gwd_trace_new(uint64_t events);
void gwd_trace_free(gwd_trace_t *trace);

/* Thread: the lane. */
void gwd_trace_add(gwd_trace_t *trace, const gwd_trace_event_t *event);

/* The numbers of the events that may still be there: first to end, without end. Thread: any. */
void gwd_trace_range(const gwd_trace_t *trace, uint64_t *first_out, uint64_t *end_out);

/* False when event `number` has been overwritten. Thread: any. */
bool gwd_trace_read(const gwd_trace_t *trace, uint64_t number, gwd_trace_event_t *event_out);

const char *gwd_trace_kind_name(gwd_trace_kind_t kind);

#endif
