/* bootstrap.c - see bootstrap.h */
#include "bootstrap.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "escape.h"
#include "gradwire.pb-c.h"
#include "group_map.h"
#include "log.h"
#include "status.h"
#include "unpack.h"

enum { BACKLOG = 512 };

/* ---- listening ---------------------------------------------------------------------------------- */

static void on_connection(uv_stream_t *listener, int status) {
    if (status == 0)
        gwd_contact_accept(listener->data, listener, &gwd_root_events);
}

static int listen_at(gwd_server_t *server, uv_tcp_t *listener, gwd_address_t *address) {
    int bytes = sizeof(*address);
    int error = uv_tcp_init(&server->loop, listener);

    listener->data = server;
    if (error == 0)
        error = uv_tcp_bind(listener, &address->any, address->any.sa_family == AF_INET6 ? UV_TCP_IPV6ONLY : 0);
    if (error == 0)
        error = uv_listen((uv_stream_t *)listener, BACKLOG, on_connection);
    if (error == 0)
        error = uv_tcp_getsockname(listener, &address->any, &bytes); /* the port, if the configuration said 0 */
    return error;
}

static const char *remedy(int error) {
    switch (error) {
    case UV_EADDRINUSE:
        return ": another daemon or program listens there; end it, or set wire.port to another port";
    case UV_EADDRNOTAVAIL:
        return ": no interface of this host has that address; correct wire.listen";
    case UV_EACCES:
        return ": set wire.port to a port above 1023";
    default:
        return "";
    }
}

gw_status_t gwd_bootstrap_listen(gwd_server_t *server, char *text, size_t text_bytes) {
    gwd_address_list_t wanted;
    gw_status_t status =
        gwd_address_parse(server->config.wire_listen, (uint16_t)server->config.wire_port, &wanted, text, text_bytes);
    char name[GWD_ADDRESS_TEXT_BYTES];

    for (unsigned i = 0; i < wanted.n && status == GW_OK; i++) {
        int error = listen_at(server, &server->listeners[i], &wanted.items[i]);

        gwd_address_text(&wanted.items[i], name, sizeof(name));
        if (error == 0) {
            server->reached_at.items[server->reached_at.n++] = wanted.items[i];
            gwd_log(GWD_LOG_NOTICE, "wire", "other daemons may connect to %s", name);
            continue;
        }
        snprintf(text, text_bytes, "wire.listen: %s: %s%s", name, uv_strerror(error), remedy(error));
        status = GW_ERR_SYSTEM;
    }
    return status;
}

void gwd_bootstrap_close(gwd_server_t *server) {
    for (unsigned i = 0; i < server->reached_at.n; i++)
        uv_close((uv_handle_t *)&server->listeners[i], NULL);
    while (server->contacts)
        gwd_contact_close(server->contacts);
}

/* ---- groups ------------------------------------------------------------------------------------- */

const gwd_id_layout_t *gwd_bootstrap_id(const gwd_group_t *group) {
    return (const gwd_id_layout_t *)&group->unique_id;
}

gwd_group_t *gwd_bootstrap_find(const gwd_server_t *server, const uint8_t name[GWD_NAME_BYTES]) {
    gwd_group_t *group = server->groups;

    while (group && (group->state > GWD_GROUP_FORMING || group->giving_up || group->branch || group->split_from ||
                     sodium_memcmp(group->name, name, GWD_NAME_BYTES) != 0))
        group = group->next;
    return group;
}

bool gwd_bootstrap_token(const gwd_server_t *server, const uint8_t name[GWD_NAME_BYTES],
                         uint8_t token_out[GWD_TOKEN_BYTES]) {
    const gwd_group_t *group = gwd_bootstrap_find(server, name);
    const gwd_unmade_t *unmade = group ? NULL : gwd_unmade_by_name(&server->unmade, name, gwd_now_ns());
    const gw_unique_id_t *id = group ? &group->unique_id : unmade ? &unmade->unique_id : NULL;

    if (id)
        memcpy(token_out, ((const gwd_id_layout_t *)id)->token, GWD_TOKEN_BYTES);
    return id != NULL;
}

const char *const gwd_bootstrap_shared[GWD_COUNT_SHARED] = {"wire.chunk_bytes", "group.credits", "wire.cipher",
                                                            "deadline.silence_ms"};

void gwd_bootstrap_setting(const gwd_server_t *server, size_t index, char value[GWD_CONFIG_STRING_BYTES]) {
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++)
        if (strcmp(gwd_config_keys[i].full_name, gwd_bootstrap_shared[index]) == 0)
            gwd_config_format(&server->config, &gwd_config_keys[i], value);
}

void gwd_bootstrap_end(gwd_group_t *group, gw_status_t status, const char *text) {
    if (group->root)
        gwd_root_end(group, status, text);
    if (group->branch)
        gwd_branch_end(group, status, text);
}

void gwd_bootstrap_measured(gwd_group_t *group, const gwd_codec_figures_t *figures) {
    if (group->root)
        gwd_root_measured(group, figures);
    else
        gwd_branch_measured(group, figures);
}

void gwd_bootstrap_refuse(gwd_contact_t *peer, gw_status_t status, const char *text) {
    Gw__NodeFailure message = GW__NODE_FAILURE__INIT;

    message.status = (uint32_t)status;
    message.text = (char *)(uintptr_t)text; /* it is only packed */
    gwd_contact_send(peer, GWD_FRAME_FAILURE, &message.base);
    gwd_contact_finish(peer);
}

bool gwd_bootstrap_read_failure(const uint8_t *body, size_t bytes, gw_status_t *status_out, char *text,
                                size_t text_bytes) {
    ProtobufCMessage *message = gwd_unpack(&gw__node_failure__descriptor, body, bytes);
    const Gw__NodeFailure *failure = (const Gw__NodeFailure *)message;

    if (!message)
        return false;
    *status_out = gw_status_failure(failure->status, GW_ERR_BOOTSTRAP);
    gw_escape(failure->text, strlen(failure->text), text, text_bytes);
    gwd_unpack_free(message);
    return true;
}

bool gwd_bootstrap_new_map(gwd_group_t *group, uint32_t n_nodes) {
    const uint8_t *token = gwd_bootstrap_id(group)->token;

    group->map = gwd_group_map_new(gwd_proof_wire_id(token), group->nranks, n_nodes);
    if (!group->map)
        return false;
    group->map->has_cipher = group->server->config.wire_cipher != 0;
    if (group->map->has_cipher)
        gwd_proof_wire_key(token, group->map->wire_key);
    return true;
}

void gwd_bootstrap_free_map(gwd_group_t *group) {
    gwd_group_map_free(group->map);
    group->map = NULL;
}
