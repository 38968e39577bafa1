/* wires.c - the transport of the daemon, and the wires of its groups. See server.h
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "server.h"
#include "transport.h"

static gwd_transport_config_t wanted(const gwd_config_t *config) {
    return (gwd_transport_config_t){.devices = config->wire_devices,
                                    .transports = config->wire_transports,
                                    .ports = config->wire_ports,
                                    .traffic_class = (uint32_t)config->wire_traffic_class,
                                    .paths = (uint32_t)config->wire_paths,
                                    .has_gate = config->wire_gate != 0};
}

static gw_status_t open_transport(gwd_server_t *server, char *text) {
    gwd_transport_config_t config = wanted(&server->config);

    return server->transport ? GW_OK : gwd_transport_open(&config, &server->transport, text);
}

gw_status_t gwd_wires_open(gwd_server_t *server, char *text, size_t text_bytes) {
    gwd_transport_config_t config = wanted(&server->config);
    char why[GWD_WIRE_TEXT_BYTES] = "";
    gw_status_t status = gwd_transport_set_environment(&config, why);

    if (status == GW_OK && server->config.wire_listen[0])
        status = open_transport(server, why);
    if (status != GW_OK)
        snprintf(text, text_bytes, "there is no way to other nodes: %s", why);
    return status;
}

enum {
    WIRE_FDS = 8,
    RANK_FDS = 4
}; /* at most: of a wire without connections; that a rank takes when its group starts */

/* Whether so many descriptors are left; `fd` is any. */
static bool has_descriptors(int fd, uint32_t n) {
    int *fds = calloc(n, sizeof(*fds));
    uint32_t n_open = 0;

    while (fds && n_open < n && (fds[n_open] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0)
        n_open++;
    for (uint32_t i = 0; i < n_open; i++)
        close(fds[i]);
    free(fds);
    return n_open == n;
}

static uint32_t rails_wanted(const gwd_server_t *server) {
    return server->n_lanes < GWD_RAILS_MAX ? server->n_lanes : GWD_RAILS_MAX;
}

/* What the group will take, each way to a node being a connection of its own. UCX 1.13 can end the process when it finds
 * none while it connects. */
static uint32_t descriptors_of(const gwd_group_t *group) {
    uint32_t n_peers = (group->map ? group->map->n_nodes : group->nranks) - 1;

    return rails_wanted(group->server) * (WIRE_FDS + 2 * (uint32_t)group->server->config.wire_paths * n_peers) +
           RANK_FDS * group->n_members;
}

void gwd_wires_free(gwd_group_t *group, uint32_t first) {
    for (uint32_t i = first; i < GWD_RAILS_MAX; i++) {
        if (group->wires[i])
            gwd_wire_free(group->wires[i]);
        group->wires[i] = NULL;
    }
}

static gw_status_t make_all(gwd_group_t *group, char *text) {
    gwd_server_t *server = group->server;
    gw_status_t status = GW_OK;

    while (status == GW_OK && group->n_wires < rails_wanted(server)) {
        gwd_wire_t **wire = &group->wires[group->n_wires];
        const void *address;
        size_t bytes;

        status = gwd_wire_new(server->transport, &gwd_lane_wire_events, gwd_group_rail_lane(group, group->n_wires),
                              wire, text);
        if (status != GW_OK)
            return status;
        group->n_wires++;
        gwd_wire_address(*wire, &address, &bytes);
        if (!gwd_rails_pack(&group->wire_address, &group->wire_address_bytes, address, bytes))
            return GW_ERR_NO_MEMORY;
    }
    return status;
}

gw_status_t gwd_wires_make(gwd_group_t *group, const void **address_out, size_t *bytes_out, char *text) {
    gwd_server_t *server = group->server;
    char why[GWD_WIRE_TEXT_BYTES] = "";
    gw_status_t status = open_transport(server, why);

    if (status == GW_OK && group->n_wires == 0 &&
        !has_descriptors(uv_backend_fd(&server->loop), descriptors_of(group))) {
        snprintf(text, GWD_TEXT_BYTES, "host %s has not the %u file descriptors that a group of several nodes may take",
                 server->host, descriptors_of(group));
        return GW_ERR_FD_LIMIT;
    }
    if (status == GW_OK)
        status = make_all(group, why);
    *address_out = group->wire_address;
    *bytes_out = group->wire_address_bytes;
    if (status != GW_OK)
        snprintf(text, GWD_TEXT_BYTES, "host %s has no way to other nodes: %s", server->host, why);
    return status;
}

void gwd_wires_close(gwd_server_t *server) {
    if (server->transport)
        gwd_transport_close(server->transport);
}
