/* server.h - the loop thread and everything it owns
 */
#ifndef GWD_SERVER_H
#define GWD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config.h"
#include "device.h"
#include "group.h"
#include "lane.h"
#include "quota.h"
#include "reduce.h"
#include "session.h"
#include "stats.h"

enum { GWD_LANES_MAX = 64 };

typedef struct gwd_listener {
    struct gwd_server *server;
    gwd_role_t role;
    int fd;         /* -1: not open */
    char path[108]; /* to be unlinked at the end; "" where the service manager made it */
    uv_poll_t poll;
} gwd_listener_t;

typedef struct gwd_server {
    uv_loop_t loop;
    gwd_config_t config;
    const char *version;
    uint8_t node[16]; /* this instance */
    char host[65];
    uint64_t started_ns;
    gwd_quota_t quota;
    gwd_stats_t stats; /* the loop's own */
    uint8_t *packet;   /* GW_PACKET_MAX bytes to receive into */

    gwd_listener_t clients, admins;
    int lock_fd;    /* keeps a second daemon off the same folder */
    int reserve_fd; /* given up for a moment to refuse a client when descriptors run out */

    gwd_session_t *sessions;
    uint32_t n_sessions;
    uint64_t last_session_id;
    gwd_group_t *groups;
    uint32_t n_groups, last_group_id;
    uint64_t last_search; /* cycle.c */

    gwd_device_t *devices; /* those with buffers, or that had some a moment ago */

    gwd_reduce_t *reduce;
    gwd_lane_limits_t limits;
    gwd_lane_t *lanes[GWD_LANES_MAX];
    uint32_t lane_groups[GWD_LANES_MAX];
    uint32_t n_lanes;
    gwd_queue_t events; /* gwd_event_t, from all lanes */
    uv_poll_t events_poll;

    uv_signal_t term, interrupt, hangup;
    uv_timer_t drain_timer;
    bool draining, stopping;
} gwd_server_t;

/* Takes the configuration over, opens the sockets and starts the threads. Errors, with text: any. */
gw_status_t gwd_server_init(gwd_server_t *server, const gwd_config_t *config, char *text, size_t text_bytes);

/* Serves until drained. Returns when everything has been given back. */
void gwd_server_run(gwd_server_t *server);

/* Takes nothing new, lets groups end for drain.timeout_s, then ends. */
void gwd_server_drain(gwd_server_t *server);

/* Goes on with the drain when a session or group has gone. */
void gwd_server_settle(gwd_server_t *server);

/* listen.c: sockets from the service manager, or in the folder that the configuration says. */
gw_status_t gwd_listen_open(gwd_server_t *server, char *text, size_t text_bytes);
void gwd_listen_close(gwd_server_t *server);

#endif
