/* test_gwctl.c - gwctl against a daemon that is played here: what it prints, what it returns, and what it makes of
 * answers that are broken or mean */
#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frame.h"
#include "gradwire.pb-c.h"

/* ---- the daemon that is played ------------------------------------------------------------------ */

typedef enum behaviour {
    ANSWERS,       /* with `answer`, in pieces of 7 bytes */
    REFUSES,       /* with an Error whose text is `answer` */
    HANGS_UP,      /* in the middle of the answer */
    TALKS_NONSENSE /* a message of another kind */
} behaviour_t;

static char folder[] = "/tmp/gradwire-gwctl-XXXXXX";
static char socket_path[64];
static behaviour_t behaviour;
static const char *answer;
static char asked[128]; /* the last command, with its argument */
/* gwctl runs between writing and reading these, but no tool can see the order that another process makes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void reply(int fd, uint16_t type, uint32_t request, const ProtobufCMessage *message) {
    uint8_t body[4096];
    size_t bytes = protobuf_c_message_pack(message, body);
    gw_frame_send(fd, type, request, body, bytes, NULL, 0);
}

static void reply_in_pieces(int fd, uint32_t request, size_t end) {
    size_t bytes = strlen(answer);
    for (size_t place = 0; place < end; place += 7) {
        Gw__AdminReply piece = GW__ADMIN_REPLY__INIT;
        piece.json.data = (uint8_t *)(uintptr_t)answer + place;
        piece.json.len = bytes - place < 7 ? bytes - place : 7;
        piece.last = place + 7 >= bytes;
        reply(fd, GW_MSG_ADMIN_REPLY, request, &piece.base);
    }
}

/* Returns 0 when the connection should end. The lock is held. */
static int answer_request(int fd, const gw_frame_t *frame) {
    Gw__AdminRequest *request = gw__admin_request__unpack(NULL, frame->header.body_bytes, frame->body);
    if (request == NULL)
        return 0;
    snprintf(asked, sizeof(asked), "%s %s", request->command, request->n_argument > 0 ? request->argument[0] : "");
    gw__admin_request__free_unpacked(request, NULL);
    Gw__Error error = GW__ERROR__INIT;
    Gw__Done done = GW__DONE__INIT;
    switch (behaviour) {
    case ANSWERS:
        reply_in_pieces(fd, frame->header.request, strlen(answer));
        return 1;
    case REFUSES:
        error.status = GW_ERR_NOT_FOUND;
        error.text = (char *)(uintptr_t)answer;
        reply(fd, GW_MSG_ERROR, frame->header.request, &error.base);
        return 1;
    case HANGS_UP:
        reply_in_pieces(fd, frame->header.request, 8);
        return 0;
    case TALKS_NONSENSE:
        reply(fd, GW_MSG_DONE, frame->header.request, &done.base);
        return 1;
    }
    return 0;
}

static void serve(int fd) {
    static uint8_t storage[GW_PACKET_MAX];
    gw_frame_t frame;
    const char *why;
    while (gw_frame_recv(fd, storage, &frame, &why) == GW_FRAME_OK) {
        if (frame.header.type == GW_MSG_HELLO) {
            Gw__Welcome welcome = GW__WELCOME__INIT;
            welcome.version = (char *)(uintptr_t) "7.8.9";
            reply(fd, GW_MSG_WELCOME, frame.header.request, &welcome.base);
            continue;
        }
        if (frame.header.type != GW_MSG_ADMIN_REQUEST)
            return;
        pthread_mutex_lock(&lock);
        int go_on = answer_request(fd, &frame);
        pthread_mutex_unlock(&lock);
        if (!go_on)
            return;
    }
}

static void *play_daemon(void *context) {
    int listener = *(int *)context;
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            return NULL; /* shut down */
        serve(fd);
        close(fd);
    }
}

/* ---- running gwctl ------------------------------------------------------------------------------ */

static char program[4096]; /* gwctl lies two folders above this test */
static char output[65536];

/* Runs gwctl and returns its exit code; stdout and stderr are in `output`. */
static int run(const char *arguments) {
    char command[8192];
    snprintf(command, sizeof(command), "'%s' %s 2>&1", program, arguments);
    FILE *stream = popen(command, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    size_t bytes = fread(output, 1, sizeof(output) - 1, stream);
    output[bytes] = '\0';
    int status = pclose(stream);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run_answered(const char *arguments, behaviour_t how, const char *text) {
    char all[512];
    pthread_mutex_lock(&lock);
    behaviour = how;
    answer = text;
    pthread_mutex_unlock(&lock);
    snprintf(all, sizeof(all), "--socket %s %s", socket_path, arguments);
    int code = run(all);
    pthread_mutex_lock(&lock); /* after the answer to it, which is in `asked` */
    pthread_mutex_unlock(&lock);
    return code;
}

static void check_output(const char *words) {
    if (strstr(output, words) == NULL)
        fprintf(stderr, "expected '%s' in:\n%s\n", words, output);
    CU_ASSERT_PTR_NOT_NULL(strstr(output, words));
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void json_is_passed_on_as_it_is(void) {
    const char *json = "[ {\"id\":1 , \"name\" : \"x\"} ]";
    CU_ASSERT_EQUAL(run_answered("clients --json", ANSWERS, json), 0);
    CU_ASSERT_EQUAL(strlen(output), strlen(json) + 1);
    CU_ASSERT_EQUAL(strncmp(output, json, strlen(json)), 0);
    CU_ASSERT_STRING_EQUAL(asked, "clients ");
}

static void tables_are_aligned(void) {
    CU_ASSERT_EQUAL(run_answered("buffers", ANSWERS,
                                 "[{\"id\":1,\"client\":12,\"uid\":0,\"bytes\":67108864,\"kind\":\"memfd\",\"path\":"
                                 "\"shared\"},{\"id\":100,\"client\":3,\"uid\":0,\"bytes\":5,\"kind\":\"\xc3\xb6\","
                                 "\"path\":\"copied by the client\",\"device\":\"GPU-1\",\"why\":\"small\"}]"),
                    0);
    CU_ASSERT_STRING_EQUAL(output, " ID  CLIENT  USER      SIZE  KIND   ACCESS                DEVICE  WHY\n"
                                   "  1      12  root  64.0 MiB  memfd  shared                -       -\n"
                                   "100       3  root       5 B  \xc3\xb6      copied by the client  GPU-1   small\n");
    CU_ASSERT_EQUAL(run_answered("buffers", ANSWERS, "[]"), 0);
    CU_ASSERT_STRING_EQUAL(output, "no buffer\n");
}

/* One row in every table: as many cells as columns, so exactly two lines. */
static void every_table_has_as_many_cells_as_columns(void) {
    static const char *const commands[] = {"clients", "buffers", "buckets", "config"};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        CU_ASSERT_EQUAL(run_answered(commands[i], ANSWERS, "[{\"name\":\"n\"}]"), 0);
        int lines = 0;
        for (const char *c = output; *c != '\0'; c++)
            lines += *c == '\n';
        CU_ASSERT_EQUAL(lines, 2);
        CU_ASSERT_EQUAL(output[strlen(output) - 1], '\n');
    }
}

static void a_failed_group_says_why(void) {
    CU_ASSERT_EQUAL(run_answered("groups", ANSWERS,
                                 "[{\"id\":4,\"nranks\":1,\"state\":\"failed\",\"status\":\"GW_ERR_RANK_DIED\","
                                 "\"message\":\"rank 1 (host h, pid 5) died\",\"engine\":\"host\",\"why\":\"no GPU\","
                                 "\"ranks\":[{\"rank\":1,\"present\":true,\"last_count\":9,\"last_ns\":1500000}]}]"),
                    0);
    check_output("group 4 of root: size 1, failed");
    check_output("GW_ERR_RANK_DIED: rank 1 (host h, pid 5) died");
    check_output("engine host: no GPU");
    check_output("1.50 ms");
}

static void text_of_clients_is_harmless(void) {
    CU_ASSERT_EQUAL(run_answered("clients", ANSWERS, "[{\"id\":1,\"name\":\"a\\u001b[2J\\nb\"}]"), 0);
    check_output("a\\x1b[2J\\x0ab");
    CU_ASSERT_PTR_NULL(strchr(output, '\033'));
    CU_ASSERT_EQUAL(run_answered("kick 3", REFUSES, "no client \033[2J3"), 1);
    CU_ASSERT_STRING_EQUAL(output, "gwctl: no client \\x1b[2J3\n");
    CU_ASSERT_STRING_EQUAL(asked, "kick 3");
}

static void statistics_are_rendered_for_prometheus(void) {
    CU_ASSERT_EQUAL(
        run_answered("stats --prometheus", ANSWERS,
                     "{\"stats\":[{\"name\":\"ops\",\"kind\":\"counter\",\"unit\":\"\",\"help\":\"a\\\\b\\n\","
                     "\"value\":3},{\"name\":\"wait_ns\",\"kind\":\"histogram\",\"unit\":\"ns\",\"help\":\"h\","
                     "\"count\":3,\"sum\":2000000000,\"buckets\":[1,0,2]}],"
                     "\"groups\":[{\"id\":5,\"rank\":2,\"last_count\":4,\"last_ns\":1e9}],"
                     "\"version\":\"1\\\"2\",\"clients\":6}"),
        0);
    check_output("# HELP gradwire_ops_total a\\\\b\\n\n# TYPE gradwire_ops_total counter\ngradwire_ops_total 3\n");
    check_output("gradwire_wait_seconds_bucket{le=\"2e-09\"} 1\n");
    check_output("gradwire_wait_seconds_bucket{le=\"4e-09\"} 1\n");
    check_output("gradwire_wait_seconds_bucket{le=\"8e-09\"} 3\n");
    check_output("gradwire_wait_seconds_bucket{le=\"+Inf\"} 3\n");
    check_output("gradwire_wait_seconds_sum 2\ngradwire_wait_seconds_count 3\n");
    check_output("gradwire_rank_last_total{group=\"5\",rank=\"2\"} 4\n");
    check_output("gradwire_rank_waited_for_seconds_total{group=\"5\",rank=\"2\"} 1\n");
    check_output("gradwire_clients 6\n");
    check_output("gradwire_info{version=\"1\\\"2\",");
}

static void broken_answers_are_failures(void) {
    CU_ASSERT_EQUAL(run_answered("status", HANGS_UP, "{\"state\":\"serving\"}"), 1);
    check_output("the daemon closed the connection");
    CU_ASSERT_EQUAL(run_answered("status --json", HANGS_UP, "{\"state\":\"serving\"}"), 1);
    CU_ASSERT_PTR_NULL(strstr(output, "serving"));
    CU_ASSERT_EQUAL(run_answered("status", TALKS_NONSENSE, ""), 1);
    check_output("an answer that does not belong to the request");
    CU_ASSERT_EQUAL(run_answered("status", ANSWERS, "{\"state\":"), 1);
    check_output("the daemon's answer is no JSON");
    CU_ASSERT_EQUAL(run_answered("status", ANSWERS, "[1,2]"), 0); /* fields that are missing are empty */
}

static void the_versions_are_shown(void) {
    CU_ASSERT_EQUAL(run_answered("version", ANSWERS, ""), 0);
    check_output("gwctl      ");
    check_output("gradwired  7.8.9 at ");
    CU_ASSERT_EQUAL(run_answered("version --json", ANSWERS, ""), 0);
    check_output("\"gradwired\":\"7.8.9\"");
}

static void wrong_usage_is_code_2(void) {
    static const char *const wrong[] = {"",
                                        "nonsense",
                                        "kick",
                                        "kick 1 2",
                                        "status 1",
                                        "--bogus status",
                                        "status --watch",
                                        "clients --prometheus",
                                        "stats --watch=0",
                                        "stats --watch=x",
                                        "stats --json --prometheus",
                                        "--socket"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CU_ASSERT_EQUAL(run(wrong[i]), 2);
        check_output("see `gwctl --help`");
    }
}

static void without_a_daemon_it_is_code_3(void) {
    static const char *const commands[] = {"status", "stats --watch", "stats --prometheus",
                                           "trace",  "drain",         "version"};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char arguments[256];
        snprintf(arguments, sizeof(arguments), "--socket %s/nothing.sock %s", folder, commands[i]);
        CU_ASSERT_EQUAL(run(arguments), 3);
        check_output("/nothing.sock (No such file or directory); start gradwired");
    }
    CU_ASSERT_EQUAL(run("--socket /nonexistent/x doctor"), 1);
    check_output("failed   daemon");
    check_output("sealed memory");
}

static void the_socket_is_searched_in_order(void) {
    char other[128];
    pthread_mutex_lock(&lock);
    behaviour = ANSWERS;
    answer = "[]";
    pthread_mutex_unlock(&lock);
    setenv("GRADWIRE_ADMIN_SOCKET", socket_path, 1);
    setenv("GRADWIRE_SOCKET", "/nonexistent/client.sock", 1);
    CU_ASSERT_EQUAL(run("clients"), 0);
    unsetenv("GRADWIRE_ADMIN_SOCKET");
    CU_ASSERT_EQUAL(run("clients"), 3);
    check_output("no daemon answers: tried /nonexistent/admin.sock (No such file or directory);");
    snprintf(other, sizeof(other), "%s/client.sock", folder);
    setenv("GRADWIRE_SOCKET", other, 1);
    CU_ASSERT_EQUAL(run("clients"), 0);
    unsetenv("GRADWIRE_SOCKET");
    setenv("XDG_RUNTIME_DIR", folder, 1);
    snprintf(other, sizeof(other), "%s/gradwire", folder);
    CU_ASSERT_EQUAL(symlink(".", other), 0);
    CU_ASSERT_EQUAL(run("clients"), 0);
    unlink(other);
    unsetenv("XDG_RUNTIME_DIR");
}

static void the_help_and_the_list_are_one_table(void) {
    static char names[sizeof(output)];
    CU_ASSERT_EQUAL(run("--list-commands"), 0);
    memcpy(names, output, sizeof(names));
    CU_ASSERT_EQUAL(run("--help"), 0);
    int count = 0;
    for (char *name = strtok(names, "\n"); name != NULL; name = strtok(NULL, "\n"), count++) {
        char line[128];
        snprintf(line, sizeof(line), "\n  %-10s ", name);
        check_output(line);
    }
    CU_ASSERT_EQUAL(count, 15);
}

static void output_that_cannot_be_written_is_a_failure(void) {
    CU_ASSERT_EQUAL(run("--help >/dev/full"), 1);
    CU_ASSERT_EQUAL(run_answered("clients >/dev/full", ANSWERS, "[]"), 1);
}

/* ---- set-up ------------------------------------------------------------------------------------- */

static int listener = -1;
static pthread_t daemon_thread;

static int begin(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof(program) - 32);
    if (bytes < 0 || mkdtemp(folder) == NULL)
        return 1;
    program[bytes] = '\0';
    for (int i = 0; i < 3; i++)
        *strrchr(program, '/') = '\0';
    strcat(program, "/gwctl");
    snprintf(socket_path, sizeof(socket_path), "%s/admin.sock", folder);
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    unsetenv("GRADWIRE_ADMIN_SOCKET");
    unsetenv("GRADWIRE_SOCKET");
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
           listen(listener, 8) != 0 || pthread_create(&daemon_thread, NULL, play_daemon, &listener) != 0;
}

static int end(void) {
    shutdown(listener, SHUT_RDWR);
    pthread_join(daemon_thread, NULL);
    close(listener);
    unlink(socket_path);
    return rmdir(folder) != 0;
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"json is passed on as it is", json_is_passed_on_as_it_is},
        {"tables are aligned", tables_are_aligned},
        {"every table has as many cells as columns", every_table_has_as_many_cells_as_columns},
        {"a failed group says why", a_failed_group_says_why},
        {"text of clients is harmless", text_of_clients_is_harmless},
        {"statistics are rendered for prometheus", statistics_are_rendered_for_prometheus},
        {"broken answers are failures", broken_answers_are_failures},
        {"the versions are shown", the_versions_are_shown},
        {"wrong usage is code 2", wrong_usage_is_code_2},
        {"without a daemon it is code 3", without_a_daemon_it_is_code_3},
        {"the socket is searched in order", the_socket_is_searched_in_order},
        {"the help and the list are one table", the_help_and_the_list_are_one_table},
        {"output that cannot be written is a failure", output_that_cannot_be_written_is_a_failure},
        CU_TEST_INFO_NULL,
    };
    static CU_SuiteInfo suites[] = {{"gwctl", begin, end, NULL, NULL, tests}, CU_SUITE_INFO_NULL};
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures != 0;
}
