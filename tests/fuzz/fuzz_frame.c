/* fuzz_frame.c - any packets, with any file descriptors, into gw_frame_recv
 *
 * The input is a row of packets: a byte with the number of descriptors to attach, a byte that chooses a header
 * that is right but for what the packet says, two bytes of length, and the packet.
 */
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "fds.h"
#include "frame.h"

enum { FDS_SENT_MAX = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static int send_packet(int socket, const uint8_t *packet, size_t bytes, unsigned n_fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_SENT_MAX * sizeof(int))];
    } control;
    struct iovec span = {(void *)(uintptr_t)packet, bytes};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};

    if (n_fds) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(part) + i * sizeof(int), &(int){STDERR_FILENO}, sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* Without this the magic number and the length keep nearly every input out. */
static void mend_header(uint8_t *packet, size_t bytes, uint8_t what) {
    gw_frame_header_t header;

    if (bytes < sizeof(header))
        return;
    memcpy(&header, packet, sizeof(header));
    if (what & 1)
        header.magic = GW_MAGIC;
    if (what & 2)
        header.major = GW_PROTO_MAJOR;
    if (what & 4)
        header.reserved = 0;
    if (what & 8)
        header.body_bytes = (uint32_t)(bytes - sizeof(header));
    if (what & 16)
        header.n_fds %= GW_FDS_MAX + 1;
    memcpy(packet, &header, sizeof(header));
}

static void receive(int socket, size_t sent_bytes, unsigned sent_fds) {
    static uint8_t storage[GW_PACKET_MAX];
    const char *why = NULL;
    gw_frame_t frame;

    switch (gw_frame_recv(socket, storage, &frame, &why)) {
    case GW_FRAME_OK:
        expect(frame.header.magic == GW_MAGIC && frame.header.major == GW_PROTO_MAJOR && frame.header.reserved == 0 &&
                   frame.header.body_bytes == sent_bytes - sizeof(frame.header),
               "a wrong header was accepted");
        expect(frame.header.n_fds == sent_fds && sent_fds <= GW_FDS_MAX, "a wrong number of fds was accepted");
        for (unsigned i = 0; i < GW_FDS_MAX; i++)
            expect((frame.fds[i] >= 0) == (i < sent_fds), "an fd is missing");
        gw_frame_close_fds(&frame);
        break;
    case GW_FRAME_MALFORMED:
        expect(why != NULL, "malformed for no reason");
        break;
    case GW_FRAME_CLOSED:
        expect(sent_bytes == 0, "closed, but something was sent");
        break;
    default:
        expect(0, "a result that cannot be");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t packet[GW_PACKET_MAX + 64];
    int floor_fd = lowest_free_fd(), sockets[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        return 0;
    while (size >= 4) {
        unsigned n_fds = data[0] % (FDS_SENT_MAX + 1);
        uint8_t mend = data[1];
        size_t bytes = data[2] | (size_t)data[3] << 8;
        size_t given = bytes < size - 4 ? bytes : size - 4;

        if (mend & 32) /* longer than what is left: around the largest packet there is */
            bytes += GW_BODY_MAX - 128;
        else
            bytes = given;
        bytes = bytes < sizeof(packet) ? bytes : sizeof(packet);
        memset(packet, 0, bytes);
        memcpy(packet, data + 4, given < bytes ? given : bytes);
        mend_header(packet, bytes, mend);
        if (send_packet(sockets[0], packet, bytes, n_fds))
            receive(sockets[1], bytes, n_fds);
        data += 4 + given;
        size -= 4 + given;
    }
    close(sockets[0]);
    close(sockets[1]);
    expect_lowest_free_fd(floor_fd);
    return 0;
}
