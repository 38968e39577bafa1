/* transport_ucx_message.c - messages that arrive by UCX
 *
 * A small payload comes along with its header, in a buffer that UCX takes back, or lends for longer if it says so. Of
 * a large one only the header comes; the payload stays with its sender until it is fetched into its place. A message
 * that is dropped must be given back either way, or its sender waits for ever.
 */
#include <stdlib.h>
#include <string.h>

#include "transport_ucx.h"

static gwd_message_t *new_message(gwd_wire_t *wire) {
    gwd_message_t *message = wire->spare_messages;

    if (message == NULL)
        return malloc(sizeof(*message));
    wire->spare_messages = message->next;
    return message;
}

static void unkeep(gwd_message_t *message) {
    if (!message->kept)
        return;
    message->previous->next = message->next;
    message->next->previous = message->previous;
    if (message->copied)
        free(message->data);
    message->kept = false;
}

static void free_message(gwd_message_t *message) {
    unkeep(message);
    message->next = message->wire->spare_messages;
    message->wire->spare_messages = message;
}

/* While it is arriving, gwd_message_arrived frees it. */
static void let_go(gwd_message_t *message) {
    if (message->arriving)
        unkeep(message);
    else
        free_message(message);
}

ucs_status_t gwd_message_arrived(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                                 const ucp_am_recv_param_t *parameters) {
    gwd_wire_t *wire = argument;
    gwd_message_t *message;

    if (wire->events == NULL)
        return UCS_OK;
    message = new_message(wire);
    if (message == NULL)
        return UCS_ERR_NO_MEMORY;
    *message = (gwd_message_t){
        .wire = wire,
        .data = data,
        .bytes = bytes,
        .arriving = true,
        .fetch = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0,
        .stays = (parameters->recv_attr & (UCP_AM_RECV_ATTR_FLAG_DATA | UCP_AM_RECV_ATTR_FLAG_RNDV)) != 0,
    };
    wire->events->on_message(wire->lane, header, header_bytes, message->fetch ? NULL : data, bytes, message);
    message->arriving = false;
    if (message->kept)
        return message->stays ? UCS_INPROGRESS : UCS_OK;
    free_message(message);
    return UCS_OK;
}

/* Without memory the payload is lost, and receiving it says so. */
void gwd_message_keep(gwd_message_t *message) {
    gwd_wire_t *wire = message->wire;
    void *copy;

    message->kept = true;
    message->next = &wire->kept;
    message->previous = wire->kept.previous;
    message->previous->next = wire->kept.previous = message;
    if (message->stays || message->bytes == 0)
        return;
    copy = malloc((size_t)message->bytes);
    if (copy != NULL)
        memcpy(copy, message->data, (size_t)message->bytes);
    message->data = copy;
    message->copied = true;
}

const gwd_wire_t *gwd_message_wire(const gwd_message_t *message) {
    return message->wire;
}

/* UCX takes back what has just arrived when its handler returns. */
void gwd_message_drop(gwd_message_t *message) {
    if (message->stays && !message->arriving)
        ucp_am_data_release(message->wire->worker, message->data);
    let_go(message);
}

void gwd_message_drop_all(gwd_wire_t *wire) {
    while (wire->kept.next != &wire->kept)
        gwd_message_drop(wire->kept.next);
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *argument) {
    (void)bytes;
    gwd_wire_op_end(argument, status);
    ucp_request_free(request);
}

static gw_status_t fetch(gwd_message_t *message, void *to, void *cookie) {
    gwd_wire_t *wire = message->wire;
    ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = on_received,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    gwd_wire_op_t *op = gwd_wire_op_new(wire, NULL, cookie);
    ucs_status_ptr_t request;

    if (op == NULL) {
        gwd_message_drop(message);
        return GW_ERR_NO_MEMORY;
    }
    parameters.user_data = op;
    request = ucp_am_recv_data_nbx(wire->worker, message->data, to, (size_t)message->bytes, &parameters);
    let_go(message);
    if (UCS_PTR_IS_PTR(request))
        return GW_IN_PROGRESS;
    gwd_wire_op_free(op);
    return gwd_ucx_status(UCS_PTR_STATUS(request));
}

gw_status_t gwd_message_receive(gwd_message_t *message, void *to, void *cookie) {
    gw_status_t status = GW_OK;

    if (message->fetch)
        return fetch(message, to, cookie);
    if (message->data != NULL && message->bytes != 0)
        memcpy(to, message->data, (size_t)message->bytes);
    else if (message->bytes != 0)
        status = GW_ERR_NO_MEMORY;
    gwd_message_drop(message);
    return status;
}
