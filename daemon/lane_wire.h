/* lane_wire.h - operations of groups that are on several nodes
 *
 * Inner header of lane_wire.c (who is there: heartbeats, failures, ends), lane_meet.c (announcements), lane_flight.c
 * (the data), lane_wire_seal.c (the cipher), lane_probe.c (measuring) and lane_tell.c (what the loops of the nodes tell
 * each other).
 *
 * When all ranks of this node have submitted an operation it is announced to the other nodes (BEGIN, with its
 * fingerprint). When all nodes have, it moves in chunks, several at once. A chunk is cut into shards, each owned by one
 * node: of an all_reduce one shard a node; of other collectives one, owned by the node that has the result or the
 * input. The nodes with inputs send their partial results to the owner (PART); it combines them in node order and
 * sends the result to the nodes that want it (RESULT).
 */
#ifndef GWD_LANE_WIRE_H
#define GWD_LANE_WIRE_H

#include "lane_group.h"
#include "lane_paths.h"
#include "transport.h"
#include "wire_seal.h"

typedef enum gwd_wire_kind {
    GWD_WIRE_BEGIN = 1, /* sequence, fingerprint, status; payload: the bucket in words, or why it failed */
    GWD_WIRE_PART,      /* sequence, chunk, taken; payload: a partial result of the receiver's shard */
    GWD_WIRE_RESULT,    /* sequence, chunk, taken; payload: the sender's shard */
    GWD_WIRE_FAIL,      /* status; payload: why */
    GWD_WIRE_ALIVE,     /* taken */
    GWD_WIRE_BYE,   /* sequence: the last of this node, whose ranks have all left in good order; chunk: its last tell */
    GWD_WIRE_PROBE, /* status: which step of a measurement; see lane_probe.c */
    GWD_WIRE_TELL,  /* sequence: the number of this tell to the receiver; payload: what the loop tells */
} gwd_wire_kind_t;

/* What a message begins with. Little endian, as every host that this runs on. */
typedef struct gwd_wire_header {
    uint64_t wire_id;
    uint64_t sequence, chunk;
    union {
        uint64_t fingerprint;
        uint64_t taken; /* how many PART and RESULT of the receiver the sender has taken into chunks */
    };
    uint32_t epoch, node, kind, status;
    gwd_paths_word_t paths;
    /* From here on only with a cipher. */
    gwd_sealed_t payload;
    gwd_stamp_t stamp; /* of all before it */
} gwd_wire_header_t;

enum { GWD_WIRE_PLAIN_BYTES = offsetof(gwd_wire_header_t, payload) };

/* Something that the transport ends later: the cookie of on_done. */
typedef struct gwd_pending {
    void (*ended)(struct gwd_pending *pending, gw_status_t status);
} gwd_pending_t;

/* What a node has announced. */
typedef struct gwd_begin {
    uint64_t sequence, fingerprint;
    gw_status_t status;
    char *text; /* malloc; NULL if there was no memory */
} gwd_begin_t;

typedef struct gwd_told gwd_told_t; /* lane_tell.c */

typedef struct gwd_peer {
    gwd_lane_group_t *group;
    uint32_t node;
    gwd_link_t *link; /* NULL for this node, and once it has ended */
    gwd_paths_t paths;
    uint64_t heard_ns, said_ns;
    uint64_t missed, missed_ns; /* with a cipher: a message that has not come though a later one has, and since when */
    bool has_left;
    uint64_t last_sequence;         /* of one that has left */
    gwd_begin_t *begins;            /* GWD_BEGINS * credits, by sequence */
    uint64_t data_sent, data_taken; /* PART and RESULT: to it; of those how many it has taken, as it says */
    uint64_t taken, said_taken;     /* of those that came from it; and how many of these it knows of */
    uint64_t n_said;                /* tells sent */
    uint64_t n_told;                /* tells handed to the loop */
    uint64_t last_tell;             /* of one that has said good-bye; until then UINT64_MAX */
    gwd_told_t *told;               /* that are not whole, or not the next, by number */
    uint64_t told_bytes;
} gwd_peer_t;

/* A node is at most `credits` operations ahead of this one's window, which is as long again. */
enum { GWD_BEGINS = 4 };

/* A node that only gives hears nothing of how far the others are, and its chunks are sent before they have begun there.
 * So it begins none while another node has so many messages of it that it has not taken; what has been taken is said in
 * every message of data, and where none goes back, now and then by itself. */
enum {
    GWD_WINDOW_MAX = 64, /* of wire.window, which is each node's own */
    GWD_AHEAD_MAX = 256,
    GWD_AHEAD_SAY = 64,
    GWD_EARLY_MAX =
        GWD_AHEAD_MAX + 2 * GWD_WINDOW_MAX, /* that may come from a node before their chunks have begun here */
};

/* A message that has come before its chunk has begun here. */
typedef struct gwd_early {
    struct gwd_early *next;
    gwd_wire_header_t header;
    gwd_message_t *message;
    uint64_t bytes;
} gwd_early_t;

typedef struct gwd_wire_flight gwd_wire_flight_t;

struct gwd_wire_group {
    const gwd_group_map_t *map; /* the loop's: not to be looked at once the last rank has been released */
    uint32_t n_peers;
    gwd_peer_t *peers; /* n_nodes */
    gwd_early_t *early;
    uint64_t n_early, early_max;
    gwd_wire_t *wire;      /* NULL once the group is over */
    gwd_cipher_t *cipher;  /* NULL: none */
    bool has_refused;      /* a message, and the log says so */
    uint32_t n_notes;      /* said and not ended, and tells that are being received */
    uint32_t n_last_words; /* of these FAIL, BYE and TELL */
    uint64_t close_ns;     /* when links are ended at the latest, once the group has failed or ended; 0: neither */
    bool closed, is_over;  /* its links have been ended; and nothing is under way any more */
    uint64_t chunk_bytes;
    uint32_t window;
    bool held;                    /* no operation begins */
    bool going_on, go_on_again;   /* lane_flight.c: chunks are being begun, and once more */
    bool is_ahead;                /* none begins until another node has taken more */
    struct gwd_probe *probe;      /* NULL: nobody measures */
    gwd_wire_flight_t *flights;   /* window: all there are, made with the first operation */
    uint32_t n_rails, rails_open; /* of the group; and those of other lanes that have not left */
    gwd_lane_t *lanes[GWD_RAILS_MAX];
    uint64_t rail_sequence; /* the first rail: the next operation that the others may have to hear of; the others: the
                               last that they have heard of */
};

/* Sends a payload, which is copied. The header's kind, status and numbers are the caller's. False: out of memory. */
bool gwd_wire_send(gwd_peer_t *peer, gwd_wire_header_t header, const void *data, size_t bytes);

/* Sends header and text; the text is copied. Without memory the group fails: others would wait for it. */
void gwd_wire_say(gwd_peer_t *peer, gwd_wire_kind_t kind, uint64_t sequence, uint64_t fingerprint, gw_status_t status,
                  const char *text);

void gwd_wire_say_taken(gwd_peer_t *peer); /* it is alive, too */

void gwd_wire_say_to_all(gwd_lane_group_t *group, gwd_wire_kind_t kind, uint64_t sequence, uint64_t fingerprint,
                         gw_status_t status, const char *text);

/* "node 1 (host h, its lowest rank is 2)" */
void gwd_wire_name_node(const gwd_lane_group_t *group, uint32_t node, char *text, size_t text_bytes);

/* Fails the group, since what came from a node is not what it has sent. */
void gwd_wire_forged(gwd_lane_group_t *group, uint32_t node);

/* Fails the group, since the way to a node is broken. */
void gwd_wire_lost(gwd_lane_group_t *group, uint32_t node, const char *why);

/* lane_meet.c */
void gwd_wire_hear_begin(gwd_peer_t *peer, const gwd_wire_header_t *header, char *text); /* takes text over */
void gwd_wire_check_left(gwd_lane_group_t *group); /* whether a node has left that operations wait for */

/* lane_tell.c */
void gwd_wire_hear_tell(gwd_peer_t *peer, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message);
void gwd_wire_hear_last_tell(gwd_peer_t *peer, uint64_t number);
void gwd_wire_free_told(gwd_peer_t *peer);

/* lane_wire_seal.c */

/* False: no memory. */
bool gwd_wire_make_cipher(gwd_lane_group_t *group);

/* Sends; with a cipher the header is stamped first, and `data` has been sealed. As gwd_link_send. */
gw_status_t gwd_wire_post(gwd_peer_t *peer, gwd_wire_header_t *header, const void *data, uint64_t bytes, void *cookie);

/* Whether it is the peer's own, and new; else it has been counted. */
bool gwd_wire_is_genuine(gwd_peer_t *peer, const gwd_wire_header_t *header, size_t header_bytes);

/* The words of a message (malloc), safe to show, or NULL: there are none. False: they are forged. */
bool gwd_wire_read_text(const gwd_peer_t *peer, const gwd_wire_header_t *header, const void *data, uint64_t bytes,
                        char **text_out);

/* Fails the group when a message has not come for so long, though later ones have. */
void gwd_wire_check_missed(gwd_peer_t *peer, uint64_t now_ns, uint64_t silence_ns);

/* lane_flight.c */
void gwd_wire_run(gwd_op_t *op);
void gwd_wire_go_on(gwd_lane_group_t *group);               /* begins what can begin */
void gwd_wire_check_end(gwd_op_t *op);                      /* ends it, when it has */
void gwd_wire_cancel(gwd_op_t *op);                         /* its group has failed: nothing new begins */
void gwd_wire_hear_taken(gwd_peer_t *peer, uint64_t taken); /* may begin chunks, or fail the group */
void gwd_wire_data(gwd_lane_group_t *group, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message);
void gwd_wire_free_flights(struct gwd_wire_group *wire);

/* lane_rail.c: the first five are called on the first rail, and do nothing on others. */
void gwd_rails_open(gwd_lane_group_t *group, const gwd_group_seed_t *seed); /* may fail the group */
void gwd_rails_run(gwd_lane_group_t *group);                                /* tells the others of operations */
void gwd_rails_probe(const gwd_lane_group_t *group);
void gwd_rails_fail(const gwd_lane_group_t *group, const char *text);
void gwd_rails_leave(gwd_lane_group_t *group); /* those that are open count as running until they have left */
void gwd_rail_part_ended(gwd_op_t *op);        /* on another rail than the first */

/* lane_probe.c */
void gwd_wire_probed(gwd_peer_t *peer, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message);
bool gwd_wire_probe_more(gwd_lane_group_t *group); /* sends what is due; whether anything was */
void gwd_wire_free_probe(struct gwd_wire_group *wire);

/* Fails the group, since a node sent what no daemon sends. */
void gwd_wire_broke(gwd_lane_group_t *group, uint32_t node, const char *how);

#endif
