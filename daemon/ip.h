/* ip.h - the addresses that a host's connections come from */
#ifndef GWD_IP_H
#define GWD_IP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { GWD_IPS_MAX = 256 }; /* of one host */

typedef struct gwd_ip {
    uint8_t bytes[16]; /* IPv4 as ::ffff:10.0.0.1 */
} gwd_ip_t;

typedef struct gwd_ip_list {
    uint32_t n;
    gwd_ip_t ips[GWD_IPS_MAX];
} gwd_ip_list_t;

/* False: it is neither IPv4 nor IPv6. */
bool gwd_ip_of(const struct sockaddr *address, gwd_ip_t *ip_out);

/* Copies (malloc) what a node has said. False: it is malformed, or there is no memory. */
bool gwd_ip_copy(const void *ips, size_t bytes, gwd_ip_t **ips_out, uint32_t *n_out);

/* Those of all interfaces of this host that are up: which one a connection takes is the kernel's choice. */
void gwd_ip_own(gwd_ip_list_t *own_out);

bool gwd_ip_is_in(const gwd_ip_t *ip, const gwd_ip_t *ips, uint32_t n);

/* Copies those of another host that it comes here from: loopback only if it is this host, which has `own`. Returns how
 * many. */
uint32_t gwd_ip_select(const gwd_ip_t *ips, uint32_t n, const gwd_ip_list_t *own, gwd_ip_t *selected);

#endif
