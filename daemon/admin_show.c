/* admin_show.c - the documents of admin.h
 *
 * cJSON's Add functions return NULL when memory is exhausted and leave the document without that field;
 * an operator sees less then, and the daemon goes on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "admin.h"
#include "clock.h"
#include "escape.h"
#include "gradwire.pb-c.h"
#include "kernels.h"
#include "server.h"

/* Text from clients: made safe for the terminal it will reach. */
static void foreign(cJSON *object, const char *name, const char *text) {
    char safe[2 * GWD_TEXT_BYTES];

    gw_escape(text, GWD_TEXT_BYTES, safe, sizeof(safe));
    cJSON_AddStringToObject(object, name, safe);
}

static double seconds_since(uint64_t then_ns) {
    return (double)(gwd_now_ns() - then_ns) * 1e-9;
}

/* ---- status ------------------------------------------------------------------------------------- */

static double cpu_seconds(void) {
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Without what it shares with others: its own memory is what an operator pays for the daemon. */
static uint64_t resident_bytes(uint64_t *shared_out) {
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long size = 0, resident = 0, shared = 0;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (file) {
        if (fscanf(file, "%llu %llu %llu", &size, &resident, &shared) != 3)
            resident = shared = 0;
        fclose(file);
    }
    *shared_out = shared * page;
    return resident * page;
}

/* Users are charged for buffers, and for what groups on several nodes keep, by one quota. */
static void add_totals(cJSON *json, const gwd_server_t *server) {
    uint64_t buffers = 0, bytes = 0, buckets = 0, residuals = 0, flights = 0;

    for (const gwd_user_t *user = server->quota.users; user; user = user->next) {
        buffers += user->used[GWD_QUOTA_BUFFERS];
        bytes += user->used[GWD_QUOTA_BUFFER_BYTES];
        buckets += user->used[GWD_QUOTA_BUCKETS];
    }
    for (const gwd_group_t *group = server->groups; group; group = group->next) {
        residuals += gwd_group_residual_bytes(group);
        flights += group->flight_bytes;
    }
    gwd_admin_number(json, "clients", server->n_sessions);
    gwd_admin_number(json, "groups", server->n_groups);
    gwd_admin_number(json, "buffers", buffers);
    gwd_admin_number(json, "buffer_bytes", bytes - residuals - flights);
    gwd_admin_number(json, "buckets", buckets);
    gwd_admin_number(json, "residual_bytes", residuals);
    gwd_admin_number(json, "flight_bytes", flights);
}

/* Of one device. */
static uint64_t arenas_bytes(const gwd_config_t *config) {
    return (uint64_t)config->device_arena_bytes + (config->wire_listen[0] ? (uint64_t)config->device_wire_bytes : 0);
}

static cJSON *devices_json(const gwd_server_t *server) {
    cJSON *list = cJSON_CreateArray();

    for (const gwd_device_t *device = server->devices; device; device = device->next) {
        cJSON *json = cJSON_CreateObject();
        bool open = atomic_load(&device->is_open);

        foreign(json, "uuid", device->uuid);
        cJSON_AddStringToObject(json, "state", atomic_load(&device->failed) ? "failed" : open ? "open" : "closed");
        gwd_admin_number(json, "context_bytes", open ? atomic_load(&device->context_bytes) : 0);
        gwd_admin_number(json, "arena_bytes", open ? arenas_bytes(&server->config) : 0);
        gwd_admin_number(json, "buffers", device->refs);
        gwd_admin_number(json, "buffer_bytes", device->imported);
        cJSON_AddItemToArray(list, json);
    }
    return list;
}

/* Those that run here now. */
static const char *engines(const gwd_server_t *server) {
    for (const gwd_device_t *device = server->devices; device; device = device->next)
        if (atomic_load(&device->is_open))
            return "host, staged";
    return "host";
}

void gwd_admin_add_node(cJSON *json, const uint8_t *node) {
    char text[2 * GWD_NODE_BYTES + 1];

    for (size_t i = 0; i < GWD_NODE_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", node[i]);
    cJSON_AddStringToObject(json, "node", text);
}

/* Where other daemons may connect. */
static cJSON *listens_json(const gwd_server_t *server) {
    cJSON *list = cJSON_CreateArray();

    for (unsigned i = 0; i < server->reached_at.n; i++) {
        char text[GWD_ADDRESS_TEXT_BYTES];

        gwd_address_text(&server->reached_at.items[i], text, sizeof(text));
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    return list;
}

cJSON *gwd_admin_status(struct gwd_server *server) {
    cJSON *json = cJSON_CreateObject();
    uint64_t shared, resident = resident_bytes(&shared);

    cJSON_AddStringToObject(json, "version", server->version);
    gwd_admin_add_node(json, server->node);
    cJSON_AddStringToObject(json, "host", server->host);
    gwd_admin_number(json, "pid", (uint64_t)getpid());
    cJSON_AddNumberToObject(json, "uptime_s", seconds_since(server->started_ns));
    cJSON_AddStringToObject(json, "engine", engines(server));
    cJSON_AddStringToObject(json, "isa", gw_kernel_isa());
    cJSON_AddStringToObject(json, "state", server->draining ? "draining" : "serving");
    add_totals(json, server);
    gwd_admin_number(json, "lanes", server->n_lanes);
    gwd_admin_number(json, "reduce_threads", gwd_reduce_threads(server->reduce));
    cJSON_AddNumberToObject(json, "cpu_s", cpu_seconds());
    gwd_admin_number(json, "resident_bytes", resident);
    gwd_admin_number(json, "shared_bytes", shared);
    cJSON_AddStringToObject(json, "socket", server->clients.path);
    cJSON_AddStringToObject(json, "admin_socket", server->admins.path);
    cJSON_AddStringToObject(json, "config_file", server->config.file);
    cJSON_AddItemToObject(json, "devices", devices_json(server));
    cJSON_AddItemToObject(json, "listens", listens_json(server));
    return json;
}

/* ---- clients ------------------------------------------------------------------------------------ */

static void add_bytes(void *item, void *context) {
    uint64_t *bytes = context;

    *bytes += ((gwd_buffer_t *)item)->bytes;
}

cJSON *gwd_admin_clients(struct gwd_server *server) {
    cJSON *list = cJSON_CreateArray();

    for (gwd_session_t *session = server->sessions; session; session = session->next) {
        cJSON *json = cJSON_CreateObject();
        uint64_t bytes = 0;

        gwd_table_each(&session->buffers, add_bytes, &bytes);
        gwd_admin_number(json, "id", session->id);
        gwd_admin_number(json, "uid", session->uid);
        cJSON_AddNumberToObject(json, "pid", session->pid);
        foreign(json, "name", session->name);
        cJSON_AddStringToObject(json, "role", session->role == GWD_ROLE_ADMIN ? "admin" : "client");
        cJSON_AddNumberToObject(json, "connected_s", seconds_since(session->connected_ns));
        gwd_admin_number(json, "groups", session->n_members);
        gwd_admin_number(json, "buffers", session->n_buffers);
        gwd_admin_number(json, "buffer_bytes", bytes);
        cJSON_AddItemToArray(list, json);
    }
    return list;
}

/* ---- groups ------------------------------------------------------------------------------------- */

/* Between nodes, of buckets that leave it to the group. */
static const char *codec_of(const gwd_group_t *group) {
    const gwd_codec_choice_t *choice = &group->policy.choice;

    if (!group->map)
        return gw_codec_name(GW_CODEC_NONE);
    return choice->is_auto ? "auto" : gw_codec_name(group->plan.codecs[0]);
}

/* As soon as one rank's memory is a device's. */
static cJSON *device_row_json(const gwd_group_t *group) {
    const gwd_plan_t *plan = &group->plan;
    cJSON *json = cJSON_CreateObject();

    gwd_admin_number(json, "max_bytes", plan->rows[GWD_PLAN_ROWS - 1].max_bytes);
    cJSON_AddStringToObject(json, "engine", "staged");
    cJSON_AddStringToObject(json, "mover", "copy");
    cJSON_AddStringToObject(json, "codec", codec_of(group));
    gwd_admin_number(json, "chunk_bytes", plan->device_chunk_bytes);
    cJSON_AddStringToObject(json, "memory", "device");
    return json;
}

static cJSON *plan_json(const gwd_group_t *group) {
    const gwd_plan_t *plan = &group->plan;
    cJSON *list = cJSON_CreateArray();

    for (size_t i = 0; i < GWD_PLAN_ROWS; i++) {
        const gwd_plan_row_t *row = &plan->rows[i];
        cJSON *json = cJSON_CreateObject();

        gwd_admin_number(json, "max_bytes", row->max_bytes);
        cJSON_AddStringToObject(json, "engine", "host");
        cJSON_AddStringToObject(json, "mover", "shared");
        cJSON_AddStringToObject(json, "codec", codec_of(group));
        gwd_admin_number(json, "chunk_bytes", row->chunk_bytes);
        cJSON_AddStringToObject(json, "memory", "host");
        cJSON_AddItemToArray(list, json);
    }
    cJSON_AddItemToArray(list, device_row_json(group));
    return list;
}

static cJSON *ranks_json(const gwd_group_t *group) {
    cJSON *list = cJSON_CreateArray();

    for (uint32_t r = 0; r < group->nranks; r++) {
        const gwd_member_t *member = group->members[r];
        cJSON *json = cJSON_CreateObject();
        const uint8_t *node = group->server->node;
        const char *host = member ? group->server->host : gwd_group_remote_host(group, r, &node);

        gwd_admin_number(json, "rank", r);
        cJSON_AddBoolToObject(json, "present", host != NULL);
        if (member) {
            gwd_admin_number(json, "client", member->session->id);
            cJSON_AddNumberToObject(json, "pid", member->session->pid);
            gwd_admin_number(json, "uid", member->session->uid);
        } else if (host) {
            gwd_admin_number(json, "pid", group->pids[r]);
        }
        if (host) {
            cJSON_AddStringToObject(json, "host", host);
            gwd_admin_add_node(json, node);
        }
        if (group->counters) {
            gwd_rank_counters_t *c = &group->counters->ranks[r];

            gwd_admin_number(json, "submitted", atomic_load_explicit(&c->submitted, memory_order_relaxed));
            gwd_admin_number(json, "last_count", atomic_load_explicit(&c->last_count, memory_order_relaxed));
            gwd_admin_number(json, "last_ns", atomic_load_explicit(&c->last_ns, memory_order_relaxed));
        }
        cJSON_AddItemToArray(list, json);
    }
    return list;
}

static cJSON *late_json(const gwd_group_t *group) {
    cJSON *json = cJSON_CreateObject(), *ranks = cJSON_AddArrayToObject(json, "ranks");

    gwd_admin_number(json, "sequence", group->waiting.sequence);
    cJSON_AddNumberToObject(json, "waited_s", (double)group->waiting.waited_ns * 1e-9);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->waiting.waiters[r].submitted)
            cJSON_AddItemToArray(ranks, cJSON_CreateNumber(r));
    return json;
}

static cJSON *group_json(const gwd_group_t *group) {
    cJSON *json = cJSON_CreateObject();
    char hash[17], why[96];
    bool staged;

    gwd_admin_number(json, "id", group->id);
    gwd_admin_number(json, "nranks", group->nranks);
    gwd_admin_number(json, "uid", group->user->uid);
    gwd_admin_number(json, "epoch", group->epoch);
    if (group->state != GWD_GROUP_ACTIVE) {
        cJSON_AddStringToObject(json, "state", group->state == GWD_GROUP_ID ? "id" : "forming");
        cJSON_AddItemToObject(json, "ranks", ranks_json(group));
        return json;
    }
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)group->plan.hash);
    staged = atomic_load_explicit(&group->counters->staged, memory_order_relaxed) > 0;
    cJSON_AddStringToObject(json, "engine", staged ? "staged" : "host");
    snprintf(why, sizeof(why), "%s%s", group->map ? "the ranks are on several nodes" : "all ranks are on this node",
             staged ? ", and buckets lie in a device's memory" : ", in host memory");
    cJSON_AddStringToObject(json, "why", why);
    if (group->map)
        cJSON_AddStringToObject(json, "cipher", group->map->has_cipher ? "chacha20-poly1305" : "none");
    cJSON_AddItemToObject(json, "plan", plan_json(group));
    cJSON_AddStringToObject(json, "plan_hash", hash);
    if (group->map)
        cJSON_AddItemToObject(json, "wire", gwd_admin_wire(group));
    gwd_admin_number(json, "lane", group->lane);
    cJSON_AddStringToObject(json, "state", group->status == GW_OK ? "ok" : "failed");
    cJSON_AddStringToObject(json, "status", gw_status_name(group->status));
    foreign(json, "message", group->message);
    gwd_admin_number(json, "last_completed",
                     atomic_load_explicit(&group->counters->last_completed, memory_order_relaxed));
    gwd_admin_number(json, "in_flight", atomic_load_explicit(&group->counters->in_flight, memory_order_relaxed));
    if (gwd_group_is_late(group))
        cJSON_AddItemToObject(json, "late", late_json(group));
    cJSON_AddItemToObject(json, "ranks", ranks_json(group));
    return json;
}

cJSON *gwd_admin_groups(struct gwd_server *server) {
    cJSON *list = cJSON_CreateArray();

    for (const gwd_group_t *group = server->groups; group; group = group->next)
        cJSON_AddItemToArray(list, group_json(group));
    return list;
}

/* ---- buffers and buckets ------------------------------------------------------------------------ */

static const char *kind_name(uint32_t kind) {
    switch (kind) {
    case GW__HANDLE_KIND__HANDLE_CUDA_IPC:
        return "ipc";
    case GW__HANDLE_KIND__HANDLE_CUDA_VMM:
        return "vmm";
    case GW__HANDLE_KIND__HANDLE_CUDA_POOL:
        return "pool";
    default:
        return "memfd";
    }
}

static const char *path_of(const gwd_buffer_t *buffer) {
    if (buffer->device)
        return "copied by the daemon";
    if (!buffer->copied)
        return "shared";
    return buffer->uuid[0] ? "copied by the client's stream" : "copied by the client";
}

static void add_buffer(void *item, void *context) {
    const gwd_buffer_t *buffer = item;
    cJSON *json = cJSON_CreateObject();

    gwd_admin_number(json, "id", buffer->handle);
    gwd_admin_number(json, "client", buffer->session->id);
    gwd_admin_number(json, "uid", buffer->session->uid);
    gwd_admin_number(json, "bytes", buffer->bytes);
    cJSON_AddStringToObject(json, "kind", kind_name(buffer->kind));
    cJSON_AddStringToObject(json, "path", path_of(buffer));
    cJSON_AddBoolToObject(json, "copied", buffer->copied);
    foreign(json, "device", buffer->uuid);
    foreign(json, "why", buffer->why);
    cJSON_AddItemToArray(context, json);
}

cJSON *gwd_admin_buffers(struct gwd_server *server) {
    cJSON *list = cJSON_CreateArray();

    for (gwd_session_t *session = server->sessions; session; session = session->next)
        gwd_table_each(&session->buffers, add_buffer, list);
    return list;
}

typedef struct bucket_context {
    cJSON *list;
    const gwd_member_t *member;
} bucket_context_t;

static void add_bucket(void *item, void *context) {
    gwd_bucket_t *bucket = item;
    const bucket_context_t *c = context;
    cJSON *json = cJSON_CreateObject();

    gwd_admin_number(json, "group", c->member->group->id);
    gwd_admin_number(json, "rank", c->member->rank);
    gwd_admin_number(json, "bucket", bucket->id);
    foreign(json, "name", bucket->desc.name);
    cJSON_AddStringToObject(json, "collective", gwd_collective_name(bucket->desc.collective));
    cJSON_AddStringToObject(json, "type", gwd_type_name(bucket->desc.type));
    cJSON_AddStringToObject(json, "redop", gwd_bucket_reduces(bucket) ? gwd_redop_name(bucket->desc.redop) : "none");
    gwd_admin_number(json, "count", bucket->desc.count);
    cJSON_AddStringToObject(json, "codec", gw_codec_name(bucket->codec));
    cJSON_AddStringToObject(json, "codec_asked", gw_codec_name(bucket->desc.codec));
    cJSON_AddNumberToObject(json, "priority", bucket->desc.priority);
    gwd_admin_number(json, "residual_bytes", bucket->residual ? gwd_residual_bytes(bucket->desc.count) : 0);
    gwd_admin_number(json, "matrices", bucket->desc.n_matrices);
    gwd_admin_number(json, "rounds", atomic_load_explicit(&bucket->rounds, memory_order_relaxed));
    cJSON_AddNumberToObject(json, "last_us",
                            (double)atomic_load_explicit(&bucket->last_ns, memory_order_relaxed) * 1e-3);
    cJSON_AddBoolToObject(json, "no_error_feedback", bucket->desc.no_error_feedback);
    cJSON_AddItemToArray(c->list, json);
}

cJSON *gwd_admin_buckets(struct gwd_server *server) {
    cJSON *list = cJSON_CreateArray();

    for (const gwd_group_t *group = server->groups; group; group = group->next)
        for (uint32_t r = 0; r < group->nranks; r++)
            if (group->members[r])
                gwd_table_each(&group->members[r]->buckets, add_bucket, &(bucket_context_t){list, group->members[r]});
    return list;
}

/* ---- statistics --------------------------------------------------------------------------------- */

static cJSON *lateness_json(const gwd_server_t *server) {
    cJSON *list = cJSON_CreateArray();

    for (const gwd_group_t *group = server->groups; group; group = group->next)
        for (uint32_t r = 0; group->counters && r < group->nranks; r++) {
            gwd_rank_counters_t *c = &group->counters->ranks[r];
            cJSON *json = cJSON_CreateObject();

            gwd_admin_number(json, "id", group->id);
            gwd_admin_number(json, "rank", r);
            gwd_admin_number(json, "last_count", atomic_load_explicit(&c->last_count, memory_order_relaxed));
            gwd_admin_number(json, "last_ns", atomic_load_explicit(&c->last_ns, memory_order_relaxed));
            cJSON_AddItemToArray(list, json);
        }
    return list;
}

cJSON *gwd_admin_stats(struct gwd_server *server) {
    cJSON *json = cJSON_CreateObject();
    gwd_stats_t *sum = calloc(1, sizeof(*sum));

    if (!sum) {
        cJSON_Delete(json);
        return NULL;
    }
    gwd_stats_sum(sum, &server->stats);
    for (uint32_t i = 0; i < server->n_lanes; i++)
        gwd_stats_sum(sum, gwd_lane_stats(server->lanes[i]));
    cJSON_AddItemToObject(json, "stats", gwd_stats_json(sum));
    cJSON_AddItemToObject(json, "groups", lateness_json(server));
    free(sum);
    return json;
}

cJSON *gwd_admin_config(struct gwd_server *server) {
    return gwd_config_json(&server->config);
}
