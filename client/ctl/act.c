/* act.c - the commands that change something, and those that pass an answer on */
#include "gwctl.h"

#include <stdio.h>
#include <stdlib.h>

#include "gradwire.h"

int gwctl_log_level(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    cJSON *reply;
    int code = gwctl_fetch(options, "log-level", arguments, n_arguments, &reply);
    if (reply == NULL)
        return code;
    printf("log level is %s now\n", gwctl_cell_text(gwctl_text(reply, "level")).text);
    cJSON_Delete(reply);
    return code;
}

int gwctl_drain(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    cJSON *reply;
    int code = gwctl_fetch(options, "drain", arguments, n_arguments, &reply);
    if (reply == NULL)
        return code;
    printf("%s\n", gwctl_cell_text(gwctl_text(reply, "state")).text);
    cJSON_Delete(reply);
    return code;
}

int gwctl_kick(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    cJSON *reply;
    int code = gwctl_fetch(options, "kick", arguments, n_arguments, &reply);
    if (reply == NULL)
        return code;
    printf("client %.0f is disconnected\n", gwctl_number(reply, "client"));
    cJSON_Delete(reply);
    return code;
}

int gwctl_version(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    gwctl_connection_t connection;
    (void)arguments;
    (void)n_arguments;
    int code = gwctl_open(options->socket_path, &connection);
    gwctl_close(&connection);
    if (options->json) {
        cJSON *document = cJSON_CreateObject();
        bool good = cJSON_AddStringToObject(document, "gwctl", gw_version()) != NULL &&
                    (code == GWCTL_OK ? cJSON_AddStringToObject(document, "gradwired", connection.version)
                                      : cJSON_AddNullToObject(document, "gradwired")) != NULL;
        if (!good) {
            cJSON_Delete(document);
            document = NULL;
        }
        int printed = gwctl_print_json(document);
        if (printed != GWCTL_OK)
            return printed;
    } else {
        printf("gwctl      %s\n", gw_version());
        if (code == GWCTL_OK)
            printf("gradwired  %s at %s\n", connection.version, gwctl_cell_text(connection.path).text);
    }
    if (code != GWCTL_OK)
        gwctl_complain(&connection);
    return code;
}
