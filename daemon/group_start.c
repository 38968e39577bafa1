/* group_start.c - from "all ranks have joined" to "a lane drives it". See group.h
 *
 * For each rank a slots memfd, a channel, and the reply that carries both. Everything is made before
 * anything is sent, so that the group starts on all ranks, of all nodes, or on none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap.h"
#include "gradwire.pb-c.h"
#include "group.h"
#include "group_codec.h"
#include "log.h"
#include "server.h"
#include "transport.h"

static gw_slots_header_t *map_slots(int fd, const gwd_group_t *group) {
    uint64_t bytes = gw_slots_bytes(group->credits);
    gw_slots_header_t *header;

    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return NULL;
    header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED)
        return NULL;
    header->magic = GW_SLOTS_MAGIC;
    header->version = GW_SLOTS_VERSION;
    header->credits = group->credits;
    header->epoch = group->epoch;
    return header;
}

static bool open_endpoint(gwd_member_t *member, gwd_rank_info_t *info) {
    int channel[2];

    member->slots_fd = memfd_create("gradwire-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (member->slots_fd < 0)
        return false;
    member->slots = map_slots(member->slots_fd, member->group);
    if (!member->slots)
        return false;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) != 0)
        return false;
    info->channel_fd = channel[0];
    member->channel_fd = channel[1];
    if (fcntl(channel[0], F_SETFL, O_NONBLOCK) != 0)
        return false;
    info->rank = member->rank;
    info->slots = member->slots;
    gwd_member_identity(member, info->identity, sizeof(info->identity));
    return true;
}

static gwd_group_seed_t *new_seed(const gwd_group_t *group) {
    gwd_group_seed_t *seed = calloc(1, sizeof(*seed) + group->n_members * sizeof(seed->ranks[0]));

    if (!seed)
        return NULL;
    seed->id = group->id;
    seed->epoch = group->epoch;
    seed->credits = group->credits;
    seed->nranks = group->nranks;
    seed->n_local = group->n_members;
    seed->map = group->map;
    seed->n_rails = group->map ? group->n_rails : 0;
    for (uint32_t i = 0; i < seed->n_rails; i++) {
        seed->wires[i] = group->wires[i];
        seed->lanes[i] = gwd_group_rail_lane(group, i);
    }
    seed->silence_ns = (uint64_t)group->server->config.deadline_silence_ms * 1000000u;
    seed->plan = group->plan;
    seed->user_share = &group->user->share;
    seed->counters = group->counters;
    for (uint32_t i = 0; i < seed->n_local; i++)
        seed->ranks[i].channel_fd = -1;
    return seed;
}

static void send_ready(gwd_member_t *member) {
    const gwd_group_t *group = member->group;
    Gw__GroupReady message = GW__GROUP_READY__INIT;
    int fds[2] = {member->slots_fd, member->channel_fd};
    uint32_t request = member->request;
    uint8_t body[64];

    message.group = member->handle;
    message.nranks = group->nranks;
    message.rank = member->rank;
    message.epoch = group->epoch;
    message.credits = group->credits;
    message.plan_hash = group->plan.hash;
    member->request = 0;
    member->slots_fd = member->channel_fd = -1;
    gwd_session_send(member->session, GW_MSG_GROUP_READY, request, body, gw__group_ready__pack(&message, body), fds, 2);
}

static uint32_t idlest_lane(const gwd_server_t *server) {
    uint32_t best = 0;

    for (uint32_t i = 1; i < server->n_lanes; i++)
        if (server->lane_groups[i] < server->lane_groups[best])
            best = i;
    return best;
}

void gwd_group_choose_lane(gwd_group_t *group) {
    if (group->has_lane)
        return;
    group->has_lane = true;
    group->lane = idlest_lane(group->server);
    group->server->lane_groups[group->lane]++;
}

gwd_lane_t *gwd_group_rail_lane(const gwd_group_t *group, uint32_t rail) {
    const gwd_server_t *server = group->server;

    return server->lanes[(group->lane + rail) % server->n_lanes];
}

/* As many as each node has; 0: what a node has sent is no address. */
static uint32_t count_rails(const gwd_group_t *group) {
    const gwd_group_map_t *map = group->map;
    uint32_t n = group->n_wires;

    for (uint32_t i = 0; i < map->n_nodes; i++) {
        uint32_t its = i == map->own_node ? n : gwd_rails_count(map->nodes[i].address, map->nodes[i].address_bytes);

        n = its < n ? its : n;
    }
    return n;
}

uint64_t gwd_group_wire_chunk(const gwd_group_t *group) {
    return gwd_plan_wire_chunk((uint64_t)group->server->config.wire_chunk_bytes, group->map ? group->map->n_nodes : 1);
}

static bool make_seed(gwd_group_t *group, gwd_group_seed_t **seed_out) {
    const gwd_config_t *config = &group->server->config;
    uint32_t window = (uint32_t)config->wire_window, n = 0;
    uint32_t n_nodes = group->map ? group->map->n_nodes : 1, n_rails = group->map ? group->n_rails : 1;
    gwd_group_seed_t *seed;

    gwd_plan_make(&group->plan, group->nranks,
                  &(gwd_plan_config_t){.inline_bytes = (uint64_t)config->reduce_inline_bytes,
                                       .chunk_bytes = (uint64_t)config->reduce_chunk_bytes,
                                       .device_chunk_bytes = (uint64_t)config->device_chunk_bytes,
                                       .device_window = (uint32_t)config->device_window,
                                       .wire_chunk_bytes = gwd_group_wire_chunk(group),
                                       .wire_window = gwd_plan_wire_window(window, n_nodes, n_rails),
                                       .wire_window_raw = gwd_plan_wire_window_raw(window, n_nodes, n_rails),
                                       .is_stochastic = group->policy.choice.is_stochastic});
    group->counters = calloc(1, sizeof(*group->counters) + group->nranks * sizeof(group->counters->ranks[0]));
    if (!group->counters)
        return false;
    seed = *seed_out = new_seed(group);
    if (!seed)
        return false;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->members[r] && !open_endpoint(group->members[r], &seed->ranks[n++]))
            return false;
    return true;
}

static void discard(gwd_group_seed_t *seed) {
    for (uint32_t i = 0; seed && i < seed->n_local; i++)
        if (seed->ranks[i].channel_fd >= 0)
            close(seed->ranks[i].channel_fd);
    free(seed);
}

static bool let_nodes_in(const gwd_group_t *group) {
    const gwd_group_map_t *map = group->map;
    gwd_ip_list_t own;
    gwd_ip_t *ips;
    uint32_t n = 0;
    bool good = true;

    for (uint32_t i = 0; i < map->n_nodes; i++)
        n += map->nodes[i].n_ips;
    ips = malloc(n * sizeof(*ips) + 1);
    if (!ips)
        return false;
    gwd_ip_own(&own);
    n = 0;
    for (uint32_t i = 0; i < map->n_nodes; i++)
        n += gwd_ip_select(map->nodes[i].ips, map->nodes[i].n_ips, &own, ips + n);
    for (uint32_t i = 0; i < group->n_rails && good; i++)
        good = gwd_wire_let_in(group->wires[i], ips, n);
    free(ips);
    return good;
}

gw_status_t gwd_group_prepare(gwd_group_t *group, char *text, size_t text_bytes) {
    gwd_server_t *server = group->server;
    gwd_command_t command = {.kind = GWD_COMMAND_GROUP, .group = group->id};
    bool no_fd;

    if (group->n_members == 0) { /* all its ranks are on other nodes */
        group->state = GWD_GROUP_PREPARED;
        return GW_OK;
    }
    if (group->map && group->map->n_nodes == 1)
        gwd_bootstrap_free_map(group); /* the other way round */
    gwd_group_choose_lane(group);
    if (group->map) {
        group->n_rails = count_rails(group);
        gwd_wires_free(group, group->n_rails);
    }
    if (group->map && group->n_rails == 0) {
        snprintf(text, text_bytes, "a node has sent a wire address that is none");
        return GW_ERR_PROTOCOL_RANK;
    }
    errno = ENOMEM;
    if ((!group->map || let_nodes_in(group)) && make_seed(group, &command.seed) &&
        gwd_lane_send(server->lanes[group->lane], &command)) {
        if (group->map)
            memset(group->wires, 0, sizeof(group->wires)); /* they are the lanes' now */
        group->state = GWD_GROUP_PREPARED;
        return GW_OK;
    }
    no_fd = errno == EMFILE || errno == ENFILE;
    snprintf(text, text_bytes, "the group cannot start: %s", strerror(errno));
    discard(command.seed);
    return no_fd ? GW_ERR_FD_LIMIT : GW_ERR_NO_MEMORY;
}

static void complete_plan(gwd_group_t *group) {
    gw_codec_t table[GWD_SIZE_CLASSES];

    if (group->plan.is_complete)
        return;
    gwd_group_codec_table(group, table);
    gwd_plan_set_codecs(&group->plan, table);
}

void gwd_group_go(gwd_group_t *group) {
    (void)uv_timer_stop(&group->timer);
    if (group->n_members == 0) {
        gwd_group_end(group);
        return;
    }
    complete_plan(group);
    group->state = GWD_GROUP_ACTIVE;
    gwd_stats_add(&group->server->stats.groups_made, 1);
    gwd_log(GWD_LOG_INFO, "group", "group %u, nranks %u on %u node%s, runs on lane %u, with %u more", group->id,
            group->nranks, group->map ? group->map->n_nodes : 1, group->map ? "s" : "", group->lane,
            group->map ? group->n_rails - 1 : 0);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->members[r])
            send_ready(group->members[r]);
}

void gwd_group_start(gwd_group_t *group) {
    char text[GWD_TEXT_BYTES];
    gw_status_t status = gwd_group_prepare(group, text, sizeof(text));

    if (status == GW_OK)
        gwd_group_go(group);
    else
        gwd_group_give_up(group, status, text);
}
