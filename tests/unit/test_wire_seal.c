/* test_wire_seal.c - what nodes send each other, encrypted: known answers, tampering, wrong ways, replay */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap_proof.h"
#include "cunit_main.h"
#include "wire_seal.h"

enum { NODES = 3, WINDOW = 128, WIRE = 77, EPOCH = 1, BYTES = 1000, HEADER = 72 };

static const gwd_cipher_scope_t scope = {.wire_id = WIRE, .epoch = EPOCH};
static uint8_t key[GWD_CIPHER_KEY_BYTES], clear[BYTES], header[HEADER];

static gwd_cipher_t *node(uint32_t own) {
    return gwd_cipher_new(key, &scope, NODES, own, WINDOW);
}

static void hex(const uint8_t *bytes, size_t n, char *text) {
    sodium_bin2hex(text, 2 * n + 1, bytes, n);
}

/* Made by another program: BLAKE2b of Python's hashlib, and ChaCha20-Poly1305 of OpenSSL. */
static void known_answers(void) {
    uint8_t token[GWD_TOKEN_BYTES], wire_key[GWD_CIPHER_KEY_BYTES], child[GWD_CIPHER_KEY_BYTES], sealed[16];
    char text[2 * GWD_CIPHER_KEY_BYTES + 1];
    gwd_sealed_t tag;
    gwd_stamp_t stamp;
    gwd_cipher_t *cipher;

    for (size_t i = 0; i < sizeof(token); i++)
        token[i] = (uint8_t)i;
    gwd_proof_wire_key(token, wire_key);
    hex(wire_key, sizeof(wire_key), text);
    CU_ASSERT_STRING_EQUAL(text, "536344fc45c3656b6b855c7b3d24c7691eef1cb738c48878223ab3bace6aaaf1");
    gwd_proof_child_key(wire_key, 0x0123456789abcdef, child);
    hex(child, sizeof(child), text);
    CU_ASSERT_STRING_EQUAL(text, "dd35d292effa936c3b1fee53586834645f8dba4dd2ecb2bcb0219922cf589a98");
    cipher = gwd_cipher_new(wire_key, &(gwd_cipher_scope_t){0x1122334455667788, 1, 0}, NODES, 1, WINDOW);
    CU_ASSERT_PTR_NOT_NULL_FATAL(cipher);
    gwd_cipher_seal(cipher, "gradients", 9, sealed, &tag);
    gwd_cipher_seal(cipher, "gradients", 9, sealed, &tag); /* the second: number 1 */
    CU_ASSERT_EQUAL(tag.number, 1);
    hex(sealed, 9, text);
    CU_ASSERT_STRING_EQUAL(text, "77fcad54717ccef78a");
    hex(tag.tag, sizeof(tag.tag), text);
    CU_ASSERT_STRING_EQUAL(text, "580d3fd69ca19884e3a4e1a945e4e47c");
    gwd_cipher_stamp(cipher, 2, "a header", 8, &stamp);
    CU_ASSERT_EQUAL(stamp.counter, 0);
    hex(stamp.tag, sizeof(stamp.tag), text);
    CU_ASSERT_STRING_EQUAL(text, "9ef45d6c9ee8267d5c54f4a1f1fdd094");
    gwd_cipher_free(cipher);
}

static void payloads_open_as_they_were_sealed_and_changed_ones_do_not(void) {
    gwd_cipher_t *a = node(0), *b = node(1), *c = node(2);
    uint8_t data[BYTES], opened[BYTES];
    gwd_sealed_t sealed, second, changed;

    memcpy(data, clear, BYTES);
    gwd_cipher_seal(a, data, BYTES, data, &sealed); /* in place */
    CU_ASSERT_NOT_EQUAL(memcmp(data, clear, BYTES), 0);
    CU_ASSERT(gwd_cipher_open(b, 0, data, BYTES, &sealed, opened));
    CU_ASSERT_EQUAL(memcmp(opened, clear, BYTES), 0);
    CU_ASSERT(gwd_cipher_open(c, 0, data, BYTES, &sealed, opened));       /* one for all nodes */
    CU_ASSERT_FALSE(gwd_cipher_open(b, 2, data, BYTES, &sealed, opened)); /* it is not of node 2 */
    CU_ASSERT_FALSE(gwd_cipher_open(b, 0, data, BYTES - 1, &sealed, opened));
    for (size_t i = 0; i < BYTES; i += 37) {
        data[i] ^= 1;
        CU_ASSERT_FALSE(gwd_cipher_open(b, 0, data, BYTES, &sealed, opened));
        data[i] ^= 1;
    }
    for (size_t bit = 0; bit < 8 * sizeof(sealed); bit++) { /* number and tag */
        changed = sealed;
        ((uint8_t *)&changed)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CU_ASSERT_FALSE(gwd_cipher_open(b, 0, data, BYTES, &changed, opened));
    }
    gwd_cipher_seal(a, clear, BYTES, opened, &second);
    CU_ASSERT_NOT_EQUAL(sealed.number, second.number); /* the same again does not look the same */
    CU_ASSERT_NOT_EQUAL(memcmp(opened, data, BYTES), 0);
    CU_ASSERT_FALSE(gwd_cipher_open(b, 0, opened, BYTES, &sealed, opened));
    CU_ASSERT(gwd_cipher_open(b, 0, data, BYTES, &sealed, data)); /* in place */
    CU_ASSERT_EQUAL(memcmp(data, clear, BYTES), 0);
    gwd_cipher_free(a);
    gwd_cipher_free(b);
    gwd_cipher_free(c);
}

/* Two groups, epochs, rails and splits of one key have nothing in common. */
static void keys_are_of_one_group_epoch_and_rail(void) {
    uint8_t data[BYTES], opened[BYTES], other_key[GWD_CIPHER_KEY_BYTES], again[GWD_CIPHER_KEY_BYTES];
    gwd_cipher_t *a = node(0);
    gwd_cipher_t *others[5];
    gwd_sealed_t sealed;
    gwd_stamp_t stamp;

    gwd_proof_child_key(key, WIRE, other_key);
    gwd_proof_child_key(key, WIRE + 1, again);
    CU_ASSERT_NOT_EQUAL(memcmp(other_key, key, sizeof(key)), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(other_key, again, sizeof(again)), 0);
    others[0] = gwd_cipher_new(key, &(gwd_cipher_scope_t){WIRE + 1, EPOCH, 0}, NODES, 1, WINDOW);
    others[1] = gwd_cipher_new(key, &(gwd_cipher_scope_t){WIRE, EPOCH + 1, 0}, NODES, 1, WINDOW);
    others[2] = gwd_cipher_new(other_key, &scope, NODES, 1, WINDOW);
    others[3] = gwd_cipher_new(key, &(gwd_cipher_scope_t){WIRE, EPOCH, 1}, NODES, 1, WINDOW);
    others[4] = node(1);
    gwd_cipher_seal(a, clear, BYTES, data, &sealed);
    gwd_cipher_stamp(a, 1, header, HEADER, &stamp);
    for (int i = 0; i < 5; i++) { /* the last is the right one */
        CU_ASSERT_EQUAL(gwd_cipher_open(others[i], 0, data, BYTES, &sealed, opened), i == 4);
        CU_ASSERT_EQUAL(gwd_cipher_check(others[i], 0, header, HEADER, &stamp),
                        i == 4 ? GWD_STAMP_GOOD : GWD_STAMP_FORGED);
        gwd_cipher_free(others[i]);
    }
    gwd_cipher_free(a);
}

static void a_stamp_is_of_one_header_from_one_node_to_another(void) {
    gwd_cipher_t *a = node(0), *b = node(1), *c = node(2);
    gwd_stamp_t stamp, changed;

    gwd_cipher_stamp(a, 1, header, HEADER, &stamp);
    for (size_t i = 0; i < HEADER; i++) {
        header[i] ^= 0x10;
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamp), GWD_STAMP_FORGED);
        header[i] ^= 0x10;
    }
    for (size_t bit = 0; bit < 8 * sizeof(stamp); bit++) {
        changed = stamp;
        ((uint8_t *)&changed)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &changed), GWD_STAMP_FORGED);
    }
    CU_ASSERT_EQUAL(gwd_cipher_check(b, 2, header, HEADER, &stamp), GWD_STAMP_FORGED); /* another's */
    CU_ASSERT_EQUAL(gwd_cipher_check(c, 0, header, HEADER, &stamp), GWD_STAMP_FORGED); /* not to it */
    CU_ASSERT_EQUAL(gwd_cipher_check(a, 1, header, HEADER, &stamp), GWD_STAMP_FORGED); /* sent back */
    CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamp), GWD_STAMP_GOOD);   /* none of that counted */
    gwd_cipher_free(a);
    gwd_cipher_free(b);
    gwd_cipher_free(c);
}

static void each_message_is_taken_once_in_any_order(void) {
    enum { BLOCK = WINDOW / 2, N = 10 * BLOCK };
    gwd_cipher_t *a = node(0), *b = node(1);
    gwd_stamp_t stamps[N];
    uint64_t missing;
    unsigned order[N], seed = 3;

    for (unsigned i = 0; i < N; i++) {
        gwd_cipher_stamp(a, 1, header, HEADER, &stamps[i]);
        order[i] = i;
    }
    for (unsigned i = 0; i < N; i++) { /* shuffled within their block */
        unsigned left = BLOCK - i % BLOCK, other = i + (seed = seed * 1103515245u + 12345u) / 65536 % left;
        unsigned first = order[i];

        order[i] = order[other];
        order[other] = first;
    }
    for (unsigned i = 0; i < N; i++) {
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[order[i]]), GWD_STAMP_GOOD);
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[order[i]]), GWD_STAMP_REPEATED);
    }
    CU_ASSERT_FALSE(gwd_cipher_misses(b, 0, &missing));
    CU_ASSERT_EQUAL(missing, N);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[i]), GWD_STAMP_REPEATED);
    gwd_cipher_free(a);
    gwd_cipher_free(b);
}

static void a_message_that_does_not_come_is_missed(void) {
    gwd_cipher_t *a = node(0), *b = node(1);
    gwd_stamp_t stamps[WINDOW + 2];
    uint64_t missing;

    for (unsigned i = 0; i < WINDOW + 2; i++)
        gwd_cipher_stamp(a, 1, header, HEADER, &stamps[i]);
    CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[0]), GWD_STAMP_GOOD);
    CU_ASSERT_FALSE(gwd_cipher_misses(b, 0, &missing));
    for (unsigned i = 2; i <= WINDOW; i++) /* all but the second */
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[i]), GWD_STAMP_GOOD);
    CU_ASSERT(gwd_cipher_misses(b, 0, &missing));
    CU_ASSERT_EQUAL(missing, 1);
    CU_ASSERT_FALSE(gwd_cipher_misses(b, 2, &missing));
    CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[WINDOW + 1]), GWD_STAMP_AHEAD);
    CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[1]), GWD_STAMP_GOOD);
    CU_ASSERT_FALSE(gwd_cipher_misses(b, 0, &missing));
    CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[WINDOW + 1]), GWD_STAMP_GOOD);
    for (unsigned i = 0; i < WINDOW + 2; i++)
        CU_ASSERT_EQUAL(gwd_cipher_check(b, 0, header, HEADER, &stamps[i]), GWD_STAMP_REPEATED);
    gwd_cipher_free(a);
    gwd_cipher_free(b);
}

int main(void) {
    CU_TestInfo tests[] = {
        {"known answers", known_answers},
        {"payloads open as they were sealed, and changed ones do not",
         payloads_open_as_they_were_sealed_and_changed_ones_do_not},
        {"keys are of one group, epoch and rail", keys_are_of_one_group_epoch_and_rail},
        {"a stamp is of one header from one node to another", a_stamp_is_of_one_header_from_one_node_to_another},
        {"each message is taken once, in any order", each_message_is_taken_once_in_any_order},
        {"a message that does not come is missed", a_message_that_does_not_come_is_missed},
        CU_TEST_INFO_NULL,
    };

    for (size_t i = 0; i < BYTES; i++)
        clear[i] = (uint8_t)(i * 7);
    return sodium_init() < 0 ? 1 : cunit_run("wire_seal", tests);
}
