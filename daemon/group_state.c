/* group_state.c - what a group keeps from one operation to the next, and its saving and loading. See group.h
 *
 * A job brings a state from the group into a client's memfd, or back. Where the rank has residuals to save or load, the
 * lane holds the group still meanwhile: operations that are submitted wait. Copying and checking is a helper thread's.
 *
 *   request > [HOLD > lane > HELD >] helper > [GO_ON >] answer
 *
 * A member is not freed while it has a job.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "log.h"
#include "server.h"
#include "state.h"

struct gwd_state_job {
    uv_work_t work;
    gwd_member_t *member;
    uint32_t request;
    int fd; /* the client's memfd */
    bool is_load, held;
    uint64_t bytes;       /* of the state */
    uint64_t charged;     /* to the rank's user, for what is being read */
    gwd_residual_t *list; /* of a load: what was read, then what it replaces; else the group's */
    gwd_placement_t placement;
    gw_status_t status;
    char text[GWD_TEXT_BYTES];
};

typedef struct gwd_state_job job_t;

enum { ALIKE_MAX = 64 }; /* buckets of one fingerprint: each is looked for among all of the group's */

/* ---- what is kept --------------------------------------------------------------------------------------- */

static gw_status_t charge(gwd_group_t *group, uint64_t bytes, char *text, size_t text_bytes) {
    return gwd_quota_charge(&group->server->quota, group->user, GWD_QUOTA_BUFFER_BYTES, bytes, text, text_bytes);
}

static void refund(const gwd_group_t *group, uint64_t bytes) {
    gwd_quota_refund(group->user, GWD_QUOTA_BUFFER_BYTES, bytes);
}

static gw_status_t reserve_flights(gwd_group_t *group, const gwd_bucket_t *bucket, char *text, size_t text_bytes) {
    uint64_t bytes = group->n_rails * gwd_lane_flight_bytes(&group->plan, group->map->n_nodes, group->n_members);
    char why[GWD_TEXT_BYTES / 2];
    gw_status_t status = charge(group, bytes, why, sizeof(why));

    if (status == GW_OK)
        group->flight_bytes = bytes;
    else
        snprintf(text, text_bytes,
                 "bucket '%s': data between nodes needs %llu bytes (wire.window times wire.chunk_bytes, and more): %s",
                 bucket->desc.name, (unsigned long long)bytes, why);
    return status;
}

static gwd_residual_rule_t rule_of(const gwd_group_t *group, const gwd_bucket_t *bucket) {
    return (gwd_residual_rule_t){.codec = (uint8_t)bucket->codec,
                                 .size_class = (uint8_t)gwd_size_class(bucket->desc.count * sizeof(float)),
                                 .is_default = bucket->desc.codec == GW_CODEC_DEFAULT,
                                 .is_stochastic = group->plan.is_stochastic};
}

static gw_status_t reserve_residual(gwd_group_t *group, gwd_bucket_t *bucket, char *text, size_t text_bytes) {
    const gwd_bucket_desc_t *desc = &bucket->desc;
    uint64_t count = gwd_residual_numbers(bucket->codec, desc->no_error_feedback, desc->count);
    uint64_t bytes = gwd_residual_bytes(count), key = bucket->fingerprint;
    gwd_residual_t *residual = gwd_residual_find(group->residuals, key, count);
    char why[GWD_TEXT_BYTES / 2];
    uint32_t ordinal = 0;
    gw_status_t status;

    while (residual && residual->in_use && ++ordinal < ALIKE_MAX) {
        key = gwd_residual_key(bucket->fingerprint, ordinal);
        residual = gwd_residual_find(group->residuals, key, count);
    }
    if (ordinal == ALIKE_MAX) {
        snprintf(text, text_bytes,
                 "bucket '%s': %d of this name and size keep what their codec leaves out: name them apart", desc->name,
                 ALIKE_MAX);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (residual) {
        residual->in_use = true;
        residual->rule = rule_of(group, bucket);
        bucket->residual = residual;
        return GW_OK;
    }
    if (group->n_residuals == GWD_RESIDUALS_MAX) {
        snprintf(text, text_bytes,
                 "bucket '%s': the group keeps what codecs left out of %d buckets already, those that were freed "
                 "included: use the same buckets again, or make a new group",
                 desc->name, GWD_RESIDUALS_MAX);
        return GW_ERR_QUOTA;
    }
    status = charge(group, bytes, why, sizeof(why));
    if (status != GW_OK) {
        snprintf(text, text_bytes, "bucket '%s': what codec %s leaves out takes %llu bytes: %s", desc->name,
                 gw_codec_name(bucket->codec), (unsigned long long)bytes, why);
        return status;
    }
    residual = gwd_residual_new(key, count);
    if (!residual) {
        refund(group, bytes);
        snprintf(text, text_bytes, "bucket '%s': no memory for what codec %s leaves out", desc->name,
                 gw_codec_name(bucket->codec));
        return GW_ERR_NO_MEMORY;
    }
    residual->in_use = true;
    residual->rule = rule_of(group, bucket);
    residual->next = group->residuals;
    group->residuals = bucket->residual = residual;
    group->n_residuals++;
    return GW_OK;
}

/* What is kept is the node's, with the buckets of its lowest rank. */
static bool keeps_something(const gwd_group_t *group, uint32_t rank, const gwd_bucket_t *bucket) {
    const gwd_bucket_desc_t *desc = &bucket->desc;

    return rank == group->map->nodes[group->map->own_node].lowest_rank && bucket->codec != GW_CODEC_NONE &&
           (group->plan.is_stochastic || gwd_residual_numbers(bucket->codec, desc->no_error_feedback, desc->count) > 0);
}

gw_status_t gwd_group_reserve(gwd_group_t *group, uint32_t rank, gwd_bucket_t *bucket, char *text, size_t text_bytes) {
    gw_status_t status = GW_OK;

    if (!group->map || bucket->desc.count == 0)
        return GW_OK;
    if (group->flight_bytes == 0)
        status = reserve_flights(group, bucket, text, text_bytes);
    if (status == GW_OK && keeps_something(group, rank, bucket))
        status = reserve_residual(group, bucket, text, text_bytes);
    return status;
}

/* Frees them on a helper thread: the kernel takes its time for many pages. */
typedef struct drop {
    uv_work_t work;
    gwd_residual_t *list;
} drop_t;

static void drop_work(uv_work_t *work) {
    gwd_residual_free_list(((drop_t *)work->data)->list);
}

static void drop_done(uv_work_t *work, int cancelled) {
    (void)cancelled; /* nobody cancels it */
    free(work->data);
}

static void drop_list(gwd_server_t *server, gwd_residual_t *list) {
    drop_t *drop = list ? malloc(sizeof(*drop)) : NULL;

    if (drop) {
        drop->work.data = drop;
        drop->list = list;
        if (uv_queue_work(&server->loop, &drop->work, drop_work, drop_done) == 0)
            return;
        free(drop);
    }
    gwd_residual_free_list(list); /* slower, but never lost */
}

uint64_t gwd_group_residual_bytes(const gwd_group_t *group) {
    uint64_t bytes = 0;

    for (const gwd_residual_t *r = group->residuals; r; r = r->next)
        bytes += gwd_residual_bytes(r->count);
    return bytes;
}

void gwd_group_give_back(gwd_group_t *group) {
    refund(group, gwd_group_residual_bytes(group) + group->flight_bytes);
    drop_list(group->server, group->residuals);
    group->residuals = NULL;
}

/* ---- jobs ----------------------------------------------------------------------------------------------- */

static void find_placement(const gwd_member_t *member, gwd_placement_t *placement_out) {
    const gwd_group_t *group = member->group;

    *placement_out = (gwd_placement_t){.nranks = group->nranks, .n_nodes = 1, .rank = member->rank};
    if (!group->map)
        return;
    placement_out->n_nodes = group->map->n_nodes;
    placement_out->chunk_bytes = group->plan.wire_chunk_bytes;
    placement_out->node_of = group->map->node_of;
}

/* What the rank's state has; a group on one node has none. */
static gwd_residual_t *residuals_of(const gwd_member_t *member, const gwd_placement_t *placement) {
    return gwd_placement_carries(placement) ? member->group->residuals : NULL;
}

static void reply_saved(gwd_session_t *session, uint32_t request, uint64_t bytes) {
    Gw__GroupState message = GW__GROUP_STATE__INIT;
    uint8_t body[16];

    message.bytes = bytes;
    gwd_session_send(session, GW_MSG_GROUP_STATE, request, body, gw__group_state__pack(&message, body), NULL, 0);
}

static void command_lane(const gwd_group_t *group, gwd_command_kind_t kind, const job_t *job) {
    gwd_command_t command = {.kind = kind, .group = group->id, .cookie = (uint64_t)(uintptr_t)job};

    gwd_lane_must_send(group->server->lanes[group->lane], &command);
}

static void free_job(job_t *job) {
    gwd_member_t *member = job->member;

    close(job->fd);
    gwd_quota_refund(member->session->user, GWD_QUOTA_FDS, 1);
    free(job);
    gwd_member_state_ended(member);
}

/* ---- what a helper does --------------------------------------------------------------------------------- */

/* Nobody must take pages away while it is written, which would make them the daemon's: no holes, and none will be. */
static gw_status_t seal(job_t *job) {
    struct stat st;

    if (fcntl(job->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
        snprintf(job->text, sizeof(job->text), "the memfd for the state cannot be sealed: %s", strerror(errno));
        return GW_ERR_BUFFER_SEAL;
    }
    if (fstat(job->fd, &st) != 0 || (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size) {
        snprintf(job->text, sizeof(job->text), "the memfd for the state has holes");
        return GW_ERR_BUFFER_HOLES;
    }
    return GW_OK;
}

static void work(uv_work_t *work_) {
    job_t *job = work_->data;
    const gwd_handle_t handle = {.kind = GW__HANDLE_KIND__HANDLE_MEMFD, .fd = job->fd, .bytes = job->bytes};
    gwd_memory_t memory;

    job->status = gwd_backend_host.import(NULL, &handle, 1, &memory, job->text, sizeof(job->text));
    if (job->status != GW_OK)
        return;
    if (job->is_load) {
        job->status =
            gwd_state_read(memory.address, job->bytes, &job->placement, &job->list, job->text, sizeof(job->text));
    } else {
        job->status = seal(job);
        if (job->status == GW_OK)
            gwd_state_write(&job->placement, job->list, memory.address);
    }
    gwd_backend_host.release(NULL, &memory);
}

/* ---- ends ----------------------------------------------------------------------------------------------- */

/* Replaces what the group keeps by what was read: of buckets that the state does not know, nothing. `list` then has
 * what is to be freed. */
static void install(gwd_group_t *group, gwd_residual_t **list, const gwd_residual_index_t *kept,
                    const gwd_residual_index_t *came) {
    gwd_residual_t **at = list, *unknown = NULL;

    for (gwd_residual_t *r = group->residuals; r; r = r->next) {
        gwd_residual_t *read = gwd_residual_look_up(came, r->fingerprint, r->count);

        if (read)
            gwd_residual_swap(r, read);
        else
            gwd_residual_clear(r, &unknown);
    }
    while (*at) {
        gwd_residual_t *read = *at;

        if (gwd_residual_look_up(kept, read->fingerprint, read->count)) {
            refund(group, gwd_residual_bytes(read->count)); /* it is charged twice */
            at = &read->next;
            continue;
        }
        *at = read->next;
        read->next = group->residuals;
        group->residuals = read;
        group->n_residuals++;
    }
    *at = unknown;
}

/* Whether a bucket of the state would be coded as it was: its description says so, but for what it leaves to the group. What
 * `auto` chooses is a matter of the network and the hour: there the numbers are worth as much, and the log says it. */
static bool is_coded_alike(const gwd_group_t *group, const gwd_residual_t *saved, char *text, size_t text_bytes) {
    const gwd_residual_rule_t *rule = &saved->rule;
    gw_codec_t codec = rule->is_default ? group->plan.codecs[rule->size_class] : (gw_codec_t)rule->codec;
    bool alike = codec == (gw_codec_t)rule->codec;

    if (rule->is_stochastic != group->plan.is_stochastic) {
        snprintf(text, text_bytes,
                 "this state was saved with %s rounding, and the group has %s: ask for the same (gw_group_init_config, "
                 "wire.rounding), or go on without it",
                 rule->is_stochastic ? "stochastic" : "nearest", group->plan.is_stochastic ? "stochastic" : "nearest");
        return false;
    }
    if (!alike && group->policy.choice.is_auto) {
        gwd_log(GWD_LOG_NOTICE, "group",
                "group %u goes on with a state of codec %s where auto now has %s: not bit for bit", group->id,
                gw_codec_name((gw_codec_t)rule->codec), gw_codec_name(codec));
        return true;
    }
    if (!alike)
        snprintf(
            text, text_bytes,
            "this state was saved where buckets that leave their codec to the group had %s, and this group has %s: "
            "ask for the same (gw_group_init_config, wire.codec), or go on without it",
            gw_codec_name((gw_codec_t)rule->codec), gw_codec_name(codec));
    return alike;
}

static gw_status_t check_rules(const job_t *job, char *text, size_t text_bytes) {
    for (const gwd_residual_t *r = job->list; r; r = r->next)
        if (!is_coded_alike(job->member->group, r, text, text_bytes))
            return GW_ERR_STATE;
    return GW_OK;
}

static void end_load(job_t *job) {
    gwd_group_t *group = job->member->group;
    gwd_residual_index_t kept = {0}, came = {0};
    uint64_t bytes = 0;
    uint32_t n = group->n_residuals;

    if (job->status == GW_OK)
        job->status = check_rules(job, job->text, sizeof(job->text));
    if (job->status == GW_OK &&
        (!gwd_residual_index(group->residuals, &kept) || !gwd_residual_index(job->list, &came))) {
        snprintf(job->text, sizeof(job->text), "the daemon has no memory to load the state");
        job->status = GW_ERR_NO_MEMORY;
    }
    gwd_quota_refund(job->member->session->user, GWD_QUOTA_BUFFER_BYTES, job->charged);
    for (const gwd_residual_t *r = job->list; r; r = r->next) {
        bytes += gwd_residual_bytes(r->count);
        n += !gwd_residual_look_up(&kept, r->fingerprint, r->count);
    }
    if (job->status == GW_OK && n > GWD_RESIDUALS_MAX) {
        snprintf(
            job->text, sizeof(job->text),
            "the group would keep what codecs left out of %u buckets, at most %d: load the state before buckets are "
            "declared",
            n, GWD_RESIDUALS_MAX);
        job->status = GW_ERR_QUOTA;
    }
    if (job->status == GW_OK)
        job->status = charge(group, bytes, job->text, sizeof(job->text));
    if (job->status == GW_OK && gwd_placement_carries(&job->placement))
        install(group, &job->list, &kept, &came);
    gwd_residual_free_index(&kept);
    gwd_residual_free_index(&came);
    drop_list(group->server, job->list);
}

static void end_job(job_t *job) {
    gwd_member_t *member = job->member;
    gwd_session_t *session = member->session;

    if (job->is_load)
        end_load(job);
    if (job->held)
        command_lane(member->group, GWD_COMMAND_GO_ON, NULL);
    if (job->status != GW_OK)
        gwd_session_error(session, job->request, job->status, "%s", job->text);
    else if (job->is_load)
        gwd_session_done(session, job->request);
    else
        reply_saved(session, job->request, job->bytes);
    free_job(job);
}

static void work_done(uv_work_t *work_, int cancelled) {
    (void)cancelled; /* nobody cancels it */
    end_job(work_->data);
}

static void start_work(job_t *job) {
    job->work.data = job;
    if (uv_queue_work(&job->member->session->server->loop, &job->work, work, work_done) == 0)
        return;
    work(&job->work); /* slower, but never lost */
    end_job(job);
}

void gwd_group_state_held(const gwd_event_t *event) {
    job_t *job = (job_t *)(uintptr_t)event->cookie;
    const gwd_group_t *group = job->member->group;

    job->status = event->status;
    if (event->status == GW_OK) {
        job->held = true;
        start_work(job);
        return;
    }
    if (event->status == GW_ERR_BUSY)
        snprintf(job->text, sizeof(job->text),
                 "an operation of the group is under way: wait for all that this rank has submitted, then %s the state",
                 job->is_load ? "load" : "save");
    else
        snprintf(job->text, sizeof(job->text), "%s", group->status != GW_OK ? group->message : "the group has ended");
    end_job(job);
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static gw_status_t check(const gwd_member_t *member, char *text, size_t text_bytes) {
    if (member->group->status != GW_OK) {
        snprintf(text, text_bytes, "%s", member->group->message);
        return member->group->status;
    }
    if (member->state_job) {
        snprintf(text, text_bytes, "the state of this rank is being saved or loaded");
        return GW_ERR_BUSY;
    }
    return GW_OK;
}

static gw_status_t new_job(gwd_member_t *member, uint32_t request, int *fd, uint64_t bytes, bool is_load, char *text,
                           size_t text_bytes) {
    gwd_session_t *session = member->session;
    gw_status_t status = gwd_quota_charge(&session->server->quota, session->user, GWD_QUOTA_FDS, 1, text, text_bytes);
    job_t *job;

    if (status != GW_OK)
        return status;
    job = calloc(1, sizeof(*job));
    if (!job) {
        snprintf(text, text_bytes, "out of memory");
        status = GW_ERR_NO_MEMORY;
        goto err_fds;
    }
    job->charged = is_load ? bytes : 0;
    status = gwd_quota_charge(&session->server->quota, session->user, GWD_QUOTA_BUFFER_BYTES, job->charged, text,
                              text_bytes);
    if (status != GW_OK)
        goto err_job;
    job->member = member;
    job->request = request;
    job->fd = *fd;
    job->is_load = is_load;
    job->bytes = bytes;
    *fd = -1;
    find_placement(member, &job->placement);
    if (!is_load)
        job->list = residuals_of(member, &job->placement);
    member->state_job = job;
    if (job->placement.n_nodes > 1 && gwd_placement_carries(&job->placement))
        command_lane(member->group, GWD_COMMAND_HOLD, job);
    else
        start_work(job);
    return GW_OK;

err_job:
    free(job);
err_fds:
    gwd_quota_refund(session->user, GWD_QUOTA_FDS, 1);
    return status;
}

gw_status_t gwd_group_state_save(gwd_member_t *member, uint32_t request, int *fd, char *text, size_t text_bytes) {
    gw_status_t status = check(member, text, text_bytes);
    gwd_placement_t placement;
    struct stat st;
    uint64_t bytes;

    if (status != GW_OK)
        return status;
    find_placement(member, &placement);
    bytes = gwd_state_bytes(&placement, residuals_of(member, &placement));
    if (*fd >= 0 && fstat(*fd, &st) == 0 && (uint64_t)st.st_size >= bytes)
        return new_job(member, request, fd, bytes, false, text, text_bytes);
    reply_saved(member->session, request, bytes); /* the client asked for this, or another bucket has come meanwhile */
    return GW_OK;
}

gw_status_t gwd_group_state_load(gwd_member_t *member, uint32_t request, int *fd, uint64_t bytes, char *text,
                                 size_t text_bytes) {
    gw_status_t status = check(member, text, text_bytes);
    struct stat st;

    if (status != GW_OK)
        return status;
    if (fstat(*fd, &st) != 0) {
        snprintf(text, text_bytes, "no file descriptor of a memfd came with the request");
        return GW_ERR_BUFFER_KIND;
    }
    if ((uint64_t)st.st_size < bytes) { /* before so much is charged */
        snprintf(text, text_bytes, "the memfd has %lld bytes, and the state %llu", (long long)st.st_size,
                 (unsigned long long)bytes);
        return GW_ERR_BUFFER_SHORT;
    }
    return new_job(member, request, fd, bytes, true, text, text_bytes);
}
