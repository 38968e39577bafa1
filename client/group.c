/* group.c - joining, splitting, checking and leaving groups */
#include "group.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "gradwire.pb-c.h"
#include "stream.h"

enum { REASON_BYTES = 256, CREDITS_MAX = 65536 };

/* ---- joining ------------------------------------------------------------------------------------- */

static gw_status_t map_slots(gw_group_t *group, int fd) {
    size_t bytes = (size_t)gw_slots_bytes(group->credits);
    struct stat info;

    if (fstat(fd, &info) != 0)
        return gw_fail_errno("fstat of the slots");
    if ((uint64_t)info.st_size < bytes)
        return gw_fail(GW_ERR_PROTOCOL, "the memory of the slots has %lld bytes, %u slots need %zu",
                       (long long)info.st_size, group->credits, bytes);
    void *slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (slots == MAP_FAILED)
        return gw_fail_errno("mapping the slots");
    group->slots = slots;
    if (group->slots->magic == GW_SLOTS_MAGIC && group->slots->version == GW_SLOTS_VERSION &&
        group->slots->credits == group->credits)
        return GW_OK;
    gw_status_t status =
        gw_fail(GW_ERR_PROTOCOL, "the slots are of version %u with %u credits, expected were %u and %u",
                group->slots->version, group->slots->credits, GW_SLOTS_VERSION, group->credits);
    munmap(slots, bytes);
    return status;
}

static gw_status_t take_channel(gw_group_t *group, gw_frame_t *frame) {
    int flags = fcntl(frame->fds[1], F_GETFL);
    if (flags < 0 || fcntl(frame->fds[1], F_SETFL, flags | O_NONBLOCK) < 0)
        return gw_fail_errno("fcntl of the channel");
    group->channel = frame->fds[1];
    frame->fds[1] = -1;
    return GW_OK;
}

/* Makes our side of a group that the daemon says is ready. */
static gw_status_t group_new(gw_context_t *context, const Gw__GroupReady *ready, gw_frame_t *frame,
                             gw_group_t **group_out) {
    gw_status_t status;

    if (frame->header.n_fds != 2 || ready->credits == 0 || ready->credits > CREDITS_MAX ||
        (ready->credits & (ready->credits - 1)) != 0 || ready->nranks > INT32_MAX || ready->rank >= ready->nranks)
        return gw_fail(GW_ERR_PROTOCOL, "the daemon's answer is not valid: %u fds, %u credits, rank %u of %u",
                       frame->header.n_fds, ready->credits, ready->rank, ready->nranks);
    gw_group_t *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "the record of a group");
    group->context = context;
    group->handle = ready->group;
    group->epoch = ready->epoch;
    group->credits = ready->credits;
    group->rank = (int)ready->rank;
    group->nranks = (int)ready->nranks;
    group->ring = calloc(group->credits, sizeof(*group->ring));
    if (group->ring == NULL) {
        status = gw_fail(GW_ERR_NO_MEMORY, "the records of %u operations", group->credits);
        goto err_group;
    }
    status = map_slots(group, frame->fds[0]);
    if (status != GW_OK)
        goto err_ring;
    status = take_channel(group, frame);
    if (status != GW_OK)
        goto err_slots;
    pthread_mutex_init(&group->lock, NULL); /* cannot fail with default attributes on Linux */
    pthread_mutex_lock(&context->objects_lock);
    group->next = context->groups;
    group->link = &context->groups;
    if (group->next != NULL)
        group->next->link = &group->next;
    context->groups = group;
    pthread_mutex_unlock(&context->objects_lock);
    *group_out = group;
    return GW_OK;

err_slots:
    munmap(group->slots, (size_t)gw_slots_bytes(group->credits));
err_ring:
    free(group->ring);
err_group:
    free(group);
    return status;
}

static void leave(gw_context_t *context, uint32_t handle) {
    Gw__GroupLeave request = GW__GROUP_LEAVE__INIT;
    request.group = handle;
    (void)gw_call_do(context, GW_MSG_GROUP_LEAVE, &request.base); /* if the daemon has gone, so has the group */
}

/* Sends a join or a split, and waits until all ranks have done the same. */
static gw_status_t enter(gw_context_t *context, enum gw_message_type type, const ProtobufCMessage *message,
                         gw_group_t **group_out) {
    gw_group_t *group = NULL;
    uint32_t handle = 0;
    gw_call_t call;

    gw_status_t status = gw_call_open(context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, type, message, NULL, 0);
    status = gw_call_reply(&call, GW_MSG_GROUP_READY);
    if (status != GW_OK && call.state != GW_CALL_NO_FDS)
        goto out;
    Gw__GroupReady *ready = gw__group_ready__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
    if (ready == NULL) {
        status = gw_fail(GW_ERR_PROTOCOL, "the daemon's answer to a join cannot be read");
        goto out;
    }
    handle = ready->group;
    if (status == GW_OK && handle != 0)
        status = group_new(context, ready, &call.reply, &group);
    gw__group_ready__free_unpacked(ready, NULL);
out:
    gw_call_close(&call);
    if (status == GW_OK)
        *group_out = group;
    else if (handle != 0)
        leave(context, handle);
    return status;
}

gw_status_t gw_get_unique_id(gw_context_t *context, gw_unique_id_t *id_out) {
    Gw__GetUniqueId request = GW__GET_UNIQUE_ID__INIT;
    gw_call_t call;

    if (id_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "id_out is NULL");
    gw_status_t status = gw_call_open(context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, GW_MSG_GET_UNIQUE_ID, &request.base, NULL, 0);
    status = gw_call_reply(&call, GW_MSG_UNIQUE_ID);
    if (status == GW_OK) {
        Gw__UniqueId *reply = gw__unique_id__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
        if (reply == NULL || reply->id.len != sizeof(id_out->bytes))
            status = gw_fail(GW_ERR_PROTOCOL, "the daemon's unique id does not have %zu bytes", sizeof(id_out->bytes));
        else
            memcpy(id_out->bytes, reply->id.data, sizeof(id_out->bytes));
        gw__unique_id__free_unpacked(reply, NULL);
    }
    gw_call_close(&call);
    return status;
}

gw_status_t gw_group_init(gw_context_t *context, const gw_unique_id_t *id, int nranks, int rank,
                          gw_group_t **group_out) {
    return gw_group_init_config(context, id, nranks, rank, NULL, group_out);
}

gw_status_t gw_group_init_config(gw_context_t *context, const gw_unique_id_t *id, int nranks, int rank,
                                 const gw_group_config_t *config, gw_group_t **group_out) {
    static const gw_group_config_t normal = GW_GROUP_CONFIG_INIT;
    Gw__GroupJoin join = GW__GROUP_JOIN__INIT;
    gw_unique_id_t copy;

    gw_status_t status = gw_context_check(context);
    if (status != GW_OK)
        return status;
    if (id == NULL || group_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "%s is NULL", id == NULL ? "id" : "group_out");
    if (nranks < 1 || (context->max_ranks > 0 && (unsigned)nranks > context->max_ranks))
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "nranks is %d, the daemon takes 1 to %u", nranks, context->max_ranks);
    if (rank < 0 || rank >= nranks)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "rank is %d, with nranks %d it can be 0 to %d", rank, nranks,
                       nranks - 1);
    if (config == NULL)
        config = &normal;
    if (config->struct_bytes != sizeof(*config))
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "config->struct_bytes is %zu, not %zu: start from GW_GROUP_CONFIG_INIT",
                       config->struct_bytes, sizeof(*config));
    if (config->rounding < GW_ROUND_DEFAULT || config->rounding > GW_ROUND_STOCHASTIC)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "config->rounding is %d, not a gw_rounding_t", (int)config->rounding);
    copy = *id; /* protobuf-c wants a pointer to non-const */
    join.id.data = copy.bytes;
    join.id.len = sizeof(copy.bytes);
    join.nranks = (uint32_t)nranks;
    join.rank = (uint32_t)rank;
    if (config->codec != NULL)
        join.codec = (char *)(uintptr_t)config->codec; /* it is only packed */
    join.rounding = (uint32_t)config->rounding;
    return enter(context, GW_MSG_GROUP_JOIN, &join.base, group_out);
}

gw_status_t gw_group_split(gw_group_t *group, int color, int key, gw_group_t **group_out) {
    Gw__GroupSplit split = GW__GROUP_SPLIT__INIT;

    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    if (group_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "group_out is NULL");
    status = gw_group_status(group);
    if (status != GW_OK)
        return status;
    split.group = group->handle;
    split.color = color;
    split.key = key;
    return enter(group->context, GW_MSG_GROUP_SPLIT, &split.base, group_out);
}

/* ---- ending --------------------------------------------------------------------------------------- */

gw_status_t gw_group_abort(gw_group_t *group, const char *reason) {
    Gw__GroupAbort abort_request = GW__GROUP_ABORT__INIT;
    char text[REASON_BYTES];

    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    snprintf(text, sizeof(text), "%s", reason != NULL ? reason : "");
    abort_request.group = group->handle;
    abort_request.reason = text;
    return gw_call_do(group->context, GW_MSG_GROUP_ABORT, &abort_request.base);
}

void gw_group_free(gw_group_t *group) {
    if (group == NULL)
        return;
    gw_context_t *context = group->context;
    bool forked = gw_context_is_forked(context);

    if (!forked) /* in a child, a thread that it does not have may hold the locks */
        pthread_mutex_lock(&context->objects_lock);
    *group->link = group->next;
    if (group->next != NULL)
        group->next->link = group->link;
    if (!forked) {
        pthread_mutex_unlock(&context->objects_lock);
        leave(context, group->handle);
    }
    gw_stream_end_group(group, forked);
    while (group->buckets != NULL) {
        gw_bucket_t *bucket = group->buckets;
        group->buckets = bucket->next;
        gw_bucket_drop(bucket, forked);
    }
    if (!forked)
        pthread_mutex_destroy(&group->lock);
    close(group->channel);
    munmap(group->slots, (size_t)gw_slots_bytes(group->credits));
    free(group->ring);
    free(group);
}
