/* lane.h - the thread that drives groups
 *
 * A group lives on one lane from its making to its end. The lane owns the group's channels and slots: it
 * reads Submit messages from the ranks directly, matches them by sequence number, lets the exchange run
 * (itself when small, on the reduce threads otherwise), and writes the completions. Lane and loop share
 * nothing that changes but counters; they send each other the messages below, by value.
 */
#ifndef GWD_LANE_H
#define GWD_LANE_H

#include <stdatomic.h>
#include <stdint.h>

#include "bucket.h"
#include "ip.h"
#include "plan.h"
#include "queue.h"
#include "rails.h"
#include "reduce.h"
#include "slots.h"
#include "stats.h"
#include "trace.h"
#include "wire_seal.h"

enum { GWD_TEXT_BYTES = GW_SLOTS_MESSAGE_BYTES, GWD_IDENTITY_BYTES = 160, GWD_TELL_MAX = 65536 };

#define GWD_ALL_NODES UINT32_MAX

typedef struct gwd_lane gwd_lane_t;

/* Who a rank is. Filled by the loop when the group is made, constant afterwards. */
typedef struct gwd_rank_info {
    uint32_t rank;  /* in the group; a lane's own table holds the ranks of this node only */
    int channel_fd; /* the daemon's end, non-blocking; the lane closes it */
    gw_slots_header_t *slots;
    char identity[GWD_IDENTITY_BYTES]; /* "rank 2 (host h, pid 4711)" */
} gwd_rank_info_t;

/* Counters of a rank, written by the lane and read by anybody. */
typedef struct gwd_rank_counters {
    _Atomic uint64_t submitted;  /* highest sequence number */
    _Atomic uint64_t last_count; /* how often it was the last to submit */
    _Atomic uint64_t last_ns;    /* how long the first waited for it then, in all */
} gwd_rank_counters_t;

/* What all_reduces of one size class and codec took between nodes. */
typedef struct gwd_wire_counters {
    _Atomic uint64_t ops, ns;
    _Atomic uint64_t bytes;              /* of their buckets, in binary32 */
    _Atomic uint64_t bytes_before, sent; /* without the codec, and sent */
} gwd_wire_counters_t;

typedef struct gwd_group_counters {
    _Atomic uint64_t last_completed;
    _Atomic uint64_t in_flight; /* operations begun by any rank and not ended */
    _Atomic uint64_t staged;    /* operations on memory of a device */
    gwd_wire_counters_t wire[GWD_SIZE_CLASSES][GW_CODECS];
    gwd_rank_counters_t ranks[];
} gwd_group_counters_t;

/* A node of a group: a daemon with some of its ranks. */
typedef struct gwd_group_node {
    uint8_t id[16];
    char host[65];
    uint32_t lowest_rank; /* of its ranks: nodes are ordered by it */
    void *address;        /* of its wires for this group (rails.h): malloc; NULL for this node */
    size_t address_bytes;
    gwd_ip_t *ips; /* of its host: malloc; NULL for this node */
    uint32_t n_ips;
} gwd_group_node_t;

/* Which node each rank is on; NULL in a group that is on this node alone. Constant once made, and shared: the loop's
 * group owns it, which outlives the lane's. */
typedef struct gwd_group_map {
    uint64_t wire_id; /* names the group on the wire: the same on all nodes, and no other group's */
    uint32_t n_nodes, own_node;
    gwd_group_node_t *nodes;
    uint32_t *node_of; /* by rank */
    bool has_cipher;   /* wire.cipher */
    uint8_t wire_key[GWD_CIPHER_KEY_BYTES];
} gwd_group_map_t;

/* What the loop knows of a group when it hands it to a lane. */
typedef struct gwd_group_seed {
    uint32_t id; /* of the group in this daemon */
    uint32_t epoch;
    uint32_t credits;
    uint32_t nranks;                       /* of the whole group */
    uint32_t n_local;                      /* of this node: entries of `ranks`, by rank */
    const gwd_group_map_t *map;            /* NULL: all ranks are on this node */
    uint32_t n_rails, rail;                /* how many wires it has, and for which of them this is; 0 likewise */
    struct gwd_wire *wires[GWD_RAILS_MAX]; /* to the other nodes, taken over */
    gwd_lane_t *lanes[GWD_RAILS_MAX];      /* that they are of */
    uint64_t silence_ns;                   /* deadline.silence_ms when it was made: all nodes have compared it */
    gwd_plan_t plan;
    gwd_share_t *user_share; /* of who made the group; like the counters it outlives the group on the lane */
    gwd_group_counters_t *counters;
    gwd_rank_info_t ranks[];
} gwd_group_seed_t;

/* Loop to lane. */
typedef enum gwd_command_kind {
    GWD_COMMAND_GROUP,         /* take `seed` over (malloc) */
    GWD_COMMAND_BUCKET,        /* rank may submit `bucket` from now on */
    GWD_COMMAND_BUCKET_DETACH, /* answer DETACHED when the bucket has no operation any more */
    GWD_COMMAND_RANK_LEAVE,    /* the rank is gone: `status` and `text` are what the others hear if they need it;
                                  answer RELEASED when its memory is not used any more */
    GWD_COMMAND_HOLD,          /* begin no operation between nodes until GO_ON; answer HELD with the cookie */
    GWD_COMMAND_GO_ON,
    GWD_COMMAND_FAIL,  /* fail the group with `status` and `text` (malloc, taken over) */
    GWD_COMMAND_PROBE, /* measure the wires of all rails; each lane answers PROBED */
    GWD_COMMAND_TELL,  /* tell `node`, or GWD_ALL_NODES, `data` (malloc, taken over) of `bytes`, at most
                                  GWD_TELL_MAX; dropped if the group has failed or ended */
    GWD_COMMAND_STOP,  /* end the thread; no group is left */

    /* Lane to lane: see lane_rail.c. */
    GWD_COMMAND_RAIL_RUN,   /* carry a part of `op`, of the group of `lane`; answer RAIL_DONE */
    GWD_COMMAND_RAIL_DONE,  /* that part has ended */
    GWD_COMMAND_RAIL_LEAVE, /* the group ends; answer RAIL_LEFT */
    GWD_COMMAND_RAIL_LEFT,  /* the rail is no more */
} gwd_command_kind_t;

typedef struct gwd_command {
    gwd_command_kind_t kind;
    uint32_t group, rank, bucket_id;
    uint64_t cookie;
    gw_status_t status;
    gwd_group_seed_t *seed;
    gwd_bucket_t *bucket;
    char *text;
    uint32_t node;
    void *data;
    size_t bytes;
    struct gwd_op *op;
    gwd_lane_t *lane;
} gwd_command_t;

/* One rank's part in an operation that waits for others. */
typedef struct gwd_waiter {
    uint64_t queue;      /* of its Submit; 0: nothing is blocked by it */
    uint64_t last_queue; /* of its last Submit in this group */
    bool ever;           /* it has submitted in this group at all */
    bool submitted;      /* and in this operation */
} gwd_waiter_t;

/* Lane to loop. */
typedef enum gwd_event_kind {
    GWD_EVENT_DETACHED,  /* of a bucket; cookie */
    GWD_EVENT_RELEASED,  /* of a rank; cookie. After the last rank's the group is gone from the lane */
    GWD_EVENT_HELD,      /* what HOLD asked for; else why not: the status of a group that has failed, GW_ERR_BUSY when
                            an operation is under way, GW_ERR_RANK_LEFT when the group has ended; cookie */
    GWD_EVENT_FAILED,    /* the group has failed: status and text (malloc, taken over) */
    GWD_EVENT_PROBED,    /* what a group's wire can do */
    GWD_EVENT_WAITING,   /* an operation waits for ranks since the late limit: `waiters` (malloc, one a rank) */
    GWD_EVENT_TOLD,      /* `node` has told `data` (malloc, taken over) of `bytes`; in the order in which it did */
    GWD_EVENT_NODE_LEFT, /* all ranks of `node` have left in good order; it tells nothing more */
} gwd_event_kind_t;

typedef struct gwd_event {
    gwd_event_kind_t kind;
    uint32_t group;
    uint64_t cookie;
    gw_status_t status;
    char *text;
    uint64_t sequence;
    uint64_t waited_ns;
    gwd_waiter_t *waiters;
    uint64_t bytes_per_s, latency_ns;
    uint32_t node;
    void *data;
    size_t bytes;
} gwd_event_t;

/* Limits that a reload may change; read by the lane whenever it looks at the clock. */
typedef struct gwd_lane_limits {
    _Atomic uint64_t late_ns, deadline_ns, poll_ns, spin_ns;
} gwd_lane_limits_t;

/* What a group's wire tells its lane, which is the argument. */
extern const struct gwd_wire_events gwd_lane_wire_events;

/* Starts lane number `index`, from 0 on. `events`, `reduce` and `limits` must outlive it. Returns 0 or an
 * errno value. */
int gwd_lane_new(gwd_queue_t *events, gwd_reduce_t *reduce, const gwd_lane_limits_t *limits, uint64_t trace_events,
                 uint32_t index, gwd_lane_t **lane_out);

/* Stops and frees it. All its groups must have ended. Blocking: until the thread has ended. */
void gwd_lane_free(gwd_lane_t *lane);

/* What a group on several nodes takes for chunks under way on each of its rails, once it has any. */
uint64_t gwd_lane_flight_bytes(const gwd_plan_t *plan, uint32_t n_nodes, uint32_t n_local);

/* Sends a command. On failure (out of memory) returns false and nothing was taken over. */
bool gwd_lane_send(gwd_lane_t *lane, const gwd_command_t *command);

/* The same for a command without which memory, ranks or a lane would hang for ever: out of memory ends the daemon. */
void gwd_lane_must_send(gwd_lane_t *lane, const gwd_command_t *command);

const gwd_stats_t *gwd_lane_stats(const gwd_lane_t *lane);
const gwd_trace_t *gwd_lane_trace(const gwd_lane_t *lane);

#endif
