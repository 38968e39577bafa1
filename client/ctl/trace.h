/* trace.h - inner header of trace.c (the command), trace_read.c (what the daemon's rings hold), trace_rows.c (which bar
 * is in which row), trace_write.c (the document) and trace_merge.c (files of several nodes made one)
 *
 * What is written is Chrome's trace-event format, which Perfetto reads: a process is a group on a node, a thread is a
 * row. Bars that overlap would be drawn wrong in one row, so a row has as many lines as it takes.
 */
#ifndef GWCTL_TRACE_H
#define GWCTL_TRACE_H

#include <stdio.h>

#include "gwctl.h"

/* As the daemon's daemon/trace.h has them. */
typedef enum gwctl_event_kind {
    GWCTL_SUBMIT,
    GWCTL_MATCHED,
    GWCTL_READY,
    GWCTL_MET,
    GWCTL_REDUCED,
    GWCTL_DONE,
    GWCTL_FAILED_OP,
    GWCTL_COPY_IN,
    GWCTL_COPY_OUT,
    GWCTL_REDUCE,
    GWCTL_ENCODE,
    GWCTL_DECODE,
    GWCTL_SENT,
    GWCTL_RECEIVED,
    GWCTL_EVENT_KINDS,
} gwctl_event_kind_t;

typedef struct gwctl_event {
    uint64_t time_ns, duration_ns, sequence, bytes;
    uint32_t group;
    uint32_t index; /* a rank, or a node */
    gwctl_event_kind_t kind;
    char codec[12]; /* of a submit */
    char *name;     /* of a submit: the bucket; of a failure: the status; else NULL */
} gwctl_event_t;

/* All that was read. */
typedef struct gwctl_events {
    gwctl_event_t *items;
    size_t n, n_allocated;
    uint64_t lost; /* overwritten before they were read */
    bool full;     /* GWCTL_EVENTS_MAX: more were left out */
    cJSON *daemon; /* version, node, host, pid, monotonic_ns and realtime_ns of the last page */
} gwctl_events_t;

enum { GWCTL_EVENTS_MAX = 1 << 20 };

/* Reads what there is, or what comes within `seconds` if that is not 0. Returns an exit code, and has said why; in any
 * case end it with gwctl_events_free. */
int gwctl_events_read(const gwctl_options_t *options, gwctl_events_t *events_out);
void gwctl_events_free(gwctl_events_t *events);

/* ---- rows ---------------------------------------------------------------------------------------- */

typedef enum gwctl_row_class {
    GWCTL_ROW_RANK,
    GWCTL_ROW_COPY_IN,
    GWCTL_ROW_REDUCE,
    GWCTL_ROW_ENCODE,
    GWCTL_ROW_SENT,
    GWCTL_ROW_RECEIVED,
    GWCTL_ROW_DECODE,
    GWCTL_ROW_COPY_OUT,
} gwctl_row_class_t;

/* The moments of an operation; 0: it is not known. */
typedef struct gwctl_op {
    uint64_t sequence, first_ns, matched_ns, ready_ns, met_ns, reduced_ns, end_ns;
    uint32_t last_rank;
    bool is_open;       /* it has not ended */
    const char *name;   /* of the bucket; "" */
    const char *codec;  /* between nodes; "" */
    const char *status; /* of a failure; else NULL */
} gwctl_op_t;

typedef struct gwctl_bar {
    uint64_t begin_ns, end_ns, bytes;
    const gwctl_op_t *op;
    gwctl_row_class_t class;
    uint32_t group, index; /* the rank or the node */
    size_t row, line;
} gwctl_bar_t;

enum { GWCTL_LINES_MAX = 64 }; /* of a row: what does not fit overlaps in the last */

typedef struct gwctl_row {
    gwctl_row_class_t class;
    uint32_t group, index;
    size_t n_lines;
    uint64_t ends_ns[GWCTL_LINES_MAX]; /* of the last bar in each */
} gwctl_row_t;

typedef struct gwctl_rows {
    gwctl_op_t *ops;
    gwctl_bar_t *bars; /* by group, then by when they begin */
    gwctl_row_t *rows; /* by group */
    size_t n_ops, n_bars, n_rows, n_rows_allocated;
} gwctl_rows_t;

/* Sorts the events, and makes bars of them, which point to the events' names. False: no memory; nothing to free. */
bool gwctl_rows_make(gwctl_events_t *events, gwctl_rows_t *rows_out);
void gwctl_rows_free(gwctl_rows_t *rows);

/* ---- documents ----------------------------------------------------------------------------------- */

void gwctl_trace_write(const gwctl_events_t *events, const gwctl_rows_t *rows, FILE *out);

/* Writes one document of several. Returns an exit code, and has said why. */
int gwctl_trace_merge(const char *const *paths, size_t n_paths, FILE *out);

#endif
