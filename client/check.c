/* check.c - what a group knows about itself, without asking the daemon */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "group.h"

gw_status_t gw_group_argument(const gw_group_t *group) {
    if (group == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "group is NULL");
    return gw_context_check(group->context);
}

void gw_group_message(const gw_group_t *group, char *text_out) {
    memcpy(text_out, group->slots->message, GW_SLOTS_MESSAGE_BYTES);
    text_out[GW_SLOTS_MESSAGE_BYTES - 1] = '\0';
}

bool gw_group_is_gone(gw_group_t *group) {
    struct pollfd channel = {.fd = group->channel};
    int result;

    if (atomic_load_explicit(&group->gone, memory_order_relaxed))
        return true;
    do {
        result = poll(&channel, 1, 0);
    } while (result < 0 && errno == EINTR);
    if (result <= 0 || (channel.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0)
        return false;
    atomic_store_explicit(&group->gone, true, memory_order_relaxed);
    return true;
}

static gw_status_t fail_gone(const gw_group_t *group) {
    return gw_fail(GW_ERR_DAEMON_GONE, "it closed the channel of rank %d of %d", group->rank, group->nranks);
}

gw_status_t gw_group_status(gw_group_t *group) {
    gw_status_t status = (gw_status_t)atomic_load_explicit(&group->slots->status, memory_order_acquire);
    if (status != GW_OK) {
        char text[GW_SLOTS_MESSAGE_BYTES];
        gw_group_message(group, text);
        return gw_fail(status, "%s", text);
    }
    return atomic_load_explicit(&group->gone, memory_order_relaxed) ? fail_gone(group) : GW_OK;
}

/* Reads what the daemon has written about the group. */
static void read_report(gw_group_t *group, gw_report_t *report) {
    bool gone = gw_group_is_gone(group); /* asked first: the daemon may fail the group and then go */

    report->epoch = group->epoch;
    report->status = (gw_status_t)atomic_load_explicit(&group->slots->status, memory_order_acquire);
    report->last_completed = atomic_load_explicit(&group->slots->last_completed, memory_order_acquire);
    report->failed_ops = atomic_load_explicit(&group->slots->failed_ops, memory_order_acquire);
    if (report->status != GW_OK || report->failed_ops > 0)
        gw_group_message(group, report->message);
    if (report->status == GW_OK && gone) {
        report->status = fail_gone(group);
        snprintf(report->message, sizeof(report->message), "%s", gw_last_error());
    }
}

gw_status_t gw_group_check(gw_group_t *group, gw_report_t *report_out) {
    gw_report_t report = {.status = gw_group_argument(group)};

    if (report.status == GW_OK)
        read_report(group, &report);
    else
        snprintf(report.message, sizeof(report.message), "%s", gw_last_error());
    if (report_out != NULL)
        *report_out = report;
    if (report.status == GW_ERR_INVALID_ARGUMENT || report.status == GW_ERR_FORKED)
        return report.status;
    if (report.status != GW_OK)
        return gw_group_status(group);
    if (atomic_exchange_explicit(&group->failed_seen, report.failed_ops, memory_order_relaxed) < report.failed_ops)
        return gw_fail(GW_ERR_MISMATCH, "%s", report.message);
    return GW_OK;
}

int gw_group_rank(const gw_group_t *group) {
    return group != NULL ? group->rank : -1;
}

int gw_group_size(const gw_group_t *group) {
    return group != NULL ? group->nranks : -1;
}

gw_status_t gw_group_fd(gw_group_t *group, int *fd_out) {
    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    if (fd_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "fd_out is NULL");
    pthread_mutex_lock(&group->lock);
    group->notify = true;
    pthread_mutex_unlock(&group->lock);
    *fd_out = group->channel;
    return GW_OK;
}
