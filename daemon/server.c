/* server.c - see server.h */
#include "server.h"

#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap.h"
#include "clock.h"
#include "codec.h"
#include "group_codec.h"
#include "kernels.h"
#include "log.h"
#include "sd.h"

/* ---- what the lanes say ------------------------------------------------------------------------- */

static void on_events(uv_poll_t *poll, int status, int events) {
    gwd_server_t *server = poll->data;
    gwd_event_t event;

    (void)status;
    (void)events;
    gwd_queue_clear_wake(&server->events);
    while (gwd_queue_pop(&server->events, &event))
        gwd_group_event(server, &event);
}

/* ---- configuration ------------------------------------------------------------------------------ */

static void apply_config(gwd_server_t *server) {
    const gwd_config_t *config = &server->config;

    gwd_log_set_level((gwd_log_level_t)config->log_level);
    atomic_store(&server->limits.late_ns, (uint64_t)config->deadline_late_ms * 1000000u);
    atomic_store(&server->limits.deadline_ns, (uint64_t)config->deadline_bucket_s * 1000000000u);
    atomic_store(&server->limits.poll_ns, (uint64_t)config->lane_poll_us * 1000u);
    atomic_store(&server->limits.spin_ns, (uint64_t)config->lane_spin_us * 1000u);
}

static void on_change(void *context, const gwd_config_key_t *key, const char *old_text, const char *new_text,
                      int applied) {
    (void)context;
    gwd_log(GWD_LOG_NOTICE, "config", "%s: %s -> %s%s", key->full_name, old_text, new_text,
            applied ? "" : " (after the next restart)");
}

static void on_hangup(uv_signal_t *signal, int number) {
    gwd_server_t *server = signal->data;
    char error[GWD_CONFIG_ERROR_BYTES];

    (void)number;
    (void)gwd_sd_reloading();
    if (gwd_config_reload(&server->config, on_change, server, error, sizeof(error)) != GW_OK) {
        gwd_log(GWD_LOG_ERROR, "config", "nothing is changed: %s", error);
    } else {
        gwd_log(GWD_LOG_NOTICE, "config", "the configuration has been read again");
        apply_config(server);
    }
    (void)gwd_sd_ready(server->draining ? "draining" : "serving");
}

/* ---- draining ----------------------------------------------------------------------------------- */

static void close_sessions(gwd_server_t *server) {
    for (gwd_session_t *session = server->sessions; session; session = session->next)
        gwd_session_close(session, GW_ERR_ABORTED, "was disconnected: the daemon stops");
}

static void close_loop(gwd_server_t *server) {
    gwd_listen_close(server);
    gwd_bootstrap_close(server);
    uv_close((uv_handle_t *)&server->events_poll, NULL);
    uv_close((uv_handle_t *)&server->term, NULL);
    uv_close((uv_handle_t *)&server->interrupt, NULL);
    uv_close((uv_handle_t *)&server->hangup, NULL);
    uv_close((uv_handle_t *)&server->drain_timer, NULL);
}

void gwd_server_settle(gwd_server_t *server) {
    if (!server->draining || server->n_groups > 0)
        return;
    if (server->n_sessions > 0) {
        close_sessions(server);
        return;
    }
    if (!server->stopping) {
        server->stopping = true;
        gwd_device_drain(server);
        close_loop(server);
    }
}

/* Groups that nobody has joined, or (with `all`) every group. */
static void end_groups(gwd_server_t *server, bool all) {
    gwd_group_t *group = server->groups, *next;

    for (; group; group = next) {
        next = group->next;
        if (group->giving_up) /* it ended because another one did; its memory stays until the loop's next turn */
            continue;
        if (group->state == GWD_GROUP_ACTIVE && all)
            gwd_group_fail(group, GW_ERR_ABORTED, "the daemon stops, and drain.timeout_s has passed");
        else if (group->state == GWD_GROUP_ID || (group->state != GWD_GROUP_ACTIVE && all))
            gwd_group_give_up(group, GW_ERR_DRAINING, "the daemon stops");
    }
}

static const char *plural(unsigned n) {
    return n == 1 ? "" : "s";
}

static void on_drain_timeout(uv_timer_t *timer) {
    gwd_server_t *server = timer->data;

    gwd_log(GWD_LOG_WARNING, "daemon", "drain.timeout_s has passed: failing %u group%s", server->n_groups,
            plural(server->n_groups));
    end_groups(server, true);
    close_sessions(server);
}

void gwd_server_drain(gwd_server_t *server) {
    unsigned n_clients = 0;

    if (server->draining) { /* asked again: now */
        on_drain_timeout(&server->drain_timer);
        return;
    }
    server->draining = true;
    for (const gwd_session_t *session = server->sessions; session; session = session->next)
        n_clients += session->role == GWD_ROLE_CLIENT;
    gwd_log(GWD_LOG_NOTICE, "daemon", "draining: %u group%s of %u client%s may end within %lld s", server->n_groups,
            plural(server->n_groups), n_clients, plural(n_clients), (long long)server->config.drain_timeout_s);
    (void)gwd_sd_stopping("draining");
    (void)uv_timer_start(&server->drain_timer, on_drain_timeout, (uint64_t)server->config.drain_timeout_s * 1000, 0);
    end_groups(server, false);
    gwd_server_settle(server);
}

static void on_terminate(uv_signal_t *signal, int number) {
    (void)number;
    gwd_server_drain(signal->data);
}

/* ---- life --------------------------------------------------------------------------------------- */

static gw_status_t start_threads(gwd_server_t *server, char *text, size_t text_bytes) {
    const gwd_config_t *config = &server->config;
    int error =
        gwd_reduce_new((unsigned)config->reduce_threads, (uint64_t)config->lane_spin_us * 1000, &server->reduce);
    uint32_t wanted = (uint32_t)config->lane_count;

    if (!error && wanted == 0) {
        wanted = (gwd_reduce_threads(server->reduce) + 3) / 4;
        wanted = wanted > 4 ? 4 : wanted;
    }
    for (; !error && server->n_lanes < wanted; server->n_lanes += !error)
        error = gwd_lane_new(&server->events, server->reduce, &server->limits, (uint64_t)config->trace_events,
                             server->n_lanes, &server->lanes[server->n_lanes]);
    if (!error)
        return GW_OK;
    snprintf(text, text_bytes, "the threads cannot be started: %s", strerror(error));
    return GW_ERR_SYSTEM;
}

static gw_status_t choose_isa(const gwd_config_t *config, char *text, size_t text_bytes) {
    if (config->reduce_isa[0] == '\0' ||
        (gw_kernel_force_isa(config->reduce_isa) && gw_codec_force_isa(config->reduce_isa)))
        return GW_OK;
    snprintf(text, text_bytes, "reduce.isa: this processor, or this build, has no '%s'; its best is %s",
             config->reduce_isa, gw_kernel_isa());
    return GW_ERR_INVALID_ARGUMENT;
}

static gw_status_t start_loop(gwd_server_t *server, char *text, size_t text_bytes) {
    if (uv_poll_init(&server->loop, &server->events_poll, server->events.wake_fd) != 0 ||
        uv_poll_start(&server->events_poll, UV_READABLE, on_events) != 0 ||
        uv_signal_init(&server->loop, &server->term) != 0 || uv_signal_init(&server->loop, &server->interrupt) != 0 ||
        uv_signal_init(&server->loop, &server->hangup) != 0 ||
        uv_timer_init(&server->loop, &server->drain_timer) != 0 ||
        uv_signal_start(&server->term, on_terminate, SIGTERM) != 0 ||
        uv_signal_start(&server->interrupt, on_terminate, SIGINT) != 0 ||
        uv_signal_start(&server->hangup, on_hangup, SIGHUP) != 0) {
        snprintf(text, text_bytes, "the event loop cannot be started");
        return GW_ERR_SYSTEM;
    }
    server->events_poll.data = server->term.data = server->interrupt.data = server->hangup.data =
        server->drain_timer.data = server;
    return GW_OK;
}

gw_status_t gwd_server_init(gwd_server_t *server, const gwd_config_t *config, char *text, size_t text_bytes) {
    gw_status_t status;

    *server = (gwd_server_t){.config = *config, .version = gw_version(), .lock_fd = -1, .reserve_fd = -1};
    server->clients.fd = server->admins.fd = -1;
    if (!gwd_group_codec_is_configured(config, text, text_bytes))
        return GW_ERR_INVALID_ARGUMENT;
    server->quota.config = &server->config;
    server->started_ns = gwd_now_ns();
    randombytes_buf(server->node, sizeof(server->node));
    if (gethostname(server->host, sizeof(server->host) - 1) != 0)
        snprintf(server->host, sizeof(server->host), "localhost");
    apply_config(server);
    server->packet = malloc(GW_PACKET_MAX);
    if (!server->packet || gwd_queue_init(&server->events, sizeof(gwd_event_t)) != 0 ||
        uv_loop_init(&server->loop) != 0) {
        snprintf(text, text_bytes, "out of memory or file descriptors");
        return GW_ERR_NO_MEMORY;
    }
    status = choose_isa(config, text, text_bytes);
    if (status == GW_OK)
        status = start_loop(server, text, text_bytes);
    if (status == GW_OK)
        status = gwd_wires_open(server, text, text_bytes);
    if (status == GW_OK)
        status = start_threads(server, text, text_bytes);
    if (status == GW_OK)
        status = gwd_bootstrap_listen(server, text, text_bytes);
    if (status == GW_OK)
        status = gwd_listen_open(server, text, text_bytes);
    return status; /* on an error the process ends: nothing is worth undoing but the socket files */
}

void gwd_server_run(gwd_server_t *server) {
    gwd_log(GWD_LOG_NOTICE, "daemon",
            "gradwired %s serves clients on %s, operators on %s, with %u lane%s and %u reduce thread%s",
            server->version, server->clients.path[0] ? server->clients.path : "the socket passed in",
            server->admins.path[0] ? server->admins.path : "the socket passed in", server->n_lanes,
            plural(server->n_lanes), gwd_reduce_threads(server->reduce), plural(gwd_reduce_threads(server->reduce)));
    (void)gwd_sd_ready("serving");
    (void)uv_run(&server->loop, UV_RUN_DEFAULT);

    for (uint32_t i = 0; i < server->n_lanes; i++)
        gwd_lane_free(server->lanes[i]);
    gwd_wires_close(server);
    gwd_reduce_free(server->reduce);
    (void)uv_loop_close(&server->loop);
    gwd_queue_fini(&server->events);
    free(server->packet);
    gwd_log(GWD_LOG_NOTICE, "daemon", "gradwired has ended");
}
