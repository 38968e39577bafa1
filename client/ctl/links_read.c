/* links_read.c - interfaces, RDMA ports and TCP, as /sys and /proc show them
 *
 * Drivers differ in what they count, so every file of a counters' folder is taken, under its own name. Whatever cannot be
 * read, or is no number, is unknown, never 0.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "doctor.h"
#include "escape.h"
#include "links.h"

enum { TYPE_ETHERNET = 1, TYPE_INFINIBAND = 32, TYPE_LOOPBACK = 772 }; /* ARPHRD_ */

/* ---- files -------------------------------------------------------------------------------------- */

/* Sets a path; one that is too long becomes one that does not exist. */
__attribute__((format(printf, 2, 3))) static void set_path(char path[PATH_MAX], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, PATH_MAX, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= PATH_MAX)
        path[0] = '\0';
}

static const char *root(void) {
    const char *folder = getenv("GRADWIRE_HOST_ROOT");
    return folder != NULL ? folder : "";
}

static bool parse_number(const char *text, uint64_t *number_out) {
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || (*end != '\0' && !isspace((unsigned char)*end)))
        return false;
    *number_out = number;
    return true;
}

/* The first line of folder/file, harmless to print; "" when it cannot be read. */
static void read_text(const char *folder, const char *file, char *text, size_t text_bytes) {
    char path[PATH_MAX];
    char line[128];
    set_path(path, "%s/%s", folder, file);
    if (!gwctl_read_line(path, line, sizeof(line)))
        line[0] = '\0';
    gw_escape(line, strlen(line), text, text_bytes);
}

/* 0 when it is unknown. */
static uint64_t read_number(const char *folder, const char *file) {
    char text[64];
    uint64_t number = 0;
    read_text(folder, file, text, sizeof(text));
    return parse_number(text, &number) ? number : 0;
}

static int skip_hidden(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* The names in a folder, in order; -1 when it cannot be read. End it with free_names. */
static int list_names(const char *folder, struct dirent ***names_out) {
    return scandir(folder, names_out, skip_hidden, alphasort);
}

static void free_names(struct dirent **names, int count) {
    for (int i = 0; i < count; i++)
        free(names[i]);
    if (count >= 0)
        free(names);
}

/* ---- counters ----------------------------------------------------------------------------------- */

/* False: out of memory. */
static bool add_counter(gwctl_counters_t *counters, const char *name, const char *text) {
    gwctl_counter_t *grown = realloc(counters->counter, (counters->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return false;
    counters->counter = grown;
    gwctl_counter_t *counter = &grown[counters->count++];
    *counter = (gwctl_counter_t){0};
    gw_escape(name, strlen(name), counter->name, sizeof(counter->name));
    counter->known = parse_number(text, &counter->value);
    return true;
}

static bool read_counters(const char *folder, gwctl_counters_t *counters) {
    struct dirent **names = NULL;
    int count = list_names(folder, &names);
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        char path[PATH_MAX];
        char line[64];
        set_path(path, "%s/%s", folder, names[i]->d_name);
        /* How often the driver is asked: a setting among the counters. */
        if (strcmp(names[i]->d_name, "lifespan") != 0 && gwctl_read_line(path, line, sizeof(line)))
            good = add_counter(counters, names[i]->d_name, line);
    }
    free_names(names, count);
    return good;
}

/* In /proc/net/snmp and netstat a line of names is followed by a line of values, both behind "Tcp:" or the like. */
static bool pick_counters(char *names, char *values, const char *const *wanted, gwctl_counters_t *counters) {
    char *rest_of_names;
    char *rest_of_values;
    char *name = strtok_r(names, " \n", &rest_of_names);
    char *value = strtok_r(values, " \n", &rest_of_values);
    while (name != NULL && value != NULL) {
        for (size_t i = 0; wanted[i] != NULL; i++) {
            if (strcmp(name, wanted[i]) == 0 && !add_counter(counters, name, value))
                return false;
        }
        name = strtok_r(NULL, " \n", &rest_of_names);
        value = strtok_r(NULL, " \n", &rest_of_values);
    }
    return true;
}

static bool read_table(const char *file, const char *const *wanted, gwctl_counters_t *counters) {
    char path[PATH_MAX];
    char *names = NULL;
    char *values = NULL;
    size_t names_bytes = 0;
    size_t values_bytes = 0;
    bool good = true;
    set_path(path, "%s/proc/net/%s", root(), file);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return true;
    while (good && getline(&names, &names_bytes, stream) > 0 && getline(&values, &values_bytes, stream) > 0)
        good = pick_counters(names, values, wanted, counters);
    free(names);
    free(values);
    fclose(stream);
    return good;
}

static bool read_host(gwctl_counters_t *counters) {
    static const char *const snmp[] = {"OutSegs", "RetransSegs", NULL};
    static const char *const netstat[] = {"TCPFastRetrans", "TCPTimeouts", "TCPLostRetransmit", "InCEPkts", NULL};
    return read_table("snmp", snmp, counters) && read_table("netstat", netstat, counters);
}

/* ---- interfaces --------------------------------------------------------------------------------- */

/* The kernel names some kinds itself; a device behind it tells hardware from software. */
static void read_kind(const char *folder, char *kind, size_t kind_bytes) {
    char path[PATH_MAX];
    char line[128];
    uint64_t type = read_number(folder, "type");
    set_path(path, "%s/device", folder);
    const char *word = access(path, F_OK) != 0 ? "virtual" : type == TYPE_ETHERNET ? "ethernet" : "other";
    if (type == TYPE_LOOPBACK || type == TYPE_INFINIBAND)
        word = type == TYPE_LOOPBACK ? "loopback" : "infiniband";
    gw_escape(word, strlen(word), kind, kind_bytes);
    set_path(path, "%s/uevent", folder);
    FILE *stream = fopen(path, "re");
    while (stream != NULL && fgets(line, sizeof(line), stream) != NULL) {
        if (strncmp(line, "DEVTYPE=", 8) == 0)
            gw_escape(line + 8, strcspn(line + 8, "\n"), kind, kind_bytes);
    }
    if (stream != NULL)
        fclose(stream);
}

/* -1, as a number without a sign too, is how drivers say that they do not know. */
static double read_speed(const char *folder) {
    uint64_t speed = read_number(folder, "speed");
    return speed == UINT32_MAX ? 0 : (double)speed;
}

static gwctl_link_t *add_link(gwctl_links_t *links, const char *name) {
    gwctl_link_t *grown = realloc(links->link, (links->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return NULL;
    links->link = grown;
    gwctl_link_t *link = &grown[links->count++];
    *link = (gwctl_link_t){.in_mbit_per_s = -1, .out_mbit_per_s = -1};
    gw_escape(name, strlen(name), link->name, sizeof(link->name));
    return link;
}

static bool read_interface(gwctl_links_t *links, const char *folder, const char *name) {
    gwctl_link_t *link = add_link(links, name);
    char path[PATH_MAX];
    if (link == NULL)
        return false;
    link->index = read_number(folder, "ifindex");
    link->mtu_bytes = read_number(folder, "mtu");
    link->mbit_per_s = read_speed(folder);
    read_text(folder, "operstate", link->state, sizeof(link->state));
    read_kind(folder, link->kind, sizeof(link->kind));
    set_path(path, "%s/statistics", folder);
    return read_counters(path, &link->counters);
}

static bool read_interfaces(gwctl_links_t *links) {
    char all[PATH_MAX];
    struct dirent **names = NULL;
    set_path(all, "%s/sys/class/net", root());
    int count = list_names(all, &names);
    if (count < 0) {
        snprintf(links->trouble, sizeof(links->trouble), "%s: %s: is sysfs mounted there?", all, strerror(errno));
        return false;
    }
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        struct stat status;
        char folder[PATH_MAX];
        set_path(folder, "%s/%s", all, names[i]->d_name);
        /* Bonding keeps a file among the folders. */
        if (stat(folder, &status) == 0 && S_ISDIR(status.st_mode))
            good = read_interface(links, folder, names[i]->d_name);
    }
    free_names(names, count);
    return good;
}

/* ---- RDMA ports --------------------------------------------------------------------------------- */

/* Any of the port's addresses names the interface; those that are not in use cannot be read. */
static void read_netdev(const char *folder, char *netdev, size_t netdev_bytes) {
    char path[PATH_MAX];
    struct dirent **names = NULL;
    set_path(path, "%s/gid_attrs/ndevs", folder);
    int count = list_names(path, &names);
    netdev[0] = '\0';
    for (int i = 0; i < count && netdev[0] == '\0'; i++)
        read_text(path, names[i]->d_name, netdev, netdev_bytes);
    free_names(names, count);
}

static bool read_port(gwctl_links_t *links, const char *folder, const char *device, const char *port) {
    gwctl_link_t *link = add_link(links, device);
    char text[64];
    char path[PATH_MAX];
    if (link == NULL)
        return false;
    if (!parse_number(port, &link->port) || link->port == 0) {
        links->count--;
        return true;
    }
    read_text(folder, "link_layer", link->kind, sizeof(link->kind));
    read_text(folder, "state", text, sizeof(text)); /* "4: ACTIVE" */
    const char *word = strstr(text, ": ");
    snprintf(link->state, sizeof(link->state), "%.30s", word != NULL ? word + 2 : text);
    read_text(folder, "rate", text, sizeof(text)); /* "100 Gb/sec (4X EDR)" */
    double gbit = strtod(text, NULL);
    link->mbit_per_s = gbit > 0 && gbit < 1e6 ? 1000 * gbit : 0;
    read_netdev(folder, link->netdev, sizeof(link->netdev));
    set_path(path, "%s/counters", folder);
    if (!read_counters(path, &link->counters))
        return false;
    set_path(path, "%s/hw_counters", folder);
    return read_counters(path, &link->counters);
}

static bool read_device(gwctl_links_t *links, const char *all, const char *device) {
    char ports[PATH_MAX];
    struct dirent **names = NULL;
    bool good = true;
    set_path(ports, "%s/%s/ports", all, device);
    int count = list_names(ports, &names);
    for (int i = 0; i < count && good; i++) {
        char folder[PATH_MAX];
        set_path(folder, "%s/%s", ports, names[i]->d_name);
        good = read_port(links, folder, device, names[i]->d_name);
    }
    free_names(names, count);
    return good;
}

/* Without RDMA the folder is not there. */
static bool read_rdma(gwctl_links_t *links) {
    char all[PATH_MAX];
    struct dirent **names = NULL;
    bool good = true;
    set_path(all, "%s/sys/class/infiniband", root());
    int count = list_names(all, &names);
    for (int i = 0; i < count && good; i++)
        good = read_device(links, all, names[i]->d_name);
    free_names(names, count);
    return good;
}

/* ---- a sample ----------------------------------------------------------------------------------- */

bool gwctl_links_read(gwctl_links_t *links_out) {
    struct timespec now;
    *links_out = (gwctl_links_t){0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    links_out->at_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (read_interfaces(links_out) && read_rdma(links_out) && read_host(&links_out->host))
        return true;
    if (links_out->trouble[0] == '\0')
        snprintf(links_out->trouble, sizeof(links_out->trouble), "out of memory");
    return false;
}

void gwctl_links_free(gwctl_links_t *links) {
    for (size_t i = 0; i < links->count; i++)
        free(links->link[i].counters.counter);
    free(links->link);
    free(links->host.counter);
    *links = (gwctl_links_t){0};
}

static bool is_named(const gwctl_link_t *link, const char *name) {
    return strcmp(link->name, name) == 0 || strcmp(link->netdev, name) == 0;
}

static bool is_wanted(const gwctl_link_t *link, const gwctl_options_t *options) {
    for (size_t i = 0; i < options->n_devices; i++) {
        if (is_named(link, options->devices[i]))
            return true;
    }
    return options->n_devices == 0 && strcmp(link->kind, "loopback") != 0;
}

const char *gwctl_links_pick(gwctl_links_t *links, const gwctl_options_t *options) {
    size_t kept = 0;
    for (size_t k = 0; k < options->n_devices; k++) {
        bool found = false;
        for (size_t i = 0; i < links->count; i++)
            found = found || is_named(&links->link[i], options->devices[k]);
        if (!found)
            return options->devices[k];
    }
    for (size_t i = 0; i < links->count; i++) {
        if (is_wanted(&links->link[i], options))
            links->link[kept++] = links->link[i];
        else
            free(links->link[i].counters.counter);
    }
    links->count = kept;
    return NULL;
}
