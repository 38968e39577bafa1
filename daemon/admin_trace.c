/* admin_trace.c - what the lanes' rings hold, page by page: see admin.h
 *
 * A page has so few events that making it does not hold up the loop; who wants all asks again from its cursor, which has
 * the number of each lane's next event. The lanes go on meanwhile: what they overwrite before it is read is counted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"
#include "clock.h"
#include "escape.h"
#include "server.h"

enum {
    PAGE_EVENTS = 1024,   /* of all lanes together */
    LANE_EVENTS_MIN = 16, /* but each lane has so many */
    NUMBER_CHARS = 21,    /* of a lane in the cursor */
};

/* Only what is of this kind. */
static cJSON *event_json(const gwd_trace_event_t *event) {
    char safe[4 * GWD_TRACE_NAME_BYTES];
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "kind", gwd_trace_kind_name(event->kind));
    gwd_admin_number(json, "group", event->group);
    gwd_admin_number(json, "sequence", event->sequence);
    gwd_admin_number(json, "time_ns", event->time_ns);
    if (event->kind == GWD_TRACE_SUBMIT) {
        gw_escape(event->name, GWD_TRACE_NAME_BYTES, safe, sizeof(safe));
        cJSON_AddStringToObject(json, "name", safe);
        cJSON_AddStringToObject(json, "codec", gw_codec_name((gw_codec_t)event->codec));
    }
    if (event->kind == GWD_TRACE_SUBMIT || event->kind == GWD_TRACE_MATCHED)
        gwd_admin_number(json, "rank", event->index);
    if (event->kind == GWD_TRACE_SENT || event->kind == GWD_TRACE_RECEIVED)
        gwd_admin_number(json, "node", event->index);
    if (event->kind == GWD_TRACE_FAILED)
        cJSON_AddStringToObject(json, "status", gw_status_name((gw_status_t)event->index));
    if (gwd_trace_takes_time(event->kind))
        gwd_admin_number(json, "duration_ns", event->duration_ns);
    if (event->kind == GWD_TRACE_SUBMIT || gwd_trace_takes_time(event->kind))
        gwd_admin_number(json, "bytes", event->bytes);
    return json;
}

/* Where each lane's part of the page begins. False: that is no cursor. */
static bool read_cursor(const gwd_server_t *server, const char *cursor, uint64_t *at_out) {
    bool is_end = strcmp(cursor, "end") == 0;

    for (uint32_t i = 0; i < server->n_lanes; i++) {
        uint64_t first, end;
        char *rest;

        gwd_trace_range(gwd_lane_trace(server->lanes[i]), &first, &end);
        at_out[i] = is_end ? end : first;
        if (is_end || !*cursor)
            continue;
        errno = 0;
        at_out[i] = strtoull(cursor, &rest, 10);
        if (errno || *cursor < '0' || *cursor > '9' || at_out[i] > end ||
            *rest != (i + 1 < server->n_lanes ? ',' : '\0'))
            return false;
        cursor = *rest ? rest + 1 : rest;
    }
    return true;
}

/* Returns how many were overwritten before they could be read. */
static uint64_t add_events(cJSON *list, const gwd_trace_t *trace, uint64_t most, uint64_t *at_io, bool *more_io) {
    uint64_t first, end, lost = 0;

    gwd_trace_range(trace, &first, &end);
    if (*at_io < first) {
        lost = first - *at_io;
        *at_io = first;
    }
    for (; *at_io < end && most > 0; (*at_io)++, most--) {
        gwd_trace_event_t event;

        if (gwd_trace_read(trace, *at_io, &event))
            cJSON_AddItemToArray(list, event_json(&event));
        else
            lost++;
    }
    *more_io = *more_io || *at_io < end;
    return lost;
}

static void add_process(cJSON *json, const gwd_server_t *server) {
    struct timespec wall = {0};
    uint64_t now_ns;

    now_ns = gwd_now_ns();
    (void)clock_gettime(CLOCK_REALTIME, &wall); /* cannot fail */
    cJSON_AddStringToObject(json, "version", server->version);
    gwd_admin_add_node(json, server->node);
    cJSON_AddStringToObject(json, "host", server->host);
    gwd_admin_number(json, "pid", (uint64_t)getpid());
    gwd_admin_number(json, "monotonic_ns", now_ns);
    gwd_admin_number(json, "realtime_ns", (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec);
}

gw_status_t gwd_admin_trace(struct gwd_server *server, const char *cursor, cJSON **json_out, char *text,
                            size_t text_bytes) {
    uint64_t lost = 0, most = PAGE_EVENTS / server->n_lanes, *at = calloc(server->n_lanes, sizeof(*at));
    char *next = malloc((size_t)server->n_lanes * NUMBER_CHARS + 1);
    gw_status_t status = GW_ERR_NO_MEMORY;
    bool more = false;
    size_t used = 0;
    cJSON *list;

    if (!at || !next)
        goto out;
    if (!read_cursor(server, cursor, at)) {
        snprintf(text, text_bytes, "trace '%.100s': that is no cursor of this daemon; begin again without one", cursor);
        status = GW_ERR_INVALID_ARGUMENT;
        goto out;
    }
    *json_out = cJSON_CreateObject();
    add_process(*json_out, server);
    list = cJSON_AddArrayToObject(*json_out, "events");
    for (uint32_t i = 0; i < server->n_lanes; i++) {
        lost += add_events(list, gwd_lane_trace(server->lanes[i]), most > LANE_EVENTS_MIN ? most : LANE_EVENTS_MIN,
                           &at[i], &more);
        used += (size_t)snprintf(next + used, NUMBER_CHARS + 1, "%s%llu", i ? "," : "", (unsigned long long)at[i]);
    }
    gwd_admin_number(*json_out, "lost", lost);
    cJSON_AddBoolToObject(*json_out, "more", more);
    cJSON_AddStringToObject(*json_out, "cursor", next);
    status = GW_OK;

out:
    free(next);
    free(at);
    return status;
}
