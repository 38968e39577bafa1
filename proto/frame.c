/* frame.c - sending and receiving one packet with its file descriptors
 *
 * The kernel may deliver fewer fds than were sent (this process is at its fd limit), more than we asked for
 * (up to its own limit of 253 a packet), or fds with a packet that is otherwise wrong. Whatever came has to
 * be closed, so the control buffer holds the most that can come, and fds are collected before anything else
 * is looked at.
 */
#include "frame.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define KERNEL_FDS_MAX 253 /* SCM_MAX_FD of the kernel: sendmsg refuses more */

/* The fds of one packet, before they are believed. */
typedef struct received_fds {
    int fd[KERNEL_FDS_MAX];
    unsigned count;
} received_fds_t;

static void collect_fds(struct msghdr *message, received_fds_t *fds) {
    fds->count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n && fds->count < KERNEL_FDS_MAX; i++) {
            memcpy(&fds->fd[fds->count], CMSG_DATA(part) + i * sizeof(int), sizeof(int));
            fds->count++;
        }
    }
}

static void close_all(received_fds_t *fds) {
    for (unsigned i = 0; i < fds->count; i++)
        close(fds->fd[i]);
    fds->count = 0;
}

/* What is wrong with a header of a packet of `packet_bytes`, or NULL. */
static const char *header_fault(const gw_frame_header_t *header, size_t packet_bytes) {
    if (header->magic != GW_MAGIC)
        return "the packet does not start with the magic number";
    if (header->major != GW_PROTO_MAJOR)
        return "the packet is of another major version of the protocol";
    if (header->reserved != 0)
        return "the reserved field of the header is not 0";
    if (header->body_bytes != packet_bytes - sizeof(*header))
        return "the body is not as long as the header says";
    if (header->n_fds > GW_FDS_MAX)
        return "the header announces more than 8 file descriptors";
    return NULL;
}

/* Judges a packet that has arrived. Gives GW_FRAME_OK only if every fd is there. */
static gw_frame_result_t judge(const gw_frame_header_t *header, size_t packet_bytes, int flags, unsigned n_fds,
                               const char **why_out) {
    const char *fault = header_fault(header, packet_bytes);
    if (fault != NULL) {
        *why_out = fault;
        return GW_FRAME_MALFORMED;
    }
    /* The control buffer has room for all fds there can be, so truncation means that we could take no more. */
    int out_of_fds = (flags & MSG_CTRUNC) != 0;
    if (out_of_fds && n_fds < header->n_fds)
        return GW_FRAME_NO_FDS;
    if (out_of_fds || n_fds > header->n_fds) {
        *why_out = "the packet carries more file descriptors than its header says";
        return GW_FRAME_MALFORMED;
    }
    if (n_fds < header->n_fds) {
        *why_out = "the packet carries fewer file descriptors than its header says";
        return GW_FRAME_MALFORMED;
    }
    return GW_FRAME_OK;
}

static gw_frame_result_t failed_call(void) {
    switch (errno) {
    case EAGAIN:
        return GW_FRAME_AGAIN;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return GW_FRAME_CLOSED;
    default:
        return GW_FRAME_SYSTEM;
    }
}

gw_frame_result_t gw_frame_recv(int socket, uint8_t *storage, gw_frame_t *frame_out, const char **why_out) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KERNEL_FDS_MAX * sizeof(int))];
    } control;
    struct iovec span = {.iov_base = storage, .iov_len = GW_PACKET_MAX};
    struct msghdr message = {
        .msg_iov = &span, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    received_fds_t fds;
    ssize_t n;

    memset(&frame_out->header, 0, sizeof(frame_out->header));
    frame_out->body = storage + sizeof(frame_out->header);
    for (unsigned i = 0; i < GW_FDS_MAX; i++)
        frame_out->fds[i] = -1;
    do {
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return failed_call();
    collect_fds(&message, &fds);
    if (n == 0) { /* the end, or an empty packet, which nobody may send: they look the same */
        close_all(&fds);
        return GW_FRAME_CLOSED;
    }
    if ((message.msg_flags & MSG_TRUNC) != 0 || (size_t)n < sizeof(frame_out->header)) {
        close_all(&fds);
        *why_out = (size_t)n < sizeof(frame_out->header) ? "the packet is shorter than a header"
                                                         : "the packet is longer than the protocol allows";
        return GW_FRAME_MALFORMED;
    }
    memcpy(&frame_out->header, storage, sizeof(frame_out->header));
    gw_frame_result_t result = judge(&frame_out->header, (size_t)n, message.msg_flags, fds.count, why_out);
    if (result != GW_FRAME_OK) {
        close_all(&fds);
        return result;
    }
    for (unsigned i = 0; i < fds.count; i++) { /* judge has made sure that they fit */
        frame_out->fds[i] = fds.fd[i];
    }
    return GW_FRAME_OK;
}

gw_frame_result_t gw_frame_send(int socket, uint16_t type, uint32_t request, const uint8_t *body, size_t body_bytes,
                                const int *fds, unsigned n_fds) {
    if (body_bytes > GW_BODY_MAX || n_fds > GW_FDS_MAX)
        return GW_FRAME_TOO_BIG;
    gw_frame_header_t header = {.magic = GW_MAGIC,
                                .major = GW_PROTO_MAJOR,
                                .n_fds = (uint8_t)n_fds,
                                .type = type,
                                .request = request,
                                .body_bytes = (uint32_t)body_bytes};
    /* sendmsg takes the body through a pointer to non-const, and does not write to it. */
    struct iovec spans[2] = {{.iov_base = &header, .iov_len = sizeof(header)},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = body_bytes}};
    struct msghdr message = {.msg_iov = spans, .msg_iovlen = body_bytes > 0 ? 2 : 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(GW_FDS_MAX * sizeof(int))];
    } control;
    ssize_t n;

    if (n_fds > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(part), fds, n_fds * sizeof(int));
    }
    do {
        n = sendmsg(socket, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? failed_call() : GW_FRAME_OK; /* a packet goes whole or not at all */
}

void gw_frame_close_fds(gw_frame_t *frame) {
    for (unsigned i = 0; i < GW_FDS_MAX; i++) {
        if (frame->fds[i] >= 0) {
            close(frame->fds[i]);
            frame->fds[i] = -1;
        }
    }
}
