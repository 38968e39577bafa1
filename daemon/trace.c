/* trace.c - see trace.h */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_WORDS = GWD_TRACE_NAME_BYTES / sizeof(uint64_t) };

typedef struct entry {
    _Atomic uint64_t before; /* number + 1 of the event being written; set first */
    _Atomic uint64_t time_ns, duration_ns, kind_index, group_codec, sequence, bytes;
    _Atomic uint64_t name[NAME_WORDS]; /* written and read with SUBMIT only */
    _Atomic uint64_t after;            /* number + 1 of the event that is complete; set last */
} entry_t;

struct gwd_trace {
    uint64_t capacity;
    _Atomic uint64_t end; /* number of the next event */
    entry_t entries[];
};

gwd_trace_t *gwd_trace_new(uint64_t events) {
    gwd_trace_t *trace = calloc(1, sizeof(*trace) + events * sizeof(trace->entries[0]));

    if (trace)
        trace->capacity = events;
    return trace;
}

void gwd_trace_free(gwd_trace_t *trace) {
    free(trace);
}

static void write_name(entry_t *entry, const char name[GWD_TRACE_NAME_BYTES]) {
    uint64_t words[NAME_WORDS];

    memcpy(words, name, sizeof(words));
    for (size_t i = 0; i < NAME_WORDS; i++)
        atomic_store_explicit(&entry->name[i], words[i], memory_order_release);
}

static void read_name(const entry_t *entry, char name_out[GWD_TRACE_NAME_BYTES]) {
    uint64_t words[NAME_WORDS];

    for (size_t i = 0; i < NAME_WORDS; i++)
        words[i] = atomic_load_explicit(&entry->name[i], memory_order_acquire);
    memcpy(name_out, words, sizeof(words));
    name_out[GWD_TRACE_NAME_BYTES - 1] = 0;
}

void gwd_trace_add(gwd_trace_t *trace, const gwd_trace_event_t *event) {
    uint64_t number = atomic_load_explicit(&trace->end, memory_order_relaxed);
    entry_t *entry = &trace->entries[number % trace->capacity];

    /* The release on each store keeps `before` first and `after` last for a reader that acquires. */
    atomic_store_explicit(&entry->before, number + 1, memory_order_relaxed);
    atomic_store_explicit(&entry->time_ns, event->time_ns, memory_order_release);
    atomic_store_explicit(&entry->duration_ns, event->duration_ns, memory_order_release);
    atomic_store_explicit(&entry->kind_index, (uint64_t)event->kind << 32 | event->index, memory_order_release);
    atomic_store_explicit(&entry->group_codec, (uint64_t)event->codec << 32 | event->group, memory_order_release);
    atomic_store_explicit(&entry->sequence, event->sequence, memory_order_release);
    atomic_store_explicit(&entry->bytes, event->bytes, memory_order_release);
    if (event->kind == GWD_TRACE_SUBMIT)
        write_name(entry, event->name);
    atomic_store_explicit(&entry->after, number + 1, memory_order_release);
    atomic_store_explicit(&trace->end, number + 1, memory_order_release);
}

void gwd_trace_range(const gwd_trace_t *trace, uint64_t *first_out, uint64_t *end_out) {
    uint64_t end = atomic_load_explicit(&trace->end, memory_order_acquire);

    *first_out = end > trace->capacity ? end - trace->capacity : 0;
    *end_out = end;
}

bool gwd_trace_read(const gwd_trace_t *trace, uint64_t number, gwd_trace_event_t *event_out) {
    const entry_t *entry = &trace->entries[number % trace->capacity];
    gwd_trace_event_t event = {.name = ""};
    uint64_t word;

    if (atomic_load_explicit(&entry->after, memory_order_acquire) != number + 1)
        return false;
    event.time_ns = atomic_load_explicit(&entry->time_ns, memory_order_acquire);
    event.duration_ns = atomic_load_explicit(&entry->duration_ns, memory_order_acquire);
    word = atomic_load_explicit(&entry->kind_index, memory_order_acquire);
    event.kind = (gwd_trace_kind_t)(word >> 32);
    event.index = (uint32_t)word;
    word = atomic_load_explicit(&entry->group_codec, memory_order_acquire);
    event.codec = (uint32_t)(word >> 32);
    event.group = (uint32_t)word;
    event.sequence = atomic_load_explicit(&entry->sequence, memory_order_acquire);
    event.bytes = atomic_load_explicit(&entry->bytes, memory_order_acquire);
    if (event.kind == GWD_TRACE_SUBMIT)
        read_name(entry, event.name);
    if (atomic_load_explicit(&entry->before, memory_order_relaxed) != number + 1)
        return false;
    *event_out = event;
    return true;
}

const char *gwd_trace_kind_name(gwd_trace_kind_t kind) {
    static const char *const names[] = {
        [GWD_TRACE_SUBMIT] = "submit", [GWD_TRACE_MATCHED] = "matched",   [GWD_TRACE_READY] = "ready",
        [GWD_TRACE_MET] = "met",       [GWD_TRACE_REDUCED] = "reduced",   [GWD_TRACE_DONE] = "done",
        [GWD_TRACE_FAILED] = "failed", [GWD_TRACE_COPY_IN] = "copy_in",   [GWD_TRACE_COPY_OUT] = "copy_out",
        [GWD_TRACE_REDUCE] = "reduce", [GWD_TRACE_ENCODE] = "encode",     [GWD_TRACE_DECODE] = "decode",
        [GWD_TRACE_SENT] = "sent",     [GWD_TRACE_RECEIVED] = "received",
    };

    return names[kind];
}
