/* trace_rows.c - which bar is in which row. See trace.h
 *
 * A rank's row has a bar for each operation, from its submit to its end, and in it what it waited for. Further rows show
 * what was done for the group's operations: copies, reduction, encoding, the wire, decoding.
 */
#include "trace.h"

#include <stdlib.h>

/* ---- operations ----------------------------------------------------------------------------------- */

static int compare(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int compare_events(const void *a, const void *b) {
    const gwctl_event_t *x = a, *y = b;
    int by_group = compare(x->group, y->group), by_sequence = compare(x->sequence, y->sequence);
    int by_time = compare(x->time_ns, y->time_ns);
    return by_group ? by_group : by_sequence ? by_sequence : by_time ? by_time : compare(x->kind, y->kind);
}

static int compare_bars(const void *a, const void *b) {
    const gwctl_bar_t *x = a, *y = b;
    int by_group = compare(x->group, y->group), by_begin = compare(x->begin_ns, y->begin_ns);
    return by_group ? by_group : by_begin ? by_begin : compare(x->index, y->index);
}

static void take_moment(gwctl_op_t *op, const gwctl_event_t *event) {
    switch (event->kind) {
    case GWCTL_SUBMIT:
        op->first_ns = op->first_ns != 0 ? op->first_ns : event->time_ns;
        op->name = event->name;
        op->codec = event->codec;
        break;
    case GWCTL_MATCHED:
        op->matched_ns = event->time_ns;
        op->last_rank = event->index;
        break;
    case GWCTL_READY:
        op->ready_ns = event->time_ns;
        break;
    case GWCTL_MET:
        op->met_ns = event->time_ns;
        break;
    case GWCTL_REDUCED:
        op->reduced_ns = event->time_ns;
        break;
    case GWCTL_FAILED_OP:
        op->status = event->name;
        /* fall through */
    case GWCTL_DONE:
        op->end_ns = event->time_ns;
        break;
    default: /* what takes time */
        break;
    }
}

/* An operation that has not ended lasts until now; where events were lost its end may be among them. */
static void end_op(const gwctl_events_t *events, gwctl_op_t *op, const gwctl_event_t *last) {
    if (op->end_ns != 0)
        return;
    op->is_open = true;
    op->end_ns = last->time_ns + last->duration_ns;
    if (events->lost == 0 && !events->full && gwctl_number(events->daemon, "monotonic_ns") > (double)op->end_ns)
        op->end_ns = (uint64_t)gwctl_number(events->daemon, "monotonic_ns");
}

static gwctl_row_class_t class_of(gwctl_event_kind_t kind) {
    switch (kind) {
    case GWCTL_COPY_IN:
        return GWCTL_ROW_COPY_IN;
    case GWCTL_COPY_OUT:
        return GWCTL_ROW_COPY_OUT;
    case GWCTL_REDUCE:
        return GWCTL_ROW_REDUCE;
    case GWCTL_ENCODE:
        return GWCTL_ROW_ENCODE;
    case GWCTL_DECODE:
        return GWCTL_ROW_DECODE;
    case GWCTL_SENT:
        return GWCTL_ROW_SENT;
    case GWCTL_RECEIVED:
        return GWCTL_ROW_RECEIVED;
    default:
        return GWCTL_ROW_RANK;
    }
}

static void add_bar(gwctl_rows_t *rows, const gwctl_op_t *op, const gwctl_event_t *event) {
    gwctl_row_class_t class = class_of(event->kind);
    if (class == GWCTL_ROW_RANK && event->kind != GWCTL_SUBMIT)
        return;
    uint64_t end_ns = class == GWCTL_ROW_RANK ? op->end_ns : event->time_ns + event->duration_ns;
    rows->bars[rows->n_bars++] = (gwctl_bar_t){.begin_ns = event->time_ns,
                                               .end_ns = end_ns > event->time_ns ? end_ns : event->time_ns,
                                               .bytes = event->bytes,
                                               .op = op,
                                               .class = class,
                                               .group = event->group,
                                               .index = event->index};
}

static void find_bars(const gwctl_events_t *events, gwctl_rows_t *rows) {
    for (size_t i = 0, end; i < events->n; i = end) {
        const gwctl_event_t *first = &events->items[i];
        gwctl_op_t *op = &rows->ops[rows->n_ops++];
        *op = (gwctl_op_t){.sequence = first->sequence, .name = "", .codec = ""};
        for (end = i; end < events->n && events->items[end].group == first->group &&
                      events->items[end].sequence == first->sequence;
             end++)
            take_moment(op, &events->items[end]);
        end_op(events, op, &events->items[end - 1]);
        for (size_t k = i; k < end; k++)
            add_bar(rows, op, &events->items[k]);
    }
    qsort(rows->bars, rows->n_bars, sizeof(*rows->bars), compare_bars);
}

/* ---- rows ----------------------------------------------------------------------------------------- */

static const gwctl_row_t *find_row(const gwctl_rows_t *rows, const gwctl_bar_t *bar) {
    for (size_t i = rows->n_rows; i-- > 0 && rows->rows[i].group == bar->group;) /* bars come group by group */
        if (rows->rows[i].class == bar->class && rows->rows[i].index == bar->index)
            return &rows->rows[i];
    return NULL;
}

/* False: no memory. */
static bool make_row(gwctl_rows_t *rows, const gwctl_bar_t *bar, size_t *place_out) {
    const gwctl_row_t *row = find_row(rows, bar);
    if (row == NULL && rows->n_rows == rows->n_rows_allocated) {
        size_t n = rows->n_rows_allocated > 0 ? 2 * rows->n_rows_allocated : 64;
        gwctl_row_t *longer = realloc(rows->rows, n * sizeof(*longer));
        if (longer == NULL)
            return false;
        rows->rows = longer;
        rows->n_rows_allocated = n;
    }
    if (row == NULL)
        rows->rows[rows->n_rows++] = (gwctl_row_t){.class = bar->class, .group = bar->group, .index = bar->index};
    *place_out = row != NULL ? (size_t)(row - rows->rows) : rows->n_rows - 1;
    return true;
}

/* The first line of the row that is free when the bar begins. */
static size_t take_line(gwctl_row_t *row, const gwctl_bar_t *bar) {
    size_t line = 0;
    while (line < row->n_lines && row->ends_ns[line] > bar->begin_ns)
        line++;
    if (line == GWCTL_LINES_MAX)
        line = GWCTL_LINES_MAX - 1;
    if (line == row->n_lines)
        row->n_lines++;
    row->ends_ns[line] = bar->end_ns;
    return line;
}

bool gwctl_rows_make(gwctl_events_t *events, gwctl_rows_t *rows_out) {
    *rows_out = (gwctl_rows_t){.ops = calloc(events->n + 1, sizeof(gwctl_op_t)),
                               .bars = calloc(events->n + 1, sizeof(gwctl_bar_t))};
    bool good = rows_out->ops != NULL && rows_out->bars != NULL;
    if (good && events->n > 0) {
        qsort(events->items, events->n, sizeof(*events->items), compare_events);
        find_bars(events, rows_out);
    }
    for (size_t i = 0; i < rows_out->n_bars && good; i++) {
        gwctl_bar_t *bar = &rows_out->bars[i];
        good = make_row(rows_out, bar, &bar->row);
        if (good)
            bar->line = take_line(&rows_out->rows[bar->row], bar);
    }
    if (!good)
        gwctl_rows_free(rows_out);
    return good;
}

void gwctl_rows_free(gwctl_rows_t *rows) {
    free(rows->ops);
    free(rows->bars);
    free(rows->rows);
}
