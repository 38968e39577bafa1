/* trace.c - see trace.h */
#include "trace.h"

#include <stdlib.h>

typedef struct entry {
    _Atomic uint64_t before; /* number + 1 of the event being written; set first */
    _Atomic uint64_t time_ns, kind_rank, group, sequence, bytes;
    _Atomic uint64_t after; /* number + 1 of the event that is complete; set last */
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

void gwd_trace_add(gwd_trace_t *trace, const gwd_trace_event_t *event) {
    uint64_t number = atomic_load_explicit(&trace->end, memory_order_relaxed);
    entry_t *entry = &trace->entries[number % trace->capacity];

    /* The release on each store keeps `before` first and `after` last for a reader that acquires. */
    atomic_store_explicit(&entry->before, number + 1, memory_order_relaxed);
    atomic_store_explicit(&entry->time_ns, event->time_ns, memory_order_release);
    atomic_store_explicit(&entry->kind_rank, (uint64_t)event->kind << 32 | event->rank, memory_order_release);
    atomic_store_explicit(&entry->group, event->group, memory_order_release);
    atomic_store_explicit(&entry->sequence, event->sequence, memory_order_release);
    atomic_store_explicit(&entry->bytes, event->bytes, memory_order_release);
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
    gwd_trace_event_t event;
    uint64_t kind_rank;

    if (atomic_load_explicit(&entry->after, memory_order_acquire) != number + 1)
        return false;
    event.time_ns = atomic_load_explicit(&entry->time_ns, memory_order_acquire);
    kind_rank = atomic_load_explicit(&entry->kind_rank, memory_order_acquire);
    event.kind = (gwd_trace_kind_t)(kind_rank >> 32);
    event.rank = (uint32_t)kind_rank;
    event.group = (uint32_t)atomic_load_explicit(&entry->group, memory_order_acquire);
    event.sequence = atomic_load_explicit(&entry->sequence, memory_order_acquire);
    event.bytes = atomic_load_explicit(&entry->bytes, memory_order_acquire);
    if (atomic_load_explicit(&entry->before, memory_order_relaxed) != number + 1)
        return false;
    *event_out = event;
    return true;
}

const char *gwd_trace_kind_name(gwd_trace_kind_t kind) {
    static const char *const names[] = {
        [GWD_TRACE_SUBMIT] = "submit",   [GWD_TRACE_MATCHED] = "matched", [GWD_TRACE_READY] = "ready",
        [GWD_TRACE_REDUCED] = "reduced", [GWD_TRACE_DONE] = "done",       [GWD_TRACE_FAILED] = "failed"};
    return names[kind];
}
