/* lane_flight.h - a chunk that is under way between nodes
 *
 * Inner header of lane_flight.c (what happens when), lane_flight_in.c (what comes from other nodes), lane_code.c (what
 * is done with the numbers), lane_flight_copy.c (copies from and to devices), lane_flight_seal.c (what of it is
 * encrypted, and where), lane_flight_memory.c (the memory) and lane_flight_count.c (what it took, also for the trace).
 */
#ifndef GWD_LANE_FLIGHT_H
#define GWD_LANE_FLIGHT_H

#include "codec.h"
#include "lane_copy.h"
#include "lane_trace.h"
#include "lane_wire.h"
#include "residual.h"

typedef enum gwd_step { GWD_STEP_NONE, GWD_STEP_EXPECTED, GWD_STEP_UNDERWAY, GWD_STEP_ENDED } gwd_step_t;

typedef struct gwd_shard gwd_shard_t;

/* A transfer with one other node. */
typedef struct gwd_transfer {
    gwd_pending_t pending; /* first */
    gwd_shard_t *shard;
    gwd_step_t step;
    uint64_t begin_ns, bytes; /* when it began, and what travels; 0: it has not */
    bool raw;                 /* not encoded, though others are: there were infinities or NaNs */
    bool forged;              /* it did not open */
    gwd_sealed_t sealed;      /* where there is a cipher; of all results that go out: the own shard's */
} gwd_transfer_t;

/* What one node owns of a chunk, which is nothing in a collective where another owns all, and the transfers with it. */
struct gwd_shard {
    gwd_wire_flight_t *flight;
    uint32_t node;
    uint64_t first, count; /* in the chunk */
    gwd_transfer_t part_out, part_in, result_out, result_in;
    gwd_job_t job; /* of the own shard: final; of others: spread */
    gwd_step_t job_step;
    gwd_marks_t marks; /* of the last job that worked on it */
};

struct gwd_wire_flight {
    gwd_op_t *op; /* NULL: free */
    uint64_t chunk;
    gwd_chunk_t at; /* ranks are those of the whole group */
    uint32_t index; /* among the group's, on all its rails */
    uint32_t left, parts_missing;
    bool combines; /* ranks of several nodes have inputs */
    gw_codec_t codec;
    struct gwd_residual *residual; /* NULL: nothing is kept */
    uint32_t n_in;                 /* ranks of this node with inputs: `in`, at the chunk */
    uint32_t n_out;                /* where results go on this node: `out`; one for all devices */
    const void **in;
    void **out;
    void *result;          /* that of the devices; NULL: there is none */
    gwd_copying_t copying; /* inputs from devices, and later results to them */
    bool copies_in;        /* which of the two */
    bool inputs_missing;   /* the former have not ended */
    bool is_going_out;     /* the latter have begun */
    uint32_t n_copies;
    void (*copied)(struct gwd_wire_flight *flight);
    struct gwd_wire_flight *next_due; /* in the lane's list of those that wait to be copied */
    const unsigned char *mine;        /* the partial result of this node; NULL: not yet */
    gwd_step_t partial;
    gwd_job_t job;          /* partial */
    gwd_shard_t *shards;    /* n_nodes */
    uint64_t partial_bytes; /* of one element */
    /* Areas of `area_bytes` each: this node's partial result; the others' of the own shard, one after the other; this
     * node's encoded; the result of the own shard in binary32; and of all shards encoded. */
    unsigned char *memory, *partials, *parts, *codes, *sum, *results;
    uint64_t area_bytes;
};

enum {
    GWD_FLIGHT_AREAS = 5,
    GWD_CHUNK_BYTES_MIN = 16384,
    GWD_FLIGHT_RAW = 1, /* status of a message whose payload is not encoded */
};

static inline const gwd_exchange_t *gwd_flight_exchange(const gwd_wire_flight_t *flight) {
    return &flight->op->job.exchange;
}

static inline uint32_t gwd_flight_nodes(const gwd_wire_flight_t *flight) {
    return flight->op->group->wire->map->n_nodes;
}

static inline gwd_shard_t *gwd_flight_own(const gwd_wire_flight_t *flight) {
    return &flight->shards[flight->op->group->wire->map->own_node];
}

/* Of a shard and a chunk as the ranks have them. */
static inline uint64_t gwd_flight_shard_bytes(const gwd_shard_t *shard) {
    return shard->count * gw_type_bytes(gwd_flight_exchange(shard->flight)->type);
}

static inline uint64_t gwd_flight_chunk_bytes(const gwd_wire_flight_t *flight) {
    return flight->at.count * gw_type_bytes(gwd_flight_exchange(flight)->type);
}

/* The memory and the size of what travels. */
typedef struct gwd_load {
    unsigned char *data;
    uint64_t bytes;
} gwd_load_t;

/* lane_flight_memory.c. False: no memory. */
bool gwd_flights_make(gwd_lane_group_t *group);

/* lane_flight_in.c: what came before the chunk began. */
void gwd_flight_take_early(gwd_wire_flight_t *flight);

/* lane_flight_copy.c. */
void gwd_flight_find_spans(gwd_wire_flight_t *flight); /* of this node's ranks, for the CPU, at the chunk */

/* Copies the inputs from devices, or the results to them, and calls `copied`, also when the group has failed; at once
 * when there is nothing to copy. */
void gwd_flight_copy(gwd_wire_flight_t *flight, bool in, void (*copied)(gwd_wire_flight_t *flight));

/* lane_flight_seal.c: what travels and is encrypted, where the wire has a cipher; without one the loads are those of
 * lane_code.c, and nothing is done. What opens says whether all did. Sealing and opening is done by any thread. */
void gwd_flight_seal_part(gwd_wire_flight_t *flight, gwd_shard_t *shard);
void gwd_flight_seal_result(gwd_wire_flight_t *flight);
bool gwd_flight_open_parts(gwd_wire_flight_t *flight);
bool gwd_flight_open_result(gwd_wire_flight_t *flight, gwd_shard_t *shard);
gwd_load_t gwd_flight_part_out(const gwd_wire_flight_t *flight, const gwd_shard_t *shard);
gwd_load_t gwd_flight_result_out(const gwd_wire_flight_t *flight, bool raw);
gwd_load_t gwd_flight_result_in(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, bool raw);
void gwd_flight_check_parts(const gwd_wire_flight_t *flight); /* the lane: fails the group if some did not open */

/* lane_flight_count.c: an operation begins, and has ended; a transfer of it begins, and has ended; a job has ended. */
void gwd_flight_count_begin(gwd_op_t *op);
void gwd_flight_count_end(const gwd_op_t *op);
void gwd_flight_count_ended(const gwd_transfer_t *transfer);
void gwd_flight_count_job(const gwd_shard_t *shard);
void gwd_flight_count_sent(gwd_transfer_t *transfer, gwd_wire_kind_t kind, uint64_t bytes);
void gwd_flight_count_received(gwd_transfer_t *transfer, uint64_t bytes);

/* lane_code.c. The three that compute are done by any thread, and mark what they do; so do those of lane_flight_seal.c,
 * which begin the marks of final and spread, and move their end. */
bool gwd_code_is_coded(const gwd_wire_flight_t *flight);
void gwd_code_partial(gwd_wire_flight_t *flight, gwd_shard_t *shard); /* a shard of this node's partial result */
void gwd_code_final(gwd_wire_flight_t *flight, gwd_shard_t *own);     /* the own shard, into the outputs */
void gwd_code_spread(gwd_wire_flight_t *flight, gwd_shard_t *shard);  /* a result that came, into the outputs */
gwd_load_t gwd_code_part_out(const gwd_wire_flight_t *flight, const gwd_shard_t *shard);
gwd_load_t gwd_code_part_in(const gwd_wire_flight_t *flight, uint32_t node, bool raw);
gwd_load_t gwd_code_result_out(const gwd_wire_flight_t *flight, bool raw);
gwd_load_t gwd_code_result_in(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, bool raw);

#endif
