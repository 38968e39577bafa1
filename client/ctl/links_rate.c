/* links_rate.c - what moved between two samples of the links */
#include <string.h>

#include "links.h"

/* A smaller value is one that wrapped around, at 32 or 64 bits, or began anew: then false. Growth by more than half the
 * range is no growth: the counter began anew. */
static bool growth_of(uint64_t before, uint64_t now, uint64_t *growth_out) {
    uint64_t growth = now - before;
    if (now < before && before <= UINT32_MAX) {
        growth &= UINT32_MAX;
        if (growth > UINT32_MAX / 2)
            return false;
    } else if (growth > UINT64_MAX / 2) {
        return false;
    }
    *growth_out = growth;
    return true;
}

const gwctl_counter_t *gwctl_counter_find(const gwctl_counters_t *counters, const char *name) {
    for (size_t i = 0; i < counters->count; i++) {
        if (strcmp(counters->counter[i].name, name) == 0)
            return &counters->counter[i];
    }
    return NULL;
}

static void compare_counters(const gwctl_counters_t *before, gwctl_counters_t *now) {
    for (size_t i = 0; i < now->count; i++) {
        gwctl_counter_t *counter = &now->counter[i];
        const gwctl_counter_t *old = gwctl_counter_find(before, counter->name);
        counter->moved_known =
            old != NULL && old->known && counter->known && growth_of(old->value, counter->value, &counter->moved);
    }
}

/* RDMA ports count in words of 4 bytes. */
static unsigned word_bytes(const gwctl_link_t *link) {
    return link->port != 0 ? 4 : 1;
}

static const gwctl_counter_t *find_data(const gwctl_link_t *link, bool out) {
    const char *name = out ? "tx_bytes" : "rx_bytes";
    if (link->port != 0)
        name = out ? "port_xmit_data" : "port_rcv_data";
    return gwctl_counter_find(&link->counters, name);
}

bool gwctl_link_bytes(const gwctl_link_t *link, bool out, uint64_t *bytes_out) {
    const gwctl_counter_t *data = find_data(link, out);
    return data != NULL && data->known && !__builtin_mul_overflow(data->value, word_bytes(link), bytes_out);
}

static double mbit_per_s(const gwctl_link_t *link, bool out, double interval_s) {
    const gwctl_counter_t *data = find_data(link, out);
    if (data == NULL || !data->moved_known)
        return -1;
    return 8e-6 * word_bytes(link) * (double)data->moved / interval_s;
}

static const gwctl_link_t *find_link(const gwctl_links_t *links, const gwctl_link_t *wanted) {
    for (size_t i = 0; i < links->count; i++) {
        const gwctl_link_t *link = &links->link[i];
        if (strcmp(link->name, wanted->name) == 0 && link->port == wanted->port && link->index == wanted->index)
            return link;
    }
    return NULL;
}

void gwctl_links_compare(const gwctl_links_t *before, gwctl_links_t *now) {
    now->interval_s = now->at_s - before->at_s;
    compare_counters(&before->host, &now->host);
    for (size_t i = 0; i < now->count; i++) {
        gwctl_link_t *link = &now->link[i];
        const gwctl_link_t *old = find_link(before, link);
        if (old == NULL)
            continue;
        compare_counters(&old->counters, &link->counters);
        link->in_mbit_per_s = mbit_per_s(link, false, now->interval_s);
        link->out_mbit_per_s = mbit_per_s(link, true, now->interval_s);
    }
}
