/* state.c - saving and loading what a group keeps between operations
 *
 * States go through memfds of this process, so that their memory is its own also while the daemon writes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"

/* Asks for the state, with a memfd for it or -1. */
static gw_status_t request_save(gw_group_t *group, int fd, uint64_t *bytes_out) {
    Gw__GroupStateSave save = GW__GROUP_STATE_SAVE__INIT;
    gw_call_t call;

    gw_status_t status = gw_call_open(group->context, &call);
    if (status != GW_OK)
        return status;
    save.group = group->handle;
    gw_call_send(&call, GW_MSG_GROUP_STATE_SAVE, &save.base, &fd, fd >= 0 ? 1 : 0);
    status = gw_call_reply(&call, GW_MSG_GROUP_STATE);
    if (status == GW_OK) {
        Gw__GroupState *reply = gw__group_state__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
        if (reply == NULL || reply->bytes == 0 || reply->bytes > SIZE_MAX / 2)
            status = gw_fail(GW_ERR_PROTOCOL, "the daemon's answer to GroupStateSave cannot be read");
        else
            *bytes_out = reply->bytes;
        gw__group_state__free_unpacked(reply, NULL);
    }
    gw_call_close(&call);
    return status;
}

static gw_status_t copy_out(int fd, size_t bytes, void **state_out) {
    uint8_t *state = malloc(bytes);

    if (state == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "%zu bytes for the state", bytes);
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, state + done, bytes - done, (off_t)done);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            gw_status_t status = gw_fail_errno("reading the state");
            free(state);
            return status;
        }
    }
    *state_out = state;
    return GW_OK;
}

/* Whether the daemon is still there is asked by the request itself. */
static gw_status_t check_group(gw_group_t *group) {
    gw_status_t status = gw_group_argument(group);
    return status == GW_OK ? gw_group_status(group) : status;
}

gw_status_t gw_group_state_save(gw_group_t *group, void **state_out, size_t *bytes_out) {
    uint64_t bytes, room = 0;
    int fd = -1;

    gw_status_t status = check_group(group);
    if (status != GW_OK)
        return status;
    if (state_out == NULL || bytes_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "%s is NULL", state_out == NULL ? "state_out" : "bytes_out");
    status = request_save(group, -1, &bytes);
    while (status == GW_OK && bytes > room) { /* a bucket that was declared meanwhile makes it larger */
        if (fd >= 0)
            close(fd);
        fd = -1;
        room = bytes;
        status = gw_arena_memfd((size_t)room, F_SEAL_SHRINK | F_SEAL_GROW, &fd);
        if (status == GW_OK)
            status = request_save(group, fd, &bytes);
    }
    if (status == GW_OK)
        status = copy_out(fd, (size_t)bytes, state_out);
    if (status == GW_OK)
        *bytes_out = (size_t)bytes;
    if (fd >= 0)
        close(fd);
    return status;
}

void gw_group_state_free(void *state) {
    free(state);
}

static gw_status_t copy_in(int fd, const uint8_t *state, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(fd, state + done, bytes - done, (off_t)done);
        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            return gw_fail_errno("writing the state");
    }
    return GW_OK;
}

gw_status_t gw_group_state_load(gw_group_t *group, const void *state, size_t bytes) {
    Gw__GroupStateLoad load = GW__GROUP_STATE_LOAD__INIT;
    gw_call_t call;
    int fd;

    gw_status_t status = check_group(group);
    if (status != GW_OK)
        return status;
    if (state == NULL || bytes == 0)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "%s", state == NULL ? "state is NULL" : "the state has 0 bytes");
    status = gw_arena_memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW, &fd);
    if (status != GW_OK)
        return status;
    status = copy_in(fd, state, bytes);
    if (status == GW_OK)
        status = gw_call_open(group->context, &call);
    if (status == GW_OK) {
        load.group = group->handle;
        load.bytes = bytes;
        gw_call_send(&call, GW_MSG_GROUP_STATE_LOAD, &load.base, &fd, 1);
        status = gw_call_reply(&call, GW_MSG_DONE);
        gw_call_close(&call);
    }
    close(fd);
    return status;
}
