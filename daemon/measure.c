/* measure.c - see measure.h */
#include "measure.h"

#include <string.h>

#include "bootstrap.h"
#include "codec_speed.h"
#include "log.h"
#include "server.h"

void gwd_measure_begin(gwd_group_t *group) {
    gwd_command_t command = {.kind = GWD_COMMAND_PROBE, .group = group->id};

    group->policy.figures.bytes_per_s = UINT64_MAX;
    group->policy.figures.latency_ns = UINT64_MAX;
    group->n_probing = group->n_rails;
    if (!gwd_lane_send(gwd_group_rail_lane(group, 0), &command)) /* the other lanes may not know of the group yet */
        gwd_group_give_up(group, GW_ERR_NO_MEMORY, "out of memory");
}

static void end(gwd_group_t *group) {
    gwd_codec_figures_t *figures = &group->policy.figures;
    uint64_t threads = gwd_reduce_threads(group->server->reduce),
             window = group->n_rails * (uint64_t)group->plan.wire_window;

    /* So many chunks are encoded at once. */
    threads = threads < window ? threads : window;
    for (int i = 0; i < GW_CODECS; i++)
        figures->coding[i] = group->server->codec_speed.of[i] * (threads ? threads : 1);
    group->awaits_speed = false;
    gwd_bootstrap_measured(group, figures);
}

static void work(uv_work_t *request) {
    gwd_server_t *server = request->data;

    gwd_codec_speed(server->codec_speed.of);
}

static void work_done(uv_work_t *request, int status) {
    gwd_server_t *server = request->data;
    gwd_group_t *next;

    (void)status; /* nobody cancels it */
    server->codec_speed.is_known = true;
    for (gwd_group_t *group = server->groups; group; group = next) {
        next = group->next; /* one of another daemon's: no other group of this one ends with it */
        if (group->awaits_speed && group->state == GWD_GROUP_PREPARED && !group->giving_up)
            end(group);
    }
}

void gwd_measure_wire_is_known(gwd_group_t *group, const gwd_event_t *event) {
    gwd_server_t *server = group->server;

    gwd_codec_figures_t *figures = &group->policy.figures;

    if (group->state != GWD_GROUP_PREPARED || group->giving_up)
        return;
    figures->bytes_per_s = event->bytes_per_s < figures->bytes_per_s ? event->bytes_per_s : figures->bytes_per_s;
    figures->latency_ns = event->latency_ns < figures->latency_ns ? event->latency_ns : figures->latency_ns;
    if (--group->n_probing > 0)
        return;
    /* The slowest had most of the others beside it: those that began first, or ended last, had the link for themselves. */
    figures->bytes_per_s *= group->n_rails;
    if (server->codec_speed.is_known) {
        end(group);
        return;
    }
    group->awaits_speed = true;
    if (server->codec_speed.is_asked)
        return;
    server->codec_speed.is_asked = true;
    server->codec_speed.work.data = server;
    if (uv_queue_work(&server->loop, &server->codec_speed.work, work, work_done) != 0)
        work_done(&server->codec_speed.work, 0); /* no codec is the faster for it */
}

bool gwd_measure_read(uint64_t bytes_per_s, uint64_t latency_ns, size_t n_coding, const uint64_t *coding,
                      gwd_codec_figures_t *figures_out) {
    if (bytes_per_s == 0 || n_coding != GW_CODECS)
        return false;
    figures_out->bytes_per_s = bytes_per_s;
    figures_out->latency_ns = latency_ns;
    memcpy(figures_out->coding, coding, sizeof(figures_out->coding));
    return true;
}
