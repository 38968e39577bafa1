/* test_transport_peer.c - wires, and another process that dies or stops; what UCX does to a process
 *
 * The other process is this program again, started with a role, since UCX does not survive a fork.
 */
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucm/api/ucm.h>
#include <unistd.h>

#include "transport_node.h"

#include "cunit_main.h"

enum { PEER_CHANNEL = 3, PEER_DIES_S = 60, ADDRESS_BYTES = 4096 };

static void swap_addresses(node_t *node, int channel) {
    uint8_t other[ADDRESS_BYTES];
    const void *address;
    size_t bytes;
    ssize_t n;

    gwd_wire_address(node->wire, &address, &bytes);
    MUST(send(channel, address, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    n = recv(channel, other, sizeof(other), 0);
    MUST(n > 0);
    connect_node(node, other, (size_t)n);
}

/* Keeps what comes, sends something large when a word on the channel asks for it, and works until it is ended. */
static _Noreturn void play_peer(void) {
    node_t node;
    uint8_t *sent;
    char word;

    open_node(&node, &by_tcp);
    swap_addresses(&node, PEER_CHANNEL);
    node.how = KEEP;
    sent = new_data(LARGE_BYTES, 7);
    for (;;) {
        gwd_wire_progress(node.wire);
        if (recv(PEER_CHANNEL, &word, 1, MSG_DONTWAIT) == 1)
            send_data(&node, 0, sent, LARGE_BYTES, 7);
    }
}

static bool is_ucx(int signum) {
    struct sigaction action;
    Dl_info info;

    return sigaction(signum, NULL, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
           dladdr((void *)(uintptr_t)action.sa_handler, &info) != 0 && strstr(info.dli_fname, "libucs") != NULL;
}

static void on_memory(ucm_event_type_t type, ucm_event_t *event, void *argument) {
    (void)type, (void)event, (void)argument;
}

static ucs_status_t try_hook(void) {
    return ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 0, on_memory, NULL);
}

/* 0: this process is as if there were no UCX; 1: UCX catches signals; 2: it patches munmap. */
static int play_guest(void) {
    node_t node;
    int result = 0;

    open_node(&node, &by_tcp);
    for (int signum = 1; signum < SIGRTMIN; signum++)
        result |= is_ucx(signum) ? 1 : 0;
    result |= try_hook() == UCS_OK ? 2 : 0;
    close_node(&node);
    return result;
}

static pid_t start_peer(const char *role, const char *setting, const char *value, int *channel_out) {
    int channels[2];
    pid_t process;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channels), 0);
    process = fork();
    CU_ASSERT_FATAL(process >= 0);
    if (process == 0) {
        if (dup2(channels[1], PEER_CHANNEL) == PEER_CHANNEL && (setting == NULL || setenv(setting, value, 1) == 0))
            execl("/proc/self/exe", "peer", role, (char *)NULL);
        _exit(127);
    }
    close(channels[1]);
    *channel_out = channels[0];
    return process;
}

static void end_peer(pid_t process, int channel) {
    kill(process, SIGKILL);
    CU_ASSERT_EQUAL(waitpid(process, NULL, 0), process);
    close(channel);
}

static void expect_guest(const char *setting, const char *value, int result) {
    int channel, status = -1;
    pid_t process = start_peer("guest", setting, value, &channel);

    CU_ASSERT_EQUAL(waitpid(process, &status, 0), process);
    CU_ASSERT(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), result);
    close(channel);
}

static void test_guest(void) {
    expect_guest(NULL, NULL, 0);
    expect_guest("UCX_HANDLE_ERRORS", "bt", 1);
    expect_guest("UCX_MEM_EVENTS", "y", 2);
}

static void test_killed(void) {
    uint8_t *sent = new_data(LARGE_BYTES, 1);
    int channel;
    pid_t process = start_peer("peer", NULL, NULL, &channel);
    node_t a;

    open_node(&a, &by_tcp);
    swap_addresses(&a, channel);
    send_data(&a, 0, sent, 1, 1);
    send_data(&a, 1, sent, LARGE_BYTES, 1);
    CU_ASSERT(run_until(&a, NULL, &a.done, 1, 5 * SOON_MS));
    CU_ASSERT_EQUAL(a.status[0], GW_OK);
    CU_ASSERT_EQUAL(a.status[1], GW_IN_PROGRESS);
    end_peer(process, channel);
    CU_ASSERT(run_until(&a, NULL, &a.broken, 1, SOON_MS));
    CU_ASSERT_PTR_EQUAL(a.broken_cookie, &a);
    gwd_link_abort(a.link);
    a.link = NULL;
    CU_ASSERT(run_until(&a, NULL, &a.done, 2, SOON_MS));
    CU_ASSERT_NOT_EQUAL(a.status[1], GW_OK);
    CU_ASSERT_EQUAL(a.broken, 1);
    close_node(&a);
    free(sent);
}

/* With a peer that has stopped, the lane aborts what it sends and what it receives. */
static void test_stopped(void) {
    uint8_t *sent = new_data(LARGE_BYTES, 1), *before;
    int channel;
    pid_t process = start_peer("peer", NULL, NULL, &channel);
    node_t a;

    open_node(&a, &by_tcp);
    swap_addresses(&a, channel);
    a.how = KEEP;
    CU_ASSERT_EQUAL(send(channel, "s", 1, MSG_NOSIGNAL), 1);
    CU_ASSERT_FATAL(run_until(&a, NULL, &a.messages, 1, 5 * SOON_MS));
    kill(process, SIGSTOP);
    for (uint32_t i = 1; i < 4; i++)
        send_data(&a, i, sent, LARGE_BYTES, 1);
    CU_ASSERT_EQUAL(take(&a, a.kept[0], &a.headers[0]), GW_IN_PROGRESS);
    run_for(&a, NULL, 200);
    CU_ASSERT_EQUAL(a.done, 0);
    gwd_link_abort(a.link);
    a.link = NULL;
    CU_ASSERT(run_until(&a, NULL, &a.done, 4, SOON_MS));
    for (uint32_t i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(a.status[i], GW_ERR_ABORTED);

    /* Nothing comes into its place any more. */
    memset(a.data[0], 0, LARGE_BYTES);
    before = calloc(1, LARGE_BYTES);
    kill(process, SIGCONT);
    run_for(&a, NULL, 200);
    CU_ASSERT(before != NULL && memcmp(before, a.data[0], LARGE_BYTES) == 0);
    CU_ASSERT_EQUAL(a.done, 4);
    CU_ASSERT_EQUAL(a.broken, 0);
    close_node(&a);
    end_peer(process, channel);
    free(before);
    free(sent);
}

int main(int argc, char **argv) {
    CU_TestInfo tests[] = {
        {"no signal handlers, no memory hooks", test_guest},
        {"the other side is killed", test_killed},
        {"the other side has stopped", test_stopped},
        CU_TEST_INFO_NULL,
    };

    if (argc > 1) {
        alarm(PEER_DIES_S);
        if (strcmp(argv[1], "guest") == 0)
            return play_guest();
        play_peer();
    }
    return cunit_run("transport with a peer", tests);
}
