/* ip.c - see ip.h */
#include "ip.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

bool gwd_ip_of(const struct sockaddr *address, gwd_ip_t *ip_out) {
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;

    if (address->sa_family == AF_INET) {
        memcpy(&ip4, address, sizeof(ip4));
        memcpy(ip_out->bytes, mapped, sizeof(mapped));
        memcpy(ip_out->bytes + sizeof(mapped), &ip4.sin_addr, sizeof(ip4.sin_addr));
        return true;
    }
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&ip6, address, sizeof(ip6));
    memcpy(ip_out->bytes, &ip6.sin6_addr, sizeof(ip_out->bytes));
    return true;
}

bool gwd_ip_is_in(const gwd_ip_t *ip, const gwd_ip_t *ips, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(ip, &ips[i], sizeof(*ip)) == 0)
            return true;
    return false;
}

bool gwd_ip_copy(const void *ips, size_t bytes, gwd_ip_t **ips_out, uint32_t *n_out) {
    if (bytes % sizeof(gwd_ip_t) != 0 || bytes > GWD_IPS_MAX * sizeof(gwd_ip_t))
        return false;
    *ips_out = malloc(bytes + 1); /* never of no bytes */
    if (!*ips_out)
        return false;
    if (bytes > 0)
        memcpy(*ips_out, ips, bytes);
    *n_out = (uint32_t)(bytes / sizeof(gwd_ip_t));
    return true;
}

void gwd_ip_own(gwd_ip_list_t *own_out) {
    struct ifaddrs *all;
    gwd_ip_t ip;

    own_out->n = 0;
    if (getifaddrs(&all) != 0) {
        gwd_log(GWD_LOG_ERROR, "wire", "this host's addresses cannot be read: %m; a unit must allow AF_NETLINK");
        return;
    }
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP) || !gwd_ip_of(entry->ifa_addr, &ip) ||
            gwd_ip_is_in(&ip, own_out->ips, own_out->n))
            continue;
        if (own_out->n == GWD_IPS_MAX) {
            gwd_log(GWD_LOG_WARNING, "wire",
                    "this host has more than %d addresses: other nodes know the first only, and may refuse connections "
                    "from the rest, unless they have wire.gate=no",
                    GWD_IPS_MAX);
            break;
        }
        own_out->ips[own_out->n++] = ip;
    }
    freeifaddrs(all);
}

static bool is_loopback(const gwd_ip_t *ip) {
    struct in6_addr address;

    memcpy(&address, ip->bytes, sizeof(address));
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (memcmp(ip->bytes, mapped, sizeof(mapped)) == 0 && ip->bytes[12] == IN_LOOPBACKNET);
}

/* Hosts that have no other address are taken for one: there is no network between them. */
static bool is_same_host(const gwd_ip_t *ips, uint32_t n, const gwd_ip_list_t *own) {
    bool has_others = false;

    for (uint32_t i = 0; i < n; i++) {
        if (is_loopback(&ips[i]))
            continue;
        if (gwd_ip_is_in(&ips[i], own->ips, own->n))
            return true;
        has_others = true;
    }
    return !has_others;
}

uint32_t gwd_ip_select(const gwd_ip_t *ips, uint32_t n, const gwd_ip_list_t *own, gwd_ip_t *selected) {
    bool same_host = is_same_host(ips, n, own);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++)
        if (same_host || !is_loopback(&ips[i]))
            selected[kept++] = ips[i];
    return kept;
}
