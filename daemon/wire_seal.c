/* wire_seal.c - see wire_seal.h */
#include "wire_seal.h"

#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { NONCE_BYTES = crypto_aead_chacha20poly1305_ietf_NPUBBYTES, WORD_BITS = 64 };

_Static_assert(GWD_CIPHER_KEY_BYTES == crypto_aead_chacha20poly1305_ietf_KEYBYTES &&
                   GWD_CIPHER_TAG_BYTES == crypto_aead_chacha20poly1305_ietf_ABYTES,
               "the cipher's key and tag");

/* Which counters have come: all below `first`, and those whose bit is set. */
typedef struct seen {
    uint64_t first, end; /* none from `end` on */
    uint64_t *words;     /* a ring of `window` bits */
} seen_t;

typedef struct cipher_peer {
    uint8_t payload_key[GWD_CIPHER_KEY_BYTES]; /* of what it sends */
    uint8_t out_key[GWD_CIPHER_KEY_BYTES], in_key[GWD_CIPHER_KEY_BYTES];
    uint64_t n_out;
    seen_t in;
} cipher_peer_t;

struct gwd_cipher {
    uint8_t payload_key[GWD_CIPHER_KEY_BYTES];
    _Atomic uint64_t n_payloads;
    uint64_t window;
    uint32_t n_nodes;
    uint64_t *words; /* of all peers */
    cipher_peer_t peers[];
};

/* ---- keys ----------------------------------------------------------------------------------------------- */

/* What a key is for. Little endian, as every host that this runs on; no padding. */
typedef struct purpose {
    char label[8];
    uint64_t wire_id;
    uint32_t epoch, from, to, rail;
} purpose_t;

static void derive(const uint8_t key[GWD_CIPHER_KEY_BYTES], const purpose_t *purpose,
                   uint8_t key_out[GWD_CIPHER_KEY_BYTES]) {
    /* It fails only for sizes out of bounds. */
    (void)crypto_generichash(key_out, GWD_CIPHER_KEY_BYTES, (const uint8_t *)purpose, sizeof(*purpose), key,
                             GWD_CIPHER_KEY_BYTES);
}

static purpose_t purpose_of(const gwd_cipher_scope_t *scope, uint32_t from) {
    return (purpose_t){.wire_id = scope->wire_id, .epoch = scope->epoch, .from = from, .rail = scope->rail};
}

gwd_cipher_t *gwd_cipher_new(const uint8_t key[GWD_CIPHER_KEY_BYTES], const gwd_cipher_scope_t *scope, uint32_t n_nodes,
                             uint32_t own_node, uint64_t window) {
    gwd_cipher_t *cipher = calloc(1, sizeof(*cipher) + n_nodes * sizeof(cipher->peers[0]));
    purpose_t payload = purpose_of(scope, own_node), header = payload;

    if (!cipher)
        return NULL;
    cipher->words = calloc(n_nodes, window / WORD_BITS * sizeof(uint64_t));
    if (!cipher->words) {
        free(cipher);
        return NULL;
    }
    cipher->window = window;
    cipher->n_nodes = n_nodes;
    memcpy(payload.label, "payload", sizeof("payload"));
    memcpy(header.label, "header", sizeof("header"));
    derive(key, &payload, cipher->payload_key);
    for (uint32_t n = 0; n < n_nodes; n++) {
        cipher_peer_t *peer = &cipher->peers[n];

        peer->in.words = cipher->words + n * (window / WORD_BITS);
        payload.from = n;
        derive(key, &payload, peer->payload_key);
        header.from = own_node;
        header.to = n;
        derive(key, &header, peer->out_key);
        header.from = n;
        header.to = own_node;
        derive(key, &header, peer->in_key);
    }
    return cipher;
}

void gwd_cipher_free(gwd_cipher_t *cipher) {
    if (!cipher)
        return;
    free(cipher->words);
    sodium_memzero(cipher, sizeof(*cipher) + cipher->n_nodes * sizeof(cipher->peers[0]));
    free(cipher);
}

static void make_nonce(uint64_t number, uint8_t nonce_out[NONCE_BYTES]) {
    memset(nonce_out, 0, NONCE_BYTES);
    memcpy(nonce_out, &number, sizeof(number));
}

/* ---- payloads ------------------------------------------------------------------------------------------- */

void gwd_cipher_seal(gwd_cipher_t *cipher, const void *from, uint64_t bytes, void *to, gwd_sealed_t *sealed_out) {
    uint8_t nonce[NONCE_BYTES];

    sealed_out->number = atomic_fetch_add_explicit(&cipher->n_payloads, 1, memory_order_relaxed);
    make_nonce(sealed_out->number, nonce);
    (void)crypto_aead_chacha20poly1305_ietf_encrypt_detached(to, sealed_out->tag, NULL, from, bytes, NULL, 0, NULL,
                                                             nonce, cipher->payload_key); /* it cannot fail */
}

bool gwd_cipher_open(const gwd_cipher_t *cipher, uint32_t node, const void *from, uint64_t bytes,
                     const gwd_sealed_t *sealed, void *to) {
    uint8_t nonce[NONCE_BYTES];

    make_nonce(sealed->number, nonce);
    return crypto_aead_chacha20poly1305_ietf_decrypt_detached(to, NULL, from, bytes, sealed->tag, NULL, 0, nonce,
                                                              cipher->peers[node].payload_key) == 0;
}

/* ---- headers -------------------------------------------------------------------------------------------- */

void gwd_cipher_stamp(gwd_cipher_t *cipher, uint32_t node, const void *header, size_t bytes, gwd_stamp_t *stamp_out) {
    cipher_peer_t *peer = &cipher->peers[node];
    uint8_t nonce[NONCE_BYTES], nothing = 0;

    stamp_out->counter = peer->n_out++;
    make_nonce(stamp_out->counter, nonce);
    (void)crypto_aead_chacha20poly1305_ietf_encrypt_detached(&nothing, stamp_out->tag, NULL, &nothing, 0, header, bytes,
                                                             NULL, nonce, peer->out_key); /* it cannot fail */
}

static uint64_t *word_of(const gwd_cipher_t *cipher, const seen_t *seen, uint64_t counter) {
    return &seen->words[(counter & (cipher->window - 1)) / WORD_BITS];
}

static uint64_t bit_of(uint64_t counter) {
    return UINT64_C(1) << (counter % WORD_BITS);
}

static gwd_stamp_check_t note(const gwd_cipher_t *cipher, seen_t *seen, uint64_t counter) {
    if (counter < seen->first)
        return GWD_STAMP_REPEATED;
    if (counter - seen->first >= cipher->window)
        return GWD_STAMP_AHEAD;
    if (*word_of(cipher, seen, counter) & bit_of(counter))
        return GWD_STAMP_REPEATED;
    *word_of(cipher, seen, counter) |= bit_of(counter);
    if (counter >= seen->end)
        seen->end = counter + 1;
    while (*word_of(cipher, seen, seen->first) & bit_of(seen->first)) {
        *word_of(cipher, seen, seen->first) &= ~bit_of(seen->first);
        seen->first++;
    }
    return GWD_STAMP_GOOD;
}

gwd_stamp_check_t gwd_cipher_check(gwd_cipher_t *cipher, uint32_t node, const void *header, size_t bytes,
                                   const gwd_stamp_t *stamp) {
    cipher_peer_t *peer = &cipher->peers[node];
    uint8_t nonce[NONCE_BYTES], nothing = 0;

    make_nonce(stamp->counter, nonce);
    if (crypto_aead_chacha20poly1305_ietf_decrypt_detached(&nothing, NULL, &nothing, 0, stamp->tag, header, bytes,
                                                           nonce, peer->in_key) != 0)
        return GWD_STAMP_FORGED;
    return note(cipher, &peer->in, stamp->counter);
}

bool gwd_cipher_misses(const gwd_cipher_t *cipher, uint32_t node, uint64_t *counter_out) {
    const seen_t *seen = &cipher->peers[node].in;

    *counter_out = seen->first;
    return seen->first < seen->end;
}
