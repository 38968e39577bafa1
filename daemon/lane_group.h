/* lane_group.h - what a lane keeps of a group
 *
 * Inner header of the lane_*.c files and lane.c: lane.c has the thread and its messages, in lane_group.c ranks come and
 * go and groups fail, in lane_op.c operations are matched, run and ended.
 *
 * An operation is found by its sequence number in a window of `credits` entries. A rank that runs further
 * ahead than that is stalled: its channel is not read until the oldest operation has ended.
 *
 *   FREE -> GATHERING -> [WAITING for ready words] -> [MEETING other nodes] -> RUNNING -> FREE
 *                    \-> FAILED (mismatch: those who have submitted are told; late ranks will be) -> FREE
 */
#ifndef GWD_LANE_GROUP_H
#define GWD_LANE_GROUP_H

#include "codec.h"
#include "lane.h"
#include "submit.h"

typedef struct gwd_lane_group gwd_lane_group_t;
typedef struct gwd_staged gwd_staged_t; /* lane_staged.c: a chunk on its way through arenas */

typedef enum gwd_op_state {
    GWD_OP_FREE,
    GWD_OP_GATHERING, /* not all ranks have submitted */
    GWD_OP_WAITING,   /* all have, but an input is not ready yet */
    GWD_OP_MEETING,   /* all of this node are ready, and it waits for other nodes */
    GWD_OP_RUNNING,   /* the reduce threads have it, or copy engines */
    GWD_OP_FAILED,    /* it has failed alone, and not all ranks have submitted */
} gwd_op_state_t;

/* A rank's part in an operation. */
typedef struct gwd_part {
    gwd_bucket_t *bucket; /* NULL: not submitted */
    uint64_t submit_ns, queue;
    bool notify;
    bool ended; /* this rank has been told */
} gwd_part_t;

typedef struct gwd_op {
    gwd_job_t job; /* first: a finished job is its operation */
    gwd_lane_group_t *group;
    gwd_op_state_t state;
    uint64_t sequence;
    gw_status_t status;
    uint32_t n_submitted, last_rank; /* the latter by its number in the group */
    uint64_t first_ns, matched_ns;
    uint64_t run_ns, run_bytes; /* when all inputs were ready; of the largest bucket */
    bool late_reported;
    struct gwd_op *next_waiting; /* in the lane's list of operations whose inputs are not ready */
    gwd_part_t *parts;           /* nranks */

    bool staged; /* it runs in chunks through arenas; the rest is of those only */
    uint64_t next_chunk, n_staged_chunks;
    uint32_t n_flights;               /* chunks under way */
    gwd_staged_t *saved;              /* of the next chunk, with some of its blocks; NULL: none */
    struct gwd_device *device_failed; /* NULL while all is well */
    struct gwd_op *next_staged;       /* in the lane's list */

    uint64_t wire_chunks; /* of a group on several nodes: how many, and how many have begun; next_chunk and n_flights
                             are used, too */
    gw_codec_t wire_codec;
    uint64_t wire_round; /* which operation of its bucket it is: seeds stochastic rounding */
    uint64_t wire_begin_ns;
    gwd_wire_counters_t *wire_counters; /* NULL: it is not counted */
    struct gwd_residual *wire_residual; /* NULL: nothing is kept */
    uint32_t n_rails, rails_left; /* that carry it: this lane takes every n_rails-th chunk; those of others not ended */
    struct gwd_op *whole;         /* on another rail than the first: that of the first; else NULL */
} gwd_op_t;

typedef struct gwd_lane_rank {
    gwd_lane_group_t *group;
    uint32_t index;
    gwd_rank_info_t info;
    gwd_rank_counters_t *counters;
    uint64_t submitted; /* highest sequence number */
    uint64_t last_queue;
    bool left; /* takes no part any more */
    bool release_wanted, released;
    uint64_t release_cookie;
    bool broken;  /* it broke the protocol: its channel is not read any more */
    bool stalled; /* `stalled_submit` waits for a free entry of the window */
    gwd_submit_t stalled_submit;
    gwd_bucket_t **buckets; /* by id - 1 */
    uint32_t n_buckets;
} gwd_lane_rank_t;

struct gwd_lane_group {
    gwd_lane_t *lane;
    gwd_lane_group_t *next;
    uint32_t id, epoch, credits;
    uint32_t nranks;        /* on this node */
    uint32_t nranks_all;    /* on all nodes */
    uint32_t rail;          /* 0, or this is what a further lane has of a group: its ranks never submit here */
    gwd_lane_t *first_rail; /* the lane that has its ranks; NULL: all ranks are on this node */
    gwd_plan_t plan;
    struct gwd_wire_group *wire; /* NULL: all ranks are on this node */
    gwd_group_counters_t *counters;
    gwd_share_t share;   /* of the reduce threads */
    gw_status_t status;  /* sticky */
    uint64_t silence_ns; /* a node that says nothing for so long is dead */
    uint64_t tail;       /* lowest sequence number that has not ended */
    uint64_t failed_ops;
    uint32_t n_running, n_left, n_released, n_stalled;
    gwd_lane_rank_t *ranks;
    gwd_op_t *ops;                      /* credits */
    gwd_staged_t *staged, *free_staged; /* NULL until a device's memory takes part */
    uint64_t passed_over;               /* the lane's turn in which it did not find what it needs */
};

struct gwd_lane {
    pthread_t thread;
    uint32_t index;
    int epoll_fd;
    gwd_queue_t commands; /* gwd_command_t */
    gwd_queue_t finished; /* gwd_job_t * */
    gwd_queue_t *events;
    gwd_reduce_t *reduce;
    const gwd_lane_limits_t *limits;
    gwd_stats_t stats;
    gwd_trace_t *trace;
    gwd_lane_group_t *groups;
    gwd_lane_group_t *ended;          /* freed at the end of the turn: events of this turn may point into them */
    gwd_op_t *waiting, *last_waiting; /* operations whose inputs are not ready: polled */
    gwd_op_t *staged; /* operations that run in chunks, by priority; while there are some it never sleeps */
    struct gwd_wire_flight *copies_due; /* chunks of groups on several nodes whose copies wait for room, the first comes
                                           first */
    uint64_t staged_turn;               /* counts turns of those */
    struct gwd_copies *copying;         /* streams with copies under way */
    gwd_op_t *saver;                    /* holds some blocks, and waits for more; NULL: none on this lane */
    uint32_t copies_reserved;           /* that may be under way, at most GWD_STREAM_DEPTH */
    uint64_t awake_until_ns;            /* until then it looks for more instead of sleeping */
    uint32_t n_running;                 /* jobs that have not come back */
    uint64_t next_check_ns;             /* when to look for late ranks; 0: nobody waits */
    uint32_t n_wires;                   /* groups on several nodes */
    char wire_mark;                     /* its address stands for their wires in epoll */
    uint64_t next_alive_ns;             /* when to look after other nodes; 0: there are none */
    bool stopping;
    uint8_t *packet; /* GW_PACKET_MAX bytes to receive into */
};

static inline gwd_op_t *gwd_op_at(const gwd_lane_group_t *group, uint64_t sequence) {
    return &group->ops[sequence & (group->credits - 1u)];
}

/* Which operation of its group it is, on any rail. */
static inline uint64_t gwd_op_number(const gwd_op_t *op) {
    return op->whole ? op->whole->sequence : op->sequence;
}

/* lane.c */
void gwd_lane_event(gwd_lane_t *lane, const gwd_event_t *event);
void gwd_lane_watch_channel(const gwd_lane_t *lane, gwd_lane_rank_t *rank, bool readable);
bool gwd_lane_take_command(gwd_lane_t *lane); /* the next one; false when there is none */

/* lane_group.c */
gw_status_t gwd_lane_group_new(gwd_lane_t *lane, gwd_group_seed_t *seed, gwd_lane_group_t **group_out);
gwd_lane_group_t *gwd_lane_group_find(const gwd_lane_t *lane, uint32_t id);
gwd_lane_rank_t *gwd_lane_group_rank(const gwd_lane_group_t *group, uint32_t number); /* one of this node */
gw_status_t gwd_lane_group_add_bucket(gwd_lane_group_t *group, uint32_t rank, gwd_bucket_t *bucket);
void gwd_lane_group_detach_bucket(gwd_lane_group_t *group, uint32_t rank, uint32_t bucket_id, uint64_t cookie);
void gwd_lane_group_leave(gwd_lane_group_t *group, const gwd_command_t *command);
void gwd_lane_free_ended(gwd_lane_t *lane);

/* Fails the group with a text made of `text` alone. */
void gwd_lane_group_fail(gwd_lane_group_t *group, gw_status_t status, const char *text);

/* Tells the loop which ranks are not used any more; the group ends with the last. */
void gwd_lane_group_release(gwd_lane_group_t *group);

/* A bucket's operation has ended: detach it if the loop waits for that. */
void gwd_lane_bucket_ended(gwd_lane_rank_t *rank, gwd_bucket_t *bucket);

/* lane_op.c */
void gwd_lane_submit(gwd_lane_rank_t *rank, const gwd_submit_t *submit);

/* Fails the group, since a rank sent what no client library sends. */
void gwd_lane_broke_protocol(gwd_lane_rank_t *rank, const char *how);
void gwd_lane_op_finished(gwd_op_t *op);

/* Moves the window past everything that has ended. */
void gwd_lane_advance_tail(gwd_lane_group_t *group);
void gwd_lane_poll_waiting(gwd_lane_t *lane);

/* Sends a Complete, if there is room for it. */
void gwd_lane_notify(const gwd_lane_rank_t *rank, const gwd_complete_t *complete);

/* Ends an operation on every rank that has submitted it. */
void gwd_lane_op_end(gwd_op_t *op, gw_status_t status);

/* Fails an operation alone, since its ranks submitted different ones. */
void gwd_lane_op_mismatch(gwd_op_t *op, const char *text);

/* Starts the channels that had to wait for an entry of the window. */
void gwd_lane_unstall(gwd_lane_group_t *group);

/* lane_copy.c: looks which copies have ended. */
void gwd_lane_poll_copies(gwd_lane_t *lane);

/* lane_flight_copy.c */
void gwd_lane_wire_copies_turn(gwd_lane_t *lane);

/* lane_staged.c: operations some rank of which has memory on a device. */
bool gwd_lane_is_staged(const gwd_op_t *op);
void gwd_lane_stage(gwd_op_t *op, uint64_t bytes);
void gwd_lane_staged_turn(gwd_lane_t *lane);
void gwd_lane_free_staged(gwd_lane_group_t *group);

/* lane_wire.c and lane_meet.c: groups on several nodes. */
gw_status_t gwd_lane_wire_group(gwd_lane_group_t *group, const gwd_group_seed_t *seed, char *text);
void gwd_lane_wire_meet(gwd_op_t *op);                       /* all local ranks are ready */
void gwd_lane_wire_mismatch(gwd_op_t *op, const char *text); /* they are not: tells the other nodes */
bool gwd_lane_wire_is_held(const gwd_op_t *op);              /* it has met all nodes, and its group is held */
void gwd_lane_wire_fail(gwd_lane_group_t *group, const char *text);
bool gwd_lane_wire_leave(gwd_lane_group_t *group); /* all local ranks have left; false: it has to say good-bye first */
void gwd_lane_wire_free(gwd_lane_group_t *group);
gw_status_t gwd_lane_wire_hold(gwd_lane_group_t *group); /* GWD_COMMAND_HOLD; not GW_OK: it is not held */
void gwd_lane_wire_go_on(gwd_lane_group_t *group);
bool gwd_lane_wire_progress(gwd_lane_t *lane); /* whether something has moved */
bool gwd_lane_wire_arm(gwd_lane_t *lane);      /* whether the lane may sleep */
void gwd_lane_wire_tick(gwd_lane_t *lane, uint64_t now_ns);
void gwd_lane_wire_probe(gwd_lane_group_t *group); /* ends with PROBED, or the group fails */
void gwd_lane_wire_name_missing(const gwd_op_t *op, char *text, size_t text_bytes);
void gwd_lane_wire_tell(gwd_lane_group_t *group, uint32_t node, const void *data, size_t bytes); /* lane_tell.c */

/* lane_rail.c: what the lanes of a group tell each other. */
void gwd_lane_take_rail_command(gwd_lane_group_t *group, const gwd_command_t *command);
void gwd_lane_rail_failed(const gwd_lane_group_t *group, const char *text); /* tells the first */
void gwd_lane_rail_freed(gwd_lane_t *first, uint32_t id);

/* lane_late.c: names those who are waited for, ends groups at the deadline; sets next_check_ns. */
void gwd_lane_check_late(gwd_lane_t *lane, uint64_t now_ns);
void gwd_lane_arm_check(gwd_lane_t *lane, uint64_t now_ns);

#endif
