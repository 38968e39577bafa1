/* stats.c - counters and times, once or again and again */
#include "gwctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void wait_s(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)(1e9 * (seconds - (double)left.tv_sec));
    nanosleep(&left, NULL);
}

static gwctl_cell_t cell_value(const cJSON *stat, double value) {
    return strcmp(gwctl_text(stat, "unit"), "bytes") == 0 ? gwctl_cell_bytes(value) : gwctl_cell_count(value);
}

/* "12 /s"; a gauge has no rate, and the first look neither. */
static gwctl_cell_t cell_rate(const cJSON *stat, const cJSON *before, double elapsed_s) {
    gwctl_cell_t cell = {""};
    if (before == NULL || strcmp(gwctl_text(stat, "kind"), "counter") != 0)
        return cell;
    double rate = (gwctl_number(stat, "value") - gwctl_number(before, "value")) / elapsed_s;
    snprintf(cell.text, sizeof(cell.text), "%.100s /s", cell_value(stat, rate).text);
    return cell;
}

static const cJSON *find_stat(const cJSON *document, const char *name) {
    const cJSON *stat;
    cJSON_ArrayForEach(stat, cJSON_GetObjectItemCaseSensitive(document, "stats")) {
        if (strcmp(gwctl_text(stat, "name"), name) == 0)
            return stat;
    }
    return NULL;
}

static int print_counters(const cJSON *document, const cJSON *before, double elapsed_s) {
    static const char *const once[] = {"NAME", ">VALUE", "WHAT IT COUNTS"};
    static const char *const again[] = {"NAME", ">VALUE", ">RATE", "WHAT IT COUNTS"};
    const cJSON *stat;
    gwctl_table_t table;
    if (before != NULL)
        gwctl_table_init(&table, again, 4);
    else
        gwctl_table_init(&table, once, 3);
    cJSON_ArrayForEach(stat, cJSON_GetObjectItemCaseSensitive(document, "stats")) {
        if (strcmp(gwctl_text(stat, "kind"), "histogram") == 0)
            continue;
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(stat, "name")));
        gwctl_table_add(&table, cell_value(stat, gwctl_number(stat, "value")));
        if (before != NULL)
            gwctl_table_add(&table, cell_rate(stat, find_stat(before, gwctl_text(stat, "name")), elapsed_s));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(stat, "help")));
    }
    return gwctl_table_print(&table, "", "no counter");
}

static int print_histograms(const cJSON *document) {
    static const char *const headers[] = {"TIME", ">COUNT", ">MEAN", ">P50", ">P99", "WHAT IT MEASURES"};
    const cJSON *stat;
    gwctl_table_t table;
    gwctl_table_init(&table, headers, 6);
    cJSON_ArrayForEach(stat, cJSON_GetObjectItemCaseSensitive(document, "stats")) {
        if (strcmp(gwctl_text(stat, "kind"), "histogram") != 0)
            continue;
        double count = gwctl_number(stat, "count");
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(stat, "name")));
        gwctl_table_add(&table, gwctl_cell_count(count));
        gwctl_table_add(&table, count > 0 ? gwctl_cell_ns(gwctl_number(stat, "sum") / count) : gwctl_cell_text("-"));
        gwctl_table_add(&table, count > 0 ? gwctl_cell_ns(gwctl_number(stat, "p50")) : gwctl_cell_text("-"));
        gwctl_table_add(&table, count > 0 ? gwctl_cell_ns(gwctl_number(stat, "p99")) : gwctl_cell_text("-"));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(stat, "help")));
    }
    return gwctl_table_print(&table, "", "no time");
}

static int print_ranks(const cJSON *document) {
    static const char *const headers[] = {">GROUP", ">RANK", ">TIMES LAST", ">WAITED FOR IT"};
    const cJSON *rank;
    gwctl_table_t table;
    gwctl_table_init(&table, headers, 4);
    cJSON_ArrayForEach(rank, cJSON_GetObjectItemCaseSensitive(document, "groups")) {
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(rank, "id")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(rank, "rank")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(rank, "last_count")));
        gwctl_table_add(&table, gwctl_cell_ns(gwctl_number(rank, "last_ns")));
    }
    return gwctl_table_print(&table, "", "no group");
}

static int print_stats(const cJSON *document, const cJSON *before, double elapsed_s) {
    int code = print_counters(document, before, elapsed_s);
    putchar('\n');
    if (code == GWCTL_OK)
        code = print_histograms(document);
    putchar('\n');
    return code == GWCTL_OK ? print_ranks(document) : code;
}

/* Prints again and again over one connection, until the reader or the daemon goes away. */
static int watch(const gwctl_options_t *options, gwctl_connection_t *connection) {
    cJSON *before = NULL;
    double before_s = 0;
    int code = GWCTL_OK;
    while (code == GWCTL_OK) {
        char *json = NULL;
        code = gwctl_ask(connection, "stats", NULL, 0, &json);
        if (code != GWCTL_OK) {
            gwctl_complain(connection);
            break;
        }
        if (options->json) {
            puts(json);
            free(json);
        } else {
            double then_s = now_s();
            cJSON *document = gwctl_parse(json);
            if (document == NULL) {
                code = GWCTL_FAILED;
                break;
            }
            if (isatty(STDOUT_FILENO))
                fputs("\033[H\033[2J", stdout);
            code = print_stats(document, before, then_s - before_s);
            cJSON_Delete(before);
            before = document;
            before_s = then_s;
            if (!isatty(STDOUT_FILENO))
                putchar('\n');
        }
        if (fflush(stdout) != 0)
            break;
        wait_s(options->watch_s);
    }
    cJSON_Delete(before);
    return code;
}

static int ask_parsed(gwctl_connection_t *connection, const char *command, cJSON **document_out) {
    char *json = NULL;
    int code = gwctl_ask(connection, command, NULL, 0, &json);
    if (code != GWCTL_OK) {
        gwctl_complain(connection);
        return code;
    }
    *document_out = gwctl_parse(json);
    return *document_out != NULL ? GWCTL_OK : GWCTL_FAILED;
}

static int print_for_prometheus(gwctl_connection_t *connection) {
    cJSON *stats = NULL;
    cJSON *status = NULL;
    int code = ask_parsed(connection, "stats", &stats);
    if (code == GWCTL_OK)
        code = ask_parsed(connection, "status", &status);
    if (code == GWCTL_OK)
        gwctl_print_prometheus(stats, status);
    cJSON_Delete(stats);
    cJSON_Delete(status);
    return code;
}

int gwctl_stats(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    gwctl_connection_t connection;
    if (options->watch_s <= 0 && !options->prometheus) {
        cJSON *document;
        int code = gwctl_fetch(options, "stats", arguments, n_arguments, &document);
        if (document != NULL)
            code = print_stats(document, NULL, 0);
        cJSON_Delete(document);
        return code;
    }
    int code = gwctl_open(options->socket_path, &connection);
    if (code != GWCTL_OK) {
        gwctl_complain(&connection);
        return code;
    }
    code = options->prometheus ? print_for_prometheus(&connection) : watch(options, &connection);
    gwctl_close(&connection);
    return code;
}
