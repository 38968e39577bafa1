/* transport_gate.h - who may connect to the TCP ports that UCX listens at
 *
 * UCX takes every connection, and some bytes from a stranger end the process (see docs/DECISIONS.md). So the daemon's
 * own listen and accept are before those of the C library: connections to a wire's ports wait until the group's nodes
 * are known, and are closed if they come from elsewhere, before UCX has read anything of them.
 */
#ifndef GWD_TRANSPORT_GATE_H
#define GWD_TRANSPORT_GATE_H

#include "ip.h"

typedef struct gwd_gate gwd_gate_t;

/* What this thread makes listen from here on is behind the gate, until gwd_gate_watch(NULL). */
void gwd_gate_watch(gwd_gate_t *gate);

gwd_gate_t *gwd_gate_new(void);       /* NULL: no memory */
void gwd_gate_free(gwd_gate_t *gate); /* or NULL; UCX has closed what listens behind it */

/* From now on connections from these come in, and no others. Once a gate. False: no memory. */
bool gwd_gate_let_in(gwd_gate_t *gate, const gwd_ip_t *ips, uint32_t n);

#endif
