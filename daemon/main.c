/* main.c - gradwired: reads the configuration, serves, ends */
#include <signal.h>
#include <sodium.h>
#include <stdio.h>

#include "config.h"
#include "log.h"
#include "server.h"

int main(int argc, char **argv) {
    static gwd_server_t server; /* large, and as long-lived as the process */
    static gwd_config_t config;
    char text[GWD_CONFIG_ERROR_BYTES];

    /* Whoever reads the log, or a client's or node's answer, may be gone. */
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return 1;
    gwd_log_init();
    switch (gwd_config_init(&config, argc, argv, text, sizeof(text))) {
    case GWD_CONFIG_RUN:
        break;
    case GWD_CONFIG_PRINTED:
        return 0;
    case GWD_CONFIG_BAD:
        fprintf(stderr, "gradwired: %s\n", text);
        return 2;
    }
    if (sodium_init() < 0) {
        gwd_log(GWD_LOG_ERROR, "daemon", "libsodium cannot be started: no random numbers");
        return 1;
    }
    if (gwd_server_init(&server, &config, text, sizeof(text)) != GW_OK) {
        gwd_log(GWD_LOG_ERROR, "daemon", "%s", text);
        gwd_listen_close(&server);
        return 1;
    }
    gwd_server_run(&server);
    return 0;
}
