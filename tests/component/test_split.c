/* test_split.c - what a node makes of what others say of splits: early, late, twice, and nonsense
 *
 * Rank 1 of 4 is here, on node 1 of 3. Its session is closing, so that nothing is sent to it; the lane is a queue of
 * commands that nobody takes but the test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "cunit_main.h"
#include "lane_group.h"
#include "log.h"
#include "server.h"
#include "split.h"

enum { NRANKS = 4, HERE = 1, MESSAGE_MAX = 4096 };

static gwd_server_t server;
static gwd_lane_t lane;
static gwd_user_t user;
static gwd_session_t session = {.server = &server, .user = &user, .closing = true};
static gwd_member_t member = {.session = &session, .rank = HERE};
static gwd_member_t *members[NRANKS];
static gwd_group_t group;

static void begin(void) {
    static const uint32_t node_of[NRANKS] = {0, 1, 2, 2};

    server = (gwd_server_t){.host = "here"};
    server.config.deadline_bootstrap_s = 300;
    server.lanes[0] = &lane;
    gwd_log_set_level(GWD_LOG_ERROR);
    CU_ASSERT_EQUAL_FATAL(uv_loop_init(&server.loop), 0);
    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&lane.commands, sizeof(gwd_command_t)), 0);
    members[HERE] = &member;
    member.group = &group;
    member.split_request = 0;
    group = (gwd_group_t){.server = &server, .state = GWD_GROUP_ACTIVE, .nranks = NRANKS, .members = members};
    group.n_members = 1;
    group.map = gwd_group_map_new(5, NRANKS, 3);
    CU_ASSERT_PTR_NOT_NULL_FATAL(group.map);
    memcpy(group.map->node_of, node_of, sizeof(node_of));
    group.map->own_node = HERE;
    for (uint32_t n = 0; n < 3; n++)
        snprintf(group.map->nodes[n].host, sizeof(group.map->nodes[n].host), "host%u", n);
    group.timer.data = &group;
    (void)uv_timer_init(&server.loop, &group.timer);
}

static void finish(void) {
    gwd_command_t command;

    while (gwd_queue_pop(&lane.commands, &command)) {
        free(command.data);
        free(command.text);
    }
    gwd_queue_fini(&lane.commands);
    uv_close((uv_handle_t *)&group.timer, NULL);
    (void)uv_run(&server.loop, UV_RUN_DEFAULT);
    CU_ASSERT_EQUAL(uv_loop_close(&server.loop), 0);
    gwd_group_free_split(&group);
    gwd_group_map_free(group.map);
}

/* What the lane has been told since: a letter for each tell, Call, Address, Prepared, Failed; '!' for a failure of the
 * group, whose status is told. */
static const char *said(gw_status_t *status_out) {
    static char text[64];
    gwd_command_t command;
    size_t n = 0;

    *status_out = GW_OK;
    while (gwd_queue_pop(&lane.commands, &command) && n + 1 < sizeof(text)) {
        gwd_split_message_t message = {0};

        if (command.kind == GWD_COMMAND_TELL)
            memcpy(&message, command.data, sizeof(message));
        if (command.kind == GWD_COMMAND_FAIL || message.kind == GWD_SPLIT_FAILED)
            *status_out = command.kind == GWD_COMMAND_FAIL ? command.status : (gw_status_t)message.status;
        text[n++] = command.kind == GWD_COMMAND_TELL && message.kind <= GWD_SPLIT_FAILED ? " CAPF"[message.kind] : '!';
        free(command.data);
        free(command.text);
    }
    text[n] = 0;
    return text;
}

#define SAID(wanted, wanted_status)                                                                                    \
    do {                                                                                                               \
        gw_status_t status_said;                                                                                       \
        CU_ASSERT_STRING_EQUAL(said(&status_said), wanted);                                                            \
        CU_ASSERT_EQUAL(status_said, wanted_status);                                                                   \
    } while (0)

static void hear(uint32_t node, gwd_split_message_t message, const char *more) {
    uint8_t data[MESSAGE_MAX];
    size_t bytes = strlen(more);

    memcpy(data, &message, sizeof(message));
    memcpy(data + sizeof(message), more, bytes);
    gwd_group_split_told(&group, node, data, sizeof(message) + bytes);
}

static void hear_call(uint64_t number, uint32_t rank) {
    hear(group.map->node_of[rank],
         (gwd_split_message_t){.number = number, .kind = GWD_SPLIT_CALL, .rank = rank, .color = -1}, "");
}

static void hear_prepared(uint64_t number, uint32_t node) {
    hear(node, (gwd_split_message_t){.number = number, .kind = GWD_SPLIT_PREPARED}, "");
}

static void hear_failed(uint64_t number, uint32_t node, uint32_t status) {
    hear(node, (gwd_split_message_t){.number = number, .kind = GWD_SPLIT_FAILED, .status = status}, "why");
}

static void call(void) {
    char text[GWD_TEXT_BYTES];

    CU_ASSERT_EQUAL(gwd_group_split(&member, 7, -1, 0, text, sizeof(text)), GW_OK);
}

static void all_call_and_prepare(void) {
    begin();
    hear_call(1, 3);
    call();
    SAID("C", GW_OK);
    CU_ASSERT_EQUAL(member.split_request, 7);
    hear_call(1, 0);
    hear_prepared(1, 2); /* it has heard all sooner */
    SAID("", GW_OK);
    hear_call(1, 2);
    SAID("P", GW_OK);
    CU_ASSERT_EQUAL(group.split->number, 1);
    hear_prepared(1, 0);
    SAID("", GW_OK);
    CU_ASSERT_EQUAL(group.split->number, 2);
    CU_ASSERT_EQUAL(member.split_request, 0);
    CU_ASSERT_FALSE(uv_is_active((uv_handle_t *)&group.timer));
    finish();
}

static void what_is_of_a_later_split_waits(void) {
    begin();
    hear_call(2, 0);
    hear_call(3, 0);
    hear_failed(3, 0, GW_ERR_QUOTA);
    CU_ASSERT_PTR_NOT_NULL_FATAL(group.split);
    CU_ASSERT_EQUAL(group.split->n_called, 0);
    hear_failed(1, 2, GW_ERR_QUOTA);
    CU_ASSERT_EQUAL(group.split->number, 2);
    CU_ASSERT_EQUAL(group.split->n_called, 1);
    hear_failed(2, 2, GW_ERR_QUOTA); /* the third has been and gone */
    CU_ASSERT_EQUAL(group.split->number, 4);
    CU_ASSERT_EQUAL(group.split->n_called, 0);
    CU_ASSERT_EQUAL(group.split->nodes[0].later_bytes, 0);
    hear_call(4, 0);
    CU_ASSERT_EQUAL(group.split->n_called, 1);
    SAID("", GW_OK);
    finish();
}

static void what_is_of_an_earlier_split_is_dropped(void) {
    begin();
    hear_failed(1, 2, GW_ERR_QUOTA);
    hear_call(1, 0);
    hear_prepared(1, 0);
    hear_failed(1, 0, GW_ERR_QUOTA);
    CU_ASSERT_EQUAL(group.split->number, 2);
    CU_ASSERT_EQUAL(group.split->n_called, 0);
    SAID("", GW_OK);
    finish();
}

static void a_failure_elsewhere_ends_it_here(void) {
    begin();
    call();
    hear_failed(1, 2, 9999); /* no such status */
    CU_ASSERT_EQUAL(member.split_request, 0);
    CU_ASSERT_EQUAL(server.stats.requests_failed, 1);
    SAID("C", GW_OK); /* all others have heard it */
    call();
    CU_ASSERT_EQUAL(member.split_request, 7);
    finish();
}

static void a_failure_here_is_told(void) {
    begin();
    call();
    gwd_group_give_up_split(&group, GW_ERR_RANK_LEFT, "rank 1 left");
    SAID("CF", GW_ERR_RANK_LEFT);
    gwd_group_give_up_split(&group, GW_ERR_RANK_LEFT, "rank 1 left"); /* none is under way */
    SAID("", GW_OK);
    finish();
}

static void a_node_that_has_left_ends_it_and_all_later_ones(void) {
    char text[GWD_TEXT_BYTES];

    begin();
    call();
    gwd_group_split_node_left(&group, 2);
    SAID("CF", GW_ERR_RANK_LEFT);
    CU_ASSERT_EQUAL(gwd_group_split(&member, 8, -1, 0, text, sizeof(text)), GW_ERR_RANK_LEFT);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "host2"));
    hear_call(2, 0);
    SAID("F", GW_ERR_RANK_LEFT);
    finish();
}

static void a_node_that_leaves_after_it_has_prepared_does_no_harm(void) {
    begin();
    call();
    hear_call(1, 2);
    hear_call(1, 3);
    hear_call(1, 0);
    hear_prepared(1, 2);
    gwd_group_split_node_left(&group, 2);
    SAID("CP", GW_OK);
    hear_prepared(1, 0);
    CU_ASSERT_EQUAL(group.split->number, 2);
    finish();
}

static void nonsense_fails_the_group(void) {
    static const struct {
        gwd_split_message_t message;
        uint32_t node;
    } wrong[] = {
        {{.number = 1, .kind = 0}, 0},
        {{.number = 1, .kind = GWD_SPLIT_FAILED + 1}, 0},
        {{.number = 1, .kind = GWD_SPLIT_CALL, .rank = NRANKS}, 0},
        {{.number = 1, .kind = GWD_SPLIT_CALL, .rank = 2}, 0},    /* of another node */
        {{.number = 1, .kind = GWD_SPLIT_CALL, .rank = HERE}, 0}, /* of this one */
        {{.number = 1, .kind = GWD_SPLIT_CALL, .rank = 0}, 0},    /* twice */
        {{.number = 1, .kind = GWD_SPLIT_PREPARED}, 2},           /* twice */
    };
    char text[2 * GWD_TEXT_BYTES];

    begin();
    hear_call(1, 0);
    hear_prepared(1, 2);
    SAID("", GW_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        hear(wrong[i].node, wrong[i].message, "");
        SAID("!", GW_ERR_PROTOCOL_RANK);
    }
    gwd_group_split_told(&group, 0, (const uint8_t *)"short", 5);
    SAID("!", GW_ERR_PROTOCOL_RANK);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    hear(0, (gwd_split_message_t){.number = 1, .kind = GWD_SPLIT_FAILED, .status = GW_ERR_QUOTA}, text);
    SAID("!", GW_ERR_PROTOCOL_RANK);
    call();
    hear_call(1, 2);
    hear_call(1, 3);
    SAID("CP", GW_OK);
    hear(0, (gwd_split_message_t){.number = 1, .kind = GWD_SPLIT_ADDRESS, .color = 0}, "no group has it");
    SAID("!", GW_ERR_PROTOCOL_RANK);
    finish();
}

static void a_part_that_broke_is_not_let_go(void) {
    gwd_group_t part = {.split_from = &group};

    begin();
    call();
    hear_call(1, 0);
    hear_call(1, 2);
    hear_call(1, 3);
    hear_prepared(1, 0);
    gwd_group_split_broke(&part, GW_ERR_NODE_LOST, "node 2 is gone");
    hear_prepared(1, 2);
    SAID("CP", GW_OK);
    CU_ASSERT_EQUAL(group.split->number, 1);
    CU_ASSERT_TRUE(uv_is_active((uv_handle_t *)&group.timer));
    gwd_group_split_late(&group); /* as the timer does */
    SAID("F", GW_ERR_NODE_LOST);
    CU_ASSERT_EQUAL(group.split->number, 2);
    CU_ASSERT_EQUAL(member.split_request, 0);
    finish();
}

/* One node's share does not shorten another's; and the group goes on. */
static void too_much_that_waits_fails_the_split(void) {
    char text[MESSAGE_MAX / 2];
    gw_status_t status = GW_OK;
    int n = 0;

    begin();
    call();
    SAID("C", GW_OK);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    for (int i = 0; i < 2 * GWD_WIRE_ADDRESS_MAX / MESSAGE_MAX; i++)
        hear(2, (gwd_split_message_t){.number = 2, .kind = GWD_SPLIT_ADDRESS}, text);
    SAID("", GW_OK);
    while (status == GW_OK && n++ < 10000) {
        hear(0, (gwd_split_message_t){.number = 2, .kind = GWD_SPLIT_ADDRESS}, text);
        CU_ASSERT_PTR_NULL(strchr(said(&status), '!'));
    }
    CU_ASSERT_EQUAL(status, GW_ERR_NO_MEMORY);
    CU_ASSERT(n > GWD_WIRE_ADDRESS_MAX / MESSAGE_MAX && n < 4 * GWD_WIRE_ADDRESS_MAX / MESSAGE_MAX * 2);
    CU_ASSERT_EQUAL(group.split->number, 2);
    finish();
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"all call and prepare", all_call_and_prepare},
        {"what is of a later split waits", what_is_of_a_later_split_waits},
        {"what is of an earlier split is dropped", what_is_of_an_earlier_split_is_dropped},
        {"a failure elsewhere ends it here", a_failure_elsewhere_ends_it_here},
        {"a failure here is told", a_failure_here_is_told},
        {"a node that has left ends it and all later ones", a_node_that_has_left_ends_it_and_all_later_ones},
        {"a node that leaves after it has prepared does no harm",
         a_node_that_leaves_after_it_has_prepared_does_no_harm},
        {"nonsense fails the group", nonsense_fails_the_group},
        {"a part that broke is not let go", a_part_that_broke_is_not_let_go},
        {"too much that waits fails the split", too_much_that_waits_fails_the_split},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("split", tests);
}
