/* trace_write.c - the document: Chrome's trace-event format, which Perfetto reads. See trace.h
 *
 * A process is a group on a node, a thread is a line of a row. Times are microseconds of CLOCK_MONOTONIC; `otherData`
 * says how far the wall clock is ahead, so that documents of several nodes can be merged.
 */
#include "trace.h"

#include <inttypes.h>
#include <string.h>

typedef struct writer {
    FILE *out;
    const gwctl_events_t *events;
    const gwctl_rows_t *rows;
    bool began; /* an event has been written */
} writer_t;

/* Text has been made harmless by the daemon; here it becomes a JSON string. */
static void put_text(FILE *out, const char *text) {
    putc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', out);
        if ((unsigned char)*text >= ' ')
            putc(*text, out);
    }
    putc('"', out);
}

static void put_us(FILE *out, const char *field, uint64_t ns) {
    fprintf(out, ",\"%s\":%" PRIu64 ".%03u", field, ns / 1000, (unsigned)(ns % 1000));
}

static void begin_event(writer_t *writer, const char *phase, uint32_t pid, size_t tid) {
    fprintf(writer->out, "%s{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%zu,\"name\":", writer->began ? ",\n" : "\n",
            phase, pid, tid);
    writer->began = true;
}

/* ---- names ---------------------------------------------------------------------------------------- */

static void put_name(writer_t *writer, const char *what, uint32_t pid, size_t tid, const char *name) {
    begin_event(writer, "M", pid, tid);
    fprintf(writer->out, "\"%s_name\",\"args\":{\"name\":", what);
    put_text(writer->out, name);
    fputs("}}", writer->out);
}

static void put_order(writer_t *writer, const char *what, uint32_t pid, size_t tid, uint64_t order) {
    begin_event(writer, "M", pid, tid);
    fprintf(writer->out, "\"%s_sort_index\",\"args\":{\"sort_index\":%" PRIu64 "}}", what, order);
}

static void name_row(const gwctl_row_t *row, char *name, size_t name_bytes) {
    static const char *const names[] = {[GWCTL_ROW_RANK] = "rank",        [GWCTL_ROW_COPY_IN] = "copies from devices",
                                        [GWCTL_ROW_REDUCE] = "reduction", [GWCTL_ROW_ENCODE] = "encode",
                                        [GWCTL_ROW_SENT] = "to node",     [GWCTL_ROW_RECEIVED] = "from node",
                                        [GWCTL_ROW_DECODE] = "decode",    [GWCTL_ROW_COPY_OUT] = "copies to devices"};
    if (row->class == GWCTL_ROW_RANK || row->class == GWCTL_ROW_SENT || row->class == GWCTL_ROW_RECEIVED)
        snprintf(name, name_bytes, "%s %" PRIu32, names[row->class], row->index);
    else
        snprintf(name, name_bytes, "%s", names[row->class]);
}

/* Rows have room for all their lines, so the number of a line is known before the others are. */
static size_t thread_of(size_t row, size_t line) {
    return 1 + row * GWCTL_LINES_MAX + line;
}

static void put_row(writer_t *writer, size_t place) {
    const gwctl_row_t *row = &writer->rows->rows[place];
    char name[48], label[72];
    name_row(row, name, sizeof(name));
    for (size_t line = 0; line < row->n_lines; line++) {
        size_t tid = thread_of(place, line);
        snprintf(label, sizeof(label), line > 0 ? "%s (%zu)" : "%s", name, line + 1);
        put_name(writer, "thread", row->group, tid, label);
        put_order(writer, "thread", row->group, tid,
                  ((uint64_t)row->class << 32 | row->index) * GWCTL_LINES_MAX + line);
    }
}

static void put_group(writer_t *writer, uint32_t group) {
    const cJSON *daemon = writer->events->daemon;
    char name[160];
    snprintf(name, sizeof(name), "group %" PRIu32 " on %.64s, node %.8s", group, gwctl_text(daemon, "host"),
             gwctl_text(daemon, "node"));
    put_name(writer, "process", group, 0, name);
    put_order(writer, "process", group, 0, group);
}

/* ---- bars ----------------------------------------------------------------------------------------- */

static void put_bar(writer_t *writer, const gwctl_bar_t *bar, const char *category, const char *name, uint64_t begin_ns,
                    uint64_t end_ns) {
    begin_event(writer, "X", bar->group, thread_of(bar->row, bar->line));
    put_text(writer->out, name);
    fprintf(writer->out, ",\"cat\":\"%s\"", category);
    put_us(writer->out, "ts", begin_ns);
    put_us(writer->out, "dur", end_ns - begin_ns);
}

static void put_since(FILE *out, const char *field, uint64_t then_ns, uint64_t moment_ns) {
    if (moment_ns >= then_ns && then_ns != 0)
        put_us(out, field, moment_ns - then_ns);
}

static void put_op_arguments(const writer_t *writer, const gwctl_bar_t *bar) {
    FILE *out = writer->out;
    const gwctl_op_t *op = bar->op;
    fprintf(out, ",\"args\":{\"sequence\":%" PRIu64 ",\"bytes\":%" PRIu64, op->sequence, bar->bytes);
    if (bar->class != GWCTL_ROW_RANK) {
        fputs("}}", out);
        return;
    }
    fputs(",\"codec\":", out);
    put_text(out, op->codec);
    put_since(out, "late_us", op->first_ns, bar->begin_ns);
    put_since(out, "matched_us", bar->begin_ns, op->matched_ns);
    put_since(out, "ready_us", bar->begin_ns, op->ready_ns);
    put_since(out, "met_us", bar->begin_ns, op->met_ns);
    put_since(out, "reduced_us", bar->begin_ns, op->reduced_ns);
    if (!op->is_open)
        put_since(out, "done_us", bar->begin_ns, op->end_ns);
    if (op->matched_ns != 0)
        fprintf(out, ",\"last_rank\":%" PRIu32, op->last_rank);
    if (op->status != NULL) {
        fputs(",\"status\":", out);
        put_text(out, op->status);
    }
    fputs("}}", out);
}

/* What a rank waited for, from its submit on; the last of it goes to the operation's end. */
static void put_stages(writer_t *writer, const gwctl_bar_t *bar) {
    const gwctl_op_t *op = bar->op;
    const struct {
        const char *name;
        uint64_t end_ns;
    } stages[] = {{"wait for ranks", op->matched_ns},
                  {"wait for inputs", op->ready_ns},
                  {"wait for nodes", op->met_ns},
                  {op->met_ns != 0 ? "exchange" : "reduce", op->reduced_ns}};
    enum { N_STAGES = sizeof(stages) / sizeof(stages[0]) };
    uint64_t at_ns = bar->begin_ns;
    const char *left = "wait for ranks";
    for (size_t i = 0; i < N_STAGES; i++) {
        if (stages[i].end_ns == 0)
            continue;
        left = i + 1 == N_STAGES ? "done" : i == 0 ? "wait for inputs" : "under way";
        if (stages[i].end_ns <= at_ns || stages[i].end_ns > bar->end_ns)
            continue;
        put_bar(writer, bar, "stage", stages[i].name, at_ns, stages[i].end_ns);
        putc('}', writer->out);
        at_ns = stages[i].end_ns;
    }
    if (at_ns >= bar->end_ns)
        return;
    put_bar(writer, bar, "stage", left, at_ns, bar->end_ns);
    putc('}', writer->out);
}

static void put_all(writer_t *writer, const gwctl_bar_t *bar) {
    static const char *const categories[] = {
        [GWCTL_ROW_RANK] = "operation", [GWCTL_ROW_COPY_IN] = "copy_in",  [GWCTL_ROW_REDUCE] = "reduce",
        [GWCTL_ROW_ENCODE] = "encode",  [GWCTL_ROW_SENT] = "sent",        [GWCTL_ROW_RECEIVED] = "received",
        [GWCTL_ROW_DECODE] = "decode",  [GWCTL_ROW_COPY_OUT] = "copy_out"};
    char number[40];
    snprintf(number, sizeof(number), "operation %" PRIu64, bar->op->sequence);
    put_bar(writer, bar, categories[bar->class], bar->op->name[0] != '\0' ? bar->op->name : number, bar->begin_ns,
            bar->end_ns);
    put_op_arguments(writer, bar);
    if (bar->class == GWCTL_ROW_RANK)
        put_stages(writer, bar);
}

/* ---- the document --------------------------------------------------------------------------------- */

static void put_daemon(FILE *out, const gwctl_events_t *events) {
    const char *const fields[] = {"version", "node", "host"};
    double ahead_ns = gwctl_number(events->daemon, "realtime_ns") - gwctl_number(events->daemon, "monotonic_ns");
    fputs("],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\"", out);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        fprintf(out, ",\"%s\":", fields[i]);
        put_text(out, gwctl_text(events->daemon, fields[i]));
    }
    fprintf(out, ",\"pid\":%.0f,\"realtime_ahead_us\":%.0f,\"lost\":%" PRIu64 "}}\n",
            gwctl_number(events->daemon, "pid"), ahead_ns / 1000, events->lost);
}

void gwctl_trace_write(const gwctl_events_t *events, const gwctl_rows_t *rows, FILE *out) {
    writer_t writer = {.out = out, .events = events, .rows = rows};
    fputs("{\"traceEvents\":[", out);
    for (size_t i = 0; i < rows->n_rows; i++) {
        if (i == 0 || rows->rows[i].group != rows->rows[i - 1].group)
            put_group(&writer, rows->rows[i].group);
        put_row(&writer, i);
    }
    for (size_t i = 0; i < rows->n_bars; i++)
        put_all(&writer, &rows->bars[i]);
    put_daemon(out, events);
}
