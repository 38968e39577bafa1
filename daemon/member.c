/* member.c - one rank's part in a group. See group.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "group.h"
#include "log.h"
#include "measure.h"
#include "server.h"
#include "wire_blocks.h"

/* A bucket on its way out, known to the lane by its address. */
typedef struct detach {
    gwd_member_t *member;
    gwd_bucket_t *bucket;
    uint32_t request;
} detach_t;

static gwd_lane_t *lane_of(const gwd_group_t *group) {
    return group->server->lanes[group->lane];
}

gw_status_t gwd_member_new(gwd_session_t *session, gwd_group_t *group, uint32_t rank, uint32_t request,
                           gwd_member_t **member_out, char *text, size_t text_bytes) {
    gwd_member_t *member;
    gw_status_t status;

    if (session->closing) {
        snprintf(text, text_bytes, "pid %d died or disconnected", (int)session->pid);
        return GW_ERR_RANK_DIED;
    }
    status = gwd_quota_charge(&session->server->quota, session->user, GWD_QUOTA_FDS, 1, text, text_bytes);
    if (status != GW_OK)
        return status;
    member = calloc(1, sizeof(*member));
    if (!member)
        goto err_charge;
    member->handle = gwd_table_add(&session->members, member);
    if (!member->handle)
        goto err_member;
    member->session = session;
    member->group = group;
    member->rank = rank;
    member->request = request;
    member->slots_fd = member->channel_fd = -1;
    session->n_members++;
    group->members[rank] = member;
    group->n_members++;
    *member_out = member;
    return GW_OK;

err_member:
    free(member);
err_charge:
    gwd_quota_refund(session->user, GWD_QUOTA_FDS, 1);
    snprintf(text, text_bytes, "out of memory");
    return GW_ERR_NO_MEMORY;
}

/* What a bucket has taken of its group. */
static void give_back(gwd_member_t *member, gwd_bucket_t *bucket) {
    gwd_wire_blocks_give(&member->wire_blocks, bucket);
    if (bucket->residual)
        bucket->residual->in_use = false;
}

static void free_bucket(void *item, void *context) {
    gwd_bucket_t *bucket = item;
    gwd_member_t *member = context;
    gwd_buffer_t *send_buffer = bucket->desc.send_buffer, *recv_buffer = bucket->desc.recv_buffer;

    gwd_table_remove(&member->buckets, bucket->id);
    give_back(member, bucket);
    gwd_quota_refund(member->session->user, GWD_QUOTA_BUCKETS, gwd_bucket_charge(bucket->desc.n_matrices));
    gwd_bucket_free(bucket);
    if (send_buffer)
        gwd_buffer_unref(send_buffer);
    if (recv_buffer)
        gwd_buffer_unref(recv_buffer);
}

void gwd_member_free(gwd_member_t *member) {
    gwd_session_t *session = member->session;
    gwd_group_t *group = member->group;

    gwd_table_each(&member->buckets, free_bucket, member);
    gwd_table_fini(&member->buckets);
    if (member->slots)
        (void)munmap(member->slots, gw_slots_bytes(group->credits));
    if (member->slots_fd >= 0)
        close(member->slots_fd);
    if (member->channel_fd >= 0)
        close(member->channel_fd);
    gwd_quota_refund(session->user, GWD_QUOTA_FDS, 1);
    gwd_table_remove(&session->members, member->handle);
    session->n_members--;
    group->members[member->rank] = NULL;
    group->n_members--;
    free(member);
    if (group->n_members == 0)
        gwd_group_end(group);
    gwd_session_settle(session);
}

gwd_member_t *gwd_member_find(const gwd_session_t *session, uint32_t handle) {
    gwd_member_t *member = gwd_table_get(&session->members, handle);

    return member && member->group->state == GWD_GROUP_ACTIVE && !member->leaving ? member : NULL;
}

void gwd_member_identity(const gwd_member_t *member, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "rank %u (host %s, pid %d)", member->rank, member->group->server->host,
             (int)member->session->pid);
}

static void leave_forming(gwd_member_t *member, const gwd_leave_reason_t *reason) {
    char identity[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    gwd_member_identity(member, identity, sizeof(identity));
    snprintf(text, sizeof(text), "%s %s while the group was forming", identity, reason->why);
    gwd_group_give_up(member->group, reason->status, text);
}

void gwd_member_leave(gwd_member_t *member, uint32_t request, const gwd_leave_reason_t *reason) {
    gwd_group_t *group = member->group;
    gwd_command_t command = {.kind = GWD_COMMAND_RANK_LEAVE,
                             .group = group->id,
                             .rank = member->rank,
                             .cookie = (uint64_t)(uintptr_t)member,
                             .status = reason->status};
    char identity[GWD_IDENTITY_BYTES], text[GWD_TEXT_BYTES];

    if (member->leaving || group->giving_up) /* telling it closed its session; it is freed there */
        return;
    if (group->state != GWD_GROUP_ACTIVE) {
        leave_forming(member, reason);
        return;
    }
    gwd_member_identity(member, identity, sizeof(identity));
    snprintf(text, sizeof(text), "%s %s", identity, reason->why);
    /* First: an answer that the split's end sends may close the session, which comes here for this member again. */
    member->leaving = true;
    member->request = request;
    gwd_group_give_up_split(group, reason->status, text);
    command.text = strdup(text);
    if (!command.text)
        abort(); /* as in gwd_lane_must_send() */
    gwd_lane_must_send(lane_of(group), &command);
}

/* The lane has it, but the rank was never told; it hears nothing more. The lanes of other nodes may tell their loops
 * before bootstrap's own message has come: so they get the same words. */
void gwd_member_withdraw(gwd_member_t *member, gw_status_t status, const char *text) {
    gwd_command_t command = {.kind = GWD_COMMAND_RANK_LEAVE,
                             .group = member->group->id,
                             .rank = member->rank,
                             .cookie = (uint64_t)(uintptr_t)member,
                             .status = status,
                             .text = strdup(text)};

    if (!command.text)
        abort(); /* as in gwd_lane_must_send() */
    member->leaving = true;
    member->request = 0;
    gwd_lane_must_send(lane_of(member->group), &command);
}

gw_status_t gwd_member_add_bucket(gwd_member_t *member, gwd_bucket_t *bucket, char *text, size_t text_bytes) {
    gwd_command_t command = {
        .kind = GWD_COMMAND_BUCKET, .group = member->group->id, .rank = member->rank, .bucket = bucket};
    const gwd_group_t *group = member->group;
    uint32_t n_chunks = group->map ? group->n_rails * group->plan.wire_window : 0; /* that can be under way */
    gw_status_t status =
        group->map ? gwd_wire_blocks_take(&member->wire_blocks, bucket, n_chunks, text, text_bytes) : GW_OK;

    if (status != GW_OK)
        return status;
    bucket->id = gwd_table_add(&member->buckets, bucket);
    if (bucket->id == 0)
        goto err_memory;
    status = gwd_group_reserve(member->group, member->rank, bucket, text, text_bytes);
    if (status != GW_OK)
        goto err;
    if (!gwd_lane_send(lane_of(member->group), &command))
        goto err_memory;
    if (bucket->desc.send_buffer)
        gwd_buffer_ref(bucket->desc.send_buffer);
    if (bucket->desc.recv_buffer)
        gwd_buffer_ref(bucket->desc.recv_buffer);
    return GW_OK;

err_memory:
    snprintf(text, text_bytes, "out of memory");
    status = GW_ERR_NO_MEMORY;
err:
    if (bucket->id)
        gwd_table_remove(&member->buckets, bucket->id);
    give_back(member, bucket);
    return status;
}

void gwd_member_end_bucket(gwd_member_t *member, gwd_bucket_t *bucket, uint32_t request) {
    detach_t *detach = malloc(sizeof(*detach));
    gwd_command_t command = {.kind = GWD_COMMAND_BUCKET_DETACH,
                             .group = member->group->id,
                             .rank = member->rank,
                             .bucket_id = bucket->id,
                             .cookie = (uint64_t)(uintptr_t)detach};

    if (!detach)
        abort(); /* as in gwd_lane_must_send() */
    *detach = (detach_t){member, bucket, request};
    bucket->ending = true;
    gwd_lane_must_send(lane_of(member->group), &command);
}

typedef struct end_users {
    gwd_buffer_t *buffer;
    gwd_member_t *member;
} end_users_t;

static void end_if_user(void *item, void *context) {
    gwd_bucket_t *bucket = item;
    const end_users_t *users = context;

    if (!bucket->ending && (bucket->desc.send_buffer == users->buffer || bucket->desc.recv_buffer == users->buffer))
        gwd_member_end_bucket(users->member, bucket, 0);
}

static void end_users(void *item, void *context) {
    end_users_t users = {context, item};

    if (users.member->group->state == GWD_GROUP_ACTIVE && !users.member->leaving)
        gwd_table_each(&users.member->buckets, end_if_user, &users);
}

void gwd_member_end_buffer(gwd_session_t *session, gwd_buffer_t *buffer, uint32_t request) {
    gwd_table_each(&session->members, end_users, buffer);
    gwd_buffer_release(buffer, request); /* when the last of them has ended */
}

static void detached(uint64_t cookie) {
    detach_t *detach = (detach_t *)(uintptr_t)cookie;
    gwd_member_t *member = detach->member;

    free_bucket(detach->bucket, member);
    if (detach->request)
        gwd_session_done(member->session, detach->request);
    free(detach);
}

static void released(uint64_t cookie) {
    gwd_member_t *member = (gwd_member_t *)(uintptr_t)cookie;

    member->released = true;
    if (member->state_job)
        return;
    if (member->request)
        gwd_session_done(member->session, member->request);
    gwd_member_free(member);
}

void gwd_member_state_ended(gwd_member_t *member) {
    member->state_job = NULL;
    if (member->released)
        released((uint64_t)(uintptr_t)member);
}

static gwd_group_t *find_group(const gwd_server_t *server, uint32_t id) {
    gwd_group_t *group = server->groups;

    while (group && group->id != id)
        group = group->next;
    return group;
}

/* A lane may notice that a node is gone before the connection to it, or to the root, says so: the ranks hear the same
 * either way. */
static void failed_prepared(gwd_group_t *group, gw_status_t status, const char *text) {
    char lost[GWD_TEXT_BYTES];

    if (group->giving_up)
        return;
    if (status == GW_ERR_NODE_LOST) {
        snprintf(lost, sizeof(lost), "a node was lost while the group was forming: %s", text);
        text = lost;
        status = GW_ERR_BOOTSTRAP;
    }
    gwd_group_give_up(group, status, text);
}

static void failed(gwd_group_t *group, const gwd_event_t *event) {
    if (group->state == GWD_GROUP_PREPARED) {
        if (group->split_from)
            gwd_group_split_broke(group, event->status, event->text ? event->text : "");
        else
            failed_prepared(group, event->status, event->text ? event->text : "");
        return;
    }
    group->status = event->status;
    snprintf(group->message, sizeof(group->message), "%s", event->text ? event->text : "");
    gwd_group_give_up_split(group, group->status, group->message);
    gwd_log(GWD_LOG_NOTICE, "group", "group %u failed: %s: %s", group->id, gw_status_name(event->status),
            group->message);
}

void gwd_group_event(struct gwd_server *server, const gwd_event_t *event) {
    gwd_group_t *group = find_group(server, event->group);

    switch (event->kind) {
    case GWD_EVENT_DETACHED:
        detached(event->cookie);
        break;
    case GWD_EVENT_RELEASED:
        released(event->cookie);
        break;
    case GWD_EVENT_HELD:
        gwd_group_state_held(event);
        break;
    case GWD_EVENT_FAILED:
        if (group)
            failed(group, event);
        break;
    case GWD_EVENT_PROBED:
        if (group)
            gwd_measure_wire_is_known(group, event);
        break;
    case GWD_EVENT_WAITING:
        if (group) {
            free(group->waiting.waiters);
            group->waiting.sequence = event->sequence;
            group->waiting.waited_ns = event->waited_ns;
            group->waiting.waiters = event->waiters;
            gwd_cycle_check(group);
            return;
        }
        break;
    case GWD_EVENT_TOLD:
        if (group)
            gwd_group_split_told(group, event->node, event->data, event->bytes);
        break;
    case GWD_EVENT_NODE_LEFT:
        if (group)
            gwd_group_split_node_left(group, event->node);
        break;
    }
    free(event->data);
    free(event->text);
    free(event->waiters);
}
