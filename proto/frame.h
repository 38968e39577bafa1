/* frame.h - one packet, one message, its file descriptors
 *
 * Every message is one packet of a SOCK_SEQPACKET socket: a 16-byte header in the host's byte order (both
 * ends are on one host), a protobuf body of at most GW_BODY_MAX bytes, and at most GW_FDS_MAX file
 * descriptors. The header says how many fds belong to it; a packet whose fds do not fit is never half
 * delivered: all fds that came are closed.
 */
#ifndef GW_FRAME_H
#define GW_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

#define GW_MAGIC       0x5747u /* "GW" */
#define GW_PROTO_MAJOR 1
#define GW_PROTO_MINOR 1
#define GW_BODY_MAX    65536u
#define GW_FDS_MAX     8

/* Message types. They are only ever appended; requests and replies share one number space. */
enum gw_message_type {
    GW_MSG_HELLO = 1,
    GW_MSG_WELCOME = 2,
    GW_MSG_ERROR = 3,
    GW_MSG_DONE = 4,
    GW_MSG_GET_UNIQUE_ID = 5,
    GW_MSG_UNIQUE_ID = 6,
    GW_MSG_GROUP_JOIN = 7,
    GW_MSG_GROUP_READY = 8,
    GW_MSG_GROUP_SPLIT = 9,
    GW_MSG_GROUP_ABORT = 10,
    GW_MSG_GROUP_LEAVE = 11,
    GW_MSG_BUFFER_CREATE = 12,
    GW_MSG_BUFFER_PART = 13,
    GW_MSG_BUFFER_READY = 14,
    GW_MSG_BUFFER_RELEASE = 15,
    GW_MSG_BUCKET_CREATE = 16,
    GW_MSG_BUCKET_LAYOUT = 17,
    GW_MSG_BUCKET_READY = 18,
    GW_MSG_BUCKET_FREE = 19,
    GW_MSG_SUBMIT = 20,
    GW_MSG_COMPLETE = 21,
    GW_MSG_ADMIN_REQUEST = 22,
    GW_MSG_ADMIN_REPLY = 23,
    GW_MSG_GROUP_STATE_SAVE = 24,
    GW_MSG_GROUP_STATE = 25,
    GW_MSG_GROUP_STATE_LOAD = 26,
};

typedef struct gw_frame_header {
    uint16_t magic;
    uint8_t major;
    uint8_t n_fds;
    uint16_t type;
    uint16_t reserved; /* must be 0 */
    uint32_t request;  /* chosen by the client; a reply repeats it; 0 on a channel */
    uint32_t body_bytes;
} gw_frame_header_t;

_Static_assert(sizeof(gw_frame_header_t) == 16, "the header is part of the protocol");

/* One received packet. */
typedef struct gw_frame {
    gw_frame_header_t header;
    const uint8_t *body; /* points into the caller's storage */
    int fds[GW_FDS_MAX]; /* the receiver's; -1 where taken or absent */
} gw_frame_t;

#define GW_PACKET_MAX (sizeof(gw_frame_header_t) + GW_BODY_MAX)

typedef enum gw_frame_result {
    GW_FRAME_OK,
    GW_FRAME_AGAIN,     /* nothing there, or no room */
    GW_FRAME_CLOSED,    /* the peer has gone */
    GW_FRAME_MALFORMED, /* the peer broke the protocol: disconnect; *why_out says how */
    GW_FRAME_NO_FDS,    /* we are out of fds: refuse this request, keep the peer; header and body are valid */
    GW_FRAME_TOO_BIG,   /* sending: larger than GW_BODY_MAX */
    GW_FRAME_SYSTEM,    /* any other failure; errno says which */
} gw_frame_result_t;

/* Receives one packet into storage of GW_PACKET_MAX bytes. Blocks or not as the socket does. On every
 * result but GW_FRAME_OK no fd is left open. */
gw_frame_result_t gw_frame_recv(int socket, uint8_t *storage, gw_frame_t *frame_out, const char **why_out);

/* Sends one packet; the fds stay the caller's. Never raises SIGPIPE. */
gw_frame_result_t gw_frame_send(int socket, uint16_t type, uint32_t request, const uint8_t *body, size_t body_bytes,
                                const int *fds, unsigned n_fds);

/* Closes the fds that nobody took. */
void gw_frame_close_fds(gw_frame_t *frame);

#endif
