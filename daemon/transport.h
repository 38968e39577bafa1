/* transport.h - messages between the daemons of a group
 *
 * A wire is one group's way to other nodes; a link leads from it to one node. (Two groups cannot share a wire: UCX
 * pairs the endpoints of two wires in the order in which each side makes them, and closing one would break the other
 * group's.) A message is a small header and a payload, delivered in any order, each once. Nothing here blocks. What is
 * under way on a link that is aborted ends with an error, and what comes late for it is dropped.
 *
 * Thread: a wire and its links are used by their lane only, but for gwd_wire_new, gwd_wire_let_in, gwd_wire_address and
 * gwd_wire_free, which the loop calls while the lane does not use them.
 */
#ifndef GWD_TRANSPORT_H
#define GWD_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"
#include "ip.h"

enum { GWD_WIRE_HEADER_MAX = 256, GWD_WIRE_TEXT_BYTES = 256, GWD_LINK_PATHS_MAX = 16 };

typedef struct gwd_transport gwd_transport_t; /* of the daemon */
typedef struct gwd_wire gwd_wire_t;           /* of a group on its lane */
typedef struct gwd_link gwd_link_t;           /* to a node */
typedef struct gwd_message gwd_message_t;     /* one that has arrived, while its payload is not taken */

typedef struct gwd_transport_config {
    const char *devices;    /* "": all; else as UCX_NET_DEVICES: "eth0", "mlx5_0:1,mlx5_1:1" */
    const char *transports; /* "": UCX chooses, without shared memory between two daemons; else as UCX_TLS: "tcp" */
    const char *ports;      /* "": any; "5000-5100": of TCP data connections, for firewalls */
    uint32_t traffic_class; /* RoCE: 0 leaves UCX's own */
    uint32_t paths;         /* connections of a link; 1 to GWD_LINK_PATHS_MAX */
    bool has_gate;          /* TCP connections to a wire wait for gwd_wire_let_in */
} gwd_transport_config_t;

/* What a wire tells its lane, out of gwd_wire_progress. `link` is NULL for messages: the header says from whom. */
typedef struct gwd_wire_events {
    /* A message has come. It is dropped unless gwd_message_keep or gwd_message_receive is called on it before this
     * returns. `data` is the payload if it has come along, else NULL. */
    void (*on_message)(void *lane, const void *header, size_t header_bytes, const void *data, uint64_t bytes,
                       gwd_message_t *message);
    /* A send, or a receive, that was in progress has ended. */
    void (*on_done)(void *lane, void *cookie, gw_status_t status);
    /* The link is broken: the other process has ended or freed its wire, or the network said so. (A silent one is not
     * noticed.) It carries nothing any more, and is still to be aborted. */
    void (*on_broken)(void *lane, void *link_cookie, const char *text);
} gwd_wire_events_t;

/* Sets UCX_ variables, of what has no other way into UCX, before gwd_transport_open. It calls nothing of UCX. Thread:
 * the only one of the process, because of the environment. Errors, with text: GW_ERR_NO_MEMORY. */
gw_status_t gwd_transport_set_environment(const gwd_transport_config_t *config, char *text);

/* Reads no environment but UCX_*, and installs no signal handler and no memory hook. `config` as for
 * gwd_transport_set_environment. Thread: any, one at a time. Blocking: some ten ms. Errors, with text (at most
 * GWD_WIRE_TEXT_BYTES): GW_ERR_UNSUPPORTED (no such device or transport), GW_ERR_NO_MEMORY, GW_ERR_SYSTEM. */
gw_status_t gwd_transport_open(const gwd_transport_config_t *config, gwd_transport_t **transport_out, char *text);
void gwd_transport_close(gwd_transport_t *transport); /* its wires have been freed */
const char *gwd_transport_name(void);                 /* "UCX 1.13.1" */

gw_status_t gwd_wire_new(gwd_transport_t *transport, const gwd_wire_events_t *events, void *lane, gwd_wire_t **wire_out,
                         char *text);
/* Closes it at once. What is still under way ends in a later gwd_wire_progress, with on_done and GW_ERR_ABORTED: an
 * aborted link to a process that stands still would otherwise keep it until that goes on. */
void gwd_wire_cut(gwd_wire_t *wire);  /* its links have been aborted; messages that were kept are gone */
void gwd_wire_free(gwd_wire_t *wire); /* its links have been aborted; messages that were kept are gone */

/* Connections from these come in, and no others. Once a wire. False: no memory. */
bool gwd_wire_let_in(gwd_wire_t *wire, const gwd_ip_t *ips, uint32_t n);

/* What others connect to. Owned by the wire. */
void gwd_wire_address(const gwd_wire_t *wire, const void **address_out, size_t *bytes_out);

int gwd_wire_fd(const gwd_wire_t *wire);  /* readable when there is something to do, once gwd_wire_arm has said true */
bool gwd_wire_arm(gwd_wire_t *wire);      /* false: there is something to do already */
bool gwd_wire_progress(gwd_wire_t *wire); /* calls the events; true: it did something */

/* Errors, with text: GW_ERR_NODE_LOST (nobody is there any more, or there is no way), others of the system. */
gw_status_t gwd_link_new(gwd_wire_t *wire, const void *address, size_t bytes, void *cookie, gwd_link_t **link_out,
                         char *text);

/* Ends what is under way and frees it. Each send and receive ends with on_done and GW_ERR_ABORTED in a later
 * gwd_wire_progress; until then its memory must stay. What the other side sends on its link is dropped from now on. It
 * hears nothing of that, and its large sends do not end, until it aborts its link too or this wire is freed. */
void gwd_link_abort(gwd_link_t *link);

uint32_t gwd_link_paths(const gwd_link_t *link); /* how many connections it has */

/* Sends, on connection number `path`. `header` is copied; `data` must stay until it has ended. `cookie` comes back in
 * on_done. Returns GW_OK (ended, no on_done follows), GW_IN_PROGRESS, or an error (not sent). */
gw_status_t gwd_link_send(gwd_link_t *link, uint32_t path, const void *header, size_t header_bytes, const void *data,
                          uint64_t bytes, void *cookie);

/* Keeps a message whose payload cannot be taken yet: it is taken by gwd_message_receive, or dropped. */
void gwd_message_keep(gwd_message_t *message);
const gwd_wire_t *gwd_message_wire(const gwd_message_t *message); /* that it came on, and is gone with */
void gwd_message_drop(gwd_message_t *message);

/* Takes the payload to `to`, which has room for it. As gwd_link_send; the message is gone with the call. */
gw_status_t gwd_message_receive(gwd_message_t *message, void *to, void *cookie);

#endif
