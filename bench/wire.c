/* wire.c - how fast messages cross the network between two processes, without a daemon
 *
 *   wire [options] serve PORT            on one host, or in one network namespace
 *   wire [options] ADDRESS PORT          on the other; both with the same options
 *     -d DEVICES  -t TRANSPORTS  -p PATHS  -s BYTES (262144,1048576,2097152)  -n BYTES to move in all (2147483648)
 *     -w MESSAGES under way each way (4)
 *
 * Prints what each side sends, first one way, then both ways at once, with the processor time of this process. Beside
 * it, in the same places, the same by UCX's own tool, one way and then (two at once) both ways:
 *   UCX_TLS=tcp ucx_perftest                    UCX_TLS=tcp ucx_perftest ADDRESS -t tag_bw -s 1048576 -n 2000
 *   UCX_TLS=tcp ucx_perftest -p 13338           the same on the other side, with the first one's address and -p 13338
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

enum { WINDOW_MAX = 64, SIZES_MAX = 16, ADDRESS_BYTES = 4096, CONNECT_TRIES = 50 };

typedef enum kind { DATA, ALL_HERE } kind_t;

typedef struct options {
    gwd_transport_config_t config;
    uint64_t sizes[SIZES_MAX], total_bytes;
    unsigned n_sizes, window;
    const char *address, *port;
    bool serves;
} options_t;

/* One run: messages of one size. */
typedef struct run {
    gwd_wire_t *wire;
    gwd_link_t *link;
    uint64_t bytes, to_receive;
    unsigned window;
    uint64_t sent, received;
    bool answered; /* the other side has got all */
    unsigned free_send[WINDOW_MAX], n_free_send;
    unsigned free_receive[WINDOW_MAX], n_free_receive;
    gwd_message_t *waiting[2 * WINDOW_MAX]; /* for room */
    unsigned n_waiting;
    uint8_t *out[WINDOW_MAX], *in[WINDOW_MAX];
} run_t;

static void must(bool is_true, const char *what) {
    if (is_true)
        return;
    fprintf(stderr, "wire: %s failed\n", what);
    exit(1);
}

#define MUST(condition) must((condition), #condition)

static double now_s(clockid_t clock) {
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void say(run_t *run, kind_t kind, unsigned slot) {
    const uint8_t header = (uint8_t)kind;
    uint64_t bytes = kind == DATA ? run->bytes : 0;
    gw_status_t status = gwd_link_send(run->link, slot % gwd_link_paths(run->link), &header, 1, run->out[slot], bytes,
                                       (void *)(uintptr_t)(kind == DATA ? slot + 1 : 0));

    if (status == GW_OK && kind == DATA)
        run->free_send[run->n_free_send++] = slot;
    MUST(status == GW_OK || status == GW_IN_PROGRESS);
}

static void has_received(run_t *run, unsigned slot) {
    run->free_receive[run->n_free_receive++] = slot;
    if (++run->received == run->to_receive)
        say(run, ALL_HERE, 0);
}

static void take(run_t *run, gwd_message_t *message) {
    unsigned slot = run->free_receive[--run->n_free_receive];
    gw_status_t status = gwd_message_receive(message, run->in[slot], (void *)(uintptr_t)(WINDOW_MAX + slot + 1));

    MUST(status == GW_OK || status == GW_IN_PROGRESS);
    if (status == GW_OK)
        has_received(run, slot);
}

static void on_message(void *lane, const void *header, size_t header_bytes, const void *data, uint64_t bytes,
                       gwd_message_t *message) {
    run_t *run = lane;

    (void)data;
    MUST(header_bytes == 1);
    if (*(const uint8_t *)header == ALL_HERE) {
        run->answered = true;
        return;
    }
    MUST(bytes == run->bytes);
    if (run->n_free_receive > 0) {
        take(run, message);
        return;
    }
    MUST(run->n_waiting < 2 * WINDOW_MAX);
    gwd_message_keep(message);
    run->waiting[run->n_waiting++] = message;
}

static void on_done(void *lane, void *cookie, gw_status_t status) {
    run_t *run = lane;
    unsigned slot = (unsigned)(uintptr_t)cookie;

    MUST(status == GW_OK);
    if (slot > WINDOW_MAX)
        has_received(run, slot - WINDOW_MAX - 1);
    else if (slot > 0)
        run->free_send[run->n_free_send++] = slot - 1;
}

static void on_broken(void *lane, void *link_cookie, const char *text) {
    (void)lane, (void)link_cookie;
    fprintf(stderr, "wire: the other side is gone: %s\n", text);
    exit(1);
}

/* Seconds until the other side has all, and this one too. */
static double play(run_t *run, uint64_t to_send, uint64_t to_receive) {
    double start = now_s(CLOCK_MONOTONIC);

    run->to_receive = to_receive;
    run->sent = 0;
    run->answered = to_send == 0;
    while (!run->answered || run->received < to_receive || run->n_free_send < run->window) {
        struct pollfd ready = {.fd = gwd_wire_fd(run->wire), .events = POLLIN};

        while (run->sent < to_send && run->n_free_send > 0) {
            run->sent++;
            say(run, DATA, run->free_send[--run->n_free_send]);
        }
        while (run->n_waiting > 0 && run->n_free_receive > 0)
            take(run, run->waiting[--run->n_waiting]);
        if (!gwd_wire_progress(run->wire) && gwd_wire_arm(run->wire))
            poll(&ready, 1, -1);
    }
    run->received = 0;
    return now_s(CLOCK_MONOTONIC) - start;
}

static void meet(int channel) {
    char byte = 0;

    MUST(send(channel, &byte, 1, MSG_NOSIGNAL) == 1);
    MUST(recv(channel, &byte, 1, MSG_WAITALL) == 1);
}

static void measure(run_t *run, const options_t *options, int channel) {
    static const char *const ways[] = {"one way", "both ways"};

    for (unsigned both = 0; both < 2; both++) {
        uint64_t count = options->total_bytes / run->bytes;
        bool sends = both || !options->serves;
        double cpu, seconds;

        meet(channel);
        play(run, sends ? count / 10 + 1 : 0, both || options->serves ? count / 10 + 1 : 0); /* to warm up */
        meet(channel);
        cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
        seconds = play(run, sends ? count : 0, both || options->serves ? count : 0);
        cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        printf("%10llu bytes  %-9s  %s %6.2f GB/s  %5.1f %% of a core\n", (unsigned long long)run->bytes, ways[both],
               sends ? "sent" : "got ", (double)(count * run->bytes) / seconds * 1e-9, cpu / seconds * 100);
        fflush(stdout);
    }
}

static int open_channel(const options_t *options) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int one = 1, fd, channel;

    MUST(getaddrinfo(options->serves ? NULL : options->address, options->port, &hints, &found) == 0);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(fd >= 0);
    if (options->serves) {
        MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
        MUST(bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0);
        channel = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        MUST(channel >= 0);
        close(fd);
    } else {
        int tries = 0;

        while (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
            MUST(++tries < CONNECT_TRIES);
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        }
        channel = fd;
    }
    freeaddrinfo(found);
    return channel;
}

static void swap_addresses(run_t *run, int channel, char *text) {
    uint8_t other[ADDRESS_BYTES];
    const void *address;
    uint32_t bytes;
    size_t size;

    gwd_wire_address(run->wire, &address, &size);
    bytes = (uint32_t)size;
    MUST(send(channel, &bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes));
    MUST(send(channel, address, size, MSG_NOSIGNAL) == (ssize_t)size);
    MUST(recv(channel, &bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes) && bytes <= sizeof(other));
    MUST(recv(channel, other, bytes, MSG_WAITALL) == (ssize_t)bytes);
    MUST(gwd_link_new(run->wire, other, bytes, NULL, &run->link, text) == GW_OK);
}

static void measure_size(gwd_transport_t *transport, const options_t *options, int channel, uint64_t bytes) {
    static const gwd_wire_events_t events = {on_message, on_done, on_broken};
    char text[GWD_WIRE_TEXT_BYTES];
    run_t run = {.bytes = bytes, .window = options->window};

    MUST(gwd_wire_new(transport, &events, &run, &run.wire, text) == GW_OK);
    swap_addresses(&run, channel, text);
    for (unsigned i = 0; i < options->window; i++) {
        MUST((run.out[i] = malloc(bytes)) != NULL && (run.in[i] = malloc(bytes)) != NULL);
        memset(run.out[i], 1, bytes); /* so that it is there */
        memset(run.in[i], 1, bytes);
        run.free_send[run.n_free_send++] = run.free_receive[run.n_free_receive++] = i;
    }
    measure(&run, options, channel);
    meet(channel);
    gwd_link_abort(run.link);
    gwd_wire_free(run.wire);
    for (unsigned i = 0; i < options->window; i++) {
        free(run.out[i]);
        free(run.in[i]);
    }
}

static void read_sizes(options_t *options, char *text) {
    options->n_sizes = 0;
    for (char *word = strtok(text, ","); word != NULL && options->n_sizes < SIZES_MAX; word = strtok(NULL, ","))
        options->sizes[options->n_sizes++] = strtoull(word, NULL, 10);
}

static bool read_options(options_t *options, int argc, char **argv) {
    int option;

    while ((option = getopt(argc, argv, "d:t:p:s:n:w:")) != -1) {
        if (option == 'd')
            options->config.devices = optarg;
        else if (option == 't')
            options->config.transports = optarg;
        else if (option == 'p')
            options->config.paths = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 's')
            read_sizes(options, optarg);
        else if (option == 'n')
            options->total_bytes = strtoull(optarg, NULL, 10);
        else if (option == 'w')
            options->window = (unsigned)strtoul(optarg, NULL, 10);
        else
            return false;
    }
    if (argc - optind != 2)
        return false;
    options->serves = strcmp(argv[optind], "serve") == 0;
    options->address = argv[optind];
    options->port = argv[optind + 1];
    for (unsigned i = 0; i < options->n_sizes; i++)
        if (options->sizes[i] == 0)
            return false;
    return options->window >= 1 && options->window <= WINDOW_MAX && options->n_sizes > 0;
}

int main(int argc, char **argv) {
    options_t options = {.config = {.devices = "", .transports = "", .ports = "", .paths = 1},
                         .sizes = {256 << 10, 1 << 20, 2 << 20},
                         .n_sizes = 3,
                         .total_bytes = 2ull << 30,
                         .window = 4};
    char text[GWD_WIRE_TEXT_BYTES];
    gwd_transport_t *transport;
    int channel;

    if (!read_options(&options, argc, argv)) {
        fprintf(stderr, "usage: wire [-d DEVICES] [-t TRANSPORTS] [-p PATHS] [-s BYTES,...] [-n BYTES] [-w MESSAGES] "
                        "serve|ADDRESS PORT\n");
        return 2;
    }
    if (gwd_transport_set_environment(&options.config, text) != GW_OK ||
        gwd_transport_open(&options.config, &transport, text) != GW_OK) {
        fprintf(stderr, "wire: %s\n", text);
        return 1;
    }
    channel = open_channel(&options);
    for (unsigned i = 0; i < options.n_sizes; i++)
        measure_size(transport, &options, channel, options.sizes[i]);
    close(channel);
    gwd_transport_close(transport);
    return 0;
}
