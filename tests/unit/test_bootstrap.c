/* test_bootstrap.c - the computations of bootstrap: proofs, sealed frames, addresses in unique ids */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap_address.h"
#include "bootstrap_proof.h"
#include "cunit_main.h"

static void fill(uint8_t *bytes, size_t n, uint8_t first) {
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(first + i);
}

static void make_transcript(const uint8_t *token, gwd_transcript_t *transcript_out) {
    uint8_t node[GWD_NODE_BYTES];

    fill(node, sizeof(node), 1);
    gwd_proof_knock(token, node, &transcript_out->knock);
    gwd_proof_challenge(node, &transcript_out->challenge);
}

static void a_proof_is_of_one_side_one_token_and_all_that_was_said(void) {
    uint8_t token[GWD_TOKEN_BYTES], proof[GWD_PROOF_BYTES], other[GWD_PROOF_BYTES];
    gwd_transcript_t transcript;

    fill(token, sizeof(token), 7);
    make_transcript(token, &transcript);
    gwd_proof_make(token, GWD_SIDE_BRANCH, &transcript, proof);
    CU_ASSERT(gwd_proof_check(token, GWD_SIDE_BRANCH, &transcript, proof));
    CU_ASSERT_FALSE(gwd_proof_check(token, GWD_SIDE_ROOT, &transcript, proof)); /* it cannot be sent back */
    gwd_proof_make(token, GWD_SIDE_ROOT, &transcript, other);
    CU_ASSERT_NOT_EQUAL(memcmp(proof, other, sizeof(proof)), 0);
    for (size_t bit = 0; bit < 8 * sizeof(proof); bit++) {
        memcpy(other, proof, sizeof(proof));
        other[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CU_ASSERT_FALSE(gwd_proof_check(token, GWD_SIDE_BRANCH, &transcript, other));
    }
    for (size_t i = 0; i < sizeof(transcript); i++) { /* every byte that was said counts */
        ((uint8_t *)&transcript)[i] ^= 1;
        CU_ASSERT_FALSE(gwd_proof_check(token, GWD_SIDE_BRANCH, &transcript, proof));
        ((uint8_t *)&transcript)[i] ^= 1;
    }
    token[31] ^= 0x80;
    CU_ASSERT_FALSE(gwd_proof_check(token, GWD_SIDE_BRANCH, &transcript, proof));
}

static void each_handshake_has_nonces_of_its_own(void) {
    uint8_t token[GWD_TOKEN_BYTES], name[GWD_NAME_BYTES];
    gwd_transcript_t one, two;

    fill(token, sizeof(token), 7);
    make_transcript(token, &one);
    make_transcript(token, &two);
    CU_ASSERT_NOT_EQUAL(memcmp(one.knock.nonce, two.knock.nonce, sizeof(one.knock.nonce)), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(one.challenge.nonce, two.challenge.nonce, sizeof(one.challenge.nonce)), 0);
    gwd_proof_name(token, name);
    CU_ASSERT_EQUAL(memcmp(one.knock.name, name, sizeof(name)), 0);
    token[0] ^= 1;
    gwd_proof_name(token, name);
    CU_ASSERT_NOT_EQUAL(memcmp(one.knock.name, name, sizeof(name)), 0);
}

static void a_frame_opens_once_in_order_with_its_key(void) {
    uint8_t token[GWD_TOKEN_BYTES], frame[64 + GWD_SEAL_BYTES], again[sizeof(frame)], plain[64];
    gwd_transcript_t transcript;
    gwd_seal_t send, receive, wrong;

    fill(token, sizeof(token), 9);
    fill(plain, sizeof(plain), 0);
    make_transcript(token, &transcript);
    gwd_proof_key(token, GWD_SIDE_ROOT, &transcript, &send);
    gwd_proof_key(token, GWD_SIDE_ROOT, &transcript, &receive);
    gwd_proof_key(token, GWD_SIDE_BRANCH, &transcript, &wrong);
    for (int i = 0; i < 3; i++) {
        memcpy(frame, plain, sizeof(plain));
        gwd_seal_close(&send, frame, sizeof(plain));
        CU_ASSERT_NOT_EQUAL(memcmp(frame, plain, sizeof(plain)), 0);
        memcpy(again, frame, sizeof(frame));
        CU_ASSERT(gwd_seal_open(&receive, frame, sizeof(frame)));
        CU_ASSERT_EQUAL(memcmp(frame, plain, sizeof(plain)), 0);
    }
    CU_ASSERT_FALSE(gwd_seal_open(&receive, again, sizeof(again))); /* a second time */
    gwd_seal_close(&send, plain, 0);                                /* keeps the two in step */
    memcpy(frame, plain, sizeof(plain));
    gwd_seal_close(&send, frame, sizeof(plain));
    memcpy(again, frame, sizeof(frame));
    CU_ASSERT_FALSE(gwd_seal_open(&wrong, again, sizeof(again)));
    frame[5] ^= 1;
    CU_ASSERT_FALSE(gwd_seal_open(&receive, frame, sizeof(frame)));
    CU_ASSERT_FALSE(gwd_seal_open(&receive, frame, GWD_SEAL_BYTES - 1));
}

static void check_way(const char *listen, unsigned n, const char *first) {
    gwd_address_list_t list, back;
    gwd_id_layout_t layout = {.version = 1};
    char text[512] = "", name[GWD_ADDRESS_TEXT_BYTES];

    CU_ASSERT_EQUAL(gwd_address_parse(listen, 7411, &list, text, sizeof(text)), GW_OK);
    CU_ASSERT_STRING_EQUAL(text, "");
    CU_ASSERT_EQUAL_FATAL(list.n, n);
    gwd_address_to_id(&list, &layout);
    gwd_address_from_id(&layout, &back);
    CU_ASSERT_EQUAL(back.n, n < GWD_ID_ADDRESSES ? n : GWD_ID_ADDRESSES);
    if (n == 0)
        return;
    gwd_address_text(&back.items[0], name, sizeof(name));
    CU_ASSERT_STRING_EQUAL(name, first);
}

static void addresses_go_through_an_id(void) {
    check_way("", 0, NULL);
    check_way(" , ", 0, NULL);
    check_way("10.1.2.3", 1, "10.1.2.3 port 7411");
    check_way("2001:db8::7, 10.1.2.3,10.1.2.3", 2, "2001:db8::7 port 7411");
    check_way("10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4", 4, "10.0.0.1 port 7411");
}

static void what_is_no_address_is_refused(void) {
    static const char *const bad[] = {"10.1.2", "10.1.2.3.4", "nosuch0", "10.0.0.1,", "fe80::1", "fe80::1%nosuch0"};
    gwd_address_list_t list;
    char text[512];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gw_status_t wanted = i == 3 ? GW_OK : GW_ERR_INVALID_ARGUMENT;

        CU_ASSERT_EQUAL(gwd_address_parse(bad[i], 1, &list, text, sizeof(text)), wanted);
    }
}

/* What a client may send as an id: nothing of it is trusted. */
static void ids_of_anybody_are_read_safely(void) {
    gwd_id_layout_t layout;
    gwd_address_list_t list;

    memset(&layout, 0xff, sizeof(layout));
    gwd_address_from_id(&layout, &list);
    CU_ASSERT_EQUAL(list.n, 0);
    for (int family = 0; family < 256; family++) {
        for (int i = 0; i < GWD_ID_ADDRESSES; i++)
            layout.addresses[i].family = (uint8_t)family;
        gwd_address_from_id(&layout, &list);
        CU_ASSERT_EQUAL(list.n, family == 4 || family == 6); /* all three are the same one */
    }
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a proof is of one side, one token and all that was said",
         a_proof_is_of_one_side_one_token_and_all_that_was_said},
        {"each handshake has nonces of its own", each_handshake_has_nonces_of_its_own},
        {"a frame opens once, in order, with its key", a_frame_opens_once_in_order_with_its_key},
        {"addresses go through an id", addresses_go_through_an_id},
        {"what is no address is refused", what_is_no_address_is_refused},
        {"ids of anybody are read safely", ids_of_anybody_are_read_safely},
        CU_TEST_INFO_NULL,
    };
    return sodium_init() < 0 ? 1 : cunit_run("bootstrap", tests);
}
