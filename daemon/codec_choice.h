/* codec_choice.h - which codec a bucket takes that leaves it to its group
 *
 * Ranks ask for one when they join, else the configuration says it: a codec, or "auto:" and those that may be taken
 * (none always may). auto is settled when the group is made, from measured figures: a table by size of bucket. All
 * here is arithmetic, and the same on every machine.
 */
#ifndef GWD_CODEC_CHOICE_H
#define GWD_CODEC_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec.h"

/* Size classes: up to 4 KiB, 8 KiB, ... 1 GiB, and above; bytes of a bucket's elements in binary32. */
enum { GWD_SIZE_CLASSES = 20, GWD_CHOICE_BYTES = 48 };

typedef struct gwd_codec_choice {
    uint32_t permitted; /* bit 1 << codec; one only unless is_auto */
    bool is_auto;
    bool is_stochastic; /* how codecs round */
    bool is_configured; /* by the daemon's configuration: no rank has asked */
} gwd_codec_choice_t;

/* What was measured, of the slowest node. */
typedef struct gwd_codec_figures {
    uint64_t bytes_per_s; /* that a node sends to all others together, while all send */
    uint64_t latency_ns;  /* of a short message */
    uint64_t
        coding[GW_CODECS]; /* bytes of binary32 a second, encoded once and decoded twice; 0: it has no such codec */
} gwd_codec_figures_t;

/* All of it that groups made by a split have from their parent. */
typedef struct gwd_codec_policy {
    gwd_codec_choice_t choice;
    bool is_measured;
    gwd_codec_figures_t figures;
} gwd_codec_policy_t;

/* Reads "int8" or "auto:bf16,int8". False, with `why`: it is neither. */
bool gwd_choice_parse(const char *text, gwd_codec_choice_t *choice_out, char *why, size_t why_bytes);

/* The codecs only, in one form for all that are the same. */
void gwd_choice_format(const gwd_codec_choice_t *choice, char text[GWD_CHOICE_BYTES]);

/* Whether both are the same, whoever said so. */
bool gwd_choice_equal(const gwd_codec_choice_t *a, const gwd_codec_choice_t *b);

/* The slower of two nodes. */
void gwd_figures_join(gwd_codec_figures_t *slowest, const gwd_codec_figures_t *other);

uint32_t gwd_size_class(uint64_t bytes);
uint64_t gwd_size_class_max(uint32_t size_class); /* UINT64_MAX of the last */

/* How long an all_reduce between nodes takes, by the model of docs/SCALE.md with the time of the codec added. */
double gwd_codec_predict_s(const gwd_codec_figures_t *figures, gw_codec_t codec, uint64_t bytes, uint32_t n_nodes,
                           uint64_t chunk_bytes);

/* The codec of each size class. auto that was not measured gives none. */
void gwd_codec_table(const gwd_codec_policy_t *policy, uint32_t n_nodes, uint64_t chunk_bytes,
                     gw_codec_t table_out[GWD_SIZE_CLASSES]);

#endif
