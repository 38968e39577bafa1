/* watchdog.c - see watchdog.h
 *
 * No wait may be enqueued that nobody frees. The thread marks a group as gone, and then reads how many operations it
 * has; whoever makes a stream wait has made that number include the operation before, and then looks whether the group
 * is gone. In the one order of these four (they are sequentially consistent) one of the two sees the other.
 */
#include "watchdog.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "context.h"
#include "error.h"
#include "group.h"

enum { EVENTS_AT_ONCE = 16 };

void gw_watchdog_free_waiting(gw_group_t *group) {
    uint64_t last = atomic_load(&group->last_sequence);

    for (uint64_t n = 0; n < group->credits && n < last; n++) {
        gw_slot_t *slot = gw_slots_at(group->slots, last - n, group->credits);

        if (gw_slots_reached(atomic_load_explicit(&slot->done, memory_order_relaxed), last - n))
            continue;
        atomic_store_explicit(&slot->status, (uint32_t)GW_ERR_DAEMON_GONE, memory_order_relaxed);
        atomic_store_explicit(&slot->done, (uint32_t)(last - n), memory_order_release);
        (void)syscall(SYS_futex, &slot->done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); /* that nobody waits is no error */
    }
}

static void give_up(gw_group_t *group) {
    atomic_store(&group->gone, true);
    gw_watchdog_free_waiting(group);
}

/* What has ended is watched no more: it would be reported again and again. A report may come late, when the group is
 * gone and another one lies where it was: so the channel is asked, too. */
static void take_event(gw_context_t *context, const void *source) {
    gw_watchdog_t *watchdog = &context->watchdog;

    pthread_mutex_lock(&watchdog->lock);
    for (gw_group_t *group = watchdog->groups; group != NULL; group = group->watch_next) {
        if (source != context && (source != group || !gw_group_is_gone(group)))
            continue;
        give_up(group);
        (void)epoll_ctl(watchdog->epoll, EPOLL_CTL_DEL, group->channel, NULL); /* may have been before */
    }
    if (source == context)
        (void)epoll_ctl(watchdog->epoll, EPOLL_CTL_DEL, context->socket, NULL);
    pthread_mutex_unlock(&watchdog->lock);
}

static void *watch(void *argument) {
    gw_context_t *context = argument;
    struct epoll_event events[EVENTS_AT_ONCE];

    for (;;) {
        int n = epoll_wait(context->watchdog.epoll, events, EVENTS_AT_ONCE, -1);
        if (n < 0 && errno != EINTR)
            return NULL; /* somebody has closed our descriptor */
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &context->watchdog)
                return NULL;
            take_event(context, events[i].data.ptr);
        }
    }
}

/* Reports only that the other side has closed it: what comes in is for others to read. */
static int watch_fd(const gw_watchdog_t *watchdog, int fd, uint32_t events, void *source) {
    struct epoll_event event = {.events = events, .data.ptr = source};
    return epoll_ctl(watchdog->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* The trainer's signals are not for this thread. */
static int start_thread(gw_context_t *context) {
    gw_watchdog_t *watchdog = &context->watchdog;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&watchdog->thread, NULL, watch, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        (void)pthread_setname_np(watchdog->thread, "gw-watchdog"); /* for those who list threads */
    return error;
}

static gw_status_t start(gw_context_t *context) {
    gw_watchdog_t *watchdog = &context->watchdog;
    gw_status_t status;

    watchdog->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (watchdog->epoll < 0)
        return gw_fail_errno("epoll_create1 of the watchdog");
    watchdog->stop = eventfd(0, EFD_CLOEXEC);
    if (watchdog->stop < 0) {
        status = gw_fail_errno("eventfd of the watchdog");
        goto err_epoll;
    }
    if (watch_fd(watchdog, watchdog->stop, EPOLLIN, watchdog) < 0 ||
        watch_fd(watchdog, context->socket, 0, context) < 0) {
        status = gw_fail_errno("epoll_ctl of the watchdog");
        goto err_stop;
    }
    int error = start_thread(context);
    if (error != 0) {
        status = gw_fail(GW_ERR_SYSTEM, "pthread_create of the watchdog: %s", strerrordesc_np(error));
        goto err_stop;
    }
    watchdog->running = true;
    return GW_OK;

err_stop:
    close(watchdog->stop);
err_epoll:
    close(watchdog->epoll);
    return status;
}

gw_status_t gw_watchdog_add(gw_group_t *group) {
    gw_watchdog_t *watchdog = &group->context->watchdog;

    pthread_mutex_lock(&watchdog->lock);
    gw_status_t status = watchdog->running ? GW_OK : start(group->context);
    if (status == GW_OK && watch_fd(watchdog, group->channel, 0, group) < 0)
        status = gw_fail_errno("epoll_ctl of the watchdog");
    if (status == GW_OK) {
        group->watch_next = watchdog->groups;
        group->watch_link = &watchdog->groups;
        if (group->watch_next != NULL)
            group->watch_next->watch_link = &group->watch_next;
        watchdog->groups = group;
    }
    pthread_mutex_unlock(&watchdog->lock);
    return status;
}

void gw_watchdog_remove(gw_group_t *group) {
    gw_watchdog_t *watchdog = &group->context->watchdog;

    pthread_mutex_lock(&watchdog->lock);
    if (group->watch_link != NULL) {
        *group->watch_link = group->watch_next;
        if (group->watch_next != NULL)
            group->watch_next->watch_link = group->watch_link;
        group->watch_link = NULL;
        (void)epoll_ctl(watchdog->epoll, EPOLL_CTL_DEL, group->channel, NULL); /* may have been before */
    }
    pthread_mutex_unlock(&watchdog->lock);
}

void gw_watchdog_init(gw_watchdog_t *watchdog) {
    pthread_mutex_init(&watchdog->lock, NULL); /* cannot fail with default attributes on Linux */
}

void gw_watchdog_end(gw_watchdog_t *watchdog, bool forked) {
    const uint64_t one = 1;

    if (watchdog->running && !forked) {
        while (write(watchdog->stop, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
        pthread_join(watchdog->thread, NULL);
    }
    if (watchdog->running) {
        close(watchdog->stop);
        close(watchdog->epoll);
    }
    if (!forked) /* in a child, the thread that it does not have may hold it */
        pthread_mutex_destroy(&watchdog->lock);
}
