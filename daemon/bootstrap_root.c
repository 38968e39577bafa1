/* bootstrap_root.c - the daemon that made the unique id: collects the ranks of other nodes. See bootstrap.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "clock.h"
#include "escape.h"
#include "gradwire.pb-c.h"
#include "group_codec.h"
#include "log.h"
#include "measure.h"
#include "unpack.h"

/* A daemon that has proved itself for a group. */
typedef struct branch {
    struct branch *next;
    gwd_group_t *group;
    gwd_contact_t *peer;
    uint8_t node[GWD_NODE_BYTES];
    char host[65], version[32];
    void *address;
    size_t address_bytes;
    gwd_ip_t *ips;
    uint32_t n_ips;
    uint32_t n_ranks;
    bool greeted, prepared, measured;
} branch_t;

struct gwd_root {
    branch_t *branches;
    branch_t **holders; /* nranks, NULL where the rank is not of another node; from the first Hello on */
    uint32_t n_ranks;   /* held by branches */
    bool told;          /* the table has been sent */
    bool measuring;     /* so has NodeMeasure */
    bool own_measured;
    gwd_codec_figures_t figures; /* of the slowest so far */
};

uint32_t gwd_root_ranks(const gwd_group_t *group) {
    return group->root ? group->root->n_ranks : 0;
}

const char *gwd_root_holder(const gwd_group_t *group, uint32_t rank, const uint8_t **node_out) {
    const branch_t *branch = group->root && group->root->holders ? group->root->holders[rank] : NULL;

    *node_out = branch ? branch->node : NULL;
    return branch ? branch->host : NULL;
}

/* ---- branches come and go ----------------------------------------------------------------------- */

/* Its connection has been finished or closed, or is about to be. */
static void free_branch(branch_t *branch) {
    gwd_group_t *group = branch->group;
    branch_t **at = &group->root->branches;

    while (*at != branch)
        at = &(*at)->next;
    *at = branch->next;
    for (uint32_t r = 0; r < group->nranks && branch->n_ranks > 0; r++) {
        if (group->root->holders[r] != branch)
            continue;
        group->root->holders[r] = NULL;
        group->root->n_ranks--;
        branch->n_ranks--;
    }
    gwd_quota_refund(group->user, GWD_QUOTA_FDS, 1);
    free(branch->address);
    free(branch->ips);
    free(branch);
}

/* Without ranks it is missed by nobody; else the group ends with it. `text` may end together with the branch. */
static void lose_branch(branch_t *branch, gw_status_t status, const char *text) {
    gwd_group_t *group = branch->group;
    bool missed = branch->n_ranks > 0;
    char copy[GWD_TEXT_BYTES];

    snprintf(copy, sizeof(copy), "%s", text);
    free_branch(branch);
    if (missed)
        gwd_group_give_up(group, status, copy);
}

static void refuse_branch(branch_t *branch, gw_status_t status, const char *text) {
    gwd_log(GWD_LOG_NOTICE, "group", "group %u refuses the daemon at %s: %s", branch->group->id, branch->peer->text,
            text);
    gwd_bootstrap_refuse(branch->peer, status, text);
    lose_branch(branch, status, text);
}

static void on_gone(gwd_contact_t *peer, const char *why) {
    branch_t *branch = peer->owner;
    char text[GWD_TEXT_BYTES];

    snprintf(text, sizeof(text), "host %s was lost while the group was forming: the connection to %s %s", branch->host,
             peer->text, why);
    lose_branch(branch, GW_ERR_BOOTSTRAP, text);
}

/* There is no group that it could join. */
static void say_what_became(gwd_contact_t *peer) {
    const gwd_unmade_t *unmade = gwd_unmade_by_name(&peer->server->unmade, peer->transcript.knock.name, gwd_now_ns());

    if (unmade)
        gwd_bootstrap_refuse(peer, unmade->status, unmade->text);
    else
        gwd_bootstrap_refuse(peer, GW_ERR_UNKNOWN_ID, "the group has ended, or all its ranks have joined");
}

static void on_proven(gwd_contact_t *peer) {
    gwd_group_t *group = gwd_bootstrap_find(peer->server, peer->transcript.knock.name);
    branch_t *branch = NULL;
    char text[GWD_TEXT_BYTES];

    if (!group) {
        say_what_became(peer);
        return;
    }
    if (!group->root)
        group->root = calloc(1, sizeof(*group->root));
    if (gwd_quota_charge(&group->server->quota, group->user, GWD_QUOTA_FDS, 1, text, sizeof(text)) != GW_OK) {
        gwd_bootstrap_refuse(peer, GW_ERR_QUOTA, text);
        return;
    }
    if (group->root)
        branch = calloc(1, sizeof(*branch));
    if (!branch) {
        gwd_quota_refund(group->user, GWD_QUOTA_FDS, 1);
        gwd_bootstrap_refuse(peer, GW_ERR_NO_MEMORY, "the root daemon is out of memory");
        return;
    }
    *branch = (branch_t){.next = group->root->branches, .group = group, .peer = peer};
    memcpy(branch->node, peer->transcript.knock.node, sizeof(branch->node));
    group->root->branches = branch;
    peer->owner = branch;
}

/* ---- what they say ------------------------------------------------------------------------------ */

static void copy_text(const char *from, char *to, size_t bytes) {
    gw_escape(from, strlen(from), to, bytes);
}

/* The group cannot be: what must be the same is not. Returns whether it went on. */
static bool compare_settings(const branch_t *branch, const Gw__NodeHello *hello) {
    gwd_group_t *group = branch->group;

    if (strcmp(branch->version, group->server->version) != 0) { /* what goes over the wire has no version of its own */
        char text[GWD_TEXT_BYTES];

        snprintf(text, sizeof(text),
                 "gradwired is %s on host %s and %s on host %s: install the same version on all hosts of a group",
                 group->server->version, group->server->host, branch->version, branch->host);
        gwd_group_give_up(group, GW_ERR_BOOTSTRAP, text);
        return false;
    }
    for (size_t i = 0; i < GWD_COUNT_SHARED; i++) {
        char own[GWD_CONFIG_STRING_BYTES], theirs[GWD_CONFIG_STRING_BYTES] = "not set", text[GWD_TEXT_BYTES];

        gwd_bootstrap_setting(group->server, i, own);
        for (size_t n = 0; n < hello->n_setting; n++)
            if (strcmp(hello->setting[n]->name, gwd_bootstrap_shared[i]) == 0)
                copy_text(hello->setting[n]->value, theirs, sizeof(theirs));
        if (strcmp(own, theirs) == 0)
            continue;
        snprintf(text, sizeof(text), "%s is %s on host %s and %s on host %s: set the same on all hosts of a group",
                 gwd_bootstrap_shared[i], own, group->server->host, theirs, branch->host);
        gwd_group_give_up(group, GW_ERR_BOOTSTRAP, text);
        return false;
    }
    return true;
}

/* Two connections of one daemon: the older is a remnant, unless it has ranks. */
static bool is_twice(const branch_t *branch) {
    branch_t *other = branch->group->root->branches, *next;

    for (; other; other = next) {
        next = other->next;
        if (other == branch || memcmp(other->node, branch->node, sizeof(branch->node)) != 0)
            continue;
        if (other->n_ranks > 0)
            return true;
        gwd_contact_finish(other->peer);
        free_branch(other);
    }
    return false;
}

static void welcome(const branch_t *branch) {
    const gwd_server_t *server = branch->group->server;
    Gw__NodeWelcome message = GW__NODE_WELCOME__INIT;

    message.host = (char *)(uintptr_t)server->host;
    message.version = (char *)(uintptr_t)server->version;
    message.deadline_s = (uint32_t)server->config.deadline_bootstrap_s;
    gwd_contact_send(branch->peer, GWD_FRAME_WELCOME, &message.base);
}

static void on_hello(branch_t *branch, const Gw__NodeHello *hello) {
    gwd_group_t *group = branch->group;
    struct gwd_root *root = group->root;
    char who[96], text[GWD_TEXT_BYTES];
    gw_status_t status;

    branch->greeted = true;
    copy_text(hello->host, branch->host, sizeof(branch->host));
    copy_text(hello->version, branch->version, sizeof(branch->version));
    if (is_twice(branch)) {
        refuse_branch(branch, GW_ERR_BOOTSTRAP, "this daemon takes part in the group already");
        return;
    }
    snprintf(who, sizeof(who), "a rank on host %s", branch->host);
    status = gwd_group_expect(group, hello->nranks, who, text, sizeof(text));
    if (status == GW_OK && (hello->address.len == 0 || hello->address.len > GWD_WIRE_ADDRESS_MAX)) {
        snprintf(text, sizeof(text), "host %s has a wire address of %zu bytes", branch->host, hello->address.len);
        status = GW_ERR_BOOTSTRAP;
    }
    if (status == GW_OK && !root->holders)
        root->holders = calloc(group->nranks, sizeof(branch_t *));
    if (status == GW_OK && !group->pids)
        group->pids = calloc(group->nranks, sizeof(*group->pids));
    if (status == GW_OK)
        branch->address = malloc(hello->address.len);
    if (status == GW_OK && (!root->holders || !group->pids || !branch->address ||
                            !gwd_ip_copy(hello->from.data, hello->from.len, &branch->ips, &branch->n_ips))) {
        snprintf(text, sizeof(text), "the root daemon is out of memory, or addresses of host %s are malformed",
                 branch->host);
        status = GW_ERR_NO_MEMORY;
    }
    if (status != GW_OK) {
        refuse_branch(branch, status, text);
        return;
    }
    branch->address_bytes = hello->address.len;
    memcpy(branch->address, hello->address.data, hello->address.len);
    if (!compare_settings(branch, hello))
        return;
    gwd_log(GWD_LOG_INFO, "group", "group %u: host %s at %s takes part, with gradwired %s on %s", group->id,
            branch->host, branch->peer->text, branch->version, hello->isa);
    gwd_contact_settle(branch->peer);
    welcome(branch);
}

static void refuse_rank(const branch_t *branch, uint32_t rank, const char *text) {
    Gw__NodeRefusal message = GW__NODE_REFUSAL__INIT;

    message.rank = rank;
    message.status = GW_ERR_INVALID_ARGUMENT;
    message.text = (char *)(uintptr_t)text;
    gwd_contact_send(branch->peer, GWD_FRAME_REFUSAL, &message.base);
}

/* False: what it asks for is no codec. */
static bool take_choice(const branch_t *branch, const Gw__NodeRank *message, char *text, size_t text_bytes) {
    gwd_codec_choice_t choice;

    if (!gwd_choice_parse(message->codec, &choice, text, text_bytes))
        return false;
    choice.is_stochastic = message->stochastic;
    choice.is_configured = message->configured;
    gwd_group_agree(branch->group, message->rank, branch->host, &choice);
    return true;
}

static void on_rank(branch_t *branch, const Gw__NodeRank *message) {
    gwd_group_t *group = branch->group;
    struct gwd_root *root = group->root;
    char text[GWD_TEXT_BYTES];

    if (root->told) {
        snprintf(text, sizeof(text), "the group is complete: all its %u ranks have joined", group->nranks);
        refuse_rank(branch, message->rank, text);
        return;
    }
    if (gwd_group_is_taken(group, message->rank, text, sizeof(text))) {
        refuse_rank(branch, message->rank, text);
        return;
    }
    root->holders[message->rank] = branch;
    group->pids[message->rank] = message->pid;
    branch->n_ranks++;
    root->n_ranks++;
    if (take_choice(branch, message, text, sizeof(text)))
        gwd_group_check_complete(group);
    else
        gwd_group_give_up(group, GW_ERR_BOOTSTRAP, text);
}

/* ---- the table ---------------------------------------------------------------------------------- */

/* Fills the map's nodes in the order of their lowest ranks, and node_of. `branches` says whose each is; NULL: ours. */
static void number_nodes(gwd_group_t *group, const branch_t **branches) {
    gwd_group_map_t *map = group->map;
    uint32_t n = 0;

    for (uint32_t r = 0; r < group->nranks; r++) {
        const branch_t *branch = group->root->holders[r];
        uint32_t i = 0;

        while (i < n && branches[i] != branch)
            i++;
        map->node_of[r] = i;
        if (i < n)
            continue;
        branches[n++] = branch;
        map->nodes[i].lowest_rank = r;
        memcpy(map->nodes[i].id, branch ? branch->node : group->server->node, GWD_NODE_BYTES);
        snprintf(map->nodes[i].host, sizeof(map->nodes[i].host), "%s", branch ? branch->host : group->server->host);
        if (!branch)
            map->own_node = i;
    }
}

/* Sends one node's row to all. */
static void send_row(gwd_group_t *group, uint32_t index, const branch_t *of, const void *address, size_t bytes,
                     const gwd_ip_list_t *own, uint32_t *ranks) {
    const gwd_group_map_t *map = group->map;
    Gw__NodeTable row = GW__NODE_TABLE__INIT;
    uint32_t *pids = ranks + group->nranks;

    for (uint32_t r = 0; r < group->nranks; r++) {
        if (map->node_of[r] != index)
            continue;
        ranks[row.n_rank++] = r;
        pids[row.n_pid++] = of ? group->pids[r] : (uint32_t)group->members[r]->session->pid;
    }
    row.index = index;
    row.nodes = map->n_nodes;
    row.node = (ProtobufCBinaryData){GWD_NODE_BYTES, map->nodes[index].id};
    row.host = map->nodes[index].host;
    row.version = (char *)(uintptr_t)(of ? of->version : group->server->version);
    row.address = (ProtobufCBinaryData){bytes, (uint8_t *)(uintptr_t)address};
    row.from.data = (uint8_t *)(uintptr_t)(of ? of->ips : own->ips);
    row.from.len = (of ? of->n_ips : own->n) * sizeof(gwd_ip_t);
    row.rank = ranks;
    row.pid = pids;
    for (const branch_t *branch = group->root->branches; branch; branch = branch->next)
        if (branch->n_ranks > 0)
            gwd_contact_send(branch->peer, GWD_FRAME_TABLE, &row.base);
}

static gw_status_t send_table(gwd_group_t *group, const branch_t **branches, uint32_t *ranks, char *text) {
    gwd_group_map_t *map = group->map;
    gwd_ip_list_t own;

    gwd_ip_own(&own);
    for (uint32_t i = 0; i < map->n_nodes; i++) {
        const branch_t *branch = branches[i];
        const void *address = branch ? branch->address : NULL;
        size_t bytes = branch ? branch->address_bytes : 0;
        gw_status_t status = branch ? GW_OK : gwd_wires_make(group, &address, &bytes, text);

        if (status != GW_OK)
            return status;
        send_row(group, i, branch, address, bytes, &own, ranks);
        if (!branch)
            continue;
        map->nodes[i].address = malloc(bytes);
        if (!map->nodes[i].address ||
            !gwd_ip_copy(branch->ips, branch->n_ips * sizeof(gwd_ip_t), &map->nodes[i].ips, &map->nodes[i].n_ips))
            return GW_ERR_NO_MEMORY;
        memcpy(map->nodes[i].address, address, bytes);
        map->nodes[i].address_bytes = bytes;
    }
    return GW_OK;
}

void gwd_root_complete(gwd_group_t *group) {
    const branch_t **branches;
    uint32_t *ranks = calloc(group->nranks, 2 * sizeof(*ranks)), n_nodes = group->n_members > 0;
    char text[GWD_TEXT_BYTES] = "the root daemon is out of memory";
    gw_status_t status = GW_ERR_NO_MEMORY;

    for (const branch_t *branch = group->root->branches; branch; branch = branch->next)
        n_nodes += branch->n_ranks > 0;
    branches = calloc(n_nodes, sizeof(*branches));
    group->root->told = true;
    gwd_group_choose_lane(group);
    if (ranks && branches && gwd_bootstrap_new_map(group, n_nodes)) {
        number_nodes(group, branches);
        status = send_table(group, branches, ranks, text);
    }
    if (status == GW_OK)
        status = gwd_group_prepare(group, text, sizeof(text));
    free(ranks);
    free(branches);
    if (status != GW_OK)
        gwd_group_give_up(group, status, text);
    else
        gwd_group_start_timer(group);
}

bool gwd_root_late(const gwd_group_t *group, char *text, size_t text_bytes) {
    size_t used = 0;

    if (!group->root || !group->root->told)
        return false;
    text[0] = 0;
    for (const branch_t *branch = group->root->branches; branch; branch = branch->next)
        if (branch->n_ranks > 0 && !(group->root->measuring ? branch->measured : branch->prepared) && used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%shost %s", used ? ", " : "", branch->host);
    if (used < text_bytes)
        snprintf(text + used, text_bytes - used,
                 " did not get ready within %lld s of the last rank's joining (deadline.bootstrap_s)",
                 (long long)group->server->config.deadline_bootstrap_s);
    return true;
}

static void send_to_all(const gwd_group_t *group, gwd_frame_type_t type, const ProtobufCMessage *message) {
    for (const branch_t *branch = group->root->branches; branch; branch = branch->next)
        if (branch->n_ranks > 0)
            gwd_contact_send(branch->peer, type, message);
}

static void go(gwd_group_t *group) {
    gwd_codec_figures_t *figures = &group->policy.figures;
    gw_codec_t table[GWD_SIZE_CLASSES];
    uint32_t numbers[GWD_SIZE_CLASSES];
    Gw__NodeGo message = GW__NODE_GO__INIT;

    gwd_group_codec_table(group, table);
    for (size_t i = 0; i < GWD_SIZE_CLASSES; i++)
        numbers[i] = (uint32_t)table[i];
    message.n_codec = GWD_SIZE_CLASSES;
    message.codec = numbers;
    if (group->policy.is_measured) {
        message.bytes_per_s = figures->bytes_per_s;
        message.latency_ns = figures->latency_ns;
        message.n_coding = GW_CODECS;
        message.coding = figures->coding;
    }
    send_to_all(group, GWD_FRAME_GO, &message.base);
    gwd_root_end(group, GW_OK, NULL);
    gwd_group_go(group);
}

static void measure(gwd_group_t *group) {
    const Gw__NodeMeasure message = GW__NODE_MEASURE__INIT;

    group->root->measuring = true;
    group->root->own_measured = group->n_members == 0;
    group->root->figures.bytes_per_s = UINT64_MAX;
    for (int i = 0; i < GW_CODECS; i++)
        group->root->figures.coding[i] = UINT64_MAX;
    send_to_all(group, GWD_FRAME_MEASURE, &message.base);
    if (group->n_members > 0)
        gwd_measure_begin(group);
}

static void on_prepared(branch_t *branch) {
    gwd_group_t *group = branch->group;

    branch->prepared = true;
    for (const branch_t *other = group->root->branches; other; other = other->next)
        if (other->n_ranks > 0 && !other->prepared)
            return;
    if (group->policy.choice.is_auto && group->map->n_nodes > 1)
        measure(group);
    else
        go(group);
}

/* Goes on when all have. */
static void take_figures(gwd_group_t *group, const gwd_codec_figures_t *figures) {
    struct gwd_root *root = group->root;

    gwd_figures_join(&root->figures, figures);
    for (const branch_t *branch = root->branches; branch; branch = branch->next)
        if (branch->n_ranks > 0 && !branch->measured)
            return;
    if (!root->own_measured)
        return;
    group->policy.figures = root->figures;
    group->policy.is_measured = true;
    go(group);
}

void gwd_root_measured(gwd_group_t *group, const gwd_codec_figures_t *figures) {
    group->root->own_measured = true;
    take_figures(group, figures);
}

static void on_measured(branch_t *branch, const Gw__NodeMeasured *message) {
    gwd_codec_figures_t figures;
    char text[GWD_TEXT_BYTES];

    if (!gwd_measure_read(message->bytes_per_s, message->latency_ns, message->n_coding, message->coding, &figures)) {
        snprintf(text, sizeof(text), "host %s measured nothing", branch->host);
        refuse_branch(branch, GW_ERR_BOOTSTRAP, text);
        return;
    }
    branch->measured = true;
    take_figures(branch->group, &figures);
}

/* ---- frames ------------------------------------------------------------------------------------- */

static void on_failure(branch_t *branch, const uint8_t *body, size_t bytes) {
    char text[GWD_TEXT_BYTES];
    gw_status_t status;

    if (!gwd_bootstrap_read_failure(body, bytes, &status, text, sizeof(text))) {
        status = GW_ERR_BOOTSTRAP;
        snprintf(text, sizeof(text), "host %s broke the protocol between daemons", branch->host);
    }
    gwd_contact_finish(branch->peer);
    lose_branch(branch, status, text);
}

static void on_frame(gwd_contact_t *peer, uint8_t type, const uint8_t *body, size_t bytes) {
    branch_t *branch = peer->owner;
    const ProtobufCMessageDescriptor *descriptor = NULL;
    ProtobufCMessage *message;

    if (type == GWD_FRAME_FAILURE) {
        on_failure(branch, body, bytes);
        return;
    }
    if (type == GWD_FRAME_HELLO && !branch->greeted)
        descriptor = &gw__node_hello__descriptor;
    else if (type == GWD_FRAME_RANK && branch->greeted)
        descriptor = &gw__node_rank__descriptor;
    else if (type == GWD_FRAME_PREPARED && branch->group->root->told && branch->n_ranks > 0 && !branch->prepared)
        descriptor = &gw__node_prepared__descriptor;
    else if (type == GWD_FRAME_MEASURED && branch->group->root->measuring && branch->n_ranks > 0 && !branch->measured)
        descriptor = &gw__node_measured__descriptor;
    message = descriptor ? gwd_unpack(descriptor, body, bytes) : NULL;
    if (!message)
        refuse_branch(branch, GW_ERR_BOOTSTRAP, "a daemon broke the protocol between daemons");
    else if (type == GWD_FRAME_HELLO)
        on_hello(branch, (const Gw__NodeHello *)message);
    else if (type == GWD_FRAME_RANK)
        on_rank(branch, (const Gw__NodeRank *)message);
    else if (type == GWD_FRAME_MEASURED)
        on_measured(branch, (const Gw__NodeMeasured *)message);
    else
        on_prepared(branch);
    if (message)
        gwd_unpack_free(message);
}

const gwd_contact_events_t gwd_root_events = {on_proven, on_frame, on_gone};

void gwd_root_end(gwd_group_t *group, gw_status_t status, const char *text) {
    struct gwd_root *root = group->root;

    while (root->branches) {
        branch_t *branch = root->branches;

        if (status != GW_OK)
            gwd_bootstrap_refuse(branch->peer, status, text);
        else if (branch->n_ranks == 0)
            gwd_bootstrap_refuse(branch->peer, GW_ERR_INVALID_ARGUMENT,
                                 "the group is complete: all its ranks have joined");
        else
            gwd_contact_finish(branch->peer);
        free_branch(branch);
    }
    free(root->holders);
    free(root);
    group->root = NULL;
}
