/* lane.c - the thread and its messages. See lane.h and lane_group.h */
#include "lane_group.h"
#include "lane_wire.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "clock.h"
#include "frame.h"
#include "log.h"
#include "slice.h"
#include "transport.h"

enum {
    EVENTS_AT_ONCE = 64,
    SUBMITS_AT_ONCE = 32, /* from one channel, before others have their turn */
    TIMER_SLACK_NS = 1000,
};

void gwd_lane_event(gwd_lane_t *lane, const gwd_event_t *event) {
    if (!gwd_queue_push(lane->events, event))
        gwd_log(GWD_LOG_ERROR, "lane", "out of memory: an event of group %u is lost", event->group);
}

void gwd_lane_watch_channel(const gwd_lane_t *lane, gwd_lane_rank_t *rank, bool readable) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = rank}};
    int operation = readable ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;

    /* Deleting what is not there is meant: a channel is taken out for several reasons. */
    if (epoll_ctl(lane->epoll_fd, operation, rank->info.channel_fd, &event) != 0 && readable)
        gwd_log(GWD_LOG_ERROR, "lane", "epoll_ctl for %s: %m", rank->info.identity);
}

static void take_group(gwd_lane_t *lane, gwd_group_seed_t *seed) {
    char text[GWD_WIRE_TEXT_BYTES];
    gwd_lane_group_t *group;
    gw_status_t status = GW_OK;

    if (gwd_lane_group_new(lane, seed, &group) != GW_OK) {
        /* The ranks find their channels closed, which is how a lost daemon looks to them. */
        gwd_log(GWD_LOG_ERROR, "lane", "out of memory: group %u cannot be driven", seed->id);
        for (uint32_t r = 0; r < seed->n_local && seed->rail == 0; r++)
            close(seed->ranks[r].channel_fd);
        for (uint32_t i = seed->rail; i < seed->n_rails; i++)
            if (seed->wires[i])
                gwd_wire_free(seed->wires[i]);
        free(seed);
        return;
    }
    group->next = lane->groups;
    lane->groups = group;
    for (uint32_t r = 0; r < group->nranks && group->rail == 0; r++)
        gwd_lane_watch_channel(lane, &group->ranks[r], true);
    if (seed->map)
        status = gwd_lane_wire_group(group, seed, text);
    if (seed->map)
        gwd_rails_open(group, seed);
    if (status != GW_OK)
        gwd_lane_group_fail(group, status, text);
    free(seed);
}

/* For a group that this lane could not take: there is nothing to wait for. */
static void answer(gwd_lane_t *lane, gwd_event_kind_t kind, const gwd_command_t *command) {
    gwd_event_t event = {.kind = kind, .group = command->group, .cookie = command->cookie};

    gwd_lane_event(lane, &event);
}

static void hold(gwd_lane_t *lane, gwd_lane_group_t *group, const gwd_command_t *command) {
    gwd_event_t event = {.kind = GWD_EVENT_HELD, .group = command->group, .cookie = command->cookie};

    event.status = group && group->wire ? gwd_lane_wire_hold(group) : GW_ERR_RANK_LEFT;
    gwd_lane_event(lane, &event);
}

/* Returns whether the channel is to be read again. */
static bool read_submit(gwd_lane_t *lane, gwd_lane_rank_t *rank) {
    gw_frame_t frame;
    gwd_submit_t submit;
    const char *why = "";
    gw_frame_result_t result = gw_frame_recv(rank->info.channel_fd, lane->packet, &frame, &why);

    switch (result) {
    case GW_FRAME_OK:
        break;
    case GW_FRAME_AGAIN:
        return false;
    case GW_FRAME_CLOSED: /* the session's end, or the deadline, says what that means */
    case GW_FRAME_SYSTEM:
        gwd_lane_watch_channel(lane, rank, false);
        return false;
    case GW_FRAME_MALFORMED:
    case GW_FRAME_NO_FDS:
    case GW_FRAME_TOO_BIG:
        gwd_lane_broke_protocol(rank, why);
        return false;
    }
    if (frame.header.type != GW_MSG_SUBMIT || frame.header.n_fds != 0 ||
        !gwd_submit_unpack(frame.body, frame.header.body_bytes, &submit)) {
        gw_frame_close_fds(&frame);
        gwd_lane_broke_protocol(rank, "a message on its channel is not a Submit");
        return false;
    }
    gwd_lane_submit(rank, &submit);
    return true;
}

static void read_channel(gwd_lane_t *lane, gwd_lane_rank_t *rank) {
    int n = 0;

    while (n++ < SUBMITS_AT_ONCE && !rank->left && !rank->stalled && !rank->broken)
        if (!read_submit(lane, rank))
            break;
    gwd_lane_unstall(rank->group);
}

/* What a rank has submitted before it left may lie in its channel when the command to let it go comes. No more than it
 * may have under way: it cannot hold up the others by writing on. */
static void hear_out(gwd_lane_t *lane, gwd_lane_rank_t *rank) {
    uint64_t n = 0;

    while (n++ < rank->group->credits && !rank->left && !rank->stalled && !rank->broken)
        if (!read_submit(lane, rank))
            break;
}

static void take_command(gwd_lane_t *lane, const gwd_command_t *command) {
    gwd_lane_group_t *group = gwd_lane_group_find(lane, command->group);

    switch (command->kind) {
    case GWD_COMMAND_GROUP:
        take_group(lane, command->seed);
        break;
    case GWD_COMMAND_BUCKET:
        if (group && gwd_lane_group_add_bucket(group, command->rank, command->bucket) != GW_OK)
            gwd_lane_group_fail(group, GW_ERR_NO_MEMORY, "the daemon is out of memory");
        break;
    case GWD_COMMAND_BUCKET_DETACH:
        if (group)
            gwd_lane_group_detach_bucket(group, command->rank, command->bucket_id, command->cookie);
        else
            answer(lane, GWD_EVENT_DETACHED, command);
        break;
    case GWD_COMMAND_RANK_LEAVE:
        if (group) {
            hear_out(lane, gwd_lane_group_rank(group, command->rank));
            gwd_lane_group_leave(group, command);
        } else
            answer(lane, GWD_EVENT_RELEASED, command);
        break;
    case GWD_COMMAND_HOLD:
        hold(lane, group, command);
        break;
    case GWD_COMMAND_GO_ON:
        if (group)
            gwd_lane_wire_go_on(group);
        break;
    case GWD_COMMAND_FAIL:
        if (group)
            gwd_lane_group_fail(group, command->status, command->text ? command->text : "the group has failed");
        break;
    case GWD_COMMAND_PROBE:
        if (group && group->wire)
            gwd_lane_wire_probe(group);
        break;
    case GWD_COMMAND_TELL:
        if (group && group->wire)
            gwd_lane_wire_tell(group, command->node, command->data, command->bytes);
        break;
    case GWD_COMMAND_STOP:
        lane->stopping = true;
        break;
    case GWD_COMMAND_RAIL_RUN:
    case GWD_COMMAND_RAIL_DONE:
    case GWD_COMMAND_RAIL_LEAVE:
    case GWD_COMMAND_RAIL_LEFT:
        gwd_lane_take_rail_command(group, command);
        break;
    }
    free(command->text);
    free(command->data);
}

bool gwd_lane_take_command(gwd_lane_t *lane) {
    gwd_command_t command;

    if (!gwd_queue_pop(&lane->commands, &command))
        return false;
    take_command(lane, &command);
    return true;
}

/* Copies end all the time, and nobody else starts the next ones. */
static bool copies_go_on(const gwd_lane_t *lane) {
    return lane->staged || lane->copying || lane->copies_due;
}

/* Works along while jobs are out. Returns whether there may be more to do, so that the lane only looks at
 * its channels and does not sleep. */
static bool help(gwd_lane_t *lane) {
    if (copies_go_on(lane)) {
        if (!lane->copying)
            (void)gwd_reduce_help(lane->reduce);
        return true;
    }
    if (lane->n_running == 0)
        return false;
    return gwd_reduce_help(lane->reduce) || !gwd_queue_empty(&lane->finished);
}

/* How long to sleep at most; UINT64_MAX: until something happens. */
static uint64_t sleep_ns(const gwd_lane_t *lane, uint64_t now_ns) {
    uint64_t result = UINT64_MAX;

    if (lane->next_check_ns)
        result = lane->next_check_ns > now_ns ? lane->next_check_ns - now_ns : 0;
    if (lane->next_alive_ns && lane->next_alive_ns <= now_ns)
        result = 0;
    else if (lane->next_alive_ns && lane->next_alive_ns - now_ns < result)
        result = lane->next_alive_ns - now_ns;
    if (lane->waiting) {
        uint64_t poll_ns = atomic_load_explicit(&lane->limits->poll_ns, memory_order_relaxed);

        result = poll_ns < result ? poll_ns : result;
    }
    return result;
}

/* Without those of wires, whose descriptors stay readable until they are armed: they only end a sleep. */
static int drop_wires(const gwd_lane_t *lane, struct epoll_event *events, int n) {
    int kept = 0;

    for (int i = 0; i < n; i++)
        if (events[i].data.ptr != &lane->wire_mark)
            events[kept++] = events[i];
    return n < 0 ? n : kept;
}

static int wait_events(gwd_lane_t *lane, struct epoll_event *events) {
    uint64_t now_ns, wait_ns;
    struct timespec timeout;
    int n;

    for (;;) {
        bool busy = help(lane), moved = gwd_lane_wire_progress(lane);

        n = drop_wires(lane, events, epoll_wait(lane->epoll_fd, events, EVENTS_AT_ONCE, 0));
        now_ns = gwd_now_ns();
        if (n > 0 || moved)
            lane->awake_until_ns = now_ns + atomic_load_explicit(&lane->limits->spin_ns, memory_order_relaxed);
        wait_ns = sleep_ns(lane, now_ns);
        if (n != 0 || wait_ns == 0)
            return n;
        if (moved)
            return 0; /* groups may have failed or ended */
        if (!busy && now_ns >= lane->awake_until_ns && gwd_lane_wire_arm(lane))
            break;
        (void)sched_yield(); /* cannot fail */
        if (copies_go_on(lane) || lane->waiting)
            return 0; /* there is more to look at than channels */
    }
    timeout.tv_sec = (time_t)(wait_ns / 1000000000u);
    timeout.tv_nsec = (long)(wait_ns % 1000000000u);
    gwd_slice_short(true);
    n = epoll_pwait2(lane->epoll_fd, events, EVENTS_AT_ONCE, wait_ns == UINT64_MAX ? NULL : &timeout, NULL);
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) /* a system call filter older than it */
        n = epoll_wait(lane->epoll_fd, events, EVENTS_AT_ONCE,
                       wait_ns == UINT64_MAX ? -1 : (int)(wait_ns / 1000000u + 1));
    gwd_slice_short(false);
    return n;
}

static void take_finished(gwd_lane_t *lane) {
    gwd_job_t *job;

    while (gwd_queue_pop(&lane->finished, &job))
        job->on_finished(job);
}

static void turn(gwd_lane_t *lane) {
    struct epoll_event events[EVENTS_AT_ONCE];
    int n = wait_events(lane, events);

    gwd_stats_add(&lane->stats.lane_wakeups, 1);
    if (n < 0 && errno != EINTR)
        gwd_log(GWD_LOG_ERROR, "lane", "epoll_pwait2: %m");
    for (int i = 0; i < n; i++)
        if (events[i].data.ptr != &lane->commands && events[i].data.ptr != &lane->finished &&
            events[i].data.ptr != &lane->wire_mark)
            read_channel(lane, events[i].data.ptr);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &lane->finished) {
            gwd_queue_clear_wake(&lane->finished);
            take_finished(lane);
        } else if (events[i].data.ptr == &lane->commands) {
            gwd_queue_clear_wake(&lane->commands);
            while (gwd_lane_take_command(lane))
                ;
        }
    }
    if (lane->waiting)
        gwd_lane_poll_waiting(lane);
    if (copies_go_on(lane)) {
        take_finished(lane); /* without the way through the kernel */
        gwd_lane_poll_copies(lane);
        gwd_lane_wire_copies_turn(lane);
        gwd_lane_staged_turn(lane);
    }
    if (lane->next_check_ns && gwd_now_ns() >= lane->next_check_ns)
        gwd_lane_check_late(lane, gwd_now_ns());
    if (lane->next_alive_ns && gwd_now_ns() >= lane->next_alive_ns)
        gwd_lane_wire_tick(lane, gwd_now_ns());
    gwd_lane_free_ended(lane);
}

static void *run(void *argument) {
    gwd_lane_t *lane = argument;

    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS); /* else a sleep of lane.poll_us takes twice as long */
    while (!lane->stopping)
        turn(lane);
    return NULL;
}

static int watch_queue(const gwd_lane_t *lane, gwd_queue_t *queue) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = queue}};

    return epoll_ctl(lane->epoll_fd, EPOLL_CTL_ADD, queue->wake_fd, &event) == 0 ? 0 : errno;
}

int gwd_lane_new(gwd_queue_t *events, gwd_reduce_t *reduce, const gwd_lane_limits_t *limits, uint64_t trace_events,
                 uint32_t index, gwd_lane_t **lane_out) {
    gwd_lane_t *lane = calloc(1, sizeof(*lane));
    int error = ENOMEM;

    if (!lane)
        return ENOMEM;
    lane->index = index;
    lane->events = events;
    lane->reduce = reduce;
    lane->limits = limits;
    lane->packet = malloc(GW_PACKET_MAX);
    if (!lane->packet)
        goto err_lane;
    lane->trace = gwd_trace_new(trace_events);
    if (!lane->trace)
        goto err_packet;
    error = gwd_queue_init(&lane->commands, sizeof(gwd_command_t));
    if (error)
        goto err_trace;
    error = gwd_queue_init(&lane->finished, sizeof(gwd_job_t *));
    if (error)
        goto err_commands;
    lane->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    error = errno;
    if (lane->epoll_fd < 0)
        goto err_finished;
    error = watch_queue(lane, &lane->commands);
    if (!error)
        error = watch_queue(lane, &lane->finished);
    if (!error)
        error = pthread_create(&lane->thread, NULL, run, lane);
    if (error)
        goto err_epoll;
    pthread_setname_np(lane->thread, "gw-lane");
    *lane_out = lane;
    return 0;

err_epoll:
    close(lane->epoll_fd);
err_finished:
    gwd_queue_fini(&lane->finished);
err_commands:
    gwd_queue_fini(&lane->commands);
err_trace:
    gwd_trace_free(lane->trace);
err_packet:
    free(lane->packet);
err_lane:
    free(lane);
    return error;
}

void gwd_lane_free(gwd_lane_t *lane) {
    gwd_command_t stop = {.kind = GWD_COMMAND_STOP};

    while (!gwd_lane_send(lane, &stop)) /* memory comes back, or the process is killed */
        usleep(1000);
    pthread_join(lane->thread, NULL);
    close(lane->epoll_fd);
    gwd_queue_fini(&lane->finished);
    gwd_queue_fini(&lane->commands);
    gwd_trace_free(lane->trace);
    free(lane->packet);
    free(lane);
}

bool gwd_lane_send(gwd_lane_t *lane, const gwd_command_t *command) {
    return gwd_queue_push(&lane->commands, command);
}

void gwd_lane_must_send(gwd_lane_t *lane, const gwd_command_t *command) {
    if (gwd_lane_send(lane, command))
        return;
    gwd_log(GWD_LOG_ERROR, "lane", "out of memory: group %u cannot go on, and the daemon neither", command->group);
    abort();
}

const gwd_stats_t *gwd_lane_stats(const gwd_lane_t *lane) {
    return &lane->stats;
}

const gwd_trace_t *gwd_lane_trace(const gwd_lane_t *lane) {
    return lane->trace;
}
