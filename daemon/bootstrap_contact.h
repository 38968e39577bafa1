/* bootstrap_contact.h - a TCP connection between two daemons, while a group forms
 *
 * It proves the token both ways first (bootstrap_proof.h) and reads packets of fixed size until then; afterwards it
 * carries sealed frames: 4 bytes of length, then the sealed type and protobuf body, 64 KiB at most. What does not prove
 * itself in time, or sends one wrong byte, is closed without an answer. Everything runs on the loop.
 */
#ifndef GWD_BOOTSTRAP_CONTACT_H
#define GWD_BOOTSTRAP_CONTACT_H

#include <protobuf-c/protobuf-c.h>
#include <uv.h>

#include "bootstrap_address.h"
#include "bootstrap_proof.h"

enum {
    GWD_FRAME_MAX = 65536, /* type and body, before they are sealed */
    GWD_UNPROVEN_MAX = 64, /* connections that have not proved themselves; the oldest gives way */
};

/* The first byte of a frame. Only ever appended. */
typedef enum gwd_frame_type {
    GWD_FRAME_HELLO = 1, /* branch */
    GWD_FRAME_WELCOME,   /* root */
    GWD_FRAME_RANK,      /* branch */
    GWD_FRAME_REFUSAL,   /* root */
    GWD_FRAME_TABLE,     /* root */
    GWD_FRAME_PREPARED,  /* branch */
    GWD_FRAME_GO,        /* root */
    GWD_FRAME_FAILURE,   /* either */
    GWD_FRAME_MEASURE,   /* root */
    GWD_FRAME_MEASURED,  /* branch */
} gwd_frame_type_t;

struct gwd_server;
typedef struct gwd_contact gwd_contact_t;

/* What the owner of a connection hears. A callback may finish or close the connection. */
typedef struct gwd_contact_events {
    /* Both sides have proved themselves. */
    void (*on_proven)(gwd_contact_t *peer);
    void (*on_frame)(gwd_contact_t *peer, uint8_t type, const uint8_t *body, size_t bytes);
    /* It is closed, and no more to be used. `why` completes the sentence "the connection to a ...". */
    void (*on_gone)(gwd_contact_t *peer, const char *why);
} gwd_contact_events_t;

typedef enum gwd_contact_state {
    GWD_CONTACT_CONNECTING,
    GWD_CONTACT_KNOCK,     /* the root waits for the branch's first packet */
    GWD_CONTACT_CHALLENGE, /* the branch waits for the root's */
    GWD_CONTACT_PROOF,
    GWD_CONTACT_OPEN,
    GWD_CONTACT_FINISHING, /* what was sent still goes out, what comes is thrown away */
    GWD_CONTACT_CLOSED,
} gwd_contact_state_t;

struct gwd_contact {
    struct gwd_contact *next; /* from old to new */
    struct gwd_server *server;
    gwd_side_t side; /* which end is here */
    gwd_contact_state_t state;
    const gwd_contact_events_t *events;
    void *owner;                       /* of the events; NULL: nobody hears them */
    char text[GWD_ADDRESS_TEXT_BYTES]; /* address and port of the other end */
    uint8_t token[GWD_TOKEN_BYTES];    /* until it is proven */
    uint8_t root[GWD_NODE_BYTES];      /* the node that the branch means to reach */
    gwd_transcript_t transcript;
    gwd_seal_t send, receive;
    uint8_t *in; /* GWD_FRAME_MAX and its seal, once proven */
    uint8_t small[sizeof(gwd_knock_t)];
    size_t used, needed;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    uv_timer_t timer;
    unsigned open_handles;
};

/* Takes a connection from a listener. `events` are for one that proves itself; its owner is set by on_proven. */
void gwd_contact_accept(struct gwd_server *server, uv_stream_t *listener, const gwd_contact_events_t *events);

/* Connects to the root of an id; on_gone tells if that fails, never before this returns. NULL: out of memory. */
gwd_contact_t *gwd_contact_connect(struct gwd_server *server, const gwd_address_t *address, const gwd_id_layout_t *id,
                                   const gwd_contact_events_t *events, void *owner);

/* The other end has said what it has to at first: its time limit ends. */
void gwd_contact_settle(gwd_contact_t *peer);

/* Packs and sends. Without memory the connection is closed, and on_gone follows later. */
void gwd_contact_send(gwd_contact_t *peer, gwd_frame_type_t type, const ProtobufCMessage *message);

/* Ends it once what was sent has gone out. No event follows. */
void gwd_contact_finish(gwd_contact_t *peer);

/* Ends it now. No event follows. */
void gwd_contact_close(gwd_contact_t *peer);

#endif
