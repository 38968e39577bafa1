/* admin.c - see admin.h */
#include "admin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire.pb-c.h"
#include "log.h"
#include "server.h"

enum { PIECE_BYTES = 32768 };

static void send_json(gwd_session_t *session, uint32_t request, char *json) {
    size_t left = strlen(json);
    uint8_t *packed = malloc(PIECE_BYTES + 64);
    uint8_t *at = (uint8_t *)json;

    if (!packed) {
        gwd_session_error(session, request, GW_ERR_NO_MEMORY, "out of memory");
        return;
    }
    do {
        Gw__AdminReply message = GW__ADMIN_REPLY__INIT;
        size_t piece = left < PIECE_BYTES ? left : PIECE_BYTES;

        message.json = (ProtobufCBinaryData){piece, at};
        message.last = piece == left;
        gwd_session_send(session, GW_MSG_ADMIN_REPLY, request, packed, gw__admin_reply__pack(&message, packed), NULL,
                         0);
        at += piece;
        left -= piece;
    } while (left > 0);
    free(packed);
}

/* ---- commands that change something ------------------------------------------------------------- */

static gw_status_t set_log_level(gwd_server_t *server, const char *name, cJSON **json_out, char *text,
                                 size_t text_bytes) {
    int level = gwd_log_find_level(name);

    if (level < 0) {
        snprintf(text, text_bytes, "log-level '%s': error, warning, notice, info or debug", name);
        return GW_ERR_INVALID_ARGUMENT;
    }
    (void)server;
    gwd_log_set_level((gwd_log_level_t)level);
    gwd_log(GWD_LOG_NOTICE, "admin", "log level: %s", name);
    *json_out = cJSON_CreateObject();
    cJSON_AddStringToObject(*json_out, "level", name);
    return GW_OK;
}

static gw_status_t kick(gwd_server_t *server, const char *name, cJSON **json_out, char *text, size_t text_bytes) {
    char *end;
    unsigned long long id;
    gwd_session_t *session;

    errno = 0;
    id = strtoull(name, &end, 10);
    session = errno || *end || end == name ? NULL : gwd_session_find(server, id);
    if (!session || session->closing) {
        snprintf(text, text_bytes, "there is no client '%s'; see `gwctl clients`", name);
        return GW_ERR_NOT_FOUND;
    }
    *json_out = cJSON_CreateObject();
    cJSON_AddNumberToObject(*json_out, "client", (double)id);
    gwd_session_close(session, GW_ERR_KICKED, "was removed by an operator");
    return GW_OK;
}

static gw_status_t drain(gwd_server_t *server, const char *unused, cJSON **json_out, char *text, size_t text_bytes) {
    (void)unused;
    (void)text;
    (void)text_bytes;
    (void)server; /* it begins once the answer is on its way */
    *json_out = cJSON_CreateObject();
    cJSON_AddStringToObject(*json_out, "state", "draining");
    return GW_OK;
}

/* ---- the table ---------------------------------------------------------------------------------- */

typedef struct admin_command {
    const char *name;
    size_t n_least, n_most;               /* arguments */
    cJSON *(*show)(gwd_server_t *server); /* one of the two, which alone is given an argument */
    gw_status_t (*change)(gwd_server_t *server, const char *argument, cJSON **json_out, char *text, size_t text_bytes);
    void (*then)(gwd_server_t *server); /* after the answer */
} admin_command_t;

static const admin_command_t commands[] = {
    {"status", 0, 0, gwd_admin_status, NULL, NULL},   {"clients", 0, 0, gwd_admin_clients, NULL, NULL},
    {"groups", 0, 0, gwd_admin_groups, NULL, NULL},   {"buffers", 0, 0, gwd_admin_buffers, NULL, NULL},
    {"buckets", 0, 0, gwd_admin_buckets, NULL, NULL}, {"stats", 0, 0, gwd_admin_stats, NULL, NULL},
    {"config", 0, 0, gwd_admin_config, NULL, NULL},   {"trace", 0, 1, NULL, gwd_admin_trace, NULL},
    {"log-level", 1, 1, NULL, set_log_level, NULL},   {"kick", 1, 1, NULL, kick, NULL},
    {"drain", 0, 0, NULL, drain, gwd_server_drain},
};

static const admin_command_t *find(const char *name) {
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

void gwd_admin_serve(gwd_session_t *session, uint32_t request, const char *name, char *const *arguments,
                     size_t n_arguments) {
    gwd_server_t *server = session->server;
    const admin_command_t *command = find(name);
    char text[GWD_TEXT_BYTES] = "out of memory";
    gw_status_t status = GW_OK;
    cJSON *json = NULL;
    char *printed;

    if (!command || n_arguments < command->n_least || n_arguments > command->n_most) {
        gwd_session_error(session, request, command ? GW_ERR_INVALID_ARGUMENT : GW_ERR_UNKNOWN_REQUEST,
                          "admin command '%s' with %zu arguments", name, n_arguments);
        return;
    }
    if (command->show)
        json = command->show(server);
    else
        status = command->change(server, n_arguments ? arguments[0] : "", &json, text, sizeof(text));
    printed = json ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    if (!printed) {
        gwd_session_error(session, request, status == GW_OK ? GW_ERR_NO_MEMORY : status, "%s", text);
        return;
    }
    send_json(session, request, printed);
    free(printed);
    if (command->then)
        command->then(server);
}
