/* bootstrap_address.h - where a daemon listens for others, and what of it goes into a unique id */
#ifndef GWD_BOOTSTRAP_ADDRESS_H
#define GWD_BOOTSTRAP_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "bootstrap_proof.h"
#include "gradwire.h"

enum {
    GWD_ADDRESSES_MAX = 32,      /* of one daemon, and that one tries for a unique id */
    GWD_ID_ADDRESSES = 3,        /* that a unique id has room for */
    GWD_ADDRESS_TEXT_BYTES = 96, /* "fe80::1%eth0 port 7411" */
};

typedef union gwd_address {
    struct sockaddr any;
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
} gwd_address_t;

typedef struct gwd_address_list {
    unsigned n;
    gwd_address_t items[GWD_ADDRESSES_MAX];
} gwd_address_list_t;

/* The 128 bytes of a unique id. What is not used is zero. */
typedef struct gwd_id_address {
    uint8_t family; /* 4, 6, or 0: none */
    uint8_t reserved;
    uint8_t port[2]; /* as in a packet: the high byte first */
    uint8_t address[16];
} gwd_id_address_t;

typedef struct gwd_id_layout {
    char magic[4];
    uint32_t version;
    uint8_t node[GWD_NODE_BYTES];
    uint8_t token[GWD_TOKEN_BYTES];
    gwd_id_address_t addresses[GWD_ID_ADDRESSES];
    uint8_t zero[12];
} gwd_id_layout_t;

_Static_assert(sizeof(gwd_id_layout_t) == sizeof(gw_unique_id_t), "the id is part of the protocol");

/* "10.0.0.1 port 7411" */
void gwd_address_text(const gwd_address_t *address, char *text, size_t text_bytes);

socklen_t gwd_address_bytes(const gwd_address_t *address);

/* Reads wire.listen: addresses and names of interfaces. Errors, with text: GW_ERR_INVALID_ARGUMENT. */
gw_status_t gwd_address_parse(const char *words, uint16_t port, gwd_address_list_t *list_out, char *text,
                              size_t text_bytes);

/* Writes into an id where others reach listeners: up to GWD_ID_ADDRESSES, the first of each. A listener on all
 * addresses is reached at those that the host's interfaces have. */
void gwd_address_to_id(const gwd_address_list_t *listeners, gwd_id_layout_t *layout);

/* What a daemon tries for an id. A link-local address is tried on each interface that has one: which of them leads
 * there is not known. */
void gwd_address_from_id(const gwd_id_layout_t *layout, gwd_address_list_t *list_out);

#endif
