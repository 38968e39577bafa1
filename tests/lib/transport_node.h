/* transport_node.h - what tests of the transport share: nodes that remember what they are told
 *
 * All goes by TCP over the loopback device.
 */
#ifndef TRANSPORT_NODE_H
#define TRANSPORT_NODE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport.h"

enum {
    SOON_MS = 2000, /* for what needs no network */
    LARGE_BYTES = 8 << 20,
    MESSAGES_MAX = 16
};

typedef struct header {
    uint64_t bytes;
    uint32_t seed;
    uint32_t id;
} header_t;

typedef enum how { RECEIVE, KEEP, DROP } how_t;

/* For what the other processes run too, where CUnit does not. */
static inline void must(bool is_true, const char *what) {
    if (is_true)
        return;
    fprintf(stderr, "failed: %s\n", what);
    exit(3);
}

#define MUST(condition) must((condition), #condition)

/* What a lane would be: it remembers what it is told. */
typedef struct node {
    gwd_transport_t *transport;
    gwd_wire_t *wire;
    gwd_link_t *link;
    how_t how;
    unsigned messages, done, broken;
    gw_status_t status[MESSAGES_MAX]; /* of what ended, by cookie */
    header_t headers[MESSAGES_MAX];
    gwd_message_t *kept[MESSAGES_MAX];
    uint8_t *data[MESSAGES_MAX]; /* received */
    void *broken_cookie;
    char text[GWD_WIRE_TEXT_BYTES];
} node_t;

static inline uint8_t pattern(uint32_t seed, uint64_t at) {
    return (uint8_t)((at * 2654435761u >> 7) + seed);
}

static inline uint8_t *new_data(uint64_t bytes, uint32_t seed) {
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);

    MUST(data != NULL);
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = pattern(seed, i);
    return data;
}

static inline bool is_data(const uint8_t *data, uint64_t bytes, uint32_t seed) {
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != pattern(seed, i))
            return false;
    return true;
}

static inline void *cookie_of(uint32_t id) {
    return (void *)(uintptr_t)(id + 1);
}

static inline void on_done(void *lane, void *cookie, gw_status_t status) {
    node_t *node = lane;

    node->status[(uintptr_t)cookie - 1] = status;
    node->done++;
}

static inline gw_status_t take(node_t *node, gwd_message_t *message, const header_t *header) {
    gw_status_t status;

    node->data[header->id] = malloc(header->bytes > 0 ? header->bytes : 1);
    MUST(node->data[header->id] != NULL);
    node->status[header->id] = GW_IN_PROGRESS;
    status = gwd_message_receive(message, node->data[header->id], cookie_of(header->id));
    if (status != GW_IN_PROGRESS)
        on_done(node, cookie_of(header->id), status);
    return status;
}

static inline void on_message(void *lane, const void *header, size_t header_bytes, const void *data, uint64_t bytes,
                              gwd_message_t *message) {
    node_t *node = lane;
    header_t copy;

    MUST(header_bytes == sizeof(copy));
    memcpy(&copy, header, sizeof(copy)); /* it is not aligned */
    MUST(copy.id < MESSAGES_MAX);
    MUST(copy.bytes == bytes);
    MUST(gwd_message_wire(message) == node->wire);
    if (data != NULL)
        MUST(is_data(data, bytes, copy.seed));
    node->headers[copy.id] = copy;
    node->messages++;
    if (node->how == RECEIVE) {
        take(node, message, &copy);
    } else if (node->how == KEEP) {
        gwd_message_keep(message);
        node->kept[copy.id] = message;
    }
}

static inline void on_broken(void *lane, void *link_cookie, const char *text) {
    node_t *node = lane;

    node->broken++;
    node->broken_cookie = link_cookie;
    snprintf(node->text, sizeof(node->text), "%s", text);
}

static const gwd_wire_events_t events = {on_message, on_done, on_broken};
static const gwd_transport_config_t by_tcp = {.devices = "lo", .transports = "tcp", .ports = "", .paths = 1};

static inline void open_node(node_t *node, const gwd_transport_config_t *config) {
    *node = (node_t){.how = RECEIVE};
    MUST(gwd_transport_set_environment(config, node->text) == GW_OK);
    MUST(gwd_transport_open(config, &node->transport, node->text) == GW_OK);
    MUST(gwd_wire_new(node->transport, &events, node, &node->wire, node->text) == GW_OK);
}

static inline void close_node(node_t *node) {
    if (node->link != NULL)
        gwd_link_abort(node->link);
    gwd_wire_free(node->wire);
    gwd_transport_close(node->transport);
    for (size_t i = 0; i < MESSAGES_MAX; i++)
        free(node->data[i]);
}

static inline void connect_node(node_t *node, const void *address, size_t bytes) {
    MUST(gwd_link_new(node->wire, address, bytes, node, &node->link, node->text) == GW_OK);
}

static inline void join_nodes(node_t *a, node_t *b) {
    const void *address;
    size_t bytes;

    gwd_wire_address(a->wire, &address, &bytes);
    connect_node(b, address, bytes);
    gwd_wire_address(b->wire, &address, &bytes);
    connect_node(a, address, bytes);
}

static inline uint64_t now_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Lets both work until *count has reached `least`. */
static inline bool run_until(node_t *a, node_t *b, const unsigned *count, unsigned least, unsigned limit_ms) {
    uint64_t end = now_ms() + limit_ms;

    while (*count < least) {
        gwd_wire_progress(a->wire);
        if (b != NULL)
            gwd_wire_progress(b->wire);
        if (now_ms() > end)
            return false;
    }
    return true;
}

static inline void run_for(node_t *a, node_t *b, unsigned ms) {
    static const unsigned nothing;

    MUST(!run_until(a, b, &nothing, 1, ms));
}

/* Counts as done what ends at once. */
static inline gw_status_t send_data(node_t *node, uint32_t id, const uint8_t *data, uint64_t bytes, uint32_t seed) {
    header_t header = {.bytes = bytes, .seed = seed, .id = id};
    gw_status_t status;

    node->status[id] = GW_IN_PROGRESS;
    status =
        gwd_link_send(node->link, id % gwd_link_paths(node->link), &header, sizeof(header), data, bytes, cookie_of(id));
    if (status != GW_IN_PROGRESS)
        on_done(node, cookie_of(id), status);
    return status;
}

#endif
