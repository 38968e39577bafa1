/* trace_read.c - what the daemon's rings hold, page by page. See trace.h */
#include "trace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_MS = 20 }; /* so that rings do not overflow in between */

static const char *const kinds[GWCTL_EVENT_KINDS] = {"submit", "matched", "ready",   "met",      "reduced",
                                                     "done",   "failed",  "copy_in", "copy_out", "reduce",
                                                     "encode", "decode",  "sent",    "received"};

/* GWCTL_EVENT_KINDS: a newer daemon's. */
static gwctl_event_kind_t find_kind(const char *name) {
    int kind = 0;
    while (kind < GWCTL_EVENT_KINDS && strcmp(kinds[kind], name) != 0)
        kind++;
    return (gwctl_event_kind_t)kind;
}

static uint64_t whole(const cJSON *object, const char *field) {
    double number = gwctl_number(object, field);
    return number > 0 && number < 1.8e19 ? (uint64_t)number : 0;
}

static uint32_t small(const cJSON *object, const char *field) {
    uint64_t number = whole(object, field);
    return number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
}

/* False: no memory. */
static bool add_event(gwctl_events_t *events, const cJSON *json) {
    gwctl_event_kind_t kind = find_kind(gwctl_text(json, "kind"));
    if (kind == GWCTL_EVENT_KINDS)
        return true;
    if (events->n == GWCTL_EVENTS_MAX) {
        events->full = true;
        return true;
    }
    if (events->n == events->n_allocated) {
        size_t n = events->n_allocated > 0 ? 2 * events->n_allocated : 4096;
        gwctl_event_t *items = realloc(events->items, n * sizeof(*items));
        if (items == NULL)
            return false;
        events->items = items;
        events->n_allocated = n;
    }
    gwctl_event_t *event = &events->items[events->n];
    *event = (gwctl_event_t){.time_ns = whole(json, "time_ns"),
                             .duration_ns = whole(json, "duration_ns"),
                             .sequence = whole(json, "sequence"),
                             .bytes = whole(json, "bytes"),
                             .group = small(json, "group"),
                             .index = small(json, kind == GWCTL_SENT || kind == GWCTL_RECEIVED ? "node" : "rank"),
                             .kind = kind};
    snprintf(event->codec, sizeof(event->codec), "%s", gwctl_text(json, "codec"));
    if (kind == GWCTL_SUBMIT || kind == GWCTL_FAILED_OP) {
        event->name = strdup(gwctl_text(json, kind == GWCTL_SUBMIT ? "name" : "status"));
        if (event->name == NULL)
            return false;
    }
    events->n++;
    return true;
}

/* Reads one page from `cursor`, which becomes that of the next. Returns an exit code. */
static int read_page(gwctl_connection_t *connection, gwctl_events_t *events, char **cursor, bool *more_out) {
    const char *argument = *cursor;
    char *text = NULL;
    int code = gwctl_ask(connection, "trace", &argument, argument != NULL ? 1 : 0, &text);
    if (code != GWCTL_OK) {
        gwctl_complain(connection);
        return code;
    }
    cJSON *page = gwctl_parse(text);
    if (page == NULL)
        return GWCTL_FAILED;
    cJSON_Delete(events->daemon);
    cJSON *list = cJSON_DetachItemFromObjectCaseSensitive(page, "events");
    events->daemon = page;
    events->lost += whole(page, "lost");
    *more_out = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(page, "more"));
    free(*cursor);
    *cursor = strdup(gwctl_text(page, "cursor"));
    bool good = *cursor != NULL;
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        good = good && add_event(events, item);
    }
    cJSON_Delete(list);
    if (!good)
        fprintf(stderr, "gwctl: out of memory: trace for less time\n");
    return good ? GWCTL_OK : GWCTL_FAILED;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* All pages that there are. A daemon that is busy makes more meanwhile: they are left for later. */
static int read_pages(gwctl_connection_t *connection, gwctl_events_t *events, char **cursor) {
    double end_s = now_s() + 1;
    bool more = true;
    int code = GWCTL_OK;
    while (code == GWCTL_OK && more && now_s() < end_s)
        code = read_page(connection, events, cursor, &more);
    return code;
}

static int read_for(gwctl_connection_t *connection, gwctl_events_t *events, double seconds) {
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    double end_s = now_s() + seconds;
    char *cursor = strdup("end");
    bool more, last = false;
    int code = cursor != NULL ? read_page(connection, events, &cursor, &more) : GWCTL_FAILED;
    while (code == GWCTL_OK && !last) {
        last = now_s() >= end_s;
        code = read_pages(connection, events, &cursor);
        if (!last)
            nanosleep(&pause, NULL);
    }
    free(cursor);
    return code;
}

int gwctl_events_read(const gwctl_options_t *options, gwctl_events_t *events_out) {
    gwctl_connection_t connection;
    char *cursor = NULL;
    *events_out = (gwctl_events_t){0};
    int code = gwctl_open(options->socket_path, &connection);
    if (code != GWCTL_OK) {
        gwctl_complain(&connection);
        return code;
    }
    code = options->seconds > 0 ? read_for(&connection, events_out, options->seconds)
                                : read_pages(&connection, events_out, &cursor);
    free(cursor);
    gwctl_close(&connection);
    return code;
}

void gwctl_events_free(gwctl_events_t *events) {
    for (size_t i = 0; i < events->n; i++)
        free(events->items[i].name);
    free(events->items);
    cJSON_Delete(events->daemon);
}
