/* transport_ucx_link.c - links of the UCX transport: endpoints, sends, failures and the end
 *
 * UCX tells of a failed endpoint, and of sends that end with it, from inside any of its calls. The lane hears of both
 * from gwd_wire_progress only, so here they are noted.
 */
#include <stdlib.h>
#include <string.h>

#include "transport_ucx.h"

static void on_failure(void *argument, ucp_ep_h endpoint, ucs_status_t status) {
    gwd_link_t *link = argument;

    (void)endpoint;
    if (link->failure == UCS_OK)
        link->failure = status;
    link->wire->troubled = true;
}

static void on_closed(void *request, ucs_status_t status, void *argument) {
    gwd_link_t *link = argument;

    (void)status;
    link->closing--;
    link->wire->troubled = true;
    ucp_request_free(request);
}

/* By force: what is under way ends with an error, and nobody at the other end is waited for. */
static void release(gwd_link_t *link) {
    const ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = link,
    };

    link->released = true;
    link->closing = link->n_endpoints;
    for (uint32_t i = 0; i < link->n_endpoints; i++) {
        ucs_status_ptr_t request = ucp_ep_close_nbx(link->endpoints[i], &parameters);

        if (!UCS_PTR_IS_PTR(request))
            link->closing--;
    }
}

void gwd_link_tend_all(gwd_wire_t *wire) {
    gwd_link_t **at = &wire->links, *link;

    wire->troubled = false;
    while ((link = *at) != NULL) {
        if (link->failure != UCS_OK && !link->told && !link->aborted) {
            link->told = true;
            if (wire->events != NULL)
                wire->events->on_broken(wire->lane, link->cookie, ucs_status_string(link->failure));
        }
        if (link->aborted && !link->released)
            release(link);
        if (link->released && link->closing == 0 && link->sends == 0) {
            *at = link->next;
            free(link);
        } else {
            at = &link->next;
        }
    }
}

gw_status_t gwd_link_new(gwd_wire_t *wire, const void *address, size_t bytes, void *cookie, gwd_link_t **link_out,
                         char *text) {
    gwd_link_t *link = calloc(1, sizeof(*link));
    ucp_ep_params_t parameters = {
        .field_mask =
            UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_failure, .arg = link},
    };
    ucs_status_t status = UCS_ERR_NO_MEMORY;
    void *copy = malloc(bytes); /* aligned, which a part of a packet may not be */

    if (link == NULL || copy == NULL)
        goto err_free;
    memcpy(copy, address, bytes);
    parameters.address = copy;
    link->wire = wire;
    link->cookie = cookie;
    link->next = wire->links;
    wire->links = link;
    for (uint32_t i = 0; i < wire->transport->paths; i++) {
        status = ucp_ep_create(wire->worker, &parameters, &link->endpoints[i]);
        if (status != UCS_OK)
            goto err_link;
        link->n_endpoints++;
    }
    free(copy);
    *link_out = link;
    return GW_OK;

err_link:
    gwd_link_abort(link);
    link = NULL;
err_free:
    free(copy);
    free(link);
    (void)gwd_ucx_fail(text, "cannot make a link to another node", status);
    return status == UCS_ERR_UNREACHABLE ? GW_ERR_NODE_LOST : gwd_ucx_status(status);
}

void gwd_link_abort(gwd_link_t *link) {
    link->aborted = true;
    link->wire->troubled = true;
    if (!link->wire->inside && !link->released)
        release(link);
}

static void on_sent(void *request, ucs_status_t status, void *argument) {
    gwd_wire_op_t *op = argument;

    if (op->link->aborted)
        op->wire->troubled = true; /* it may have been the last */
    gwd_wire_op_end(op, status);
    ucp_request_free(request);
}

uint32_t gwd_link_paths(const gwd_link_t *link) {
    return link->n_endpoints;
}

gw_status_t gwd_link_send(gwd_link_t *link, uint32_t path, const void *header, size_t header_bytes, const void *data,
                          uint64_t bytes, void *cookie) {
    /* With the way of a reply in it, UCX at the other end drops what comes for a link that was aborted there. */
    ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY,
        .cb.send = on_sent,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request;
    gwd_wire_op_t *op;

    if (header_bytes > GWD_WIRE_HEADER_MAX)
        return GW_ERR_INVALID_ARGUMENT;
    if (link->failure != UCS_OK || link->aborted)
        return GW_ERR_ABORTED;
    op = gwd_wire_op_new(link->wire, link, cookie);
    if (op == NULL)
        return GW_ERR_NO_MEMORY;
    memcpy(op->header, header, header_bytes);
    parameters.user_data = op;
    request = ucp_am_send_nbx(link->endpoints[path], 0, op->header, header_bytes, data, (size_t)bytes, &parameters);
    if (UCS_PTR_IS_PTR(request))
        return GW_IN_PROGRESS;
    link->sends--;
    gwd_wire_op_free(op);
    return gwd_ucx_status(UCS_PTR_STATUS(request));
}
