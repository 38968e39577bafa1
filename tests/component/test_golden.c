/* test_golden.c - packets of released versions, read and written again by what both sides use
 *
 * A field that changed its number, type or meaning would come back as an unknown field or as other bytes.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"
#include "gradwire.pb-c.h"

#include "cunit_main.h"

/* Tests are run from the root of the repository. The first version has every message of its own, later ones what they added. */
static const char *const versions[] = {"proto/golden/1.0", "proto/golden/1.1"};

static const ProtobufCMessageDescriptor *const descriptors[] = {
    [GW_MSG_HELLO] = &gw__hello__descriptor,
    [GW_MSG_WELCOME] = &gw__welcome__descriptor,
    [GW_MSG_ERROR] = &gw__error__descriptor,
    [GW_MSG_DONE] = &gw__done__descriptor,
    [GW_MSG_GET_UNIQUE_ID] = &gw__get_unique_id__descriptor,
    [GW_MSG_UNIQUE_ID] = &gw__unique_id__descriptor,
    [GW_MSG_GROUP_JOIN] = &gw__group_join__descriptor,
    [GW_MSG_GROUP_READY] = &gw__group_ready__descriptor,
    [GW_MSG_GROUP_SPLIT] = &gw__group_split__descriptor,
    [GW_MSG_GROUP_ABORT] = &gw__group_abort__descriptor,
    [GW_MSG_GROUP_LEAVE] = &gw__group_leave__descriptor,
    [GW_MSG_BUFFER_CREATE] = &gw__buffer_create__descriptor,
    [GW_MSG_BUFFER_PART] = &gw__buffer_part__descriptor,
    [GW_MSG_BUFFER_READY] = &gw__buffer_ready__descriptor,
    [GW_MSG_BUFFER_RELEASE] = &gw__buffer_release__descriptor,
    [GW_MSG_BUCKET_CREATE] = &gw__bucket_create__descriptor,
    [GW_MSG_BUCKET_LAYOUT] = &gw__bucket_layout__descriptor,
    [GW_MSG_BUCKET_READY] = &gw__bucket_ready__descriptor,
    [GW_MSG_BUCKET_FREE] = &gw__bucket_free__descriptor,
    [GW_MSG_SUBMIT] = &gw__submit__descriptor,
    [GW_MSG_COMPLETE] = &gw__complete__descriptor,
    [GW_MSG_ADMIN_REQUEST] = &gw__admin_request__descriptor,
    [GW_MSG_ADMIN_REPLY] = &gw__admin_reply__descriptor,
    [GW_MSG_GROUP_STATE_SAVE] = &gw__group_state_save__descriptor,
    [GW_MSG_GROUP_STATE] = &gw__group_state__descriptor,
    [GW_MSG_GROUP_STATE_LOAD] = &gw__group_state_load__descriptor,
};
enum { N_TYPES = sizeof(descriptors) / sizeof(descriptors[0]), PACKET_BYTES = 4096 };

/* The bytes of a file, 0 when it cannot be read. */
static size_t read_packet(const char *folder, const char *name, uint8_t *packet) {
    char path[512], line[1024];
    size_t bytes = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file)) {
        char *at = line, *end;

        if (line[0] == '#')
            continue;
        for (unsigned long byte = strtoul(at, &end, 16); end != at && bytes < PACKET_BYTES;
             byte = strtoul(at, &end, 16)) {
            packet[bytes++] = (uint8_t)byte;
            at = end;
        }
    }
    fclose(file);
    return bytes;
}

/* Sends the raw bytes with the descriptors that the header announces, and receives them as a frame. */
static gw_frame_result_t pass(const uint8_t *packet, size_t bytes, uint8_t *storage, gw_frame_t *frame_out) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(GW_FDS_MAX * sizeof(int))];
    } control = {0};
    struct iovec span = {(void *)(uintptr_t)packet, bytes};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
    unsigned n_fds = packet[3];
    const char *why = "it could not be sent";
    gw_frame_result_t result = GW_FRAME_SYSTEM;
    int sockets[2];

    if (n_fds > GW_FDS_MAX || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        return GW_FRAME_SYSTEM;
    if (n_fds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(part) + i * sizeof(int), &(int){STDERR_FILENO}, sizeof(int));
    }
    if (sendmsg(sockets[0], &message, MSG_NOSIGNAL) == (ssize_t)bytes)
        result = gw_frame_recv(sockets[1], storage, frame_out, &why);
    if (result != GW_FRAME_OK)
        fprintf(stderr, "%s\n", why);
    close(sockets[0]);
    close(sockets[1]);
    return result;
}

static void check_packet(const char *folder, const char *name, unsigned *seen) {
    static uint8_t packet[PACKET_BYTES], again[PACKET_BYTES], storage[GW_PACKET_MAX];
    size_t bytes = read_packet(folder, name, packet);
    ProtobufCMessage *message;
    gw_frame_t frame;

    CU_ASSERT_FATAL(bytes >= sizeof(gw_frame_header_t) && bytes < PACKET_BYTES);
    CU_ASSERT_EQUAL_FATAL(pass(packet, bytes, storage, &frame), GW_FRAME_OK);
    gw_frame_close_fds(&frame);
    CU_ASSERT_FATAL(frame.header.type < N_TYPES && descriptors[frame.header.type] != NULL);
    seen[frame.header.type]++;
    message = protobuf_c_message_unpack(descriptors[frame.header.type], NULL, frame.header.body_bytes, frame.body);
    CU_ASSERT_PTR_NOT_NULL_FATAL(message);
    CU_ASSERT_EQUAL(message->n_unknown_fields, 0);
    CU_ASSERT_EQUAL_FATAL(protobuf_c_message_get_packed_size(message), frame.header.body_bytes);
    protobuf_c_message_pack(message, again);
    CU_ASSERT_EQUAL(memcmp(again, frame.body, frame.header.body_bytes), 0);
    protobuf_c_message_free_unpacked(message, NULL);
}

static void check_version(const char *path, unsigned *seen) {
    DIR *folder = opendir(path);
    const struct dirent *entry;

    CU_ASSERT_PTR_NOT_NULL_FATAL(folder);
    while ((entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.')
            check_packet(path, entry->d_name, seen);
    closedir(folder);
}

static void every_packet_reads_and_writes_the_same(void) {
    unsigned seen[N_TYPES] = {0};

    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
        check_version(versions[i], seen);
    for (unsigned type = 1; type < N_TYPES; type++)
        CU_ASSERT(seen[type] > 0);
}

/* What the host's header would be on the wire. */
static void header_is_written_as_recorded(void) {
    static uint8_t packet[PACKET_BYTES], sent[PACKET_BYTES];
    size_t bytes = read_packet(versions[0], "01_hello.txt", packet);
    int sockets[2];

    CU_ASSERT_FATAL(bytes > sizeof(gw_frame_header_t));
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    CU_ASSERT_EQUAL(gw_frame_send(sockets[0], GW_MSG_HELLO, 1, packet + sizeof(gw_frame_header_t),
                                  bytes - sizeof(gw_frame_header_t), NULL, 0),
                    GW_FRAME_OK);
    CU_ASSERT_EQUAL(recv(sockets[1], sent, sizeof(sent), 0), (ssize_t)bytes);
    CU_ASSERT_EQUAL(memcmp(sent, packet, bytes), 0);
    close(sockets[0]);
    close(sockets[1]);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"every packet of every version reads and writes the same", every_packet_reads_and_writes_the_same},
        {"a header is written as recorded", header_is_written_as_recorded},
        CU_TEST_INFO_NULL};
    return cunit_run("golden", tests);
}
