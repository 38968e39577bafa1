/* links.c - how busy the links between nodes are, and what goes wrong on them
 *
 * The kernel counts for everybody; two samples with a pause between them tell what moves now. The daemon is not asked.
 */
#include "links.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double once_s = 1; /* how long it measures when not said otherwise */

/* ---- cells -------------------------------------------------------------------------------------- */

static gwctl_cell_t cell_known(bool known, const char *format, double number) {
    gwctl_cell_t cell = {"-"};
    if (known)
        snprintf(cell.text, sizeof(cell.text), format, number);
    return cell;
}

static gwctl_cell_t cell_word(const char *word) {
    return gwctl_cell_text(word[0] != '\0' ? word : "-");
}

static gwctl_cell_t cell_value(const gwctl_counter_t *counter) {
    gwctl_cell_t cell = {"-"};
    if (counter != NULL && counter->known)
        snprintf(cell.text, sizeof(cell.text), "%" PRIu64, counter->value);
    return cell;
}

static gwctl_cell_t cell_change(const gwctl_counter_t *counter) {
    gwctl_cell_t cell = {"-"};
    if (counter != NULL && counter->moved_known)
        snprintf(cell.text, sizeof(cell.text), counter->moved > 0 ? "+%" PRIu64 : "%" PRIu64, counter->moved);
    return cell;
}

/* ---- interfaces and ports ----------------------------------------------------------------------- */

static void add_rates(gwctl_table_t *table, const gwctl_link_t *link) {
    gwctl_table_add(table, cell_known(link->mbit_per_s > 0, "%.0f", link->mbit_per_s));
    gwctl_table_add(table, cell_known(link->in_mbit_per_s >= 0, "%.1f", link->in_mbit_per_s));
    gwctl_table_add(table, cell_known(link->out_mbit_per_s >= 0, "%.1f", link->out_mbit_per_s));
}

static int print_interfaces(const gwctl_links_t *links) {
    static const char *const headers[] = {"INTERFACE", "KIND",     "STATE",     ">MTU",     ">MBIT/S",  ">IN",
                                          ">OUT",      ">IN ERRS", ">OUT ERRS", ">IN LOST", ">OUT LOST"};
    static const char *const wrong[] = {"rx_errors", "tx_errors", "rx_dropped", "tx_dropped"};
    gwctl_table_t table;
    gwctl_table_init(&table, headers, sizeof(headers) / sizeof(headers[0]));
    for (size_t i = 0; i < links->count; i++) {
        const gwctl_link_t *link = &links->link[i];
        if (link->port != 0)
            continue;
        gwctl_table_add(&table, gwctl_cell_text(link->name));
        gwctl_table_add(&table, cell_word(link->kind));
        gwctl_table_add(&table, cell_word(link->state));
        gwctl_table_add(&table, cell_known(link->mtu_bytes > 0, "%.0f", (double)link->mtu_bytes));
        add_rates(&table, link);
        for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++)
            gwctl_table_add(&table, cell_value(gwctl_counter_find(&link->counters, wrong[k])));
    }
    return gwctl_table_print(&table, "", "no interface");
}

static int print_ports(const gwctl_links_t *links) {
    static const char *const headers[] = {"RDMA DEVICE", ">PORT",   "LINK LAYER", "STATE",
                                          "INTERFACE",   ">MBIT/S", ">IN",        ">OUT"};
    gwctl_table_t table;
    gwctl_table_init(&table, headers, sizeof(headers) / sizeof(headers[0]));
    for (size_t i = 0; i < links->count; i++) {
        const gwctl_link_t *link = &links->link[i];
        if (link->port == 0)
            continue;
        gwctl_table_add(&table, gwctl_cell_text(link->name));
        gwctl_table_add(&table, gwctl_cell_count((double)link->port));
        gwctl_table_add(&table, cell_word(link->kind));
        gwctl_table_add(&table, cell_word(link->state));
        gwctl_table_add(&table, cell_word(link->netdev));
        add_rates(&table, link);
    }
    return gwctl_table_print(&table, "", "no RDMA device");
}

/* ---- signs of congestion and loss --------------------------------------------------------------- */

/* Of the many counters those that tell why a link is slow. */
static const char *const signs[][2] = {
    {"OutSegs", "TCP segments sent, without those sent again"},
    {"RetransSegs", "TCP segments sent again"},
    {"TCPFastRetrans", "TCP segments sent again because the peer reported a gap"},
    {"TCPTimeouts", "TCP timers that ran out: nothing came back for long"},
    {"TCPLostRetransmit", "TCP segments sent again that were lost again"},
    {"InCEPkts", "packets that came marked: a switch on the way was congested"},
    {"np_ecn_marked_roce_packets", "packets that came marked: a switch on the way was congested"},
    {"np_cnp_sent", "notices of congestion that went back to the sender"},
    {"rp_cnp_handled", "notices of congestion that made this port slow down"},
    {"rp_cnp_ignored", "notices of congestion that were ignored"},
    {"out_of_sequence", "packets that came in the wrong order"},
    {"packet_seq_err", "refusals of packets in the wrong order, which are then sent again"},
    {"local_ack_timeout_err", "packets that nobody confirmed in time"},
    {"rnr_nak_retry_err", "refusals because the receiver had no buffer ready"},
    {"port_xmit_wait", "ticks in which data was there and the port could not send"},
    {"port_xmit_discards", "packets that the port could not send and threw away"},
    {"port_rcv_errors", "packets that came damaged"},
    {"link_downed", "times the link failed"},
};

/* NULL: not shown. Pauses have a priority in their names, and are named by the driver. */
static const char *meaning(const char *counter) {
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        if (strcmp(counter, signs[i][0]) == 0)
            return signs[i][1];
    }
    if (strstr(counter, "pause") == NULL)
        return NULL;
    return strncmp(counter, "tx", 2) == 0 ? "pauses that this port asked for: it could take no more"
                                          : "pauses that the other end asked for: it could take no more";
}

static void add_signs(gwctl_table_t *table, const char *where, const gwctl_counters_t *counters) {
    for (size_t i = 0; i < counters->count; i++) {
        const gwctl_counter_t *counter = &counters->counter[i];
        const char *means = meaning(counter->name);
        if (means == NULL)
            continue;
        gwctl_table_add(table, gwctl_cell_text(where));
        gwctl_table_add(table, gwctl_cell_text(counter->name));
        gwctl_table_add(table, cell_value(counter));
        gwctl_table_add(table, cell_change(counter));
        gwctl_table_add(table, gwctl_cell_text(means));
    }
}

static int print_signs(const gwctl_links_t *links) {
    static const char *const headers[] = {"WHERE", "COUNTER", ">VALUE", ">CHANGE", "WHAT IT COUNTS"};
    gwctl_table_t table;
    gwctl_table_init(&table, headers, sizeof(headers) / sizeof(headers[0]));
    add_signs(&table, "host", &links->host);
    for (size_t i = 0; i < links->count; i++) {
        const gwctl_link_t *link = &links->link[i];
        char where[sizeof(link->name) + 24];
        snprintf(where, sizeof(where), link->port != 0 ? "%s/%" PRIu64 : "%s", link->name, link->port);
        add_signs(&table, where, &link->counters);
    }
    return gwctl_table_print(&table, "", "no counter of TCP or RDMA");
}

static int print_links(const gwctl_links_t *links) {
    int code = print_interfaces(links);
    putchar('\n');
    if (code == GWCTL_OK)
        code = print_ports(links);
    putchar('\n');
    if (code == GWCTL_OK)
        code = print_signs(links);
    if (links->interval_s > 0)
        printf("\nIN and OUT are Mbit/s, CHANGE is the growth, both over the last %.1f s.\n", links->interval_s);
    return code;
}

/* ---- the command -------------------------------------------------------------------------------- */

static void wait_s(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)(1e9 * (seconds - (double)left.tv_sec));
    nanosleep(&left, NULL);
}

static int sample(const gwctl_options_t *options, gwctl_links_t *links_out) {
    const char *missing = NULL;
    if (!gwctl_links_read(links_out))
        fprintf(stderr, "gwctl: the links cannot be read: %s\n", gwctl_cell_text(links_out->trouble).text);
    else if ((missing = gwctl_links_pick(links_out, options)) != NULL)
        fprintf(stderr, "gwctl: %s: no such interface or RDMA device: `gwctl links --no-measure` shows all\n",
                gwctl_cell_text(missing).text);
    else
        return GWCTL_OK;
    return GWCTL_FAILED;
}

static int print(const gwctl_options_t *options, const gwctl_links_t *links) {
    bool again = options->watch_s > 0;
    if (options->json)
        return gwctl_print_json(gwctl_links_to_json(links));
    if (again && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);
    int code = print_links(links);
    if (again && !isatty(STDOUT_FILENO))
        putchar('\n');
    return code;
}

int gwctl_links(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    gwctl_links_t before = {0};
    gwctl_links_t now = {0};
    (void)arguments;
    (void)n_arguments;
    int code = sample(options, &before);
    if (code == GWCTL_OK && options->no_measure) {
        code = print(options, &before);
    } else if (code == GWCTL_OK) {
        do {
            wait_s(options->watch_s > 0 ? options->watch_s : once_s);
            code = sample(options, &now);
            if (code != GWCTL_OK)
                break;
            gwctl_links_compare(&before, &now);
            code = print(options, &now);
            gwctl_links_free(&before);
            before = now;
            now = (gwctl_links_t){0};
        } while (code == GWCTL_OK && options->watch_s > 0 && fflush(stdout) == 0);
    }
    gwctl_links_free(&now);
    gwctl_links_free(&before);
    return code;
}
