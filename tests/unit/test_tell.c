/* test_tell.c - what nodes tell each other reaches the loop whole, in order and once, however it comes
 *
 * The wire, the lane and the group are stood in for here.
 */
#include <stdlib.h>
#include <string.h>

#include "cunit_main.h"
#include "lane_wire.h"

enum { MESSAGES_MAX = 128 };

/* A message is a number of bytes, each of which is its number; on_its_way: its payload comes later. */
struct gwd_message {
    uint64_t number, bytes;
    bool on_its_way, broken;
    void *to;
    gwd_pending_t *pending;
};

static struct gwd_wire_group wire;
static gwd_lane_group_t group = {.id = 9, .wire = &wire};
static gwd_peer_t peer;
static char told[1024]; /* by the loop's events: a letter for each, '!' for a wrong one, '.' for NODE_LEFT */
static size_t n_told;
static int n_broke;
static gw_status_t failed;

static void begin(void) {
    peer = (gwd_peer_t){.group = &group, .node = 3, .last_tell = UINT64_MAX};
    wire = (struct gwd_wire_group){0};
    memset(told, 0, sizeof(told));
    n_told = 0;
    n_broke = 0;
    failed = GW_OK;
}

void gwd_lane_event(gwd_lane_t *lane, const gwd_event_t *event) {
    const unsigned char *data = event->data;
    bool good = event->group == 9 && event->node == 3;

    (void)lane;
    for (size_t i = 1; data && i < event->bytes; i++)
        good = good && data[i] == data[0];
    told[n_told++] = (char)(!good ? '!' : event->kind == GWD_EVENT_TOLD ? 'a' - 1 + data[0] : '.');
    free(event->data);
}

bool gwd_wire_send(gwd_peer_t *to, gwd_wire_header_t header, const void *data, size_t bytes) {
    (void)to;
    (void)header;
    (void)data;
    (void)bytes;
    return true;
}

void gwd_wire_forged(gwd_lane_group_t *failing, uint32_t node) {
    gwd_wire_broke(failing, node, "forged");
}

void gwd_wire_broke(gwd_lane_group_t *of, uint32_t node, const char *how) {
    (void)of;
    (void)node;
    (void)how;
    n_broke++;
}

void gwd_lane_group_fail(gwd_lane_group_t *of, gw_status_t status, const char *text) {
    (void)of;
    (void)text;
    failed = status;
}

gw_status_t gwd_message_receive(gwd_message_t *message, void *to, void *cookie) {
    message->to = to;
    message->pending = cookie;
    if (message->broken)
        return GW_ERR_SYSTEM;
    if (message->on_its_way)
        return GW_IN_PROGRESS;
    memset(to, (int)message->number, message->bytes);
    return GW_OK;
}

static void hear_message(uint64_t number, uint64_t bytes, gwd_message_t *message) {
    const gwd_wire_header_t header = {.sequence = number, .kind = GWD_WIRE_TELL};

    gwd_wire_hear_tell(&peer, &header, bytes, message);
}

static void hear(uint64_t number, uint64_t bytes) {
    gwd_message_t message = {.number = number, .bytes = bytes};

    hear_message(number, bytes, &message);
}

static void arrive(gwd_message_t *message, gw_status_t status) {
    memset(message->to, (int)message->number, message->bytes);
    message->pending->ended(message->pending, status);
}

static void in_order_they_pass_at_once(void) {
    begin();
    hear(1, 1);
    CU_ASSERT_STRING_EQUAL(told, "a");
    hear(2, GWD_TELL_MAX);
    hear(3, 10);
    CU_ASSERT_STRING_EQUAL(told, "abc");
    CU_ASSERT_EQUAL(n_broke, 0);
}

static void those_that_overtake_wait(void) {
    begin();
    hear(3, 5);
    hear(5, 5);
    hear(2, 5);
    CU_ASSERT_STRING_EQUAL(told, "");
    hear(1, 5);
    CU_ASSERT_STRING_EQUAL(told, "abc");
    hear(4, 5);
    CU_ASSERT_STRING_EQUAL(told, "abcde");
    CU_ASSERT_EQUAL(peer.told_bytes, 0);
}

static void those_on_their_way_hold_up_the_next(void) {
    gwd_message_t first = {.number = 1, .bytes = 60000, .on_its_way = true};
    gwd_message_t second = {.number = 2, .bytes = 60000, .on_its_way = true};

    begin();
    hear_message(1, first.bytes, &first);
    hear_message(2, second.bytes, &second);
    hear(3, 1);
    CU_ASSERT_EQUAL(wire.n_notes, 2);
    arrive(&second, GW_OK);
    CU_ASSERT_STRING_EQUAL(told, "");
    arrive(&first, GW_OK);
    CU_ASSERT_STRING_EQUAL(told, "abc");
    CU_ASSERT_EQUAL(wire.n_notes, 0);
}

static void one_that_is_cut_short_is_not_told(void) {
    gwd_message_t first = {.number = 1, .bytes = 60000, .on_its_way = true};

    begin();
    hear_message(1, first.bytes, &first);
    hear(2, 1);
    arrive(&first, GW_ERR_ABORTED);
    CU_ASSERT_STRING_EQUAL(told, "");
    CU_ASSERT_EQUAL(wire.n_notes, 0);
    gwd_wire_free_told(&peer);
    CU_ASSERT_PTR_NULL(peer.told);
}

static void wrong_ones_break_the_group(void) {
    static const struct {
        uint64_t number, bytes;
    } wrong[] = {{1, 4}, {3, 4}, {0, 4}, {2, 0}, {2, GWD_TELL_MAX + 1}, {2, UINT64_MAX}};

    begin();
    hear(1, 4);
    hear(3, 4);
    for (int i = 0; i < (int)(sizeof(wrong) / sizeof(wrong[0])); i++) {
        hear(wrong[i].number, wrong[i].bytes);
        CU_ASSERT_EQUAL(n_broke, i + 1);
    }
    CU_ASSERT_STRING_EQUAL(told, "a");
    gwd_wire_free_told(&peer);
}

static void too_much_that_waits_breaks_it(void) {
    int n = 0;

    begin();
    while (n_broke == 0 && n < MESSAGES_MAX)
        hear((uint64_t)++n + 1, GWD_TELL_MAX);
    CU_ASSERT(n > 32 && n <= 64);
    gwd_wire_free_told(&peer);
}

static void one_that_cannot_be_received_fails_it(void) {
    gwd_message_t message = {.number = 1, .bytes = 8, .broken = true};

    begin();
    hear_message(1, 8, &message);
    CU_ASSERT_EQUAL(failed, GW_ERR_SYSTEM);
    gwd_wire_free_told(&peer);
}

static void a_good_bye_comes_after_all_that_was_told(void) {
    begin();
    gwd_wire_hear_last_tell(&peer, 2);
    hear(2, 3);
    CU_ASSERT_STRING_EQUAL(told, "");
    hear(1, 3);
    CU_ASSERT_STRING_EQUAL(told, "ab.");
    begin();
    gwd_wire_hear_last_tell(&peer, 0);
    CU_ASSERT_STRING_EQUAL(told, ".");
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"in order they pass at once", in_order_they_pass_at_once},
        {"those that overtake wait", those_that_overtake_wait},
        {"those on their way hold up the next", those_on_their_way_hold_up_the_next},
        {"one that is cut short is not told", one_that_is_cut_short_is_not_told},
        {"wrong ones break the group", wrong_ones_break_the_group},
        {"too much that waits breaks it", too_much_that_waits_breaks_it},
        {"one that cannot be received fails it", one_that_cannot_be_received_fails_it},
        {"a good-bye comes after all that was told", a_good_bye_comes_after_all_that_was_told},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("tell", tests);
}
