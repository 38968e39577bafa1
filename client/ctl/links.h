/* links.h - the network links of this host, as the kernel counts them; see links.c */
#ifndef GWCTL_LINKS_H
#define GWCTL_LINKS_H

#include <limits.h>

#include "gwctl.h"

/* A file of a counters' folder. */
typedef struct gwctl_counter {
    char name[64];
    bool known;       /* its content is a number */
    bool moved_known; /* and it can be told by how much it grew since the sample before */
    uint64_t value, moved;
} gwctl_counter_t;

typedef struct gwctl_counters {
    gwctl_counter_t *counter;
    size_t count;
} gwctl_counters_t;

/* A network interface, or a port of an RDMA device. */
typedef struct gwctl_link {
    char name[80];
    uint64_t port;  /* 0: an interface */
    uint64_t index; /* of an interface: one that was made anew has another */
    char kind[32];  /* of an RDMA port its link layer */
    char state[32];
    char netdev[80];    /* of an RDMA port: the interface on the same wire, or "" */
    uint64_t mtu_bytes; /* 0: unknown */
    double mbit_per_s;  /* the rate of the wire; 0: unknown */
    gwctl_counters_t counters;
    double in_mbit_per_s, out_mbit_per_s; /* since the sample before; negative: unknown */
} gwctl_link_t;

typedef struct gwctl_links {
    double at_s;
    double interval_s; /* since the sample before; 0: there was none */
    gwctl_link_t *link;
    size_t count;                 /* interfaces first, then RDMA ports, each by name */
    gwctl_counters_t host;        /* of TCP and IP */
    char trouble[PATH_MAX + 128]; /* why there is no sample */
} gwctl_links_t;

/* links_read.c: takes a sample. False: `trouble` says why. Free it in any case. */
bool gwctl_links_read(gwctl_links_t *links_out);
void gwctl_links_free(gwctl_links_t *links);

/* Keeps the links that were asked for; without a wish, all but the loopback. Returns the first name that no link has,
 * or NULL. */
const char *gwctl_links_pick(gwctl_links_t *links, const gwctl_options_t *options);

/* links_rate.c: fills what moved from `before` to `now`. */
void gwctl_links_compare(const gwctl_links_t *before, gwctl_links_t *now);

/* The counter of this name, or NULL. */
const gwctl_counter_t *gwctl_counter_find(const gwctl_counters_t *counters, const char *name);

/* What went in or out of a link in all; false when it is unknown. */
bool gwctl_link_bytes(const gwctl_link_t *link, bool out, uint64_t *bytes_out);

/* links_json.c; NULL: out of memory. */
cJSON *gwctl_links_to_json(const gwctl_links_t *links);

#endif
