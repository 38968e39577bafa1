/* test_transport.c - messages between two wires in this process */
#include <dirent.h>
#include <poll.h>
#include <unistd.h>

#include "transport_node.h"

#include "cunit_main.h"

enum { LINKS = 50 };

static const uint64_t sizes[] = {0, 1, 8 << 10, 1 << 20, LARGE_BYTES};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void send_sizes(uint32_t paths) {
    gwd_transport_config_t config = by_tcp;
    node_t a, b;
    uint8_t *sent[2 * N_SIZES];

    config.paths = paths;
    open_node(&a, &config);
    open_node(&b, &config);
    join_nodes(&a, &b);
    for (uint32_t i = 0; i < N_SIZES; i++) { /* both ways at once; even ids one way, odd ones the other */
        sent[2 * i] = new_data(sizes[i], 2 * i);
        send_data(&a, 2 * i, sent[2 * i], sizes[i], 2 * i);
        sent[2 * i + 1] = new_data(sizes[i], 2 * i + 1);
        send_data(&b, 2 * i + 1, sent[2 * i + 1], sizes[i], 2 * i + 1);
    }
    CU_ASSERT(run_until(&a, &b, &a.done, 2 * N_SIZES, 10 * SOON_MS));
    CU_ASSERT(run_until(&a, &b, &b.done, 2 * N_SIZES, 10 * SOON_MS));
    for (uint32_t i = 0; i < N_SIZES; i++) {
        CU_ASSERT_EQUAL(a.status[2 * i], GW_OK);
        CU_ASSERT_EQUAL(b.status[2 * i], GW_OK);
        CU_ASSERT_FATAL(b.data[2 * i] != NULL && a.data[2 * i + 1] != NULL);
        CU_ASSERT(is_data(b.data[2 * i], sizes[i], 2 * i));
        CU_ASSERT(is_data(a.data[2 * i + 1], sizes[i], 2 * i + 1));
    }
    CU_ASSERT_EQUAL(a.messages, N_SIZES);
    CU_ASSERT_EQUAL(b.messages, N_SIZES);
    CU_ASSERT_EQUAL(a.broken + b.broken, 0);
    close_node(&a);
    close_node(&b);
    for (size_t i = 0; i < 2 * N_SIZES; i++)
        free(sent[i]);
}

static void test_sizes(void) {
    send_sizes(1);
}

static void test_paths(void) {
    send_sizes(4);
}

static void test_keep(void) {
    node_t a, b;
    uint8_t *sent[N_SIZES];

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    join_nodes(&a, &b);
    b.how = KEEP;
    for (uint32_t i = 0; i < N_SIZES; i++) {
        sent[i] = new_data(sizes[i], i);
        send_data(&a, i, sent[i], sizes[i], i);
    }
    CU_ASSERT_FATAL(run_until(&a, &b, &b.messages, N_SIZES, SOON_MS));
    run_for(&a, &b, 50); /* buffers of UCX are used again meanwhile */
    CU_ASSERT_EQUAL(b.done, 0);
    CU_ASSERT_EQUAL(a.status[N_SIZES - 1], GW_IN_PROGRESS);
    for (uint32_t i = 0; i < N_SIZES; i++)
        take(&b, b.kept[i], &b.headers[i]);
    CU_ASSERT(run_until(&a, &b, &b.done, N_SIZES, SOON_MS));
    CU_ASSERT(run_until(&a, &b, &a.done, N_SIZES, SOON_MS));
    for (uint32_t i = 0; i < N_SIZES; i++) {
        CU_ASSERT_EQUAL(b.status[i], GW_OK);
        CU_ASSERT(is_data(b.data[i], sizes[i], i));
        free(sent[i]);
    }
    close_node(&a);
    close_node(&b);
}

/* A dropped message ends its send; one that is kept to the end does not hold the wire up. */
static void test_drop(void) {
    node_t a, b;
    uint8_t *sent = new_data(LARGE_BYTES, 1);

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    join_nodes(&a, &b);
    b.how = DROP;
    for (uint32_t i = 0; i < N_SIZES; i++)
        send_data(&a, i, sent, sizes[i], 1);
    CU_ASSERT(run_until(&a, &b, &a.done, N_SIZES, SOON_MS));
    CU_ASSERT(run_until(&a, &b, &b.messages, N_SIZES, SOON_MS));
    b.how = KEEP;
    for (uint32_t i = 0; i < N_SIZES; i++)
        send_data(&a, i, sent, sizes[i], 1);
    CU_ASSERT_FATAL(run_until(&a, &b, &b.messages, 2 * N_SIZES, SOON_MS));
    CU_ASSERT(a.done < 2 * N_SIZES);
    for (uint32_t i = 0; i < N_SIZES; i++)
        gwd_message_drop(b.kept[i]);
    CU_ASSERT(run_until(&a, &b, &a.done, 2 * N_SIZES, SOON_MS));
    for (uint32_t i = 0; i < N_SIZES; i++)
        CU_ASSERT_EQUAL(a.status[i], GW_OK);
    send_data(&a, 0, sent, LARGE_BYTES, 1);
    CU_ASSERT(run_until(&a, &b, &b.messages, 2 * N_SIZES + 1, SOON_MS));
    close_node(&b);
    close_node(&a);
    free(sent);
}

/* The sender gives up: its sends end, and what the other side sends to it is dropped. */
static void test_abort(void) {
    node_t a, b;
    uint8_t *sent = new_data(LARGE_BYTES, 1);

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    join_nodes(&a, &b);
    b.how = KEEP;
    send_data(&a, 0, sent, LARGE_BYTES, 1);
    CU_ASSERT_FATAL(run_until(&a, &b, &b.messages, 1, SOON_MS));
    gwd_link_abort(a.link);
    a.link = NULL;
    CU_ASSERT(run_until(&a, NULL, &a.done, 1, SOON_MS));
    CU_ASSERT_EQUAL(a.status[0], GW_ERR_ABORTED);

    for (uint32_t i = 1; i <= N_SIZES; i++)
        send_data(&b, i, sent, sizes[i - 1], 1);
    CU_ASSERT_EQUAL(take(&b, b.kept[0], &b.headers[0]), GW_IN_PROGRESS);
    run_for(&a, &b, 50);
    CU_ASSERT_EQUAL(b.status[N_SIZES], GW_IN_PROGRESS); /* nobody fetches it, or says so */
    gwd_link_abort(b.link);
    b.link = NULL;
    CU_ASSERT(run_until(&a, &b, &b.done, N_SIZES + 1, SOON_MS));
    CU_ASSERT_EQUAL(b.status[0], GW_ERR_ABORTED);
    CU_ASSERT_EQUAL(b.status[N_SIZES], GW_ERR_ABORTED);
    run_for(&a, &b, 50);
    CU_ASSERT_EQUAL(a.messages, 0);
    CU_ASSERT_EQUAL(a.broken + b.broken, 0);
    CU_ASSERT_EQUAL(a.done, 1);
    CU_ASSERT_EQUAL(b.done, N_SIZES + 1);
    close_node(&a);
    close_node(&b);
    free(sent);
}

/* The other side hears of a wire that is gone. */
static void test_free(void) {
    node_t a, b;
    uint8_t *sent = new_data(LARGE_BYTES, 1);

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    join_nodes(&a, &b);
    a.how = KEEP;
    send_data(&b, 0, sent, LARGE_BYTES, 1);
    CU_ASSERT(run_until(&a, &b, &a.messages, 1, SOON_MS));
    close_node(&a);
    CU_ASSERT(run_until(&b, NULL, &b.broken, 1, SOON_MS));
    CU_ASSERT_PTR_EQUAL(b.broken_cookie, &b);
    CU_ASSERT(b.text[0] != '\0');
    CU_ASSERT_NOT_EQUAL(send_data(&b, 1, sent, 1, 1), GW_OK);
    gwd_link_abort(b.link);
    b.link = NULL;
    CU_ASSERT(run_until(&b, NULL, &b.done, 2, SOON_MS));
    CU_ASSERT_NOT_EQUAL(b.status[0], GW_OK);
    CU_ASSERT_EQUAL(b.broken, 1);
    close_node(&b);
    free(sent);
}

static unsigned count_fds(void) {
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    CU_ASSERT_PTR_NOT_NULL_FATAL(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* Connections that were given up are closed a little later. */
static void run_until_closed(node_t *a, node_t *b, unsigned wanted) {
    for (int ms = 0; ms < SOON_MS && count_fds() != wanted; ms += 10)
        run_for(a, b, 10);
}

static void test_fds(void) {
    unsigned before = count_fds(), after_one = 0;
    uint8_t *sent = new_data(1 << 20, 1);
    node_t a, b;

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    for (unsigned i = 0; i < LINKS; i++) {
        join_nodes(&a, &b);
        send_data(&a, 0, sent, 1 << 20, 1);
        CU_ASSERT_FATAL(run_until(&a, &b, &b.done, i + 1, SOON_MS));
        CU_ASSERT_EQUAL(b.status[0], GW_OK);
        free(b.data[0]);
        b.data[0] = NULL;
        gwd_link_abort(a.link);
        gwd_link_abort(b.link);
        run_for(&a, &b, i == 0 ? 200 : 20);
        if (i == 0)
            after_one = count_fds();
    }
    a.link = b.link = NULL;
    run_until_closed(&a, &b, after_one);
    CU_ASSERT_EQUAL(count_fds(), after_one);
    close_node(&a);
    close_node(&b);
    CU_ASSERT_EQUAL(count_fds(), before);
    free(sent);
}

/* Works off what there is, then sleeps; true if something woke it. */
static bool sleep_on(node_t *node, int limit_ms) {
    struct pollfd ready = {.fd = gwd_wire_fd(node->wire), .events = POLLIN};

    while (!gwd_wire_arm(node->wire))
        gwd_wire_progress(node->wire);
    return poll(&ready, 1, limit_ms) == 1;
}

static void test_sleep(void) {
    node_t a, b;
    uint64_t end;
    unsigned woken = 0;

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    join_nodes(&a, &b);
    send_data(&a, 0, NULL, 0, 0);
    CU_ASSERT(run_until(&a, &b, &b.messages, 1, SOON_MS));
    run_for(&a, &b, 50);
    for (end = now_ms() + 1000; now_ms() < end;)
        woken += sleep_on(&b, 1000);
    CU_ASSERT(woken < 10);
    woken = 0;
    for (unsigned n = 1; n < 50 && woken == 0; n++) { /* one may have come before b sleeps */
        send_data(&a, (uint8_t)n, NULL, 0, 0);
        for (end = now_ms() + SOON_MS; b.messages < n + 1 && now_ms() < end;) {
            gwd_wire_progress(a.wire);
            woken += sleep_on(&b, 500);
            gwd_wire_progress(b.wire);
        }
        CU_ASSERT_EQUAL(b.messages, n + 1);
    }
    CU_ASSERT(woken > 0);
    close_node(&a);
    close_node(&b);
}

/* Sockets of this network namespace that wait for connections on these ports. */
static unsigned count_listeners(unsigned first, unsigned last) {
    FILE *file = fopen("/proc/self/net/tcp", "re");
    unsigned count = 0, port, state;
    char line[256];

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x", &port, &state) == 2 && state == 10 && port >= first && port <= last)
            count++;
    fclose(file);
    return count;
}

/* A node that has gone is lost, not something that this one cannot do. */
static void test_gone(void) {
    node_t a, b;
    const void *address;
    size_t bytes;
    void *copy;

    open_node(&a, &by_tcp);
    open_node(&b, &by_tcp);
    gwd_wire_address(b.wire, &address, &bytes);
    copy = malloc(bytes);
    MUST(copy != NULL);
    memcpy(copy, address, bytes);
    close_node(&b);
    CU_ASSERT_EQUAL(gwd_link_new(a.wire, copy, bytes, &a, &a.link, a.text), GW_ERR_NODE_LOST);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.text, "cannot make a link"));
    free(copy);
    a.link = NULL;
    close_node(&a);
}

static void test_ports(void) {
    gwd_transport_config_t config = by_tcp;
    unsigned before = count_listeners(23450, 23499);
    node_t node;

    config.ports = "23450-23499";
    open_node(&node, &config);
    CU_ASSERT(count_listeners(23450, 23499) > before);
    close_node(&node);
    CU_ASSERT_EQUAL(count_listeners(23450, 23499), before);
    CU_ASSERT_EQUAL(unsetenv("UCX_TCP_PORT_RANGE"), 0);
}

static void test_config(void) {
    gwd_transport_config_t config = by_tcp;
    gwd_transport_t *transport;
    char text[GWD_WIRE_TEXT_BYTES] = "";
    node_t a, b;

    config.devices = "nosuch0";
    CU_ASSERT_EQUAL(gwd_transport_open(&config, &transport, text), GW_ERR_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "nosuch0"));
    config.devices = "";
    config.transports = "nosuch";
    CU_ASSERT_EQUAL(gwd_transport_open(&config, &transport, text), GW_ERR_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "nosuch"));
    config.transports = "";
    open_node(&a, &config);
    open_node(&b, &config);
    join_nodes(&a, &b);
    send_data(&a, 0, (const uint8_t *)"", 1, 0);
    CU_ASSERT(run_until(&a, &b, &b.messages, 1, SOON_MS));
    close_node(&a);
    close_node(&b);
    CU_ASSERT_EQUAL(strncmp(gwd_transport_name(), "UCX 1.", 6), 0);
}

int main(void) {
    CU_TestInfo tests[] = {
        {"sizes, both ways", test_sizes},
        {"several paths", test_paths},
        {"keep, receive later", test_keep},
        {"drop", test_drop},
        {"abort", test_abort},
        {"free", test_free},
        {"no descriptor is left", test_fds},
        {"sleep and be woken", test_sleep},
        {"a node that has gone", test_gone},
        {"ports", test_ports},
        {"configuration", test_config},
        CU_TEST_INFO_NULL,
    };

    return cunit_run("transport", tests);
}
