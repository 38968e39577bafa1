/* group.h - groups and the ranks in them, as the loop sees them
 *
 * A group begins with a unique id, forms while ranks join, is handed to a lane when all are there, and ends
 * when the last rank has left. A member is one rank's part in it and belongs to one session.
 *
 *   ID -> FORMING -> PREPARED -> ACTIVE -> gone        (FAILED is a status of an active group, not a state)
 *
 * Over several nodes each has a group of its own, with its own ranks, and PREPARED lasts until all nodes are: the lane
 * has it, but no rank knows. See bootstrap.h.
 */
#ifndef GWD_GROUP_H
#define GWD_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "bucket.h"
#include "lane.h"
#include "residual.h"
#include "session.h"

typedef enum gwd_group_state {
    GWD_GROUP_ID,
    GWD_GROUP_FORMING,
    GWD_GROUP_PREPARED,
    GWD_GROUP_ACTIVE,
} gwd_group_state_t;

/* The first rank that joined, whose codec all others must have. */
typedef struct gwd_codec_asker {
    uint32_t rank;
    char host[65];
} gwd_codec_asker_t;

struct gwd_member;
struct gwd_root;
struct gwd_branch;

typedef struct gwd_group {
    struct gwd_group *next;
    struct gwd_server *server;
    uint32_t id; /* in this daemon; never used twice */
    gwd_group_state_t state;
    gwd_user_t *user; /* who made it, and is charged for it */
    gw_unique_id_t unique_id;
    uint8_t name[16]; /* what other daemons call it: tells nothing of the id */
    uint32_t nranks, n_members, epoch, credits, lane;
    bool has_lane;
    struct gwd_member **members;           /* nranks, NULL where nobody of this node is */
    gwd_group_map_t *map;                  /* NULL: all ranks are on this node, or it is not complete */
    uint32_t *pids;                        /* nranks, those of other nodes; NULL: there are none */
    struct gwd_wire *wires[GWD_RAILS_MAX]; /* to the other nodes, until lanes have them */
    uint32_t n_wires;                      /* of this node, that were made; the rails are as many as every node has */
    uint32_t n_rails;                      /* known when the group is prepared */
    void *wire_address;                    /* of `wires` (rails.h): malloc */
    size_t wire_address_bytes;
    struct gwd_root *root;     /* while it forms with other nodes: they join here ... */
    struct gwd_branch *branch; /* ... or there */
    gwd_codec_policy_t policy; /* groups of a split have it, too */
    gwd_codec_asker_t codec_asker;
    uint32_t n_probing; /* rails that measure their wire */
    bool awaits_speed;  /* of this machine's cores: measure.c */
    gwd_plan_t plan;
    gwd_residual_t *residuals; /* of this node; only in a group on several */
    uint32_t n_residuals;
    uint64_t flight_bytes;          /* charged for chunks under way between nodes; 0: no bucket needs them yet */
    gwd_group_counters_t *counters; /* once active */
    gw_status_t status;             /* once active; before, that it cannot come together, which all ranks are to hear */
    char message[GWD_TEXT_BYTES];
    uv_timer_t timer;             /* bootstrap, and splits */
    bool giving_up;               /* its members are being told and freed */
    struct gwd_split *split;      /* group_split.c: NULL: nobody has called it yet */
    struct gwd_group *split_from; /* while it is being made by a split of that group */
    uint64_t search;              /* cycle.c: the last search that met it, from where, and who comes next in it */
    struct gwd_group *search_from, *search_next;
    struct {
        uint64_t sequence; /* of an operation that waits since the late limit; 0: none */
        uint64_t waited_ns;
        gwd_waiter_t *waiters; /* nranks */
    } waiting;
} gwd_group_t;

typedef struct gwd_member {
    gwd_session_t *session;
    gwd_group_t *group;
    uint32_t rank;
    uint32_t handle;          /* within the session */
    gwd_codec_choice_t codec; /* that it asked for */
    uint32_t request;         /* GroupJoin or GroupSplit to be answered, then GroupLeave; 0: none */
    gw_slots_header_t *slots;
    int slots_fd, channel_fd;            /* the rank's own ends, until it is told; else -1 */
    gwd_table_t buckets;                 /* gwd_bucket_t */
    struct gwd_wire_blocks *wire_blocks; /* one for each device that its buckets are on, in a group on several nodes */
    bool leaving;
    bool released;                   /* it goes with the end of its job */
    struct gwd_state_job *state_job; /* its state is being saved or loaded; else NULL */
    uint32_t split_request;          /* 0: none */
} gwd_member_t;

/* Why a member leaves: the status and words that the others hear. */
typedef struct gwd_leave_reason {
    gw_status_t status;
    const char *why; /* completes the sentence "rank 2 (host h, pid 1) ..." */
} gwd_leave_reason_t;

/* Functions with `text` return a status, and write why it is not GW_OK. Those with `request` answer it
 * themselves, now or later, when they return GW_OK. */

gw_status_t gwd_group_make_id(gwd_session_t *session, gw_unique_id_t *id_out, char *text, size_t text_bytes);
gw_status_t gwd_group_join(gwd_session_t *session, uint32_t request, const gw_unique_id_t *id, uint32_t nranks,
                           uint32_t rank, const gwd_codec_choice_t *codec, char *text, size_t text_bytes);
gw_status_t gwd_group_split(gwd_member_t *member, uint32_t request, int32_t color, int32_t key, char *text,
                            size_t text_bytes);

/* Fails a prepared or active group on every rank. */
void gwd_group_fail(gwd_group_t *group, gw_status_t status, const char *text);

/* Gives up a group that is not active yet; its ranks hear the status. */
void gwd_group_give_up(gwd_group_t *group, gw_status_t status, const char *text);

/* Whether it waits for ranks since the late limit: group->waiting tells for whom. */
bool gwd_group_is_late(const gwd_group_t *group);

/* A new one in the state ID, charged to the user. Errors, with text: GW_ERR_QUOTA, GW_ERR_NO_MEMORY. */
gw_status_t gwd_group_new(struct gwd_server *server, gwd_user_t *user, gwd_group_t **group_out, char *text,
                          size_t text_bytes);

/* Ends a group that has no member any more. */
void gwd_group_end(gwd_group_t *group);

/* ---- for bootstrap ------------------------------------------------------------------------------ */

/* `who` says how many ranks the group has. Errors, with text: GW_ERR_INVALID_ARGUMENT, GW_ERR_NO_MEMORY. */
gw_status_t gwd_group_expect(gwd_group_t *group, uint32_t nranks, const char *who, char *text, size_t text_bytes);

/* Whether the rank cannot join: there is no such rank, or somebody has it. */
bool gwd_group_is_taken(const gwd_group_t *group, uint32_t rank, char *text, size_t text_bytes);

/* Goes on when all ranks of all nodes have joined. */
void gwd_group_check_complete(gwd_group_t *group);

/* The deadline from now on: deadline.bootstrap_s, or so many seconds. */
void gwd_group_start_timer(gwd_group_t *group);
void gwd_group_start_timer_s(gwd_group_t *group, uint64_t seconds);

/* "rank 1, 3 of 4 did not join within 300 s (deadline.bootstrap_s)" */
void gwd_group_name_missing(const gwd_group_t *group, bool (*is_there)(const gwd_group_t *group, uint32_t rank),
                            const char *what, char *text, size_t text_bytes);

/* Where a rank of another node is, with its node's id; NULL: it is of this node, or has not joined. */
const char *gwd_group_remote_host(const gwd_group_t *group, uint32_t rank, const uint8_t **node_out);

/* ---- group_start.c ------------------------------------------------------------------------------ */

/* The size of the chunks that its buckets go to other nodes in. */
uint64_t gwd_group_wire_chunk(const gwd_group_t *group);

/* Says which lane it will have, if it has none. */
void gwd_group_choose_lane(gwd_group_t *group);

/* The lane that has its wire number `rail`. */
gwd_lane_t *gwd_group_rail_lane(const gwd_group_t *group, uint32_t rail);

/* Gives it slots, channels and its lane. Without ranks of this node only the state changes. Errors, with text:
 * GW_ERR_NO_MEMORY, GW_ERR_FD_LIMIT. */
gw_status_t gwd_group_prepare(gwd_group_t *group, char *text, size_t text_bytes);

/* Answers its ranks: it is active. */
void gwd_group_go(gwd_group_t *group);

/* Both at once, for a group of this node alone. */
void gwd_group_start(gwd_group_t *group);

/* ---- group_split.c ------------------------------------------------------------------------------ */

/* Gives up the split that is under way, if one is, on all nodes; the group itself goes on. */
void gwd_group_give_up_split(gwd_group_t *group, gw_status_t status, const char *text);

/* The deadline of a split, or of the cause that gwd_group_split_broke waits for, has passed. */
void gwd_group_split_late(gwd_group_t *group);

/* A group that is being made by a split has failed. */
void gwd_group_split_broke(gwd_group_t *part, gw_status_t status, const char *text);

/* What another node says, and that it will say nothing more since its ranks have left. */
void gwd_group_split_told(gwd_group_t *group, uint32_t node, const uint8_t *data, size_t bytes);
void gwd_group_split_node_left(gwd_group_t *group, uint32_t node);

void gwd_group_free_split(gwd_group_t *group);

/* member.c */
gw_status_t gwd_member_new(gwd_session_t *session, gwd_group_t *group, uint32_t rank, uint32_t request,
                           gwd_member_t **member_out, char *text, size_t text_bytes);
void gwd_member_free(gwd_member_t *member);

/* The active member of that handle, or NULL. */
gwd_member_t *gwd_member_find(const gwd_session_t *session, uint32_t handle);

/* "rank 2 (host h, pid 4711)" */
void gwd_member_identity(const gwd_member_t *member, char *text, size_t text_bytes);

/* Takes the rank out of its group; answers `request` (0: nobody) when the daemon has let go of its memory. */
void gwd_member_leave(gwd_member_t *member, uint32_t request, const gwd_leave_reason_t *reason);

/* Takes it out of a group that was prepared and has been given up for that reason; the lane's answer frees it. */
void gwd_member_withdraw(gwd_member_t *member, gw_status_t status, const char *text);

/* Hands a new bucket, which is charged already, to the lane. On success the member owns it and its charge, and the
 * buffers are referred to. */
gw_status_t gwd_member_add_bucket(gwd_member_t *member, gwd_bucket_t *bucket, char *text, size_t text_bytes);

/* Ends a bucket when its last operation has; then answers `request`. */
void gwd_member_end_bucket(gwd_member_t *member, gwd_bucket_t *bucket, uint32_t request);

/* Ends all buckets of the session that use the buffer, then the buffer; then answers `request`. */
void gwd_member_end_buffer(gwd_session_t *session, gwd_buffer_t *buffer, uint32_t request);

/* What a lane says: to be called for each of its events. */
void gwd_group_event(struct gwd_server *server, const gwd_event_t *event);

/* ---- group_state.c ------------------------------------------------------------------------------ */

/* Makes and charges what operations of the bucket need beside buffers, and gives it its residual, so that none of them
 * can fail for want of that. To the user who made the group, until the group ends. Errors, with text: GW_ERR_QUOTA,
 * GW_ERR_NO_MEMORY. */
gw_status_t gwd_group_reserve(gwd_group_t *group, uint32_t rank, gwd_bucket_t *bucket, char *text, size_t text_bytes);
uint64_t gwd_group_residual_bytes(const gwd_group_t *group);
void gwd_group_give_back(gwd_group_t *group);

/* Writes the rank's state to the memfd, which is taken over (and set to -1), and answers with its size; without a
 * memfd, or with one that is too small, the size is all there is. Errors, with text: the status of a group that has
 * failed, GW_ERR_BUSY, GW_ERR_QUOTA, GW_ERR_NO_MEMORY. */
gw_status_t gwd_group_state_save(gwd_member_t *member, uint32_t request, int *fd, char *text, size_t text_bytes);

/* Reads a state of so many bytes from the memfd, which is taken over (and set to -1). Errors: as above. */
gw_status_t gwd_group_state_load(gwd_member_t *member, uint32_t request, int *fd, uint64_t bytes, char *text,
                                 size_t text_bytes);

/* The lane's answer to GWD_COMMAND_HOLD. */
void gwd_group_state_held(const gwd_event_t *event);

/* member.c: its job has ended. */
void gwd_member_state_ended(gwd_member_t *member);

/* cycle.c: fails groups that wait for each other in opposite order, once that has stood for deadline.cycle_ms; looks
 * for circles that hold `start`. */
void gwd_cycle_check(gwd_group_t *start);

#endif
