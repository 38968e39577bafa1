/* bootstrap_proof.c - see bootstrap_proof.h */
#include "bootstrap_proof.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(gwd_knock_t) == 72 && sizeof(gwd_challenge_t) == 56, "packets of the handshake");
_Static_assert(GWD_SEAL_BYTES == crypto_aead_chacha20poly1305_ietf_ABYTES, "the seal of a frame");
_Static_assert((int)GWD_CIPHER_KEY_BYTES == (int)GWD_TOKEN_BYTES, "keyed_hash takes either");
_Static_assert(GWD_TOKEN_BYTES >= crypto_generichash_KEYBYTES_MIN && GWD_TOKEN_BYTES <= crypto_generichash_KEYBYTES_MAX,
               "a token is a key");

static const uint8_t magic_bytes[4] = {'G', 'W', 'B', 'S'};

static void put_u32(uint8_t out[4], uint32_t value) {
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static void put_u64(uint8_t out[8], uint64_t value) {
    put_u32(out, (uint32_t)value);
    put_u32(out + 4, (uint32_t)(value >> 32));
}

static uint64_t get_u64(const uint8_t in[8]) {
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

/* Keyed with the token; the label keeps what is made for different ends apart. `transcript` may be NULL. */
static void keyed_hash(const uint8_t token[GWD_TOKEN_BYTES], const char *label, const gwd_transcript_t *transcript,
                       uint8_t *out, size_t out_bytes) {
    crypto_generichash_state state;

    /* These fail only for sizes out of bounds, which the assertions above and the callers exclude. */
    (void)crypto_generichash_init(&state, token, GWD_TOKEN_BYTES, out_bytes);
    (void)crypto_generichash_update(&state, (const uint8_t *)label, strlen(label) + 1);
    if (transcript)
        (void)crypto_generichash_update(&state, (const uint8_t *)transcript, sizeof(*transcript));
    (void)crypto_generichash_final(&state, out, out_bytes);
}

void gwd_proof_name(const uint8_t token[GWD_TOKEN_BYTES], uint8_t name_out[GWD_NAME_BYTES]) {
    keyed_hash(token, "name", NULL, name_out, GWD_NAME_BYTES);
}

uint64_t gwd_proof_wire_id(const uint8_t token[GWD_TOKEN_BYTES]) {
    uint8_t hash[16];

    keyed_hash(token, "wire", NULL, hash, sizeof(hash));
    return get_u64(hash);
}

uint64_t gwd_proof_split_id(uint64_t wire_id, uint64_t split, int32_t color) {
    uint8_t key[crypto_generichash_KEYBYTES] = {0}, which[12], hash[16];

    put_u64(key, wire_id);
    put_u64(which, split);
    put_u32(which + 8, (uint32_t)color);
    (void)crypto_generichash(hash, sizeof(hash), which, sizeof(which), key, sizeof(key)); /* the sizes are right */
    return get_u64(hash);
}

void gwd_proof_wire_key(const uint8_t token[GWD_TOKEN_BYTES], uint8_t key_out[GWD_CIPHER_KEY_BYTES]) {
    keyed_hash(token, "wire key", NULL, key_out, GWD_CIPHER_KEY_BYTES);
}

void gwd_proof_child_key(const uint8_t parent_key[GWD_CIPHER_KEY_BYTES], uint64_t wire_id,
                         uint8_t key_out[GWD_CIPHER_KEY_BYTES]) {
    char label[32];

    snprintf(label, sizeof(label), "child %016llx", (unsigned long long)wire_id);
    keyed_hash(parent_key, label, NULL, key_out, GWD_CIPHER_KEY_BYTES);
}

void gwd_proof_knock(const uint8_t token[GWD_TOKEN_BYTES], const uint8_t node[GWD_NODE_BYTES], gwd_knock_t *knock_out) {
    memcpy(knock_out->magic, magic_bytes, sizeof(magic_bytes));
    put_u32(knock_out->version, GWD_BOOTSTRAP_VERSION);
    gwd_proof_name(token, knock_out->name);
    memcpy(knock_out->node, node, GWD_NODE_BYTES);
    randombytes_buf(knock_out->nonce, sizeof(knock_out->nonce));
}

void gwd_proof_challenge(const uint8_t node[GWD_NODE_BYTES], gwd_challenge_t *challenge_out) {
    memcpy(challenge_out->magic, magic_bytes, sizeof(magic_bytes));
    put_u32(challenge_out->version, GWD_BOOTSTRAP_VERSION);
    memcpy(challenge_out->node, node, GWD_NODE_BYTES);
    randombytes_buf(challenge_out->nonce, sizeof(challenge_out->nonce));
}

bool gwd_proof_is_ours(const uint8_t magic[4], const uint8_t version[4], uint32_t *version_out) {
    *version_out = 0;
    for (int i = 0; i < 4; i++)
        *version_out |= (uint32_t)version[i] << (8 * i);
    return memcmp(magic, magic_bytes, sizeof(magic_bytes)) == 0;
}

void gwd_proof_make(const uint8_t token[GWD_TOKEN_BYTES], gwd_side_t side, const gwd_transcript_t *transcript,
                    uint8_t proof_out[GWD_PROOF_BYTES]) {
    keyed_hash(token, side == GWD_SIDE_ROOT ? "root" : "branch", transcript, proof_out, GWD_PROOF_BYTES);
}

bool gwd_proof_check(const uint8_t token[GWD_TOKEN_BYTES], gwd_side_t side, const gwd_transcript_t *transcript,
                     const uint8_t proof[GWD_PROOF_BYTES]) {
    uint8_t wanted[GWD_PROOF_BYTES];

    gwd_proof_make(token, side, transcript, wanted);
    return sodium_memcmp(wanted, proof, GWD_PROOF_BYTES) == 0;
}

void gwd_proof_key(const uint8_t token[GWD_TOKEN_BYTES], gwd_side_t side, const gwd_transcript_t *transcript,
                   gwd_seal_t *seal_out) {
    keyed_hash(token, side == GWD_SIDE_ROOT ? "root key" : "branch key", transcript, seal_out->key,
               sizeof(seal_out->key));
    seal_out->n_frames = 0;
}

/* Each key seals each number once. */
static void next_nonce(gwd_seal_t *seal, uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES]) {
    uint64_t number = seal->n_frames++;

    memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
    for (int i = 0; i < 8; i++)
        nonce[i] = (uint8_t)(number >> (8 * i));
}

void gwd_seal_close(gwd_seal_t *seal, uint8_t *data, size_t bytes) {
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    unsigned long long sealed;

    next_nonce(seal, nonce);
    (void)crypto_aead_chacha20poly1305_ietf_encrypt(data, &sealed, data, bytes, NULL, 0, NULL, nonce, seal->key);
}

bool gwd_seal_open(gwd_seal_t *seal, uint8_t *data, size_t bytes) {
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    unsigned long long opened;

    if (bytes < GWD_SEAL_BYTES)
        return false;
    next_nonce(seal, nonce);
    return crypto_aead_chacha20poly1305_ietf_decrypt(data, &opened, NULL, data, bytes, NULL, 0, nonce, seal->key) == 0;
}
