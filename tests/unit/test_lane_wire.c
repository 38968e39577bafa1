/* test_lane_wire.c - who is there and what they announce: messages, meetings, silence and ends of groups on several nodes
 *
 * UCX, the lane's other parts and the other node are stood in for here.
 */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cunit_main.h"
#include "lane_wire.h"

enum { CREDITS = 64, GROUPS = 2, SAID_MAX = 16 };

#define SECOND_NS UINT64_C(1000000000)

struct gwd_wire {
    int n_cut, n_freed;
};

struct gwd_link {
    int unused;
};

struct gwd_message {
    gwd_wire_t *wire;
};

/* A group on two nodes, of which this one is node 0. */
typedef struct world {
    gwd_lane_group_t group;
    struct gwd_wire_group wire;
    gwd_group_map_t map;
    gwd_group_node_t nodes[2];
    gwd_peer_t peers[2];
    gwd_begin_t begins[GWD_BEGINS * CREDITS];
    gwd_op_t ops[CREDITS];
    gwd_part_t part;
    gwd_bucket_t bucket;
    gwd_wire_t line;
    gwd_link_t link;
    char failed[GWD_TEXT_BYTES];
} world_t;

static world_t worlds[GROUPS];
static gwd_lane_limits_t limits;
static gwd_lane_t lane;
static gw_status_t answer; /* of a send */
static gwd_wire_header_t said[SAID_MAX];
static int n_said, n_run, n_went_on, n_events;
static char mismatch[GWD_TEXT_BYTES];

static void begin(void) {
    uint64_t now_ns = gwd_now_ns();

    memset(worlds, 0, sizeof(worlds));
    memset(&lane, 0, sizeof(lane));
    lane.limits = &limits;
    lane.n_wires = GROUPS;
    answer = GW_OK;
    n_said = n_run = n_went_on = n_events = 0;
    mismatch[0] = 0;
    for (uint32_t i = 0; i < GROUPS; i++) {
        world_t *world = &worlds[i];
        gwd_op_t *op = &world->ops[1];

        world->group = (gwd_lane_group_t){.lane = &lane,
                                          .id = i + 1,
                                          .epoch = 1,
                                          .credits = CREDITS,
                                          .wire = &world->wire,
                                          .silence_ns = 5 * SECOND_NS,
                                          .tail = 1,
                                          .ops = world->ops,
                                          .next = lane.groups};
        lane.groups = &world->group;
        strcpy(world->nodes[1].host, "other");
        world->map = (gwd_group_map_t){.wire_id = 100 + i, .n_nodes = 2, .nodes = world->nodes};
        world->peers[0] = (gwd_peer_t){.group = &world->group};
        world->peers[1] = (gwd_peer_t){.group = &world->group,
                                       .node = 1,
                                       .link = &world->link,
                                       .heard_ns = now_ns,
                                       .said_ns = now_ns,
                                       .begins = world->begins};
        world->wire =
            (struct gwd_wire_group){.map = &world->map, .n_peers = 2, .peers = world->peers, .wire = &world->line};
        world->bucket = (gwd_bucket_t){
            .desc = {.collective = GW_ALL_REDUCE, .type = GW_F32, .redop = GW_SUM, .count = 9}, .fingerprint = 4711};
        world->part.bucket = &world->bucket;
        *op = (gwd_op_t){.group = &world->group, .sequence = 1, .first_ns = now_ns, .parts = &world->part};
    }
}

/* ---- what is stood in for ------------------------------------------------------------------------------- */

void gwd_rails_fail(const gwd_lane_group_t *group, const char *text) {
    (void)group, (void)text;
}

void gwd_rails_leave(gwd_lane_group_t *group) {
    (void)group;
}

void gwd_lane_group_fail(gwd_lane_group_t *group, gw_status_t status, const char *text) {
    world_t *world = (world_t *)(void *)group;

    if (group->status != GW_OK)
        return;
    group->status = status;
    snprintf(world->failed, sizeof(world->failed), "%s", text);
    gwd_lane_wire_fail(group, text);
    world->ops[1].state = GWD_OP_FREE;
}

void gwd_lane_group_release(gwd_lane_group_t *group) {
    (void)group;
}

void gwd_lane_event(gwd_lane_t *of, const gwd_event_t *event) {
    (void)of;
    n_events++;
    free(event->waiters);
}

void gwd_lane_op_mismatch(gwd_op_t *op, const char *text) {
    op->state = GWD_OP_FAILED;
    snprintf(mismatch, sizeof(mismatch), "%s", text);
}

void gwd_wire_run(gwd_op_t *op) {
    op->state = GWD_OP_RUNNING;
    n_run++;
}

void gwd_wire_go_on(gwd_lane_group_t *group) {
    (void)group;
    n_went_on++;
}

void gwd_wire_data(gwd_lane_group_t *group, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message) {
    (void)group, (void)header, (void)bytes, (void)message;
}

void gwd_wire_hear_taken(gwd_peer_t *peer, uint64_t taken) {
    peer->data_taken = taken;
}

void gwd_wire_free_flights(struct gwd_wire_group *wire) {
    (void)wire;
}

void gwd_wire_probed(gwd_peer_t *peer, const gwd_wire_header_t *header, uint64_t bytes, gwd_message_t *message) {
    (void)peer, (void)header, (void)bytes, (void)message;
}

bool gwd_wire_probe_more(gwd_lane_group_t *of) {
    (void)of;
    return false;
}

void gwd_wire_free_probe(struct gwd_wire_group *wire) {
    (void)wire;
}

gw_status_t gwd_link_new(gwd_wire_t *wire, const void *address, size_t bytes, void *cookie, gwd_link_t **link_out,
                         char *text) {
    (void)wire, (void)address, (void)bytes, (void)cookie, (void)link_out, (void)text;
    return GW_ERR_UNSUPPORTED;
}

uint32_t gwd_link_paths(const gwd_link_t *link) {
    (void)link;
    return 1;
}

void gwd_link_abort(gwd_link_t *link) {
    (void)link;
}

gw_status_t gwd_link_send(gwd_link_t *link, uint32_t path, const void *header, size_t header_bytes, const void *data,
                          uint64_t bytes, void *cookie) {
    (void)link, (void)path, (void)data, (void)bytes, (void)cookie;
    if (n_said < SAID_MAX)
        memcpy(&said[n_said++], header, header_bytes);
    return answer;
}

const gwd_wire_t *gwd_message_wire(const gwd_message_t *message) {
    return message->wire;
}

void gwd_message_drop(gwd_message_t *message) {
    (void)message;
}

gw_status_t gwd_message_receive(gwd_message_t *message, void *to, void *cookie) {
    (void)message, (void)to, (void)cookie;
    return GW_ERR_SYSTEM;
}

int gwd_wire_fd(const gwd_wire_t *wire) {
    (void)wire;
    return -1;
}

bool gwd_wire_arm(gwd_wire_t *wire) {
    (void)wire;
    return true;
}

bool gwd_wire_progress(gwd_wire_t *wire) {
    (void)wire;
    return false;
}

void gwd_wire_cut(gwd_wire_t *wire) {
    wire->n_cut++;
}

void gwd_wire_free(gwd_wire_t *wire) {
    wire->n_freed++;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

/* A message that comes on the wire of one group and names a group. */
static void hear(world_t *on, const world_t *named, gwd_wire_header_t header) {
    gwd_message_t message = {.wire = &on->line};

    header.wire_id = named->map.wire_id;
    header.epoch = 1;
    header.node = 1;
    gwd_lane_wire_events.on_message(&lane, &header, GWD_WIRE_PLAIN_BYTES, "text", 4, &message);
}

static void a_message_is_of_the_group_whose_wire_it_came_on(void) {
    const gwd_wire_header_t fail = {.kind = GWD_WIRE_FAIL, .status = GW_ERR_ABORTED};

    begin();
    hear(&worlds[0], &worlds[1], fail);
    hear(&worlds[1], &worlds[0], fail);
    CU_ASSERT_EQUAL(worlds[0].group.status, GW_OK);
    CU_ASSERT_EQUAL(worlds[1].group.status, GW_OK);
    CU_ASSERT_EQUAL(lane.stats.wire_dropped, 2);
    hear(&worlds[1], &worlds[1], fail);
    CU_ASSERT_EQUAL(worlds[0].group.status, GW_OK);
    CU_ASSERT_EQUAL(worlds[1].group.status, GW_ERR_ABORTED);
    CU_ASSERT_EQUAL(lane.stats.wire_dropped, 2);
}

/* The others have no ranks; and the loop hears that all of a node's have left when it has heard all that came before. */
static void what_is_said_of_ranks_is_heard_on_the_first_rail_alone(void) {
    for (uint32_t rail = 0; rail < 2; rail++) {
        begin();
        worlds[0].group.rail = rail;
        hear(&worlds[0], &worlds[0], (gwd_wire_header_t){.kind = GWD_WIRE_BYE});
        CU_ASSERT(worlds[0].peers[1].has_left);
        CU_ASSERT_EQUAL(n_events, rail == 0);
        hear(&worlds[0], &worlds[0], (gwd_wire_header_t){.kind = GWD_WIRE_BEGIN, .sequence = 1});
        CU_ASSERT_EQUAL(worlds[0].group.status, rail == 0 ? GW_OK : GW_ERR_PROTOCOL_RANK);
        free(worlds[0].begins[1].text);
        hear(&worlds[1], &worlds[1], (gwd_wire_header_t){.kind = GWD_WIRE_TELL, .sequence = 1});
        CU_ASSERT_EQUAL(worlds[1].group.status, GW_ERR_SYSTEM); /* of the message that is stood in for */
        gwd_wire_free_told(&worlds[1].peers[1]);
        begin();
        worlds[1].group.rail = 1;
        hear(&worlds[1], &worlds[1], (gwd_wire_header_t){.kind = GWD_WIRE_TELL, .sequence = 1});
        CU_ASSERT_EQUAL(worlds[1].group.status, GW_ERR_PROTOCOL_RANK);
    }
}

/* ---- meetings ------------------------------------------------------------------------------------------- */

static uint64_t announced_with(gw_codec_t codec) {
    begin();
    worlds[0].bucket.codec = codec;
    gwd_lane_wire_meet(&worlds[0].ops[1]);
    CU_ASSERT_EQUAL(n_said, 1);
    CU_ASSERT_EQUAL(said[0].kind, GWD_WIRE_BEGIN);
    CU_ASSERT_EQUAL(worlds[0].ops[1].state, GWD_OP_MEETING);
    return said[0].fingerprint;
}

static void the_codec_in_effect_must_be_the_same(void) {
    uint64_t none = announced_with(GW_CODEC_NONE), int8 = announced_with(GW_CODEC_INT8);

    CU_ASSERT_NOT_EQUAL(none, int8);
    hear(&worlds[0], &worlds[0], (gwd_wire_header_t){.kind = GWD_WIRE_BEGIN, .sequence = 1, .fingerprint = none});
    CU_ASSERT_EQUAL(n_run, 0);
    CU_ASSERT_EQUAL(n_went_on, 1); /* later ones may have met before it */
    CU_ASSERT_PTR_NOT_NULL(strstr(mismatch, "host other (rank 0) submitted text"));
    CU_ASSERT_PTR_NOT_NULL(strstr(mismatch, "by the group's codec int8"));
    free(worlds[0].begins[1].text);
    (void)announced_with(GW_CODEC_INT8);
    hear(&worlds[0], &worlds[0], (gwd_wire_header_t){.kind = GWD_WIRE_BEGIN, .sequence = 1, .fingerprint = int8});
    CU_ASSERT_EQUAL(n_run, 1);
    CU_ASSERT_STRING_EQUAL(mismatch, "");
    free(worlds[0].begins[1].text);
}

static void an_announcement_that_cannot_be_sent_fails_the_group(void) {
    begin();
    answer = GW_ERR_ABORTED; /* the link says so itself */
    gwd_lane_wire_meet(&worlds[0].ops[1]);
    CU_ASSERT_EQUAL(worlds[0].group.status, GW_OK);
    answer = GW_ERR_NO_MEMORY;
    worlds[1].begins[1] = (gwd_begin_t){.sequence = 1, .fingerprint = worlds[1].bucket.fingerprint};
    gwd_lane_wire_meet(&worlds[1].ops[1]);
    CU_ASSERT_EQUAL(worlds[1].group.status, GW_ERR_NO_MEMORY);
    CU_ASSERT_EQUAL(worlds[1].group.n_running, 1);
    CU_ASSERT_EQUAL(n_run, 0);
    CU_ASSERT_EQUAL(said[n_said - 1].kind, GWD_WIRE_FAIL);
}

static void a_good_bye_that_cannot_be_sent_ends_the_group_once(void) {
    begin();
    answer = GW_ERR_NO_MEMORY;
    CU_ASSERT_FALSE(gwd_lane_wire_leave(&worlds[0].group));
    CU_ASSERT_EQUAL(worlds[0].group.status, GW_ERR_NO_MEMORY);
    CU_ASSERT_EQUAL(worlds[0].group.n_running, 1);
    gwd_lane_wire_tick(&lane, worlds[0].wire.close_ns + 1);
    CU_ASSERT_TRUE(gwd_lane_wire_leave(&worlds[0].group));
    CU_ASSERT_EQUAL(worlds[0].group.n_running, 0);
}

/* ---- waiting -------------------------------------------------------------------------------------------- */

static void what_waits_for_a_state_to_be_saved_is_not_late(void) {
    uint64_t later_ns;

    begin();
    atomic_store(&limits.late_ns, SECOND_NS);
    atomic_store(&limits.deadline_ns, 2 * SECOND_NS);
    later_ns = gwd_now_ns() + 3 * SECOND_NS;
    for (int i = 0; i < GROUPS; i++) {
        CU_ASSERT_EQUAL(gwd_lane_wire_hold(&worlds[i].group), GW_OK);
        gwd_lane_wire_meet(&worlds[i].ops[1]);
    }
    worlds[0].begins[1] = (gwd_begin_t){.sequence = 1, .fingerprint = worlds[0].bucket.fingerprint};
    gwd_lane_check_late(&lane, later_ns);
    CU_ASSERT_EQUAL(worlds[0].group.status, GW_OK);
    CU_ASSERT_EQUAL(lane.stats.late_reports, 0);
    CU_ASSERT_EQUAL(worlds[1].group.status, GW_ERR_DEADLINE); /* the other node has not come to that one */
    CU_ASSERT_PTR_NOT_NULL(strstr(worlds[1].failed, "node 1 (host other"));
    gwd_lane_wire_go_on(&worlds[0].group);
    CU_ASSERT_EQUAL(n_run, 1);
}

static void each_group_has_its_own_silence(void) {
    uint64_t now_ns;

    begin();
    worlds[0].group.silence_ns = 100 * SECOND_NS;
    worlds[1].group.silence_ns = SECOND_NS;
    worlds[1].peers[1].taken = 7;
    now_ns = gwd_now_ns();
    gwd_lane_wire_tick(&lane, now_ns + SECOND_NS / 2);
    CU_ASSERT_EQUAL(n_said, 1);
    CU_ASSERT_EQUAL(said[0].kind, GWD_WIRE_ALIVE);
    CU_ASSERT_EQUAL(said[0].taken, 7);
    CU_ASSERT_EQUAL(worlds[1].peers[1].said_taken, 7);
    CU_ASSERT_EQUAL(said[0].wire_id, worlds[1].map.wire_id);
    CU_ASSERT_EQUAL(lane.next_alive_ns, now_ns + SECOND_NS / 2 + SECOND_NS / 10);
    gwd_lane_wire_tick(&lane, now_ns + 2 * SECOND_NS);
    CU_ASSERT_EQUAL(worlds[0].group.status, GW_OK);
    CU_ASSERT_EQUAL(worlds[1].group.status, GW_ERR_NODE_LOST);
}

/* ---- ends ----------------------------------------------------------------------------------------------- */

/* An operation's transfers, which are no notes. */
static void what_is_not_given_back_is_cut(void) {
    world_t *world = &worlds[0];
    uint64_t close_ns;

    begin();
    world->group.n_running = 1;
    gwd_lane_group_fail(&world->group, GW_ERR_NODE_LOST, "lost");
    close_ns = world->wire.close_ns;
    gwd_lane_wire_tick(&lane, close_ns + 1);
    CU_ASSERT(world->wire.closed && world->wire.is_over);
    CU_ASSERT_EQUAL(world->group.n_running, 1);
    gwd_lane_wire_tick(&lane, close_ns + SECOND_NS / 10);
    CU_ASSERT_EQUAL(world->line.n_cut, 0);
    gwd_lane_wire_tick(&lane, close_ns + SECOND_NS / 4);
    CU_ASSERT_EQUAL(world->line.n_cut, 1);
    CU_ASSERT_EQUAL(world->line.n_freed, 0);
    world->group.n_running = 0;
    gwd_lane_wire_tick(&lane, close_ns + SECOND_NS / 2);
    CU_ASSERT_EQUAL(world->line.n_cut, 1);
    CU_ASSERT_EQUAL(world->line.n_freed, 1);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a message is of the group whose wire it came on", a_message_is_of_the_group_whose_wire_it_came_on},
        {"what is said of ranks is heard on the first rail alone",
         what_is_said_of_ranks_is_heard_on_the_first_rail_alone},
        {"the codec in effect must be the same", the_codec_in_effect_must_be_the_same},
        {"an announcement that cannot be sent fails the group", an_announcement_that_cannot_be_sent_fails_the_group},
        {"a good-bye that cannot be sent ends the group once", a_good_bye_that_cannot_be_sent_ends_the_group_once},
        {"what waits for a state to be saved is not late", what_waits_for_a_state_to_be_saved_is_not_late},
        {"each group has its own silence", each_group_has_its_own_silence},
        {"what is not given back is cut", what_is_not_given_back_is_cut},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("lane_wire", tests);
}
