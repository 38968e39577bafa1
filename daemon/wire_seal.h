/* wire_seal.h - what nodes send each other, encrypted and proven to come from them (wire.cipher)
 *
 * A message has two parts, each protected by a key of its own. The payload is encrypted under its sender's key and a
 * number that the sender uses once: what goes to many nodes is encrypted once. The header holds the payload's number
 * and tag, and ends with a stamp: a counter, and a tag over all of it, by the key of sender and receiver. So whoever
 * gets a message knows from the header alone, before it touches the payload, that the node sent it, to this node, and
 * for the first time; and the payload can wait, and be decrypted later by another thread.
 *
 * Messages may come in any order, and none is lost: the receiver keeps which counters have come, above the first that
 * has not. That one is also how it finds out that somebody took a message away.
 *
 * Only computations: ChaCha20-Poly1305 (IETF) of libsodium; keys by BLAKE2b.
 */
#ifndef GWD_WIRE_SEAL_H
#define GWD_WIRE_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GWD_CIPHER_KEY_BYTES = 32, GWD_CIPHER_TAG_BYTES = 16 };

/* Of a payload; it travels in the header. */
typedef struct gwd_sealed {
    uint64_t number;
    uint8_t tag[GWD_CIPHER_TAG_BYTES];
} gwd_sealed_t;

/* Of a header. */
typedef struct gwd_stamp {
    uint64_t counter;
    uint8_t tag[GWD_CIPHER_TAG_BYTES];
} gwd_stamp_t;

typedef enum gwd_stamp_check {
    GWD_STAMP_GOOD,
    GWD_STAMP_FORGED,   /* not by that node, or not for this one */
    GWD_STAMP_REPEATED, /* it has come before */
    GWD_STAMP_AHEAD,    /* genuine, but so far ahead that one before it must have been taken away */
} gwd_stamp_check_t;

typedef struct gwd_cipher gwd_cipher_t; /* of a rail of a group, on one node */

/* What a key is for, besides who sends. */
typedef struct gwd_cipher_scope {
    uint64_t wire_id;
    uint32_t epoch, rail;
} gwd_cipher_scope_t;

/* `key`: the group's. A scope is used once under a key, and each rail, which counts for itself, has one of its own; so
 * no number or counter comes twice under any of the keys made from them. `window`: how far ahead of a missing message
 * others may be; a power of two, at least 64. NULL: no memory. */
gwd_cipher_t *gwd_cipher_new(const uint8_t key[GWD_CIPHER_KEY_BYTES], const gwd_cipher_scope_t *scope, uint32_t n_nodes,
                             uint32_t own_node, uint64_t window);
void gwd_cipher_free(gwd_cipher_t *cipher);

/* Encrypts `bytes` to `to`, which may be `from`. Thread: any, several at once. */
void gwd_cipher_seal(gwd_cipher_t *cipher, const void *from, uint64_t bytes, void *to, gwd_sealed_t *sealed_out);

/* Decrypts what `node` has sealed to `to`, which may be `from`. False: it is not that, and `to` holds zeros or nothing
 * new. Thread: any, several at once. */
bool gwd_cipher_open(const gwd_cipher_t *cipher, uint32_t node, const void *from, uint64_t bytes,
                     const gwd_sealed_t *sealed, void *to);

/* The stamp of the next message to `node`, and the check of one from it. Thread: the lane. */
void gwd_cipher_stamp(gwd_cipher_t *cipher, uint32_t node, const void *header, size_t bytes, gwd_stamp_t *stamp_out);
gwd_stamp_check_t gwd_cipher_check(gwd_cipher_t *cipher, uint32_t node, const void *header, size_t bytes,
                                   const gwd_stamp_t *stamp);

/* Whether a message of `node` is missing though a later one has come; and its counter. Thread: the lane. */
bool gwd_cipher_misses(const gwd_cipher_t *cipher, uint32_t node, uint64_t *counter_out);

#endif
