/* watchdog.h - frees streams that wait for a daemon that has gone
 *
 * A thread that waits on the CPU looks for itself whether the daemon is still there. A stream cannot: it waits for a
 * word in memory. So from the first operation on a stream on, a thread of the context sleeps until the daemon closes
 * the session or a group's channel, and then writes the words itself. It calls no driver, takes no lock that anybody
 * holds over a driver's call, and allocates nothing: whatever the process is stuck in, its streams come free.
 */
#ifndef GW_WATCHDOG_H
#define GW_WATCHDOG_H

#include <pthread.h>
#include <stdbool.h>

#include "gradwire.h"

typedef struct gw_watchdog {
    pthread_mutex_t lock; /* of what follows */
    gw_group_t *groups;   /* that are watched */
    bool running;
    pthread_t thread;
    int epoll, stop; /* `stop`: an eventfd */
} gw_watchdog_t;

void gw_watchdog_init(gw_watchdog_t *watchdog);

/* Ends the thread. A forked child has none. */
void gw_watchdog_end(gw_watchdog_t *watchdog, bool forked);

/* Watches over a group; starts the thread for the first. Errors: GW_ERR_SYSTEM, GW_ERR_FD_LIMIT, GW_ERR_NO_MEMORY. */
gw_status_t gw_watchdog_add(gw_group_t *group);

/* Forgets a group, if it is watched. */
void gw_watchdog_remove(gw_group_t *group);

/* Writes the end of every operation that has none, so that whoever waits for one comes free. The daemon must be gone,
 * or have let go of this rank. */
void gw_watchdog_free_waiting(gw_group_t *group);

#endif
