/* bootstrap_branch.c - a daemon whose clients join with another daemon's unique id. See bootstrap.h
 *
 * It tries the addresses of the id in turn, several times, and then gives up: a daemon that is not there will hardly
 * come back with the same id.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "escape.h"
#include "gradwire.pb-c.h"
#include "kernels.h"
#include "log.h"
#include "measure.h"
#include "status.h"
#include "unpack.h"

enum { ROUNDS = 3, PAUSE_MS = 1000, GRACE_S = 5 };

struct gwd_branch {
    gwd_group_t *group;
    gwd_contact_t *peer;
    uv_timer_t pause; /* between two rounds */
    gwd_address_list_t roots;
    char why[GWD_ADDRESSES_MAX][128]; /* what came of each */
    unsigned at, round;
    bool greeted;             /* the root has welcomed it */
    char host[65];            /* of the root */
    uint32_t n_rows;          /* of the table that have come */
    bool measuring, measured; /* NodeMeasure has come, and NodeMeasured has gone */
};

static void connect_next(struct gwd_branch *branch);

/* ---- connecting --------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void gwd_branch_end(gwd_group_t *group, gw_status_t status, const char *text) {
    struct gwd_branch *branch = group->branch;

    group->branch = NULL;
    group->awaits_speed = false;
    if (branch->peer && status != GW_OK)
        gwd_bootstrap_refuse(branch->peer, status, text);
    else if (branch->peer)
        gwd_contact_finish(branch->peer);
    gwd_quota_refund(group->user, GWD_QUOTA_FDS, 1);
    uv_close((uv_handle_t *)&branch->pause, on_closed);
}

static void list_tries(const struct gwd_branch *branch, char *text, size_t text_bytes) {
    size_t used = 0;

    text[0] = 0;
    for (unsigned i = 0; i < branch->roots.n && used < text_bytes; i++) {
        char address[GWD_ADDRESS_TEXT_BYTES];

        gwd_address_text(&branch->roots.items[i], address, sizeof(address));
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s (%s)", i ? ", " : "", address,
                                 branch->why[i][0] ? branch->why[i] : "no answer yet");
    }
}

/* Says it short first: a long list must not push the remedy out. */
static void unreachable(const struct gwd_branch *branch, char *text, size_t text_bytes) {
    char tries[GWD_TEXT_BYTES / 2];

    list_tries(branch, tries, sizeof(tries));
    snprintf(
        text, text_bytes,
        "host %s does not reach the daemon that made the unique id; tried %s. A firewall must open these ports, and "
        "those of the data (wire.ports)",
        branch->group->server->host, tries);
}

static void on_pause_over(uv_timer_t *timer) {
    connect_next(timer->data);
}

static void on_proven(gwd_contact_t *peer);
static void on_frame(gwd_contact_t *peer, uint8_t type, const uint8_t *body, size_t bytes);
static void on_gone(gwd_contact_t *peer, const char *why);

static const gwd_contact_events_t events = {on_proven, on_frame, on_gone};

static void connect_next(struct gwd_branch *branch) {
    gwd_group_t *group = branch->group;
    char text[GWD_TEXT_BYTES];

    if (branch->at == branch->roots.n) {
        branch->at = 0;
        if (++branch->round < ROUNDS) {
            (void)uv_timer_start(&branch->pause, on_pause_over, PAUSE_MS, 0);
            return;
        }
        unreachable(branch, text, sizeof(text));
        gwd_group_give_up(group, GW_ERR_BOOTSTRAP, text);
        return;
    }
    branch->peer =
        gwd_contact_connect(group->server, &branch->roots.items[branch->at], gwd_bootstrap_id(group), &events, branch);
    if (!branch->peer)
        gwd_group_give_up(group, GW_ERR_NO_MEMORY, "out of memory");
}

static void on_gone(gwd_contact_t *peer, const char *why) {
    struct gwd_branch *branch = peer->owner;
    char text[GWD_TEXT_BYTES];

    branch->peer = NULL;
    if (!branch->greeted) {
        snprintf(branch->why[branch->at], sizeof(branch->why[0]), "%s", why);
        branch->at++;
        connect_next(branch);
        return;
    }
    snprintf(text, sizeof(text),
             "host %s, whose daemon made the unique id, was lost while the group was forming: the connection to %s %s",
             branch->host, peer->text, why);
    gwd_group_give_up(branch->group, GW_ERR_BOOTSTRAP, text);
}

gw_status_t gwd_branch_new(gwd_group_t *group, char *text, size_t text_bytes) {
    struct gwd_branch *branch;
    gw_status_t status;

    status = gwd_quota_charge(&group->server->quota, group->user, GWD_QUOTA_FDS, 1, text, text_bytes);
    if (status != GW_OK)
        return status;
    branch = calloc(1, sizeof(*branch));
    if (!branch) {
        gwd_quota_refund(group->user, GWD_QUOTA_FDS, 1);
        snprintf(text, text_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    branch->group = group;
    branch->pause.data = branch;
    (void)uv_timer_init(&group->server->loop, &branch->pause); /* cannot fail */
    gwd_address_from_id(gwd_bootstrap_id(group), &branch->roots);
    group->branch = branch;
    if (branch->roots.n == 0) {
        snprintf(
            text, text_bytes,
            "it was made by another daemon, or before this one was restarted; a daemon that makes ids for groups over "
            "several nodes needs wire.listen in its configuration");
        return GW_ERR_UNKNOWN_ID;
    }
    (void)uv_timer_start(&branch->pause, on_pause_over, 0, 0); /* once its first rank is in it */
    return GW_OK;
}

void gwd_branch_late(const gwd_group_t *group, char *text, size_t text_bytes) {
    const struct gwd_branch *branch = group->branch;

    if (!branch->greeted)
        unreachable(branch, text, text_bytes);
    else
        snprintf(text, text_bytes, "host %s, whose daemon made the unique id, does not say what became of the group",
                 branch->host);
}

/* ---- joining ------------------------------------------------------------------------------------ */

static void on_proven(gwd_contact_t *peer) {
    const struct gwd_branch *branch = peer->owner;
    gwd_group_t *group = branch->group;
    gwd_server_t *server = group->server;
    char values[GWD_COUNT_SHARED][GWD_CONFIG_STRING_BYTES], text[GWD_TEXT_BYTES];
    Gw__NodeSetting settings[GWD_COUNT_SHARED], *all[GWD_COUNT_SHARED];
    Gw__NodeHello hello = GW__NODE_HELLO__INIT;
    const void *address;
    gwd_ip_list_t own;
    gw_status_t status;

    gwd_group_choose_lane(group);
    status = gwd_wires_make(group, &address, &hello.address.len, text);
    if (status != GW_OK) {
        gwd_group_give_up(group, status, text);
        return;
    }
    for (size_t i = 0; i < GWD_COUNT_SHARED; i++) {
        gwd_bootstrap_setting(server, i, values[i]);
        gw__node_setting__init(&settings[i]);
        settings[i].name = (char *)(uintptr_t)gwd_bootstrap_shared[i];
        settings[i].value = values[i];
        all[i] = &settings[i];
    }
    hello.nranks = group->nranks;
    hello.host = server->host;
    hello.version = (char *)(uintptr_t)server->version;
    hello.isa = (char *)(uintptr_t)gw_kernel_isa();
    hello.n_setting = GWD_COUNT_SHARED;
    hello.setting = all;
    hello.address.data = (uint8_t *)(uintptr_t)address;
    gwd_ip_own(&own);
    hello.from.data = (uint8_t *)own.ips;
    hello.from.len = own.n * sizeof(own.ips[0]);
    gwd_contact_send(peer, GWD_FRAME_HELLO, &hello.base);
}

void gwd_branch_add(gwd_group_t *group, const gwd_member_t *member) {
    Gw__NodeRank message = GW__NODE_RANK__INIT;
    char codec[GWD_CHOICE_BYTES];

    if (!group->branch->greeted) /* all are sent then */
        return;
    message.rank = member->rank;
    message.pid = (uint32_t)member->session->pid;
    gwd_choice_format(&member->codec, codec);
    message.codec = codec;
    message.stochastic = member->codec.is_stochastic;
    message.configured = member->codec.is_configured;
    gwd_contact_send(group->branch->peer, GWD_FRAME_RANK, &message.base);
}

static bool on_welcome(struct gwd_branch *branch, const Gw__NodeWelcome *welcome) {
    gwd_group_t *group = branch->group;

    gw_escape(welcome->host, strlen(welcome->host), branch->host, sizeof(branch->host));
    branch->greeted = true;
    gwd_contact_settle(branch->peer);
    /* The root knows best who is missing, so it is left to speak first. */
    gwd_group_start_timer_s(group, (uint64_t)welcome->deadline_s + GRACE_S);
    gwd_log(GWD_LOG_INFO, "group", "group %u joins one of host %s at %s, gradwired %s", group->id, branch->host,
            branch->peer->text, welcome->version);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->members[r])
            gwd_branch_add(group, group->members[r]);
    return true;
}

static bool on_refusal(struct gwd_branch *branch, const Gw__NodeRefusal *refusal) {
    gwd_group_t *group = branch->group;
    gwd_member_t *member = refusal->rank < group->nranks ? group->members[refusal->rank] : NULL;
    char text[GWD_TEXT_BYTES];

    if (!member || group->state != GWD_GROUP_FORMING)
        return false;
    gw_escape(refusal->text, strlen(refusal->text), text, sizeof(text));
    member->leaving = true; /* the answer may close its session, which must not end the others */
    gwd_session_error(member->session, member->request, gw_status_failure(refusal->status, GW_ERR_BOOTSTRAP), "%s",
                      text);
    gwd_member_free(member); /* the last one ends the group */
    return true;
}

/* ---- the table ---------------------------------------------------------------------------------- */

static bool take_ranks(gwd_group_t *group, const Gw__NodeTable *row, bool own) {
    uint32_t unknown = group->map->n_nodes;

    if (row->n_rank == 0 || row->n_pid != row->n_rank)
        return false;
    for (size_t i = 0; i < row->n_rank; i++) {
        uint32_t rank = row->rank[i];

        if (rank >= group->nranks || (i > 0 && rank <= row->rank[i - 1]) || group->map->node_of[rank] != unknown ||
            (group->members[rank] != NULL) != own)
            return false;
        group->map->node_of[rank] = row->index;
        group->pids[rank] = row->pid[i];
    }
    return row->index == 0 || row->rank[0] > group->map->nodes[row->index - 1].lowest_rank;
}

/* False: it is not a row that may come now, or there is no memory for it. */
static bool take_row(struct gwd_branch *branch, const Gw__NodeTable *row) {
    gwd_group_t *group = branch->group;
    bool own = row->node.len == GWD_NODE_BYTES && memcmp(row->node.data, group->server->node, GWD_NODE_BYTES) == 0;
    gwd_group_node_t *node;

    if (branch->n_rows == 0) {
        if (row->nodes == 0 || row->nodes > group->nranks || !gwd_bootstrap_new_map(group, row->nodes))
            return false;
        group->pids = calloc(group->nranks, sizeof(*group->pids));
        group->map->own_node = row->nodes;
        for (uint32_t r = 0; r < group->nranks; r++)
            group->map->node_of[r] = row->nodes;
    }
    if (!group->pids || row->index != branch->n_rows++ || row->nodes != group->map->n_nodes ||
        row->index >= row->nodes || row->node.len != GWD_NODE_BYTES || !take_ranks(group, row, own))
        return false;
    node = &group->map->nodes[row->index];
    memcpy(node->id, row->node.data, sizeof(node->id));
    gw_escape(row->host, strlen(row->host), node->host, sizeof(node->host));
    node->lowest_rank = row->rank[0];
    if (own) {
        group->map->own_node = row->index;
        return true;
    }
    if (row->address.len == 0 || row->address.len > GWD_WIRE_ADDRESS_MAX)
        return false;
    node->address = malloc(row->address.len);
    node->address_bytes = row->address.len;
    if (node->address)
        memcpy(node->address, row->address.data, row->address.len);
    return node->address && gwd_ip_copy(row->from.data, row->from.len, &node->ips, &node->n_ips);
}

static bool is_whole(const gwd_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->map->node_of[r] == group->map->n_nodes)
            return false;
    return group->map->own_node < group->map->n_nodes;
}

/* The root has seen to it that all ranks ask for the same. */
static void take_choice(gwd_group_t *group) {
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->members[r])
            group->policy.choice = group->members[r]->codec;
}

static bool on_table(struct gwd_branch *branch, const Gw__NodeTable *row) {
    gwd_group_t *group = branch->group;
    Gw__NodePrepared prepared = GW__NODE_PREPARED__INIT;
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (group->state != GWD_GROUP_FORMING || !take_row(branch, row))
        return false;
    if (branch->n_rows < group->map->n_nodes)
        return true;
    if (!is_whole(group))
        return false;
    take_choice(group);
    status = gwd_group_prepare(group, text, sizeof(text));
    if (status != GW_OK)
        gwd_group_give_up(group, status, text);
    else
        gwd_contact_send(branch->peer, GWD_FRAME_PREPARED, &prepared.base);
    return true;
}

static bool on_measure(struct gwd_branch *branch) {
    gwd_group_t *group = branch->group;

    if (group->state != GWD_GROUP_PREPARED || !group->map || branch->measuring)
        return false;
    branch->measuring = true;
    gwd_measure_begin(group);
    return true;
}

void gwd_branch_measured(gwd_group_t *group, const gwd_codec_figures_t *figures) {
    Gw__NodeMeasured message = GW__NODE_MEASURED__INIT;

    message.bytes_per_s = figures->bytes_per_s;
    message.latency_ns = figures->latency_ns;
    message.n_coding = GW_CODECS;
    message.coding = (uint64_t *)(uintptr_t)figures->coding; /* it is only packed */
    group->branch->measured = true;
    gwd_contact_send(group->branch->peer, GWD_FRAME_MEASURED, &message.base);
}

/* The plan's table of codecs, as the root has made it. */
static bool take_codecs(gwd_group_t *group, const Gw__NodeGo *go) {
    gw_codec_t table[GWD_SIZE_CLASSES];

    if (go->n_codec != GWD_SIZE_CLASSES)
        return false;
    for (size_t i = 0; i < GWD_SIZE_CLASSES; i++) {
        table[i] = (gw_codec_t)go->codec[i];
        if (go->codec[i] >= GW_CODECS || !(group->policy.choice.permitted & 1u << go->codec[i]))
            return false;
    }
    gwd_plan_set_codecs(&group->plan, table);
    return true;
}

static bool on_go(const struct gwd_branch *branch, const Gw__NodeGo *go) {
    gwd_group_t *group = branch->group;
    gwd_codec_policy_t *policy = &group->policy;

    if (group->state != GWD_GROUP_PREPARED || branch->measuring != branch->measured || !take_codecs(group, go))
        return false;
    policy->is_measured = gwd_measure_read(go->bytes_per_s, go->latency_ns, go->n_coding, go->coding, &policy->figures);
    gwd_branch_end(group, GW_OK, NULL);
    gwd_group_go(group);
    return true;
}

/* ---- frames ------------------------------------------------------------------------------------- */

static void fail(struct gwd_branch *branch, gw_status_t status, const char *text) {
    gwd_contact_finish(branch->peer);
    branch->peer = NULL; /* nothing is sent back */
    gwd_group_give_up(branch->group, status, text);
}

static bool take_frame(struct gwd_branch *branch, uint8_t type, const uint8_t *body, size_t bytes) {
    static const ProtobufCMessageDescriptor *const descriptors[] = {[GWD_FRAME_WELCOME] = &gw__node_welcome__descriptor,
                                                                    [GWD_FRAME_REFUSAL] = &gw__node_refusal__descriptor,
                                                                    [GWD_FRAME_TABLE] = &gw__node_table__descriptor,
                                                                    [GWD_FRAME_GO] = &gw__node_go__descriptor,
                                                                    [GWD_FRAME_MEASURE] =
                                                                        &gw__node_measure__descriptor};
    ProtobufCMessage *message = NULL;
    bool good = false;

    if (type < sizeof(descriptors) / sizeof(descriptors[0]) && descriptors[type] &&
        branch->greeted == (type != GWD_FRAME_WELCOME))
        message = gwd_unpack(descriptors[type], body, bytes);
    if (!message)
        return false;
    if (type == GWD_FRAME_WELCOME)
        good = on_welcome(branch, (const Gw__NodeWelcome *)message);
    else if (type == GWD_FRAME_REFUSAL)
        good = on_refusal(branch, (const Gw__NodeRefusal *)message);
    else if (type == GWD_FRAME_TABLE)
        good = on_table(branch, (const Gw__NodeTable *)message);
    else if (type == GWD_FRAME_MEASURE)
        good = on_measure(branch);
    else
        good = on_go(branch, (const Gw__NodeGo *)message);
    gwd_unpack_free(message);
    return good;
}

static void on_frame(gwd_contact_t *peer, uint8_t type, const uint8_t *body, size_t bytes) {
    struct gwd_branch *branch = peer->owner;
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (type == GWD_FRAME_FAILURE && gwd_bootstrap_read_failure(body, bytes, &status, text, sizeof(text))) {
        fail(branch, status, text);
    } else if (type == GWD_FRAME_FAILURE || !take_frame(branch, type, body, bytes)) {
        snprintf(text, sizeof(text), "the daemon at %s broke the protocol between daemons", peer->text);
        fail(branch, GW_ERR_BOOTSTRAP, text);
    }
}
