/* transport_gate.c - see transport_gate.h
 *
 * UCX accepts on a thread of its own, hence the lock; that thread does nothing else. It asks again while connections wait,
 * so they wait in the kernel, and that thread sleeps in between.
 */
#include "transport_gate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

enum { PAUSE_US = 1000, STRANGERS_AT_ONCE = 4 };

typedef struct listener {
    struct listener *next;
    gwd_gate_t *gate;
    int fd;
} listener_t;

struct gwd_gate {
    bool knows; /* who may come in */
    bool has_refused;
    gwd_ip_t *ips;
    uint32_t n_ips;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static listener_t *listeners; /* the newest first: a number may be used again */
static _Thread_local gwd_gate_t *watching;

void gwd_gate_watch(gwd_gate_t *gate) {
    watching = gate;
}

gwd_gate_t *gwd_gate_new(void) {
    return calloc(1, sizeof(gwd_gate_t));
}

void gwd_gate_free(gwd_gate_t *gate) {
    if (!gate)
        return;
    pthread_mutex_lock(&lock);
    for (listener_t **at = &listeners, *l = *at; l; l = *at) {
        if (l->gate != gate) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
    pthread_mutex_unlock(&lock);
    free(gate->ips);
    free(gate);
}

bool gwd_gate_let_in(gwd_gate_t *gate, const gwd_ip_t *ips, uint32_t n) {
    gwd_ip_t *copy = malloc(n * sizeof(*copy) + 1);

    if (!copy)
        return false;
    if (n > 0)
        memcpy(copy, ips, n * sizeof(*copy));
    pthread_mutex_lock(&lock);
    gate->ips = copy;
    gate->n_ips = n;
    gate->knows = true;
    pthread_mutex_unlock(&lock);
    return true;
}

static bool is_let_in(gwd_gate_t *gate, int fd) {
    char text[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    gwd_ip_t ip;

    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0 || !gwd_ip_of((const struct sockaddr *)&address, &ip))
        return false; /* it has gone again */
    if (gwd_ip_is_in(&ip, gate->ips, gate->n_ips))
        return true;
    if (!gate->has_refused) {
        gate->has_refused = true;
        (void)inet_ntop(AF_INET6, ip.bytes, text, sizeof(text));
        gwd_log(
            GWD_LOG_NOTICE, "wire",
            "a connection to the data ports of a group came from %s, which is no address of its nodes, and was closed "
            "(wire.gate); more of them are not named",
            text);
    }
    return false;
}

/* However many strangers come, the lock is not kept for long: the loop takes it, too. */
static int accept_behind(gwd_gate_t *gate, int listener) {
    for (int i = 0; i < STRANGERS_AT_ONCE; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0 || is_let_in(gate, fd))
            return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

/* ---- before the C library's ------------------------------------------------------------------------ */

__attribute__((visibility("default"))) int gwd_gate_listen(int fd, int backlog) __asm__("listen");
__attribute__((visibility("default"))) int gwd_gate_accept(int listener, struct sockaddr *address,
                                                           socklen_t *bytes) __asm__("accept");

int gwd_gate_listen(int fd, int backlog) {
    listener_t *l = NULL;

    if (watching) {
        l = malloc(sizeof(*l));
        if (!l) {
            errno = ENOMEM;
            return -1;
        }
        pthread_mutex_lock(&lock);
        *l = (listener_t){listeners, watching, fd};
        listeners = l;
        pthread_mutex_unlock(&lock);
    }
    return (int)syscall(SYS_listen, fd, backlog);
}

int gwd_gate_accept(int listener, struct sockaddr *address, socklen_t *bytes) {
    const listener_t *l;
    bool waits = false;
    int fd = -1;

    pthread_mutex_lock(&lock);
    l = listeners;
    while (l && l->fd != listener)
        l = l->next;
    if (l) {
        waits = !l->gate->knows;
        fd = waits ? -1 : accept_behind(l->gate, listener);
    }
    pthread_mutex_unlock(&lock);
    if (!l)
        return accept4(listener, address, bytes, 0);
    if (waits) { /* it will be asked for again, and at once */
        usleep(PAUSE_US);
        errno = EAGAIN;
    }
    if (fd >= 0 && address && getpeername(fd, address, bytes) != 0) {
        close(fd);
        errno = ECONNABORTED;
        return -1;
    }
    return fd;
}
