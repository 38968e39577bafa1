/* bootstrap_address.c - see bootstrap_address.h */
#include "bootstrap_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "config.h"

static uint16_t port_of(const gwd_address_t *address) {
    return ntohs(address->any.sa_family == AF_INET6 ? address->ip6.sin6_port : address->ip4.sin_port);
}

static void set_port(gwd_address_t *address, uint16_t port) {
    if (address->any.sa_family == AF_INET6)
        address->ip6.sin6_port = htons(port);
    else
        address->ip4.sin_port = htons(port);
}

void gwd_address_text(const gwd_address_t *address, char *text, size_t text_bytes) {
    char number[INET6_ADDRSTRLEN] = "?", scope[IF_NAMESIZE + 1] = "";

    if (address->any.sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &address->ip6.sin6_addr, number, sizeof(number));
        if (address->ip6.sin6_scope_id && if_indextoname(address->ip6.sin6_scope_id, scope + 1))
            scope[0] = '%';
    } else {
        (void)inet_ntop(AF_INET, &address->ip4.sin_addr, number, sizeof(number));
    }
    snprintf(text, text_bytes, "%s%s port %u", number, scope, port_of(address));
}

socklen_t gwd_address_bytes(const gwd_address_t *address) {
    return address->any.sa_family == AF_INET6 ? sizeof(address->ip6) : sizeof(address->ip4);
}

static bool is_link_local(const gwd_address_t *address) {
    return address->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->ip6.sin6_addr);
}

static bool is_wildcard(const gwd_address_t *address) {
    return address->any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&address->ip6.sin6_addr)
                                              : address->ip4.sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool is_loopback(const gwd_address_t *address) {
    return address->any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&address->ip6.sin6_addr)
                                              : ntohl(address->ip4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static bool same(const gwd_address_t *a, const gwd_address_t *b) {
    if (a->any.sa_family != b->any.sa_family || port_of(a) != port_of(b))
        return false;
    if (a->any.sa_family == AF_INET)
        return a->ip4.sin_addr.s_addr == b->ip4.sin_addr.s_addr;
    return memcmp(&a->ip6.sin6_addr, &b->ip6.sin6_addr, sizeof(a->ip6.sin6_addr)) == 0 &&
           a->ip6.sin6_scope_id == b->ip6.sin6_scope_id;
}

static void add(gwd_address_list_t *list, const gwd_address_t *address) {
    for (unsigned i = 0; i < list->n; i++)
        if (same(&list->items[i], address))
            return;
    if (list->n < GWD_ADDRESSES_MAX)
        list->items[list->n++] = *address;
}

/* ---- of this host's interfaces ------------------------------------------------------------------ */

typedef struct pick {
    const char *interface; /* NULL: any */
    int family;            /* 0: any */
    bool link_local, loopback;
} pick_t;

static bool fits(const struct ifaddrs *entry, const pick_t *pick, gwd_address_t *address_out) {
    if (!entry->ifa_addr || (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) ||
        !(entry->ifa_flags & IFF_UP))
        return false;
    memset(address_out, 0, sizeof(*address_out));
    if (entry->ifa_addr->sa_family == AF_INET6)
        memcpy(&address_out->ip6, entry->ifa_addr, sizeof(address_out->ip6));
    else
        memcpy(&address_out->ip4, entry->ifa_addr, sizeof(address_out->ip4));
    return (!pick->interface || strcmp(entry->ifa_name, pick->interface) == 0) &&
           (!pick->family || entry->ifa_addr->sa_family == pick->family) &&
           is_link_local(address_out) == pick->link_local && (pick->loopback || !is_loopback(address_out));
}

static unsigned add_interfaces(gwd_address_list_t *list, uint16_t port, const pick_t *pick) {
    struct ifaddrs *all;
    unsigned n = 0;

    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        gwd_address_t address;

        if (!fits(entry, pick, &address))
            continue;
        set_port(&address, port);
        add(list, &address);
        n++;
    }
    freeifaddrs(all);
    return n;
}

static void name_interfaces(char *text, size_t text_bytes) {
    struct if_nameindex *all = if_nameindex();
    size_t used = 0;

    text[0] = 0;
    for (unsigned i = 0; all && all[i].if_index && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i ? ", " : "", all[i].if_name);
    if (all)
        if_freenameindex(all);
}

/* ---- wire.listen -------------------------------------------------------------------------------- */

/* A number, with "%eth0" behind a link-local one. */
static bool parse_number(const char *word, gwd_address_t *address_out) {
    char number[GWD_CONFIG_STRING_BYTES];
    char *scope;

    memset(address_out, 0, sizeof(*address_out));
    if (inet_pton(AF_INET, word, &address_out->ip4.sin_addr) == 1) {
        address_out->any.sa_family = AF_INET;
        return true;
    }
    snprintf(number, sizeof(number), "%s", word);
    scope = strchr(number, '%');
    if (scope)
        *scope++ = 0;
    if (inet_pton(AF_INET6, number, &address_out->ip6.sin6_addr) != 1)
        return false;
    address_out->any.sa_family = AF_INET6;
    address_out->ip6.sin6_scope_id = scope ? if_nametoindex(scope) : 0;
    return !scope || address_out->ip6.sin6_scope_id;
}

static gw_status_t parse_word(const char *word, uint16_t port, gwd_address_list_t *list, char *text,
                              size_t text_bytes) {
    gwd_address_t address;
    char names[256];

    if (parse_number(word, &address)) {
        if (is_link_local(&address) && !address.ip6.sin6_scope_id) {
            snprintf(text, text_bytes, "wire.listen: %s is link-local: say of which interface, as %s%%eth0", word,
                     word);
            return GW_ERR_INVALID_ARGUMENT;
        }
        set_port(&address, port);
        add(list, &address);
        return GW_OK;
    }
    /* Link-local ones only where there is nothing else: who is told such an address must guess its own interface. */
    if (add_interfaces(list, port, &(pick_t){.interface = word, .loopback = true}) > 0 ||
        add_interfaces(list, port, &(pick_t){.interface = word, .loopback = true, .link_local = true}) > 0)
        return GW_OK;
    name_interfaces(names, sizeof(names));
    if (if_nametoindex(word))
        snprintf(text, text_bytes, "wire.listen: interface %s is down or has no address", word);
    else
        snprintf(text, text_bytes, "wire.listen: '%s' is no IP address and no interface of this host; it has %s", word,
                 names);
    return GW_ERR_INVALID_ARGUMENT;
}

gw_status_t gwd_address_parse(const char *words, uint16_t port, gwd_address_list_t *list_out, char *text,
                              size_t text_bytes) {
    char copy[GWD_CONFIG_STRING_BYTES];
    char *rest = copy;

    list_out->n = 0;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(copy, ", \t", &rest); word; word = strtok_r(NULL, ", \t", &rest)) {
        gw_status_t status = parse_word(word, port, list_out, text, text_bytes);

        if (status != GW_OK)
            return status;
    }
    return GW_OK;
}

/* ---- unique ids --------------------------------------------------------------------------------- */

void gwd_address_to_id(const gwd_address_list_t *listeners, gwd_id_layout_t *layout) {
    gwd_address_list_t reached = {0};

    for (unsigned i = 0; i < listeners->n; i++) {
        const gwd_address_t *address = &listeners->items[i];

        if (is_wildcard(address))
            (void)add_interfaces(&reached, port_of(address), &(pick_t){.family = address->any.sa_family});
        else
            add(&reached, address);
    }
    for (unsigned i = 0; i < reached.n && i < GWD_ID_ADDRESSES; i++) {
        const gwd_address_t *address = &reached.items[i];
        gwd_id_address_t *entry = &layout->addresses[i];
        uint16_t port = port_of(address);

        entry->family = address->any.sa_family == AF_INET6 ? 6 : 4;
        entry->port[0] = (uint8_t)(port >> 8);
        entry->port[1] = (uint8_t)port;
        if (entry->family == 6)
            memcpy(entry->address, &address->ip6.sin6_addr, 16);
        else
            memcpy(entry->address, &address->ip4.sin_addr, 4);
    }
}

static void add_scopes(gwd_address_list_t *list, const gwd_address_t *address) {
    gwd_address_list_t own = {0};

    (void)add_interfaces(&own, 0, &(pick_t){.link_local = true});
    for (unsigned i = 0; i < own.n; i++) {
        gwd_address_t scoped = *address;

        scoped.ip6.sin6_scope_id = own.items[i].ip6.sin6_scope_id;
        add(list, &scoped);
    }
}

void gwd_address_from_id(const gwd_id_layout_t *layout, gwd_address_list_t *list_out) {
    list_out->n = 0;
    for (unsigned i = 0; i < GWD_ID_ADDRESSES; i++) {
        const gwd_id_address_t *entry = &layout->addresses[i];
        gwd_address_t address;

        memset(&address, 0, sizeof(address));
        if (entry->family == 4) {
            address.any.sa_family = AF_INET;
            memcpy(&address.ip4.sin_addr, entry->address, 4);
        } else if (entry->family == 6) {
            address.any.sa_family = AF_INET6;
            memcpy(&address.ip6.sin6_addr, entry->address, 16);
        } else {
            continue;
        }
        set_port(&address, (uint16_t)(entry->port[0] << 8 | entry->port[1]));
        if (is_link_local(&address))
            add_scopes(list_out, &address);
        else
            add(list_out, &address);
    }
}
