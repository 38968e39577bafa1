/* show.c - the commands that print one answer as a list or a table */
#include "gwctl.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- status ------------------------------------------------------------------------------------- */

static void print_count(const cJSON *status, const char *label, const char *field) {
    gwctl_print_pair(label, gwctl_cell_count(gwctl_number(status, field)).text);
}

/* Those that it uses, or used a moment ago. */
static void print_devices(const cJSON *status) {
    const cJSON *device;
    cJSON_ArrayForEach(device, cJSON_GetObjectItemCaseSensitive(status, "devices")) {
        double context_bytes = gwctl_number(device, "context_bytes");
        char text[800];
        snprintf(text, sizeof(text), "%s, %s: %s of its memory for the context, %s of buffers opened",
                 gwctl_cell_text(gwctl_text(device, "uuid")).text, gwctl_text(device, "state"),
                 context_bytes > 0 ? gwctl_cell_bytes(context_bytes).text : "an unknown part",
                 gwctl_cell_bytes(gwctl_number(device, "buffer_bytes")).text);
        gwctl_print_pair("device", text);
    }
}

static void print_listens(const cJSON *status) {
    const cJSON *address;
    bool any = false;
    cJSON_ArrayForEach(address, cJSON_GetObjectItemCaseSensitive(status, "listens")) {
        gwctl_print_pair("other daemons", gwctl_cell_text(cJSON_GetStringValue(address)).text);
        any = true;
    }
    if (!any)
        gwctl_print_pair("other daemons", "may not connect: wire.listen is not set");
}

int gwctl_status(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    cJSON *status;
    char text[400];
    int code = gwctl_fetch(options, "status", arguments, n_arguments, &status);
    if (status == NULL)
        return code;
    gwctl_print_pair("state", gwctl_text(status, "state"));
    gwctl_print_pair("version", gwctl_text(status, "version"));
    snprintf(text, sizeof(text), "%.0f on %s, node %s", gwctl_number(status, "pid"), gwctl_text(status, "host"),
             gwctl_text(status, "node"));
    gwctl_print_pair("process", text);
    gwctl_print_pair("up", gwctl_cell_age(gwctl_number(status, "uptime_s")).text);
    snprintf(text, sizeof(text), "%s, %s", gwctl_text(status, "engine"), gwctl_text(status, "isa"));
    gwctl_print_pair("engine", text);
    snprintf(text, sizeof(text), "%.0f for lanes, %.0f for reductions", gwctl_number(status, "lanes"),
             gwctl_number(status, "reduce_threads"));
    gwctl_print_pair("threads", text);
    print_count(status, "clients", "clients");
    print_count(status, "groups", "groups");
    snprintf(text, sizeof(text), "%.0f, %s", gwctl_number(status, "buffers"),
             gwctl_cell_bytes(gwctl_number(status, "buffer_bytes")).text);
    gwctl_print_pair("buffers", text);
    print_count(status, "buckets", "buckets");
    snprintf(text, sizeof(text), "%s under way, %s of residuals",
             gwctl_cell_bytes(gwctl_number(status, "flight_bytes")).text,
             gwctl_cell_bytes(gwctl_number(status, "residual_bytes")).text);
    gwctl_print_pair("between nodes", text);
    snprintf(text, sizeof(text), "%.2f s", gwctl_number(status, "cpu_s"));
    gwctl_print_pair("CPU time", text);
    snprintf(text, sizeof(text), "%s resident, of which %s are shared with trainers or files",
             gwctl_cell_bytes(gwctl_number(status, "resident_bytes")).text,
             gwctl_cell_bytes(gwctl_number(status, "shared_bytes")).text);
    gwctl_print_pair("memory", text);
    print_devices(status);
    print_listens(status);
    gwctl_print_pair("socket", gwctl_text(status, "socket"));
    gwctl_print_pair("admin socket", gwctl_text(status, "admin_socket"));
    const char *file = gwctl_text(status, "config_file");
    gwctl_print_pair("configuration", file[0] != '\0' ? file : "no file");
    cJSON_Delete(status);
    return code;
}

/* ---- tables ------------------------------------------------------------------------------------- */

int gwctl_clients(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static const char *const headers[] = {">ID",   "USER",    "PID",      "NAME",   "ROLE",
                                          "SINCE", ">GROUPS", ">BUFFERS", ">MEMORY"};
    cJSON *clients;
    const cJSON *client;
    gwctl_table_t table;
    int code = gwctl_fetch(options, "clients", arguments, n_arguments, &clients);
    if (clients == NULL)
        return code;
    gwctl_table_init(&table, headers, COUNT_OF(headers));
    cJSON_ArrayForEach(client, clients) {
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(client, "id")));
        gwctl_table_add(&table, gwctl_cell_user(gwctl_number(client, "uid")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(client, "pid")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(client, "name")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(client, "role")));
        gwctl_table_add(&table, gwctl_cell_age(gwctl_number(client, "connected_s")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(client, "groups")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(client, "buffers")));
        gwctl_table_add(&table, gwctl_cell_bytes(gwctl_number(client, "buffer_bytes")));
    }
    cJSON_Delete(clients);
    return gwctl_table_print(&table, "", "no client is connected");
}

static const char *text_or_dash(const cJSON *object, const char *field) {
    const char *text = gwctl_text(object, field);
    return text[0] != '\0' ? text : "-";
}

int gwctl_buffers(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static const char *const headers[] = {">ID", ">CLIENT", "USER", ">SIZE", "KIND", "ACCESS", "DEVICE", "WHY"};
    cJSON *buffers;
    const cJSON *buffer;
    gwctl_table_t table;
    int code = gwctl_fetch(options, "buffers", arguments, n_arguments, &buffers);
    if (buffers == NULL)
        return code;
    gwctl_table_init(&table, headers, COUNT_OF(headers));
    cJSON_ArrayForEach(buffer, buffers) {
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(buffer, "id")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(buffer, "client")));
        gwctl_table_add(&table, gwctl_cell_user(gwctl_number(buffer, "uid")));
        gwctl_table_add(&table, gwctl_cell_bytes(gwctl_number(buffer, "bytes")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(buffer, "kind")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(buffer, "path")));
        gwctl_table_add(&table, gwctl_cell_text(text_or_dash(buffer, "device")));
        gwctl_table_add(&table, gwctl_cell_text(text_or_dash(buffer, "why")));
    }
    cJSON_Delete(buffers);
    return gwctl_table_print(&table, "", "no buffer");
}

static gwctl_cell_t codec_cell(const cJSON *bucket) {
    char text[64];
    snprintf(text, sizeof(text), "%s%s", gwctl_text(bucket, "codec"),
             cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(bucket, "no_error_feedback")) ? ", no feedback" : "");
    return gwctl_cell_text(text);
}

int gwctl_buckets(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static const char *const headers[] = {">GROUP",    ">RANK",     ">BUCKET", "NAME",       "COLLECTIVE",
                                          "TYPE",      "OP",        ">COUNT",  "CODEC",      ">PRIORITY",
                                          ">MATRICES", ">RESIDUAL", ">ROUNDS", ">LAST ROUND"};
    cJSON *buckets;
    const cJSON *bucket;
    gwctl_table_t table;
    int code = gwctl_fetch(options, "buckets", arguments, n_arguments, &buckets);
    if (buckets == NULL)
        return code;
    gwctl_table_init(&table, headers, COUNT_OF(headers));
    cJSON_ArrayForEach(bucket, buckets) {
        double rounds = gwctl_number(bucket, "rounds");
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(bucket, "group")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(bucket, "rank")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(bucket, "bucket")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(bucket, "name")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(bucket, "collective")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(bucket, "type")));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(bucket, "redop")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(bucket, "count")));
        gwctl_table_add(&table, codec_cell(bucket));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(bucket, "priority")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(bucket, "matrices")));
        gwctl_table_add(&table, gwctl_cell_bytes(gwctl_number(bucket, "residual_bytes")));
        gwctl_table_add(&table, gwctl_cell_count(rounds));
        gwctl_table_add(&table,
                        rounds > 0 ? gwctl_cell_ns(1e3 * gwctl_number(bucket, "last_us")) : gwctl_cell_text("-"));
    }
    cJSON_Delete(buckets);
    return gwctl_table_print(&table, "", "no bucket");
}

int gwctl_config(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static const char *const headers[] = {"NAME", "VALUE", "DEFAULT", "UNIT", "RELOAD", "SET BY"};
    cJSON *config;
    const cJSON *key;
    gwctl_table_t table;
    int code = gwctl_fetch(options, "config", arguments, n_arguments, &config);
    if (config == NULL)
        return code;
    gwctl_table_init(&table, headers, COUNT_OF(headers));
    cJSON_ArrayForEach(key, config) {
        const char *value = gwctl_text(key, "value");
        const char *normal = gwctl_text(key, "default");
        bool reloadable = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(key, "reloadable"));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(key, "name")));
        gwctl_table_add(&table, gwctl_cell_text(value[0] != '\0' ? value : "-"));
        gwctl_table_add(&table, gwctl_cell_text(normal[0] != '\0' ? normal : "-"));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(key, "unit")));
        gwctl_table_add(&table, gwctl_cell_text(reloadable ? "yes" : "restart"));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(key, "source")));
    }
    cJSON_Delete(config);
    return gwctl_table_print(&table, "", "no setting");
}

/* ---- groups ------------------------------------------------------------------------------------- */

/* A rank that is not there: not yet while the group forms, not any more afterwards. */
static void add_absent(gwctl_table_t *table, bool forming) {
    gwctl_table_add(table, gwctl_cell_text(forming ? "missing" : "gone"));
    for (int i = 0; i < 4; i++)
        gwctl_table_add(table, gwctl_cell_text("-"));
}

static void add_present(gwctl_table_t *table, const cJSON *rank) {
    gwctl_table_add(table, gwctl_cell_text("here"));
    gwctl_table_add(table, gwctl_cell_count(gwctl_number(rank, "client")));
    gwctl_table_add(table, gwctl_cell_count(gwctl_number(rank, "pid")));
    gwctl_table_add(table, gwctl_cell_user(gwctl_number(rank, "uid")));
    gwctl_table_add(table, gwctl_cell_text(gwctl_text(rank, "host")));
}

static int print_ranks(const cJSON *group, bool forming) {
    static const char *const headers[] = {">RANK", "STATE",      ">CLIENT",     "PID",           "USER",
                                          "HOST",  ">SUBMITTED", ">TIMES LAST", ">WAITED FOR IT"};
    const cJSON *rank;
    gwctl_table_t table;
    gwctl_table_init(&table, headers, COUNT_OF(headers));
    cJSON_ArrayForEach(rank, cJSON_GetObjectItemCaseSensitive(group, "ranks")) {
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(rank, "rank")));
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(rank, "present")))
            add_present(&table, rank);
        else
            add_absent(&table, forming);
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(rank, "submitted")));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(rank, "last_count")));
        gwctl_table_add(&table, gwctl_cell_ns(gwctl_number(rank, "last_ns")));
    }
    return gwctl_table_print(&table, "  ", "no rank");
}

static void print_plan(const cJSON *group) {
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(group, "plan")) {
        double max_bytes = gwctl_number(row, "max_bytes");
        fputs("  plan ", stdout);
        if (strcmp(gwctl_text(row, "memory"), "device") == 0)
            fputs("device memory: ", stdout);
        else if (max_bytes < 1e18)
            printf("up to %s: ", gwctl_cell_bytes(max_bytes).text);
        else
            fputs("larger: ", stdout);
        double chunk_bytes = gwctl_number(row, "chunk_bytes");
        printf("engine %s, mover %s, codec %s, ", gwctl_cell_text(gwctl_text(row, "engine")).text,
               gwctl_cell_text(gwctl_text(row, "mover")).text, gwctl_cell_text(gwctl_text(row, "codec")).text);
        if (chunk_bytes > 0)
            printf("in pieces of %s\n", gwctl_cell_bytes(chunk_bytes).text);
        else
            puts("in one piece, by the lane itself");
    }
    printf("  plan hash %s\n", gwctl_cell_text(gwctl_text(group, "plan_hash")).text);
}

/* A row of a size without operations says nothing that the next one, with the same codec, does not say. */
static bool is_said_by(const cJSON *row, const cJSON *next) {
    return next != NULL && gwctl_number(row, "ops") == 0 && gwctl_number(next, "ops") == 0 &&
           strcmp(gwctl_text(row, "codec"), gwctl_text(next, "codec")) == 0;
}

static gwctl_cell_t optional_us(const cJSON *row, const char *name) {
    return cJSON_HasObjectItem(row, name) ? gwctl_cell_ns(1e3 * gwctl_number(row, name)) : gwctl_cell_text("-");
}

/* Between nodes: the codec, and what came of it. */
static void print_wire(const cJSON *wire) {
    static const char *const headers[] = {">UP TO",      "CODEC",   ">PREDICTED", ">MEASURED",
                                          ">OPERATIONS", ">BEFORE", ">SENT"};
    const cJSON *row;
    gwctl_table_t table;
    printf("  %.0f nodes, codec %s, rounding %s: ", gwctl_number(wire, "nodes"),
           gwctl_cell_text(gwctl_text(wire, "codec")).text, gwctl_cell_text(gwctl_text(wire, "rounding")).text);
    gwctl_print_text(gwctl_text(wire, "why"));
    putchar('\n');
    gwctl_table_init(&table, headers, COUNT_OF(headers));
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(wire, "sizes")) {
        double max_bytes = gwctl_number(row, "max_bytes");
        if (is_said_by(row, row->next))
            continue;
        gwctl_table_add(&table, max_bytes < 1e18 ? gwctl_cell_bytes(max_bytes) : gwctl_cell_text("larger"));
        gwctl_table_add(&table, gwctl_cell_text(gwctl_text(row, "codec")));
        gwctl_table_add(&table, optional_us(row, "predicted_us"));
        gwctl_table_add(&table, optional_us(row, "measured_us"));
        gwctl_table_add(&table, gwctl_cell_count(gwctl_number(row, "ops")));
        gwctl_table_add(&table, gwctl_cell_bytes(gwctl_number(row, "bytes_before")));
        gwctl_table_add(&table, gwctl_cell_bytes(gwctl_number(row, "bytes_after")));
    }
    (void)gwctl_table_print(&table, "  ", "no all_reduce between nodes yet");
}

static void print_progress(const cJSON *group) {
    printf("  lane %.0f, epoch %.0f, operation %.0f complete, %.0f in flight\n", gwctl_number(group, "lane"),
           gwctl_number(group, "epoch"), gwctl_number(group, "last_completed"), gwctl_number(group, "in_flight"));
    printf("  engine %s: ", gwctl_cell_text(gwctl_text(group, "engine")).text);
    gwctl_print_text(gwctl_text(group, "why"));
    putchar('\n');
    if (gwctl_text(group, "cipher")[0] != '\0')
        printf("  cipher between nodes: %s\n", gwctl_cell_text(gwctl_text(group, "cipher")).text);
    print_plan(group);
    if (cJSON_HasObjectItem(group, "wire"))
        print_wire(cJSON_GetObjectItemCaseSensitive(group, "wire"));
}

static void print_late(const cJSON *late) {
    const cJSON *rank;
    printf("  %soperation %.0f waits since %.0f s for rank", gwctl_colour(GWCTL_YELLOW), gwctl_number(late, "sequence"),
           gwctl_number(late, "waited_s"));
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(late, "ranks")) printf(" %.0f", cJSON_GetNumberValue(rank));
    printf("%s\n", gwctl_colour(GWCTL_PLAIN));
}

static int print_group(const cJSON *group) {
    const char *state = gwctl_text(group, "state");
    bool active = cJSON_HasObjectItem(group, "status");
    bool failed = strcmp(state, "failed") == 0;
    gwctl_colour_t colour = failed ? GWCTL_RED : active ? GWCTL_GREEN : GWCTL_YELLOW;
    printf("%sgroup %.0f%s of %s: ", gwctl_colour(GWCTL_BOLD), gwctl_number(group, "id"), gwctl_colour(GWCTL_PLAIN),
           gwctl_cell_user(gwctl_number(group, "uid")).text);
    if (strcmp(state, "id") == 0) {
        puts("its id was given out, no rank has joined yet");
        return GWCTL_OK;
    }
    printf("size %.0f, %s%s%s\n", gwctl_number(group, "nranks"), gwctl_colour(colour), gwctl_cell_text(state).text,
           gwctl_colour(GWCTL_PLAIN));
    if (failed) {
        fputs("  ", stdout);
        gwctl_print_text(gwctl_text(group, "status"));
        fputs(": ", stdout);
        gwctl_print_text(gwctl_text(group, "message"));
        putchar('\n');
    }
    if (active)
        print_progress(group);
    if (cJSON_HasObjectItem(group, "late"))
        print_late(cJSON_GetObjectItem(group, "late"));
    return print_ranks(group, !active);
}

int gwctl_groups(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    cJSON *groups;
    const cJSON *group;
    int code = gwctl_fetch(options, "groups", arguments, n_arguments, &groups);
    if (groups == NULL)
        return code;
    if (cJSON_GetArraySize(groups) == 0)
        puts("no group");
    cJSON_ArrayForEach(group, groups) {
        if (group != groups->child)
            putchar('\n');
        int printed = print_group(group);
        code = printed != GWCTL_OK ? printed : code;
    }
    cJSON_Delete(groups);
    return code;
}
