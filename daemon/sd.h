/* sd.h - the service manager: readiness, and sockets that it opened for us
 *
 * systemd's two small protocols, spoken without its library: a datagram to $NOTIFY_SOCKET, and file descriptors
 * from 3 on that $LISTEN_FDS counts. Without a service manager every function does nothing.
 */
#ifndef GWD_SD_H
#define GWD_SD_H

#include <stddef.h>

#include "gradwire.h"

#define GWD_SD_SOCKETS 8

typedef struct gwd_sd_socket {
    int fd;        /* close-on-exec; -1 once taken */
    char name[64]; /* FileDescriptorName= of the socket unit */
} gwd_sd_socket_t;

/* Each sends a state, with a line of status for people behind it (NULL: none). A reload is over with the next
 * gwd_sd_ready. They return 0, also without a service manager, or the negative errno. */
int gwd_sd_ready(const char *status);
int gwd_sd_reloading(void);
int gwd_sd_stopping(const char *status);

/* Takes the sockets that the service manager passed, once: the variables are removed from the environment.
 * Each must be a listening SOCK_SEQPACKET Unix socket.
 * Ownership: the fds become the caller's; on an error all are closed.
 * Errors: GW_ERR_INVALID_ARGUMENT, with the text. */
gw_status_t gwd_sd_listen_fds(gwd_sd_socket_t sockets_out[GWD_SD_SOCKETS], size_t *count_out, char *error,
                              size_t error_bytes);

#endif
