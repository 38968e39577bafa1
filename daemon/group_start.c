/* group_start.c - from "all ranks have joined" to "a lane drives it". See group.h
 *
 * For each rank a slots memfd, a channel, and the reply that carries both. Everything is made before
 * anything is sent, so that the group starts on all ranks or on none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gradwire.pb-c.h"
#include "group.h"
#include "log.h"
#include "server.h"

/* What a rank gets: two descriptors, closed once they are sent. */
typedef struct endpoint {
    int slots_fd, client_channel;
} endpoint_t;

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

static bool open_endpoint(gwd_member_t *member, gwd_rank_info_t *info, endpoint_t *endpoint) {
    int channel[2];

    endpoint->slots_fd = memfd_create("gradwire-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (endpoint->slots_fd < 0)
        return false;
    member->slots = map_slots(endpoint->slots_fd, member->group);
    if (!member->slots)
        return false;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) != 0)
        return false;
    info->channel_fd = channel[0];
    endpoint->client_channel = channel[1];
    if (fcntl(channel[0], F_SETFL, O_NONBLOCK) != 0)
        return false;
    info->slots = member->slots;
    gwd_member_identity(member, info->identity, sizeof(info->identity));
    return true;
}

static gwd_group_seed_t *new_seed(const gwd_group_t *group) {
    gwd_group_seed_t *seed = calloc(1, sizeof(*seed) + group->nranks * sizeof(seed->ranks[0]));

    if (!seed)
        return NULL;
    seed->id = group->id;
    seed->epoch = group->epoch;
    seed->credits = group->credits;
    seed->nranks = group->nranks;
    seed->plan = group->plan;
    seed->user_share = &group->user->share;
    seed->counters = group->counters;
    for (uint32_t r = 0; r < group->nranks; r++)
        seed->ranks[r].channel_fd = -1;
    return seed;
}

static void send_ready(gwd_member_t *member, const endpoint_t *endpoint) {
    const gwd_group_t *group = member->group;
    Gw__GroupReady message = GW__GROUP_READY__INIT;
    int fds[2] = {endpoint->slots_fd, endpoint->client_channel};
    uint32_t request = member->request;
    uint8_t body[64];

    message.group = member->handle;
    message.nranks = group->nranks;
    message.rank = member->rank;
    message.epoch = group->epoch;
    message.credits = group->credits;
    message.plan_hash = group->plan.hash;
    member->request = 0;
    gwd_session_send(member->session, GW_MSG_GROUP_READY, request, body, gw__group_ready__pack(&message, body), fds, 2);
}

static uint32_t idlest_lane(const gwd_server_t *server) {
    uint32_t best = 0;

    for (uint32_t i = 1; i < server->n_lanes; i++)
        if (server->lane_groups[i] < server->lane_groups[best])
            best = i;
    return best;
}

static bool prepare(gwd_group_t *group, endpoint_t *endpoints, gwd_group_seed_t **seed_out) {
    const gwd_config_t *config = &group->server->config;
    gwd_group_seed_t *seed;

    gwd_plan_make(&group->plan, group->nranks,
                  &(gwd_plan_config_t){(uint64_t)config->reduce_inline_bytes, (uint64_t)config->reduce_chunk_bytes,
                                       (uint64_t)config->device_chunk_bytes, (uint32_t)config->device_window});
    group->counters = calloc(1, sizeof(*group->counters) + group->nranks * sizeof(group->counters->ranks[0]));
    if (!group->counters)
        return false;
    seed = *seed_out = new_seed(group);
    if (!seed)
        return false;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!open_endpoint(group->members[r], &seed->ranks[r], &endpoints[r]))
            return false;
    return true;
}

static void discard(const gwd_group_t *group, endpoint_t *endpoints, gwd_group_seed_t *seed) {
    for (uint32_t r = 0; r < group->nranks; r++) {
        if (endpoints && endpoints[r].slots_fd >= 0)
            close(endpoints[r].slots_fd);
        if (endpoints && endpoints[r].client_channel >= 0)
            close(endpoints[r].client_channel);
        if (seed && seed->ranks[r].channel_fd >= 0)
            close(seed->ranks[r].channel_fd);
    }
    free(seed);
}

void gwd_group_start(gwd_group_t *group) {
    gwd_server_t *server = group->server;
    endpoint_t *endpoints = calloc(group->nranks, sizeof(*endpoints));
    gwd_group_seed_t *seed = NULL;
    gwd_command_t command = {.kind = GWD_COMMAND_GROUP, .group = group->id};
    char text[GWD_TEXT_BYTES];
    bool ok = endpoints != NULL;

    (void)uv_timer_stop(&group->timer);
    errno = ENOMEM;
    for (uint32_t r = 0; r < group->nranks && ok; r++)
        endpoints[r] = (endpoint_t){-1, -1};
    ok = ok && prepare(group, endpoints, &seed);
    group->lane = idlest_lane(server);
    command.seed = seed;
    if (!ok || !gwd_lane_send(server->lanes[group->lane], &command)) {
        bool no_fd = errno == EMFILE || errno == ENFILE;

        snprintf(text, sizeof(text), "the group cannot start: %s", strerror(errno));
        discard(group, endpoints, seed);
        gwd_group_give_up(group, no_fd ? GW_ERR_FD_LIMIT : GW_ERR_NO_MEMORY, text);
        free(endpoints);
        return;
    }
    server->lane_groups[group->lane]++;
    group->state = GWD_GROUP_ACTIVE;
    gwd_stats_add(&server->stats.groups_made, 1);
    gwd_log(GWD_LOG_INFO, "group", "group %u, nranks %u, runs on lane %u", group->id, group->nranks, group->lane);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->members[r])
            send_ready(group->members[r], &endpoints[r]);
    free(endpoints);
}
