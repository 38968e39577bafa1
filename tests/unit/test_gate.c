/* test_gate.c - who may connect to the ports behind a gate, and from which addresses a host's connections come */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cunit_main.h"
#include "transport_gate.h"

enum { SOON_MS = 5000 };

static struct sockaddr_in at(const char *number, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};

    CU_ASSERT_EQUAL_FATAL(inet_pton(AF_INET, number, &address.sin_addr), 1);
    return address;
}

static gwd_ip_t ip(const char *number) {
    struct sockaddr_in address = at(number, 0);
    gwd_ip_t ip_of;

    CU_ASSERT_TRUE_FATAL(gwd_ip_of((const struct sockaddr *)&address, &ip_of));
    return ip_of;
}

/* On loopback; behind the gate, if there is one. */
static int new_listener(gwd_gate_t *gate) {
    struct sockaddr_in address = at("127.0.0.1", 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    CU_ASSERT_EQUAL_FATAL(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    gwd_gate_watch(gate);
    CU_ASSERT_EQUAL_FATAL(listen(fd, 8), 0);
    gwd_gate_watch(NULL);
    return fd;
}

static int connect_from(const char *number, int listener) {
    struct sockaddr_in from = at(number, 0), to;
    socklen_t bytes = sizeof(to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CU_ASSERT_EQUAL_FATAL(bind(fd, (const struct sockaddr *)&from, sizeof(from)), 0);
    CU_ASSERT_EQUAL_FATAL(getsockname(listener, (struct sockaddr *)&to, &bytes), 0);
    CU_ASSERT_EQUAL_FATAL(connect(fd, (const struct sockaddr *)&to, bytes), 0);
    return fd;
}

static bool is_readable(int fd, int timeout_ms) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    return poll(&poll_fd, 1, timeout_ms) == 1;
}

/* As UCX does when its listener is readable. */
static int take(int listener, struct sockaddr_in *from_out) {
    socklen_t bytes = sizeof(*from_out);

    CU_ASSERT_TRUE_FATAL(is_readable(listener, SOON_MS));
    return accept(listener, (struct sockaddr *)from_out, &bytes);
}

static bool is_closed(int fd) {
    char byte;
    ssize_t n = is_readable(fd, SOON_MS) ? recv(fd, &byte, 1, MSG_DONTWAIT) : 1;

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static void connections_wait_until_the_nodes_are_known(void) {
    gwd_gate_t *gate = gwd_gate_new();
    int listener = new_listener(gate), stranger = connect_from("127.0.0.9", listener);
    int node = connect_from("127.0.0.2", listener), other, taken;
    const gwd_ip_t known = ip("127.0.0.2");
    struct sockaddr_in from;

    CU_ASSERT_EQUAL(take(listener, &from), -1);
    CU_ASSERT_EQUAL(errno, EAGAIN);
    CU_ASSERT_TRUE_FATAL(gwd_gate_let_in(gate, &known, 1));
    taken = take(listener, &from); /* nothing new has come */
    CU_ASSERT_TRUE_FATAL(taken >= 0);
    CU_ASSERT_EQUAL(from.sin_addr.s_addr, at("127.0.0.2", 0).sin_addr.s_addr);
    CU_ASSERT_EQUAL(write(taken, "x", 1), 1);
    CU_ASSERT_TRUE(is_readable(node, SOON_MS));
    CU_ASSERT_TRUE(is_closed(stranger));

    other = connect_from("127.0.0.9", listener); /* now that they are known */
    CU_ASSERT_EQUAL(take(listener, &from), -1);
    CU_ASSERT_EQUAL(errno, EAGAIN);
    CU_ASSERT_TRUE(is_closed(other));
    close(other);
    close(stranger);
    close(taken);
    close(node);
    close(listener);
    gwd_gate_free(gate);
}

/* Strangers that keep coming do not keep the lock, which the loop takes, too. */
static void a_crowd_is_turned_away_bit_by_bit(void) {
    enum { CROWD = 6 };
    gwd_gate_t *gate = gwd_gate_new();
    int listener = new_listener(gate), strangers[CROWD], node, taken;
    const gwd_ip_t known = ip("127.0.0.2");
    struct sockaddr_in from;

    CU_ASSERT_TRUE_FATAL(gwd_gate_let_in(gate, &known, 1));
    for (int i = 0; i < CROWD; i++)
        strangers[i] = connect_from("127.0.0.9", listener);
    node = connect_from("127.0.0.2", listener);
    CU_ASSERT_EQUAL(take(listener, &from), -1);
    CU_ASSERT_EQUAL(errno, EAGAIN);
    taken = take(listener, &from);
    CU_ASSERT_TRUE(taken >= 0);
    for (int i = 0; i < CROWD; i++) {
        CU_ASSERT_TRUE(is_closed(strangers[i]));
        close(strangers[i]);
    }
    close(taken);
    close(node);
    close(listener);
    gwd_gate_free(gate);
}

static void what_is_behind_no_gate_is_let_alone(void) {
    gwd_gate_t *gate = gwd_gate_new();
    int listener = new_listener(NULL), stranger = connect_from("127.0.0.9", listener), taken;
    struct sockaddr_in from;

    CU_ASSERT_TRUE_FATAL(gwd_gate_let_in(gate, NULL, 0));
    taken = take(listener, &from);
    CU_ASSERT_TRUE(taken >= 0);
    close(taken);
    close(stranger);
    close(listener);
    gwd_gate_free(gate);
}

static void loopback_counts_on_the_same_host_only(void) {
    const gwd_ip_t here[] = {ip("127.0.0.1"), ip("10.0.0.1"), ip("10.0.1.1")};
    const gwd_ip_t there[] = {ip("127.0.0.1"), ip("10.0.0.2")}, alone[] = {ip("127.0.0.1")};
    gwd_ip_list_t own = {.n = 3};
    gwd_ip_t selected[3];

    memcpy(own.ips, here, sizeof(here));
    CU_ASSERT_EQUAL(gwd_ip_select(there, 2, &own, selected), 1);
    CU_ASSERT_TRUE(gwd_ip_is_in(&there[1], selected, 1));
    CU_ASSERT_FALSE(gwd_ip_is_in(&there[0], selected, 1));
    CU_ASSERT_EQUAL(gwd_ip_select(here, 3, &own, selected), 3);
    CU_ASSERT_EQUAL(gwd_ip_select(alone, 1, &own, selected), 1);
    CU_ASSERT_EQUAL(gwd_ip_select(NULL, 0, &own, selected), 0);
}

static void the_own_addresses_are_told_whole(void) {
    const gwd_ip_t loopback = ip("127.0.0.1");
    gwd_ip_list_t own;
    gwd_ip_t *copy;
    uint32_t n;

    gwd_ip_own(&own);
    CU_ASSERT_TRUE(gwd_ip_is_in(&loopback, own.ips, own.n));
    CU_ASSERT_TRUE_FATAL(gwd_ip_copy(own.ips, own.n * sizeof(gwd_ip_t), &copy, &n));
    CU_ASSERT_EQUAL(n, own.n);
    CU_ASSERT_TRUE(gwd_ip_is_in(&loopback, copy, n));
    free(copy);
    CU_ASSERT_FALSE(gwd_ip_copy(own.ips, sizeof(gwd_ip_t) - 1, &copy, &n));
    CU_ASSERT_FALSE(gwd_ip_copy(own.ips, (GWD_IPS_MAX + 1) * sizeof(gwd_ip_t), &copy, &n));
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"connections wait until the nodes are known", connections_wait_until_the_nodes_are_known},
        {"a crowd is turned away bit by bit", a_crowd_is_turned_away_bit_by_bit},
        {"what is behind no gate is let alone", what_is_behind_no_gate_is_let_alone},
        {"loopback counts on the same host only", loopback_counts_on_the_same_host_only},
        {"the own addresses are told whole", the_own_addresses_are_told_whole},
        CU_TEST_INFO_NULL,
    };

    return cunit_run("gate", tests);
}
