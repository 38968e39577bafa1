/* peer.h - clients and operators that do what an input of the fuzzer says
 *
 * Some actions send any bytes; others send what a good client would, now and then with a number of the input in
 * place of the right one, since otherwise no group would ever come together.
 */
#ifndef GW_FUZZ_PEER_H
#define GW_FUZZ_PEER_H

#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"
#include "slots.h"

enum { PEER_MEMORY_BYTES = 1 << 16 };

typedef struct peer {
    int socket, channel; /* -1: none */
    gw_slots_header_t *slots;
    uint32_t credits, epoch, rank;
    uint32_t group, buffer, bucket; /* handles that were given last */
    uint64_t sequence;
    uint32_t request;
} peer_t;

typedef struct input {
    const uint8_t *at;
    size_t left;
} input_t;

extern int peer_memory_fd;            /* a memfd of PEER_MEMORY_BYTES that the daemon takes */
extern gw_unique_id_t peer_unique_id; /* the last one that any peer was given */

/* The next byte; 0 at the end. */
uint8_t input_take(input_t *input);

/* Requests. */
void peer_send_hello(peer_t *peer);
void peer_send_get(peer_t *peer);
void peer_send_join(peer_t *peer, input_t *input);
void peer_send_buffer(peer_t *peer, input_t *input);
void peer_send_bucket(peer_t *peer, input_t *input);

/* An all-reduce that works. */
void peer_send_usual_bucket(peer_t *peer, uint64_t count);

/* A request with one or two handles: split, abort, leave, release, free. */
void peer_send_small(peer_t *peer, input_t *input);

/* An admin command; `last_session` is the newest one there is to kick. */
void peer_send_admin(peer_t *peer, input_t *input, uint64_t last_session);

/* Any bytes, as a message or as a packet, on the session and on the channel. */
void peer_send_anything(peer_t *peer, input_t *input);
void peer_channel_anything(const peer_t *peer, input_t *input);

/* One Submit, perhaps a wrong one; and right ones of the two peers, as often as the input says. */
void peer_submit(peer_t *peer, input_t *input);
void peer_submit_all(peer_t *peers, input_t *input);

/* One byte into the slots. */
void peer_scribble(const peer_t *peer, input_t *input);

/* Closes its channel and unmaps its slots. */
void peer_drop_group(peer_t *peer);

/* Reads what has come, and keeps what it grants. */
void peer_listen(peer_t *peer);

#endif
