/* transport_ucx.h - what the files of the UCX transport share */
#ifndef GWD_TRANSPORT_UCX_H
#define GWD_TRANSPORT_UCX_H

#include <ucp/api/ucp.h>

#include "transport.h"
#include "transport_gate.h"

struct gwd_transport {
    ucp_context_h context;
    uint32_t paths;
    bool has_gate;
};

/* A send or a receive that UCX has under way, or that has ended and waits to be told. */
typedef struct gwd_wire_op {
    struct gwd_wire_op *next, *previous; /* in the ring of those under way, or by `next` of those that have ended */
    gwd_wire_t *wire;
    gwd_link_t *link; /* of a send; NULL for a receive */
    void *cookie;
    gw_status_t status;
    uint8_t header[GWD_WIRE_HEADER_MAX]; /* of a send: UCX reads it until the send has ended */
} gwd_wire_op_t;

struct gwd_message {
    gwd_message_t *next, *previous; /* in the list of those that are kept */
    gwd_wire_t *wire;
    void *data; /* the payload, or what UCX fetches it by */
    uint64_t bytes;
    bool fetch;    /* the payload is still with the sender */
    bool stays;    /* UCX holds `data` until it is given back */
    bool copied;   /* `data` is our own */
    bool arriving; /* its handler runs */
    bool kept;
};

struct gwd_link {
    gwd_link_t *next;
    gwd_wire_t *wire;
    void *cookie;
    ucp_ep_h endpoints[GWD_LINK_PATHS_MAX];
    uint32_t n_endpoints;
    uint32_t sends;         /* not ended */
    uint32_t closing;       /* endpoints that UCX has not let go yet */
    ucs_status_t failure;   /* of UCX, UCS_OK as long as the link works */
    bool told;              /* on_broken has been called */
    bool aborted, released; /* by the lane; and its endpoints were given back */
};

struct gwd_wire {
    gwd_transport_t *transport;
    const gwd_wire_events_t *events;
    void *lane;
    gwd_gate_t *gate;    /* NULL: none */
    ucp_worker_h worker; /* NULL once it has been cut */
    ucp_address_t *address;
    size_t address_bytes;
    int fd;
    bool inside;   /* UCX is calling us: no endpoint may be closed */
    bool troubled; /* a link has failed or was aborted, and is to be looked after */
    gwd_link_t *links;
    gwd_message_t kept;                /* ring */
    gwd_message_t *spare_messages;     /* by `next` */
    gwd_wire_op_t *spare_ops;          /* by `next` */
    gwd_wire_op_t under_way;           /* ring */
    gwd_wire_op_t *ended, **ended_end; /* queue of those that have ended */
};

gw_status_t gwd_ucx_status(ucs_status_t status);

/* Writes "what: why" and gives the status for it. */
gw_status_t gwd_ucx_fail(char *text, const char *what, ucs_status_t status);

gwd_wire_op_t *gwd_wire_op_new(gwd_wire_t *wire, gwd_link_t *link, void *cookie);
void gwd_wire_op_free(gwd_wire_op_t *op);
void gwd_wire_op_end(gwd_wire_op_t *op, ucs_status_t status); /* queues it; a later progress tells the lane */

/* UCX's handler of messages; `argument` is the wire. */
ucs_status_t gwd_message_arrived(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                                 const ucp_am_recv_param_t *parameters);
void gwd_message_drop_all(gwd_wire_t *wire);

void gwd_link_tend_all(gwd_wire_t *wire); /* tells of failures, closes and frees what was aborted */

#endif
