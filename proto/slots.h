/* slots.h - the memory that a rank and the daemon share for one group
 *
 * A sealed memfd holds one header and then `credits` slots. Operation `sequence` uses slot
 * sequence % credits; its words hold the low 32 bits of the sequence number, so a slot serves round
 * after round and "done" is the cyclic comparison done - sequence >= 0, which a CUDA stream can make too
 * (cuStreamWriteValue32, cuStreamWaitValue32 with GEQ).
 *
 * The client writes `ready`, and nothing else. The daemon reads `ready` once, keeps its own record of
 * everything it writes here, and never reads that back: a client that scribbles harms only itself.
 */
#ifndef GW_SLOTS_H
#define GW_SLOTS_H

#include <stdatomic.h>
#include <stdint.h>

#define GW_SLOTS_MAGIC         0x54535747u /* "GWST" */
#define GW_SLOTS_VERSION       1u
#define GW_SLOTS_MESSAGE_BYTES 512

typedef struct gw_slot {
    _Atomic uint32_t ready;  /* client or its stream: the input of this round is complete */
    _Atomic uint32_t done;   /* daemon: the round has ended; a futex word */
    _Atomic uint32_t status; /* daemon: how it ended; valid once done */
    uint32_t reserved[13];   /* one slot a cache line */
} gw_slot_t;

typedef struct gw_slots_header {
    uint32_t magic;
    uint32_t version;
    uint32_t credits; /* a power of two */
    uint32_t epoch;
    _Atomic uint64_t last_completed; /* every operation up to this one is complete */
    _Atomic uint64_t failed_ops;     /* operations that failed alone */
    _Atomic uint32_t status;         /* of the group; set once, after `message` */
    uint32_t reserved[7];
    char message[GW_SLOTS_MESSAGE_BYTES];
} gw_slots_header_t;

_Static_assert(sizeof(gw_slot_t) == 64, "a slot is a cache line");
_Static_assert(sizeof(gw_slots_header_t) == 576, "the header is part of the protocol");

static inline uint64_t gw_slots_bytes(uint32_t credits) {
    return sizeof(gw_slots_header_t) + (uint64_t)credits * sizeof(gw_slot_t);
}

static inline gw_slot_t *gw_slots_at(gw_slots_header_t *header, uint64_t sequence, uint32_t credits) {
    return (gw_slot_t *)(header + 1) + (sequence & (credits - 1u));
}

/* Whether the round of `sequence` is reached by `word`. */
static inline int gw_slots_reached(uint32_t word, uint64_t sequence) {
    return (int32_t)(word - (uint32_t)sequence) >= 0;
}

#endif
