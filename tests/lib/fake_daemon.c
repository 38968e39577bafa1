/* fake_daemon.c - see fake_daemon.h */
#include "fake_daemon.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "gradwire.pb-c.h"

static void answer(fake_t *fake, uint16_t type, uint32_t request, const ProtobufCMessage *message, const int *fds,
                   unsigned n_fds) {
    uint8_t body[512];
    gw_frame_send(fake->session, type, request, body, protobuf_c_message_pack(message, body), fds, n_fds);
}

static void answer_error(fake_t *fake, uint32_t request, gw_status_t status, char *text) {
    Gw__Error error = GW__ERROR__INIT;
    error.status = (uint32_t)status;
    error.text = text;
    answer(fake, GW_MSG_ERROR, request, &error.base, NULL, 0);
}

static void answer_done(fake_t *fake, uint32_t request) {
    Gw__Done done = GW__DONE__INIT;
    answer(fake, GW_MSG_DONE, request, &done.base, NULL, 0);
}

static void answer_id(fake_t *fake, uint32_t request, uint8_t fill) {
    Gw__UniqueId reply = GW__UNIQUE_ID__INIT;
    uint8_t id[128];
    memset(id, fill, sizeof(id));
    reply.id.data = id;
    reply.id.len = sizeof(id);
    answer(fake, GW_MSG_UNIQUE_ID, request, &reply.base, NULL, 0);
}

/* From now on this process can neither open nor receive an fd of this number or above. */
static void forbid_fds_from(int fd) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        abort();
    limit.rlim_cur = (rlim_t)fd;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        abort();
}

static void answer_group(fake_t *fake, uint32_t request) {
    Gw__GroupReady ready = GW__GROUP_READY__INIT;
    size_t bytes = (size_t)gw_slots_bytes(FAKE_CREDITS);
    int slots_fd = memfd_create("slots", MFD_CLOEXEC), pair[2];

    if (slots_fd < 0 || ftruncate(slots_fd, (off_t)(fake->fault == SLOTS_SHORT ? bytes - 1 : bytes)) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        abort();
    fake->slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slots_fd, 0);
    fake->slots->magic = GW_SLOTS_MAGIC;
    fake->slots->version = GW_SLOTS_VERSION + (fake->fault == SLOTS_STRANGE);
    if (fake->fault != SLOTS_SHORT)
        fake->slots->credits = FAKE_CREDITS;
    fake->channel = pair[0];
    ready.group = 7;
    ready.nranks = 1;
    ready.epoch = 3;
    ready.credits = FAKE_CREDITS;
    if (fake->fault == OUT_OF_FDS)
        forbid_fds_from(slots_fd); /* the lowest that was free: the client cannot even have ours when we close it */
    answer(fake, GW_MSG_GROUP_READY, request, &ready.base, (const int[2]){slots_fd, pair[1]},
           fake->fault == NO_FDS_SENT ? 0 : 2);
    close(slots_fd);
    close(pair[1]);
}

static void fail_group(fake_t *fake) {
    strcpy(fake->slots->message, "rank 5, pid 12, died");
    atomic_store(&fake->slots->status, (uint32_t)GW_ERR_RANK_DIED);
}

static void take_submit(fake_t *fake, const gw_frame_t *frame) {
    Gw__Submit *submit = gw__submit__unpack(NULL, frame->header.body_bytes, frame->body);
    Gw__Complete complete = GW__COMPLETE__INIT;
    gw_slot_t *slot = gw_slots_at(fake->slots, submit->sequence, FAKE_CREDITS);
    uint8_t body[64];

    fake->submits++;
    if (fake->fault == FAIL_AT_SUBMIT && fake->submits == 2)
        fail_group(fake);
    else
        for (int i = 0; i < FAKE_FLOATS && fake->memory != NULL; i++)
            fake->memory[i] += 1;
    atomic_store(&slot->status, atomic_load(&fake->slots->status));
    atomic_store(&slot->done, (uint32_t)submit->sequence); /* no wake: the library must look by itself, too */
    if (submit->notify) {
        complete.sequence = submit->sequence;
        gw_frame_send(fake->channel, GW_MSG_COMPLETE, 0, body, gw__complete__pack(&complete, body), NULL, 0);
    }
    gw__submit__free_unpacked(submit, NULL);
}

static void take_part(fake_t *fake, gw_frame_t *frame) {
    Gw__BufferReady ready = GW__BUFFER_READY__INIT;
    Gw__BufferPart *part = gw__buffer_part__unpack(NULL, frame->header.body_bytes, frame->body);
    fake->memory_bytes = (size_t)part->bytes;
    fake->memory = mmap(NULL, fake->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, frame->fds[0], 0);
    gw__buffer_part__free_unpacked(part, NULL);
    ready.buffer = 9;
    answer(fake, GW_MSG_BUFFER_READY, frame->header.request, &ready.base, NULL, 0);
}

static void take_get_id(fake_t *fake, uint32_t request) {
    switch (fake->fault) {
    case GARBAGE_AT_ID:
        (void)!write(fake->session, "garbage", 7);
        break;
    case WRONG_TYPE:
        answer_done(fake, request);
        break;
    case OLD_ANSWERS:
        answer_id(fake, request - 1, 1);
        answer_id(fake, request + 100, 2);
        answer_id(fake, request, 3);
        answer_id(fake, request, 4);
        break;
    case TURN_AROUND:
        if (fake->turned != 0) {
            answer_id(fake, request, 2);
            answer_id(fake, fake->turned, 1);
        }
        fake->turned = fake->turned != 0 ? 0 : request;
        break;
    default:
        answer_id(fake, request, 1);
        break;
    }
}

/* Serves one message of the session; false ends it. */
static bool take_message(fake_t *fake, gw_frame_t *frame) {
    Gw__Welcome welcome = GW__WELCOME__INIT;
    Gw__BucketReady bucket = GW__BUCKET_READY__INIT;

    switch (frame->header.type) {
    case GW_MSG_HELLO:
        if (fake->fault == OTHER_MAJOR) {
            gw_frame_header_t header = {.magic = GW_MAGIC, .major = GW_PROTO_MAJOR + 1, .type = GW_MSG_WELCOME};
            return write(fake->session, &header, sizeof(header)) == sizeof(header);
        }
        answer(fake, GW_MSG_WELCOME, frame->header.request, &welcome.base, NULL, 0);
        break;
    case GW_MSG_GET_UNIQUE_ID:
        if (fake->fault == DIE_AT_ID)
            return false;
        take_get_id(fake, frame->header.request);
        break;
    case GW_MSG_GROUP_JOIN:
        answer_group(fake, frame->header.request);
        break;
    case GW_MSG_BUFFER_CREATE:
        break;
    case GW_MSG_BUFFER_PART:
        take_part(fake, frame);
        break;
    case GW_MSG_BUCKET_CREATE:
        bucket.bucket = 1;
        answer(fake, GW_MSG_BUCKET_READY, frame->header.request, &bucket.base, NULL, 0);
        break;
    default:
        fake->left = fake->left || frame->header.type == GW_MSG_GROUP_LEAVE;
        answer_done(fake, frame->header.request);
        break;
    }
    return true;
}

static bool serve(fake_t *fake, int fd) {
    const char *why;
    gw_frame_t frame;

    if (gw_frame_recv(fd, fake->storage, &frame, &why) != GW_FRAME_OK)
        return false;
    bool go_on = true;
    if (fd == fake->session)
        go_on = take_message(fake, &frame);
    else if (fake->fault == DIE_AT_SUBMIT)
        go_on = false;
    else if (fake->fault != HOLD)
        take_submit(fake, &frame);
    gw_frame_close_fds(&frame);
    return go_on;
}

static void *run_daemon(void *argument) {
    fake_t *fake = argument;

    fake->session = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    fake->channel = -1;
    if (fake->fault == REFUSE) {
        char text[] = "100 clients are connected";
        answer_error(fake, 0, GW_ERR_QUOTA, text);
    }
    for (bool go_on = fake->fault != REFUSE; go_on;) {
        struct pollfd polled[2] = {{fake->session, POLLIN, 0}, {fake->channel, POLLIN, 0}};
        poll(polled, 2, -1);
        if (polled[0].revents != 0)
            go_on = serve(fake, fake->session);
        else if (polled[1].revents != 0)
            go_on = serve(fake, fake->channel) || fake->fault != DIE_AT_SUBMIT;
    }
    close(fake->session);
    if (fake->channel >= 0)
        close(fake->channel);
    if (fake->slots != NULL)
        munmap(fake->slots, (size_t)gw_slots_bytes(FAKE_CREDITS));
    if (fake->memory != NULL)
        munmap(fake->memory, fake->memory_bytes);
    return NULL;
}

void fake_daemon_start(fake_t *fake, const char *path, fake_fault_t fault) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(fake, 0, sizeof(*fake));
    fake->fault = fault;
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    unlink(path);
    if (bind(fake->listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fake->listener, 4) != 0 ||
        pthread_create(&fake->thread, NULL, run_daemon, fake) != 0)
        abort();
}

void fake_daemon_stop(fake_t *fake) {
    pthread_join(fake->thread, NULL);
    close(fake->listener);
}
