/* arena.h - memory that the library shares with the daemon
 *
 * A memfd that is filled before it is sealed, so that neither side can be killed by a page that is not there (SIGBUS).
 * The fd is closed as soon as the daemon has its own.
 */
#ifndef GW_ARENA_H
#define GW_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "context.h"
#include "device.h"

typedef struct gw_arena {
    uint8_t *shared; /* NULL: there is none */
    size_t bytes;    /* whole pages */
    uint32_t handle; /* the daemon's */
} gw_arena_t;

/* What is behind an arena, for operators. */
typedef struct gw_arena_use {
    bool copied;        /* memory that the daemon may not or had better not open itself */
    const char *device; /* of that memory; "": the host's */
    const char *why;    /* it is copied */
} gw_arena_use_t;

/* How many bytes whole pages for these have. */
uint64_t gw_arena_round(uint64_t bytes);

/* A memfd of `bytes` without holes and with the seals. */
gw_status_t gw_arena_memfd(size_t bytes, int seals, int *fd_out);

/* Makes an arena of at least `bytes` and gives it to the daemon. */
gw_status_t gw_arena_make(gw_context_t *context, uint64_t bytes, const gw_arena_use_t *use, gw_arena_t *arena_out);

/* Takes it back from the daemon. On failure the daemon still has it. */
gw_status_t gw_arena_release(gw_context_t *context, uint32_t handle);

/* Unmaps it. */
void gw_arena_unmap(gw_arena_t *arena);

/* Gives memory to the daemon. `refusal` of GW_WHY_BYTES gets the daemon's text if it refuses, else "". */
gw_status_t gw_arena_announce(gw_context_t *context, uint64_t bytes, const gw_arena_use_t *use, const gw_part_t *parts,
                              size_t n_parts, char *refusal, uint32_t *handle_out);

#endif
