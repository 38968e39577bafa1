/* bootstrap.h - groups of several nodes come together
 *
 * The daemon that made the unique id is the *root*: it listens, and collects the ranks of all nodes. A daemon whose
 * clients join with another's id is a *branch*: it has a group of its own for them, connects to the root, and sends
 * their ranks. When all are there the root sends everybody the table of nodes and ranks; each node hands the group to a
 * lane and says so; when all have, the root lets it begin. Until then whatever goes wrong anywhere ends the group on
 * all nodes; from then on the root is a node like the others.
 *
 *   branch                                   root
 *     knock: group's name, nonce    ->
 *                                   <-         challenge: nonce
 *     proof                         ->
 *                                   <-         proof
 *     Hello                         ->
 *                                   <-         Welcome
 *     Rank, Rank, ...               ->                        (Refusal, if it is taken)
 *                                   <-         Table, one for each node
 *     Prepared                      ->
 *                                   <-         Measure       (only where the codec is auto: measure.h)
 *     Measured                      ->
 *                                   <-         Go             (Failure, either way, instead of any of these)
 *
 * In the group's state: a root has ->root as soon as a branch has come, a branch has ->branch. Both end with bootstrap.
 */
#ifndef GWD_BOOTSTRAP_H
#define GWD_BOOTSTRAP_H

#include "group.h"
#include "server.h"

enum { GWD_WIRE_ADDRESS_MAX = GWD_RAILS_MAX * 8192 }; /* of one node */

/* ---- bootstrap.c: what both sides need ---------------------------------------------------------- */

/* Listens where wire.listen says. Errors, with text: GW_ERR_INVALID_ARGUMENT, GW_ERR_SYSTEM. */
gw_status_t gwd_bootstrap_listen(gwd_server_t *server, char *text, size_t text_bytes);

/* Stops listening and closes all connections. */
void gwd_bootstrap_close(gwd_server_t *server);

/* The group that was made here, is not complete, and has that public name, or NULL. */
gwd_group_t *gwd_bootstrap_find(const gwd_server_t *server, const uint8_t name[GWD_NAME_BYTES]);

/* Its token, or that of one that has not come together and is still known. False: there is none. */
bool gwd_bootstrap_token(const gwd_server_t *server, const uint8_t name[GWD_NAME_BYTES],
                         uint8_t token_out[GWD_TOKEN_BYTES]);

const gwd_id_layout_t *gwd_bootstrap_id(const gwd_group_t *group);

/* The settings that all nodes of a group must have alike, and what this daemon has. */
enum { GWD_COUNT_SHARED = 4 };
extern const char *const gwd_bootstrap_shared[GWD_COUNT_SHARED];
void gwd_bootstrap_setting(const gwd_server_t *server, size_t index, char value[GWD_CONFIG_STRING_BYTES]);

/* Ends the part of bootstrap; the other nodes hear `status` and `text`, or nothing if it is GW_OK. */
void gwd_bootstrap_end(gwd_group_t *group, gw_status_t status, const char *text);

/* What gwd_measure_begin has found. */
void gwd_bootstrap_measured(gwd_group_t *group, const gwd_codec_figures_t *figures);

/* Sends a NodeFailure, the last frame, and finishes the connection. */
void gwd_bootstrap_refuse(gwd_contact_t *peer, gw_status_t status, const char *text);

/* Takes one apart: text that is safe to show, and a status that there is. False: it is malformed. */
bool gwd_bootstrap_read_failure(const uint8_t *body, size_t bytes, gw_status_t *status_out, char *text,
                                size_t text_bytes);

/* Makes group->map, without nodes' addresses. False: out of memory. */
bool gwd_bootstrap_new_map(gwd_group_t *group, uint32_t n_nodes);
void gwd_bootstrap_free_map(gwd_group_t *group);

/* ---- bootstrap_root.c --------------------------------------------------------------------------- */

extern const gwd_contact_events_t gwd_root_events;

/* How many ranks other nodes have sent. */
uint32_t gwd_root_ranks(const gwd_group_t *group);

/* The host that has sent that rank, or NULL; with its node's id. */
const char *gwd_root_holder(const gwd_group_t *group, uint32_t rank, const uint8_t **node_out);

/* All ranks are there: sends the table. */
void gwd_root_complete(gwd_group_t *group);

/* What the deadline finds, once the table is sent: the hosts that have not prepared. False: it is not. */
bool gwd_root_late(const gwd_group_t *group, char *text, size_t text_bytes);

/* What this node, if it has ranks, measured. */
void gwd_root_measured(gwd_group_t *group, const gwd_codec_figures_t *figures);

void gwd_root_end(gwd_group_t *group, gw_status_t status, const char *text);

/* ---- bootstrap_branch.c ------------------------------------------------------------------------- */

/* Begins to connect. Errors, with text: GW_ERR_NO_MEMORY, GW_ERR_QUOTA, GW_ERR_UNKNOWN_ID. */
gw_status_t gwd_branch_new(gwd_group_t *group, char *text, size_t text_bytes);

/* A rank has joined here. */
void gwd_branch_add(gwd_group_t *group, const gwd_member_t *member);

/* What the deadline finds. */
void gwd_branch_late(const gwd_group_t *group, char *text, size_t text_bytes);

void gwd_branch_measured(gwd_group_t *group, const gwd_codec_figures_t *figures);

void gwd_branch_end(gwd_group_t *group, gw_status_t status, const char *text);

#endif
