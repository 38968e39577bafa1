/* transport_ucx.c - UCX for the whole daemon, and the wires of its lanes
 *
 * Links are in transport_ucx_link.c, messages that arrive in transport_ucx_message.c. This file holds what UCX is told
 * when it starts: it is a guest here, so it may neither catch signals nor patch the memory functions of the process.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucm/api/ucm.h>
#include <ucs/debug/debug.h>

#include "log.h"
#include "transport_ucx.h"

enum { CLOSE_ROUNDS = 10000 };

/* True if the handler of that signal is code of the library that UCX's own functions are in. */
static bool is_caught_by_ucx(int signum) {
    struct sigaction action;
    Dl_info handler, library;

    return sigaction(signum, NULL, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
           dladdr((void *)(uintptr_t)action.sa_handler, &handler) != 0 &&
           dladdr((void *)(uintptr_t)ucs_debug_disable_signal, &library) != 0 && handler.dli_fbase == library.dli_fbase;
}

/* UCX catches signals when it is loaded, before anybody could ask it not to; this runs right after that. Memory hooks
 * would come later, and write to code pages, which a hardened unit forbids. Both stay if the environment asks for
 * them. */
__attribute__((constructor)) static void quieten_ucx(void) {
    if (getenv("UCX_HANDLE_ERRORS") == NULL && getenv("UCX_ERROR_SIGNALS") == NULL && getenv("UCX_DEBUG_SIGNO") == NULL)
        for (int signum = 1; signum < SIGRTMIN; signum++)
            if (is_caught_by_ucx(signum))
                ucs_debug_disable_signal(signum);
    if (getenv("UCX_MEM_EVENTS") == NULL)
        ucm_global_opts.enable_events = 0;
}

gw_status_t gwd_ucx_status(ucs_status_t status) {
    switch (status) {
    case UCS_OK:
        return GW_OK;
    case UCS_ERR_CANCELED:
        return GW_ERR_ABORTED;
    case UCS_ERR_NO_MEMORY:
        return GW_ERR_NO_MEMORY;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_INVALID_PARAM:
        return GW_ERR_UNSUPPORTED;
    default:
        return GW_ERR_SYSTEM;
    }
}

gw_status_t gwd_ucx_fail(char *text, const char *what, ucs_status_t status) {
    snprintf(text, GWD_WIRE_TEXT_BYTES, "%s: UCX says: %s", what, ucs_status_string(status));
    return gwd_ucx_status(status);
}

const char *gwd_transport_name(void) {
    static char name[64];

    if (name[0] == '\0')
        snprintf(name, sizeof(name), "UCX %s", ucp_get_version_string());
    return name;
}

/* Settings of UCX, the first that fails ends it. */
typedef struct settings {
    ucp_config_t *ucx;
    gw_status_t status;
    char *text;
} settings_t;

static void set(settings_t *settings, const char *name, const char *value) {
    ucs_status_t status;

    if (settings->status != GW_OK)
        return;
    status = ucp_config_modify(settings->ucx, name, value);
    if (status == UCS_OK)
        return;
    snprintf(settings->text, GWD_WIRE_TEXT_BYTES, "UCX_%s=%s: this UCX (%s) says: %s", name, value,
             ucp_get_version_string(), ucs_status_string(status));
    settings->status = GW_ERR_UNSUPPORTED;
}

static void set_all(settings_t *settings, const gwd_transport_config_t *config) {
    /* Without memory hooks UCX has no cache of registrations, and versions up to 1.18 at least crash when they end a
     * rendezvous that has packed a remote key (openucx/ucx#11467): so large payloads go by active messages too. The
     * newer protocols of 1.16 on pack keys in any case, and the older ones where there is a lane for them, with which a
     * node that is given up could also write into memory that has another use by then. */
    set(settings, "PROTO_ENABLE", "n");
    set(settings, "RNDV_SCHEME", "am");
    set(settings, "MAX_RNDV_LANES", "0");
    if (config->transports[0] != '\0') {
        set(settings, "TLS", config->transports);
    } else if (getenv("UCX_TLS") == NULL) {
        /* Two daemons on one host are two nodes. GPU memory never comes here. This UCX may lack some of the names. */
        set(settings, "TLS", "^sm,self,cuda,rocm,ze");
        set(settings, "WARN_INVALID_CONFIG", "n");
    }
    if (config->devices[0] != '\0')
        set(settings, "NET_DEVICES", config->devices);
}

/* Settings of single transports have other names for ucp_config_modify from UCX 1.17 on, and it complains of them where
 * the transport is not used. In the environment they have one name and are ignored there. */
gw_status_t gwd_transport_set_environment(const gwd_transport_config_t *config, char *text) {
    char traffic_class[16];
    /* An event that closes a connection may be followed, in the same batch, by one of that connection: UCX 1.13 aborts
     * the process then. One event a batch is none too few, since we come back at once. */
    bool done = setenv("UCX_TCP_MAX_POLL", "1", 1) == 0;

    /* UCX has 8 and 64 KiB. Larger ones mean fewer calls for messages of hundreds of KiB. */
    done = done && setenv("UCX_TCP_TX_SEG_SIZE", "64k", 0) == 0 && setenv("UCX_TCP_RX_SEG_SIZE", "256k", 0) == 0;
    if (config->ports[0] != '\0')
        done = done && setenv("UCX_TCP_PORT_RANGE", config->ports, 1) == 0;
    snprintf(traffic_class, sizeof(traffic_class), "%u", config->traffic_class);
    if (config->traffic_class != 0)
        done = done && setenv("UCX_IB_TRAFFIC_CLASS", traffic_class, 1) == 0;
    if (done)
        return GW_OK;
    snprintf(text, GWD_WIRE_TEXT_BYTES, "out of memory");
    return GW_ERR_NO_MEMORY;
}

gw_status_t gwd_transport_open(const gwd_transport_config_t *config, gwd_transport_t **transport_out, char *text) {
    const ucp_params_t parameters = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1,
        .name = "gradwired",
    };
    settings_t settings = {.text = text};
    gwd_transport_t *transport = calloc(1, sizeof(*transport));
    ucs_status_t status;

    if (transport == NULL) {
        snprintf(text, GWD_WIRE_TEXT_BYTES, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    status = ucp_config_read(NULL, NULL, &settings.ucx);
    if (status != UCS_OK) {
        settings.status = gwd_ucx_fail(text, "the environment's UCX_ variables", status);
        goto err_free;
    }
    set_all(&settings, config);
    if (settings.status != GW_OK)
        goto err_config;
    status = ucp_init(&parameters, settings.ucx, &transport->context);
    if (status != UCS_OK) {
        snprintf(text, GWD_WIRE_TEXT_BYTES,
                 "UCX cannot use devices '%.40s', transports '%.40s', ports '%.40s': %.60s; see `ucx_info -d`",
                 config->devices, config->transports, config->ports, ucs_status_string(status));
        settings.status = gwd_ucx_status(status);
        goto err_config;
    }
    ucp_config_release(settings.ucx);
    transport->has_gate = config->has_gate;
    transport->paths = config->paths < GWD_LINK_PATHS_MAX ? config->paths : GWD_LINK_PATHS_MAX;
    gwd_log(GWD_LOG_INFO, "wire", "%s, devices: %s, transports: %s", gwd_transport_name(),
            config->devices[0] != '\0' ? config->devices : "all",
            config->transports[0] != '\0' ? config->transports : "all but shared memory");
    *transport_out = transport;
    return GW_OK;

err_config:
    ucp_config_release(settings.ucx);
err_free:
    free(transport);
    return settings.status;
}

void gwd_transport_close(gwd_transport_t *transport) {
    ucp_cleanup(transport->context);
    free(transport);
}

/* ---- wires ---------------------------------------------------------------------------------------------------- */

static ucs_status_t set_handler(gwd_wire_t *wire) {
    const ucp_am_handler_param_t parameters = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = 0,
        .cb = gwd_message_arrived,
        .arg = wire,
    };

    return ucp_worker_set_am_recv_handler(wire->worker, &parameters);
}

gw_status_t gwd_wire_new(gwd_transport_t *transport, const gwd_wire_events_t *events, void *lane, gwd_wire_t **wire_out,
                         char *text) {
    /* The loop makes it, the lane uses it: not one thread, but one at a time. */
    const ucp_worker_params_t parameters = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                            .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    gwd_wire_t *wire = calloc(1, sizeof(*wire));
    ucs_status_t status = UCS_ERR_NO_MEMORY;

    if (wire == NULL)
        return gwd_ucx_fail(text, "cannot make a wire", status);
    wire->transport = transport;
    wire->events = events;
    wire->lane = lane;
    wire->ended_end = &wire->ended;
    wire->kept.next = wire->kept.previous = &wire->kept;
    wire->under_way.next = wire->under_way.previous = &wire->under_way;
    wire->gate = transport->has_gate ? gwd_gate_new() : NULL;
    if (transport->has_gate && wire->gate == NULL)
        goto err_free;
    gwd_gate_watch(wire->gate);
    status = ucp_worker_create(transport->context, &parameters, &wire->worker);
    gwd_gate_watch(NULL);
    if (status != UCS_OK)
        goto err_free;
    status = set_handler(wire);
    if (status != UCS_OK)
        goto err_worker;
    status = ucp_worker_get_efd(wire->worker, &wire->fd);
    if (status != UCS_OK)
        goto err_worker;
    status = ucp_worker_get_address(wire->worker, &wire->address, &wire->address_bytes);
    if (status != UCS_OK)
        goto err_worker;
    *wire_out = wire;
    return GW_OK;

err_worker:
    ucp_worker_destroy(wire->worker);
err_free:
    gwd_gate_free(wire->gate);
    free(wire);
    return gwd_ucx_fail(text, "cannot make a wire", status);
}

bool gwd_wire_let_in(gwd_wire_t *wire, const gwd_ip_t *ips, uint32_t n) {
    return wire->gate == NULL || gwd_gate_let_in(wire->gate, ips, n);
}

void gwd_wire_cut(gwd_wire_t *wire) {
    if (wire->worker == NULL)
        return;
    gwd_message_drop_all(wire);
    ucp_worker_release_address(wire->worker, wire->address);
    ucp_worker_destroy(wire->worker);
    wire->worker = NULL;
    gwd_gate_free(wire->gate);
    while (wire->under_way.next != &wire->under_way) /* what UCX has not given back with that */
        gwd_wire_op_end(wire->under_way.next, UCS_ERR_CANCELED);
    for (gwd_link_t *link = wire->links, *next; link != NULL; link = next) {
        next = link->next;
        free(link);
    }
    wire->links = NULL;
}

void gwd_wire_free(gwd_wire_t *wire) {
    wire->events = NULL; /* the lane is not told any more */
    for (int i = 0; i < CLOSE_ROUNDS && wire->links != NULL; i++)
        gwd_wire_progress(wire);
    gwd_wire_cut(wire);
    for (gwd_message_t *message = wire->spare_messages, *next; message != NULL; message = next) {
        next = message->next;
        free(message);
    }
    *wire->ended_end = wire->spare_ops;
    for (gwd_wire_op_t *op = wire->ended, *next; op != NULL; op = next) {
        next = op->next;
        free(op);
    }
    free(wire);
}

void gwd_wire_address(const gwd_wire_t *wire, const void **address_out, size_t *bytes_out) {
    *address_out = wire->address;
    *bytes_out = wire->address_bytes;
}

int gwd_wire_fd(const gwd_wire_t *wire) {
    return wire->fd;
}

bool gwd_wire_arm(gwd_wire_t *wire) {
    return wire->ended == NULL && !wire->troubled && (wire->worker == NULL || ucp_worker_arm(wire->worker) == UCS_OK);
}

/* Only those that had ended by now: what the lane starts meanwhile may end at once, and would keep us here. */
static bool tell_ended(gwd_wire_t *wire) {
    gwd_wire_op_t *ended = wire->ended, *next;

    wire->ended = NULL;
    wire->ended_end = &wire->ended;
    for (gwd_wire_op_t *op = ended; op != NULL; op = next) {
        void *cookie = op->cookie;
        gw_status_t status = op->status;

        next = op->next;
        op->next = wire->spare_ops;
        wire->spare_ops = op;
        if (wire->events != NULL)
            wire->events->on_done(wire->lane, cookie, status);
    }
    return ended != NULL;
}

bool gwd_wire_progress(gwd_wire_t *wire) {
    bool did;

    wire->inside = true;
    did = wire->worker != NULL && ucp_worker_progress(wire->worker) != 0;
    wire->inside = false;
    did |= tell_ended(wire);
    if (wire->troubled) {
        gwd_link_tend_all(wire);
        did = true;
    }
    return did;
}

gwd_wire_op_t *gwd_wire_op_new(gwd_wire_t *wire, gwd_link_t *link, void *cookie) {
    gwd_wire_op_t *op = wire->spare_ops;

    if (op != NULL)
        wire->spare_ops = op->next;
    else
        op = malloc(sizeof(*op));
    if (op == NULL)
        return NULL;
    op->wire = wire;
    op->link = link;
    op->cookie = cookie;
    op->next = &wire->under_way;
    op->previous = wire->under_way.previous;
    op->previous->next = wire->under_way.previous = op;
    if (link != NULL)
        link->sends++;
    return op;
}

static void leave_ring(gwd_wire_op_t *op) {
    op->previous->next = op->next;
    op->next->previous = op->previous;
}

void gwd_wire_op_free(gwd_wire_op_t *op) {
    leave_ring(op);
    op->next = op->wire->spare_ops;
    op->wire->spare_ops = op;
}

void gwd_wire_op_end(gwd_wire_op_t *op, ucs_status_t status) {
    gwd_wire_t *wire = op->wire;

    leave_ring(op);
    op->status = gwd_ucx_status(status);
    if (op->link != NULL) {
        op->link->sends--;
        if (op->link->aborted && status != UCS_OK)
            op->status = GW_ERR_ABORTED;
    }
    op->next = NULL;
    *wire->ended_end = op;
    wire->ended_end = &op->next;
}
