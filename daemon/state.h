/* state.h - a group's state as bytes: what lossy codecs have left out, so that training goes on where it was
 *
 * The format is in PROTOCOL.md, section 17. Written by the daemon, kept by trainers, and read again from memory that a
 * trainer shares and may be changing: every byte is read once, and what was read is checked.
 */
#ifndef GWD_STATE_H
#define GWD_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"
#include "residual.h"

/* Where the ranks of a group are: a state fits no other. */
typedef struct gwd_placement {
    uint32_t nranks, n_nodes;
    uint32_t rank;           /* whose state it is */
    uint64_t chunk_bytes;    /* between nodes, which cuts shards; 0 on one node */
    const uint32_t *node_of; /* by rank; NULL: all are on one node */
} gwd_placement_t;

/* Whether the rank's state holds the residuals of its node: it is the lowest there. */
bool gwd_placement_carries(const gwd_placement_t *placement);

/* The size of a state with these residuals. */
uint64_t gwd_state_bytes(const gwd_placement_t *placement, const gwd_residual_t *list);

/* Writes gwd_state_bytes() bytes. */
void gwd_state_write(const gwd_placement_t *placement, const gwd_residual_t *list, unsigned char *to);

/* Reads a state of `bytes` bytes. The residuals are the caller's.
 * Errors, with text: GW_ERR_STATE (damaged, of another version, or of another placement), GW_ERR_NO_MEMORY. */
gw_status_t gwd_state_read(const unsigned char *from, uint64_t bytes, const gwd_placement_t *placement,
                           gwd_residual_t **list_out, char *text, size_t text_bytes);

#endif
