/* server.h - the loop thread and everything it owns
 */
#ifndef GWD_SERVER_H
#define GWD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "bootstrap_address.h"
#include "bootstrap_contact.h"
#include "config.h"
#include "device.h"
#include "group.h"
#include "lane.h"
#include "quota.h"
#include "reduce.h"
#include "session.h"
#include "stats.h"
#include "unmade.h"

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
    gwd_unmade_list_t unmade;

    gwd_address_list_t reached_at; /* where others connect to: wire.listen */
    uv_tcp_t listeners[GWD_ADDRESSES_MAX];
    gwd_contact_t *contacts;         /* with other daemons, from old to new */
    uint64_t n_dropped, dropped_ns;  /* connections of strangers since the last message, and when that was */
    struct gwd_transport *transport; /* NULL: no group has needed it */
    struct {
        uint64_t of[GW_CODECS];
        bool is_asked, is_known;
        uv_work_t work;
    } codec_speed; /* measure.c */

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

/* wires.c: sets the transport's environment variables, before there are threads, and opens it where wire.listen is set.
 * Elsewhere the first group that goes to another node opens it. Blocking: some ten ms. Errors, with text: as
 * gwd_transport_open. */
gw_status_t gwd_wires_open(gwd_server_t *server, char *text, size_t text_bytes);

/* Makes the group's wires, if it has none, and tells their addresses (rails.h). Its lane has been chosen. Errors, with
 * text (GWD_TEXT_BYTES): as gwd_transport_open and gwd_wire_new. */
gw_status_t gwd_wires_make(gwd_group_t *group, const void **address_out, size_t *bytes_out, char *text);

/* Those from number `first` on that lanes have not taken. */
void gwd_wires_free(gwd_group_t *group, uint32_t first);

void gwd_wires_close(gwd_server_t *server); /* once the lanes have gone */

/* listen.c: sockets from the service manager, or in the folder that the configuration says. */
gw_status_t gwd_listen_open(gwd_server_t *server, char *text, size_t text_bytes);
void gwd_listen_close(gwd_server_t *server);

#endif
