/* bootstrap_proof.h - how two daemons prove that they hold the same unique id, and what they say afterwards
 *
 * The branch says who it is and which group it means, by a name that is made from the id's token and tells nothing of
 * it. The root answers with a nonce. Then each proves the token by a keyed hash over all that was said: a record of an
 * old handshake is worth nothing, since the nonces of both are in it. From the same hash come two keys, one for each
 * direction, and every later frame is sealed with its key and its number. Nobody without the token can read, change,
 * drop or repeat a frame unnoticed.
 *
 * Only computations: no socket, no state but the counters.
 */
#ifndef GWD_BOOTSTRAP_PROOF_H
#define GWD_BOOTSTRAP_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire_seal.h"

enum {
    GWD_BOOTSTRAP_VERSION = 1, /* of all that daemons say to each other, at bootstrap and on the wire */
    GWD_TOKEN_BYTES = 32,
    GWD_NAME_BYTES = 16,
    GWD_NODE_BYTES = 16,
    GWD_PROOF_BYTES = 32,
    GWD_SEAL_BYTES = 16, /* a sealed frame is so much longer */
};

/* The first packet of the branch. Numbers are little-endian, here and in frames. */
typedef struct gwd_knock {
    uint8_t magic[4];   /* "GWBS" */
    uint8_t version[4]; /* GWD_BOOTSTRAP_VERSION */
    uint8_t name[GWD_NAME_BYTES];
    uint8_t node[GWD_NODE_BYTES];
    uint8_t nonce[32];
} gwd_knock_t;

/* The root's answer. */
typedef struct gwd_challenge {
    uint8_t magic[4];
    uint8_t version[4];
    uint8_t node[GWD_NODE_BYTES];
    uint8_t nonce[32];
} gwd_challenge_t;

/* What both have seen. */
typedef struct gwd_transcript {
    gwd_knock_t knock;
    gwd_challenge_t challenge;
} gwd_transcript_t;

/* One direction of a proven connection. */
typedef struct gwd_seal {
    uint8_t key[32];
    uint64_t n_frames;
} gwd_seal_t;

typedef enum gwd_side { GWD_SIDE_BRANCH, GWD_SIDE_ROOT } gwd_side_t;

/* The public name of a token's group. */
void gwd_proof_name(const uint8_t token[GWD_TOKEN_BYTES], uint8_t name_out[GWD_NAME_BYTES]);

/* The number that names the group on the wire. */
uint64_t gwd_proof_wire_id(const uint8_t token[GWD_TOKEN_BYTES]);

/* The key of what the group sends on the wire; and that of a group that was made of some of its ranks. No two such
 * groups of one parent ever have the same `wire_id`. */
void gwd_proof_wire_key(const uint8_t token[GWD_TOKEN_BYTES], uint8_t key_out[GWD_CIPHER_KEY_BYTES]);
void gwd_proof_child_key(const uint8_t parent_key[GWD_CIPHER_KEY_BYTES], uint64_t wire_id,
                         uint8_t key_out[GWD_CIPHER_KEY_BYTES]);

/* The number of a group that is made of the ranks of one color, by the so-manieth split of the group `wire_id`. */
uint64_t gwd_proof_split_id(uint64_t wire_id, uint64_t split, int32_t color);

void gwd_proof_knock(const uint8_t token[GWD_TOKEN_BYTES], const uint8_t node[GWD_NODE_BYTES], gwd_knock_t *knock_out);
void gwd_proof_challenge(const uint8_t node[GWD_NODE_BYTES], gwd_challenge_t *challenge_out);

/* Whether a first packet is one of these at all. The version is told, whatever it is. */
bool gwd_proof_is_ours(const uint8_t magic[4], const uint8_t version[4], uint32_t *version_out);

/* What `side` has to send. */
void gwd_proof_make(const uint8_t token[GWD_TOKEN_BYTES], gwd_side_t side, const gwd_transcript_t *transcript,
                    uint8_t proof_out[GWD_PROOF_BYTES]);

/* Compares in constant time. */
bool gwd_proof_check(const uint8_t token[GWD_TOKEN_BYTES], gwd_side_t side, const gwd_transcript_t *transcript,
                     const uint8_t proof[GWD_PROOF_BYTES]);

/* The keys of what `side` sends. */
void gwd_proof_key(const uint8_t token[GWD_TOKEN_BYTES], gwd_side_t side, const gwd_transcript_t *transcript,
                   gwd_seal_t *seal_out);

/* Seals `bytes` in place: `data` has room for GWD_SEAL_BYTES more. */
void gwd_seal_close(gwd_seal_t *seal, uint8_t *data, size_t bytes);

/* Opens what was sealed to `bytes` in all, in place. False: it is forged, or not the next frame. */
bool gwd_seal_open(gwd_seal_t *seal, uint8_t *data, size_t bytes);

#endif
