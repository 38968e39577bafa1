/* admin.h - what operators ask through gwctl
 *
 * A command is a word and arguments; the answer is one JSON document, sent in as many AdminReply messages
 * as it takes. The shapes are in PROTOCOL.md.
 */
#ifndef GWD_ADMIN_H
#define GWD_ADMIN_H

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "group.h"
#include "session.h"

/* Serves one command, with a reply or an error. */
void gwd_admin_serve(gwd_session_t *session, uint32_t request, const char *command, char *const *arguments,
                     size_t n_arguments);

/* admin_show.c: the documents. NULL when memory is exhausted. */
cJSON *gwd_admin_status(struct gwd_server *server);
cJSON *gwd_admin_clients(struct gwd_server *server);
cJSON *gwd_admin_groups(struct gwd_server *server);
cJSON *gwd_admin_buffers(struct gwd_server *server);
cJSON *gwd_admin_buckets(struct gwd_server *server);
cJSON *gwd_admin_stats(struct gwd_server *server);
cJSON *gwd_admin_config(struct gwd_server *server);

/* admin_trace.c: a page of the lanes' rings. `cursor`: that of the last page, "" for the oldest events there are, or
 * "end" for none but those that come. Errors, with text: GW_ERR_INVALID_ARGUMENT (no such cursor), GW_ERR_NO_MEMORY. */
gw_status_t gwd_admin_trace(struct gwd_server *server, const char *cursor, cJSON **json_out, char *text,
                            size_t text_bytes);

/* Adds a field. JSON's numbers are doubles: beyond 2^53 it is rounded. */
static inline void gwd_admin_number(cJSON *object, const char *name, uint64_t value) {
    cJSON_AddNumberToObject(object, name, (double)value);
}

/* Adds the field "node", from GWD_NODE_BYTES bytes. */
void gwd_admin_add_node(cJSON *json, const uint8_t *node);

/* admin_wire.c: of an active group over several nodes. */
cJSON *gwd_admin_wire(const gwd_group_t *group);

#endif
