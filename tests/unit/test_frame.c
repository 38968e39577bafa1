/* test_frame.c - packets and their file descriptors, good and bad
 *
 * The bad packets are made by hand with sendmsg. Every test is framed by a count of this process's open
 * fds, so that a leak fails the test that made it.
 */
#include "frame.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cunit_main.h"

enum { OURS, THEIRS };

static int sockets[2];
static int some_fd;
static int fds_before;
static uint8_t storage[GW_PACKET_MAX];
static gw_frame_t frame;
static const char *why;

static int count_fds(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static void begin(void) {
    fds_before = count_fds();
    why = NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0) {
        CU_FAIL_FATAL("socketpair");
    }
    some_fd = memfd_create("test", MFD_CLOEXEC);
    CU_ASSERT_FATAL(some_fd >= 0);
}

static void end(void) {
    close(sockets[OURS]);
    close(sockets[THEIRS]);
    close(some_fd);
    CU_ASSERT_EQUAL(count_fds(), fds_before);
}

static gw_frame_result_t receive(void) {
    return gw_frame_recv(sockets[OURS], storage, &frame, &why);
}

static bool no_fd_was_handed_out(void) {
    for (unsigned i = 0; i < GW_FDS_MAX; i++) {
        if (frame.fds[i] != -1) {
            return false;
        }
    }
    return true;
}

/* Sends any bytes with any number of fds. */
static void send_raw(const void *bytes, size_t n_bytes, unsigned n_fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(253 * sizeof(int))];
    } control;
    struct iovec span = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    if (n_fds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (unsigned i = 0; i < n_fds; i++) {
            memcpy(CMSG_DATA(part) + i * sizeof(int), &some_fd, sizeof(int));
        }
    }
    CU_ASSERT_EQUAL_FATAL(sendmsg(sockets[THEIRS], &message, 0), (ssize_t)n_bytes);
}

static gw_frame_header_t good_header(void) {
    return (gw_frame_header_t){.magic = GW_MAGIC, .major = GW_PROTO_MAJOR, .type = GW_MSG_HELLO, .request = 7};
}

static void send_header(gw_frame_header_t header, unsigned n_fds) {
    send_raw(&header, sizeof(header), n_fds);
}

static void packet_arrives_as_it_was_sent(void) {
    begin();
    const uint8_t body[] = {1, 2, 3};
    int fds[GW_FDS_MAX];
    for (unsigned i = 0; i < GW_FDS_MAX; i++) {
        fds[i] = some_fd;
    }
    for (unsigned n_fds = 0; n_fds <= GW_FDS_MAX; n_fds++) {
        CU_ASSERT_EQUAL(gw_frame_send(sockets[THEIRS], GW_MSG_BUFFER_PART, 0xfedcba98u, body, sizeof(body), fds, n_fds),
                        GW_FRAME_OK);
        CU_ASSERT_EQUAL_FATAL(receive(), GW_FRAME_OK);
        CU_ASSERT_EQUAL(frame.header.type, GW_MSG_BUFFER_PART);
        CU_ASSERT_EQUAL(frame.header.request, 0xfedcba98u);
        CU_ASSERT_EQUAL(frame.header.n_fds, n_fds);
        CU_ASSERT_EQUAL_FATAL(frame.header.body_bytes, sizeof(body));
        CU_ASSERT(memcmp(frame.body, body, sizeof(body)) == 0);
        for (unsigned i = 0; i < GW_FDS_MAX; i++) {
            CU_ASSERT_EQUAL(frame.fds[i] >= 0, i < n_fds);
            CU_ASSERT(i >= n_fds || (fcntl(frame.fds[i], F_GETFD) & FD_CLOEXEC) != 0);
        }
        gw_frame_close_fds(&frame);
        CU_ASSERT(no_fd_was_handed_out());
    }
    end();
}

static void empty_and_largest_bodies_pass(void) {
    static uint8_t body[GW_BODY_MAX];
    begin();
    CU_ASSERT_EQUAL(gw_frame_send(sockets[THEIRS], GW_MSG_DONE, 1, NULL, 0, NULL, 0), GW_FRAME_OK);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_OK);
    CU_ASSERT_EQUAL(frame.header.body_bytes, 0);
    memset(body, 0x5a, sizeof(body));
    CU_ASSERT_EQUAL(gw_frame_send(sockets[THEIRS], GW_MSG_ADMIN_REPLY, 2, body, sizeof(body), NULL, 0), GW_FRAME_OK);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_OK);
    CU_ASSERT_EQUAL_FATAL(frame.header.body_bytes, GW_BODY_MAX);
    CU_ASSERT(memcmp(frame.body, body, sizeof(body)) == 0);
    end();
}

static void sender_refuses_what_the_protocol_forbids(void) {
    static uint8_t body[GW_BODY_MAX + 1];
    int fds[GW_FDS_MAX + 1] = {0};
    begin();
    CU_ASSERT_EQUAL(gw_frame_send(sockets[THEIRS], GW_MSG_DONE, 1, body, sizeof(body), NULL, 0), GW_FRAME_TOO_BIG);
    CU_ASSERT_EQUAL(gw_frame_send(sockets[THEIRS], GW_MSG_DONE, 1, NULL, 0, fds, GW_FDS_MAX + 1), GW_FRAME_TOO_BIG);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_AGAIN);
    end();
}

static void nothing_there_and_no_room_are_again(void) {
    begin();
    CU_ASSERT_EQUAL(receive(), GW_FRAME_AGAIN);
    unsigned sent = 0;
    gw_frame_result_t result;
    while ((result = gw_frame_send(sockets[THEIRS], GW_MSG_DONE, 1, NULL, 0, NULL, 0)) == GW_FRAME_OK &&
           sent < 100000) {
        sent++;
    }
    CU_ASSERT_EQUAL(result, GW_FRAME_AGAIN);
    for (unsigned i = 0; i < sent; i++) {
        CU_ASSERT_EQUAL(receive(), GW_FRAME_OK);
    }
    CU_ASSERT_EQUAL(receive(), GW_FRAME_AGAIN);
    end();
}

static void peer_that_closes_is_closed_both_ways(void) {
    begin();
    shutdown(sockets[THEIRS], SHUT_WR);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_CLOSED);
    CU_ASSERT_EQUAL(gw_frame_send(sockets[OURS], GW_MSG_DONE, 1, NULL, 0, NULL, 0), GW_FRAME_OK);
    close(sockets[THEIRS]); /* with our packet unread: the kernel says ECONNRESET once */
    CU_ASSERT_EQUAL(receive(), GW_FRAME_CLOSED);
    CU_ASSERT_EQUAL(gw_frame_send(sockets[OURS], GW_MSG_DONE, 1, NULL, 0, NULL, 0), GW_FRAME_CLOSED); /* no SIGPIPE */
    sockets[THEIRS] = dup(some_fd); /* for end() to close */
    end();
}

static void empty_packet_is_closed_and_keeps_no_fds(void) {
    begin();
    send_raw("", 0, 0);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_CLOSED);
    send_raw("", 0, 3);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_CLOSED);
    CU_ASSERT(no_fd_was_handed_out());
    end();
}

static void other_failures_leave_errno(void) {
    begin();
    CU_ASSERT_EQUAL(gw_frame_recv(some_fd, storage, &frame, &why), GW_FRAME_SYSTEM);
    CU_ASSERT_EQUAL(errno, ENOTSOCK);
    CU_ASSERT_EQUAL(gw_frame_send(-1, GW_MSG_DONE, 1, NULL, 0, NULL, 0), GW_FRAME_SYSTEM);
    CU_ASSERT_EQUAL(errno, EBADF);
    end();
}

/* Receives a packet that must be refused because of `words`. */
static void expect_malformed(const char *words) {
    why = "";
    CU_ASSERT_EQUAL(receive(), GW_FRAME_MALFORMED);
    CU_ASSERT(strstr(why, words) != NULL);
    CU_ASSERT(no_fd_was_handed_out());
}

static void bad_headers_are_malformed(void) {
    begin();
    gw_frame_header_t bad[5];
    static const char *const words[5] = {"magic", "major", "reserved", "as long as", "more than 8"};
    for (unsigned i = 0; i < 5; i++) {
        bad[i] = good_header();
    }
    bad[0].magic ^= 0x100;
    bad[1].major++;
    bad[2].reserved = 1;
    bad[3].body_bytes = 1;
    bad[4].n_fds = GW_FDS_MAX + 1;
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned n_fds = 0; n_fds <= 2; n_fds += 2) { /* fds that came with it must not leak */
            send_header(bad[i], n_fds);
            expect_malformed(words[i]);
        }
    }
    CU_ASSERT_EQUAL(frame.header.n_fds, GW_FDS_MAX + 1); /* readable although malformed */
    send_header(good_header(), 0);
    CU_ASSERT_EQUAL(receive(), GW_FRAME_OK);
    end();
}

static void packets_too_short_or_too_long_are_malformed(void) {
    static uint8_t bytes[GW_PACKET_MAX + 1];
    begin();
    gw_frame_header_t header = good_header();
    for (size_t n_bytes = 1; n_bytes < sizeof(header); n_bytes++) {
        send_raw(&header, n_bytes, 1);
        expect_malformed("shorter than a header");
    }
    header.body_bytes = GW_BODY_MAX + 1;
    memcpy(bytes, &header, sizeof(header));
    send_raw(bytes, sizeof(bytes), 1);
    expect_malformed("longer than the protocol allows");
    header.body_bytes = 8;
    memcpy(bytes, &header, sizeof(header));
    send_raw(bytes, sizeof(header) + 9, 0);
    expect_malformed("as long as");
    end();
}

static void wrong_number_of_fds_is_malformed(void) {
    static const struct {
        uint8_t said;
        unsigned sent;
        const char *words;
    } cases[] = {{0, 1, "more file"},   {1, 2, "more file"},   {8, 9, "more file"}, {8, 253, "more file"},
                 {0, 253, "more file"}, {9, 9, "more than 8"}, {1, 0, "fewer"},     {8, 7, "fewer"}};
    begin();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gw_frame_header_t header = good_header();
        header.n_fds = cases[i].said;
        send_header(header, cases[i].sent);
        expect_malformed(cases[i].words);
    }
    end();
}

/* Lowers the limit so that exactly `room` more fds can be opened; gives the old limit. */
static struct rlimit leave_room_for(int room) {
    struct rlimit old, low;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &old), 0);
    int limit = 0;
    for (int free_fds = 0; free_fds < room || fcntl(limit, F_GETFD) >= 0; limit++) {
        free_fds += fcntl(limit, F_GETFD) < 0;
    }
    low = old;
    low.rlim_cur = (rlim_t)limit;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &low), 0);
    return old;
}

static void own_fd_limit_refuses_the_request_only(void) {
    begin();
    gw_frame_header_t header = good_header();
    header.n_fds = 4;
    for (int room = 0; room <= 4; room++) {
        send_header(header, 4);
        struct rlimit old = leave_room_for(room);
        gw_frame_result_t result = receive();
        CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &old), 0);
        CU_ASSERT_EQUAL(result, room < 4 ? GW_FRAME_NO_FDS : GW_FRAME_OK);
        CU_ASSERT_EQUAL(frame.header.request, 7);
        CU_ASSERT(room == 4 || no_fd_was_handed_out());
        gw_frame_close_fds(&frame);
    }
    end();
}

static void too_many_fds_at_the_fd_limit_are_still_malformed(void) {
    begin();
    gw_frame_header_t header = good_header();
    header.n_fds = 1;
    send_header(header, 3);
    struct rlimit old = leave_room_for(1);
    expect_malformed("more file");
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &old), 0);
    end();
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a packet arrives as it was sent, with 0 to 8 fds", packet_arrives_as_it_was_sent},
        {"empty and largest bodies pass", empty_and_largest_bodies_pass},
        {"the sender refuses what the protocol forbids", sender_refuses_what_the_protocol_forbids},
        {"nothing there, and no room, are AGAIN", nothing_there_and_no_room_are_again},
        {"a peer that closes is CLOSED both ways", peer_that_closes_is_closed_both_ways},
        {"an empty packet is CLOSED and keeps no fds", empty_packet_is_closed_and_keeps_no_fds},
        {"other failures leave errno", other_failures_leave_errno},
        {"bad headers are malformed", bad_headers_are_malformed},
        {"packets too short or too long are malformed", packets_too_short_or_too_long_are_malformed},
        {"a wrong number of fds is malformed", wrong_number_of_fds_is_malformed},
        {"our own fd limit refuses the request only", own_fd_limit_refuses_the_request_only},
        {"too many fds at the fd limit are still malformed", too_many_fds_at_the_fd_limit_are_still_malformed},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("frame", tests);
}
