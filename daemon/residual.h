/* residual.h - what is kept of a bucket between nodes: what a lossy codec left out, to be added next time, and how many
 * operations there have been, which seeds stochastic rounding
 *
 * The loop makes one for each bucket of a node's lowest rank that needs it, charged to the user who made the group, and
 * keeps it until the group ends: a bucket that is declared again goes on where it was. Buckets of one fingerprint are
 * told apart by the order in which they were declared. The list is the loop's. The numbers belong to the lane, and to
 * the loop or a helper thread while the lane holds the group still (GWD_COMMAND_HOLD).
 */
#ifndef GWD_RESIDUAL_H
#define GWD_RESIDUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec.h"

enum { GWD_RESIDUALS_MAX = 4096 }; /* of one group */

/* How its bucket is coded: what the description leaves to the group, too. Part of a state. */
typedef struct gwd_residual_rule {
    uint8_t codec;         /* gw_codec_t */
    uint8_t size_class;    /* of the bucket */
    uint8_t is_default;    /* the bucket leaves its codec to the group */
    uint8_t is_stochastic; /* rounding, which is the group's */
} gwd_residual_rule_t;

typedef struct gwd_residual {
    struct gwd_residual *next;
    uint64_t fingerprint; /* gwd_residual_key of its bucket's */
    uint64_t count;       /* of numbers; 0: there are none, only n_ops */
    uint64_t n_ops;       /* that have used it */
    gwd_residual_rule_t rule;
    bool in_use;            /* by a bucket */
    float *parts, *results; /* `count` each, one after the other; of this node's partial results, and of the shards it
                               owns */
} gwd_residual_t;

/* How many numbers are kept of a bucket of `count`; 0: its codec leaves nothing out that is added later. */
uint64_t gwd_residual_numbers(gw_codec_t codec, bool no_error_feedback, uint64_t count);

/* What one takes: whole pages. `count` is at most that of a bucket. */
uint64_t gwd_residual_bytes(uint64_t count);

/* All zeros; pages are there from their first use on. NULL: no memory. Thread: any. */
gwd_residual_t *gwd_residual_new(uint64_t fingerprint, uint64_t count);

/* Not by the fingerprint alone: whoever finds two buckets of one fingerprint must not make the daemon write past the
 * end of the smaller one's. NULL: there is none. */
gwd_residual_t *gwd_residual_find(gwd_residual_t *list, uint64_t fingerprint, uint64_t count);

/* Which of several buckets of one fingerprint it is for, by the order in which they were declared. */
static inline uint64_t gwd_residual_key(uint64_t fingerprint, uint32_t ordinal) {
    return fingerprint + ordinal * UINT64_C(0x9e3779b97f4a7c15);
}

/* Exchanges what two of the same kind hold, without copying it. */
void gwd_residual_swap(gwd_residual_t *a, gwd_residual_t *b);

/* Makes it what a new one is. What it had, which the kernel takes long to free, is put before `list`. */
void gwd_residual_clear(gwd_residual_t *residual, gwd_residual_t **list);

/* Those of a list, in order, to find many. */
typedef struct gwd_residual_index {
    gwd_residual_t **items;
    size_t n;
} gwd_residual_index_t;

/* False: no memory. Ends with gwd_residual_free_index in any case. */
bool gwd_residual_index(gwd_residual_t *list, gwd_residual_index_t *index_out);
void gwd_residual_free_index(gwd_residual_index_t *index);

/* As gwd_residual_find. */
gwd_residual_t *gwd_residual_look_up(const gwd_residual_index_t *index, uint64_t fingerprint, uint64_t count);

/* Frees all. Thread: any. Blocking: as long as the kernel takes for its pages. */
void gwd_residual_free_list(gwd_residual_t *list);

#endif
