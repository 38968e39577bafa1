/* prometheus.c - statistics in the text format of Prometheus
 *
 * Names, kinds, units and help come from the daemon. What Prometheus asks for is added here: the prefix, seconds in
 * place of ns, _total behind counters, cumulative buckets.
 */
#include "gwctl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Buckets are powers of two of ns: stats.h of the daemon says which is which. */
#define N_BUCKETS 40

/* A name with its prefix, without characters that Prometheus has no place for. Times lose their unit. */
static void make_name(const cJSON *stat, char *name, size_t name_bytes) {
    const char *unit = gwctl_text(stat, "unit");
    snprintf(name, name_bytes, "gradwire_%s", gwctl_text(stat, "name"));
    size_t bytes = strlen(name);
    if (strcmp(unit, "ns") == 0 && bytes > 3 && strcmp(name + bytes - 3, "_ns") == 0)
        snprintf(name + bytes - 3, name_bytes - bytes + 3, "_seconds");
    for (char *c = name; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && *c != '_')
            *c = '_';
    }
}

static void print_escaped(const char *text, bool in_quotes) {
    for (; *text != '\0'; text++) {
        if (*text == '\\')
            fputs("\\\\", stdout);
        else if (*text == '\n')
            fputs("\\n", stdout);
        else if (in_quotes && *text == '"')
            fputs("\\\"", stdout);
        else
            putchar(*text);
    }
}

static void print_head(const char *name, const char *type, const char *help) {
    printf("# HELP %s ", name);
    print_escaped(help, false);
    printf("\n# TYPE %s %s\n", name, type);
}

static void print_histogram(const cJSON *stat, const char *name) {
    const cJSON *buckets = cJSON_GetObjectItemCaseSensitive(stat, "buckets");
    const cJSON *bucket = buckets != NULL ? buckets->child : NULL;
    double below = 0;
    double bound_ns = 2;
    print_head(name, "histogram", gwctl_text(stat, "help"));
    for (int i = 0; i < N_BUCKETS; i++, bound_ns *= 2) {
        below += cJSON_IsNumber(bucket) ? bucket->valuedouble : 0;
        bucket = bucket != NULL ? bucket->next : NULL;
        if (i + 1 < N_BUCKETS) /* the last one has no upper end */
            printf("%s_bucket{le=\"%.9g\"} %.15g\n", name, bound_ns / 1e9, below);
    }
    printf("%s_bucket{le=\"+Inf\"} %.15g\n", name, below);
    printf("%s_sum %.15g\n", name, gwctl_number(stat, "sum") / 1e9);
    printf("%s_count %.15g\n", name, below);
}

static void print_stat(const cJSON *stat) {
    const char *kind = gwctl_text(stat, "kind");
    char name[128];
    make_name(stat, name, sizeof(name) - 8);
    if (strcmp(kind, "histogram") == 0) {
        print_histogram(stat, name);
        return;
    }
    if (strcmp(kind, "counter") == 0)
        strcat(name, "_total");
    double scale = strcmp(gwctl_text(stat, "unit"), "ns") == 0 ? 1e-9 : 1;
    print_head(name, kind, gwctl_text(stat, "help"));
    printf("%s %.15g\n", name, scale * gwctl_number(stat, "value"));
}

static void print_ranks(const cJSON *groups, const char *name, const char *help, const char *field, double scale) {
    const cJSON *rank;
    print_head(name, "counter", help);
    cJSON_ArrayForEach(rank, groups) {
        printf("%s{group=\"%.0f\",rank=\"%.0f\"} %.15g\n", name, gwctl_number(rank, "id"), gwctl_number(rank, "rank"),
               scale * gwctl_number(rank, field));
    }
}

static void print_label(const char *name, const cJSON *status, const char *field, const char *end) {
    printf("%s=\"", name);
    print_escaped(gwctl_text(status, field), true);
    printf("\"%s", end);
}

static void print_status(const cJSON *status) {
    static const struct {
        const char *name, *field, *type, *help;
    } rows[] = {
        {"gradwire_clients", "clients", "gauge", "clients connected"},
        {"gradwire_groups", "groups", "gauge", "groups"},
        {"gradwire_buffers", "buffers", "gauge", "buffers mapped"},
        {"gradwire_buffer_bytes", "buffer_bytes", "gauge", "memory in buffers"},
        {"gradwire_residual_bytes", "residual_bytes", "gauge", "memory of what codecs left out between nodes"},
        {"gradwire_buckets", "buckets", "gauge", "buckets declared"},
        {"gradwire_cpu_seconds_total", "cpu_s", "counter", "CPU time of the daemon"},
        {"gradwire_resident_bytes", "resident_bytes", "gauge", "resident memory of the daemon"},
        {"gradwire_uptime_seconds", "uptime_s", "gauge", "time since the daemon started"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_head(rows[i].name, rows[i].type, rows[i].help);
        printf("%s %.15g\n", rows[i].name, gwctl_number(status, rows[i].field));
    }
    print_head("gradwire_draining", "gauge", "1 while the daemon takes nothing new");
    printf("gradwire_draining %d\n", strcmp(gwctl_text(status, "state"), "draining") == 0);
    print_head("gradwire_info", "gauge", "always 1; the labels say which daemon it is");
    fputs("gradwire_info{", stdout);
    print_label("version", status, "version", ",");
    print_label("node", status, "node", ",");
    print_label("engine", status, "engine", "} 1\n");
}

void gwctl_print_prometheus(const cJSON *stats, const cJSON *status) {
    const cJSON *stat;
    const cJSON *groups = cJSON_GetObjectItemCaseSensitive(stats, "groups");
    cJSON_ArrayForEach(stat, cJSON_GetObjectItemCaseSensitive(stats, "stats")) print_stat(stat);
    print_ranks(groups, "gradwire_rank_last_total", "operations that this rank was the last to submit", "last_count",
                1);
    print_ranks(groups, "gradwire_rank_waited_for_seconds_total", "time that others waited for this rank", "last_ns",
                1e-9);
    print_status(status);
}
