/* test_client.c - the library against a daemon that misbehaves on purpose (tests/lib/fake_daemon.h)
 *
 * Each test is framed by a count of this process's open fds.
 */
#include <CUnit/Basic.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake_daemon.h"
#include "gradwire.h"

static char folder[64], path[96];
static int fds_before;
static fake_t fake;

enum { CREDITS = FAKE_CREDITS, FLOATS = FAKE_FLOATS };

/* ---- the frame of each test ------------------------------------------------------------------------------ */

static int count_fds(void) {
    DIR *open_fds = opendir("/proc/self/fd");
    int count = 0;
    while (open_fds != NULL && readdir(open_fds) != NULL)
        count++;
    closedir(open_fds);
    return count;
}

static gw_status_t start(fake_fault_t fault, gw_context_t **context_out) {
    gw_options_t options = GW_OPTIONS_INIT;

    fds_before = count_fds();
    fake_daemon_start(&fake, path, fault);
    options.socket_path = path;
    return gw_connect(&options, context_out);
}

static void finish(gw_context_t *context) {
    gw_disconnect(context);
    fake_daemon_stop(&fake);
    CU_ASSERT_EQUAL(count_fds(), fds_before);
}

static bool last_error_has(const char *words) {
    return strstr(gw_last_error(), words) != NULL;
}

static gw_status_t join(gw_context_t *context, gw_group_t **group_out) {
    gw_unique_id_t id = {{0}};
    return gw_group_init(context, &id, 1, 0, group_out);
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- connecting ------------------------------------------------------------------------------------------- */

static void nobody_listens(void) {
    gw_options_t options = GW_OPTIONS_INIT;
    gw_context_t *context = NULL;
    options.socket_path = "/nonexistent/client.sock";
    CU_ASSERT_EQUAL(gw_connect(&options, &context), GW_ERR_NO_DAEMON);
    CU_ASSERT(last_error_has("/nonexistent/client.sock (No such file or directory)"));
    options.socket_path = folder;
    CU_ASSERT_EQUAL(gw_connect(&options, &context), GW_ERR_NO_DAEMON);
    CU_ASSERT(last_error_has("a folder: socket_path names the socket itself, such as /"));
    options.socket_path = "/proc/self/status";
    CU_ASSERT_EQUAL(gw_connect(&options, &context), GW_ERR_NO_DAEMON);
    CU_ASSERT(last_error_has("/proc/self/status (not a socket)") || last_error_has("Permission denied"));
    CU_ASSERT_PTR_NULL(context);
    options.struct_bytes = 4;
    CU_ASSERT_EQUAL(gw_connect(&options, &context), GW_ERR_INVALID_ARGUMENT);
}

static void search_order_is_told(void) {
    gw_context_t *context;
    setenv("XDG_RUNTIME_DIR", folder, 1);
    unsetenv("GRADWIRE_SOCKET");
    gw_status_t status = gw_connect(NULL, &context);
    if (status == GW_OK) { /* a daemon of this host answers where we cannot help it looking */
        gw_disconnect(context);
        return;
    }
    const char *first = strstr(gw_last_error(), folder), *second = strstr(gw_last_error(), "/tmp/gradwire-");
    CU_ASSERT(first != NULL && second != NULL && second > first);
    CU_ASSERT(last_error_has("/run/gradwire/client.sock"));
}

static void refusal_keeps_its_reason(void) {
    gw_context_t *context = NULL;
    CU_ASSERT_EQUAL(start(REFUSE, &context), GW_ERR_QUOTA);
    CU_ASSERT(last_error_has("100 clients are connected"));
    finish(context);
}

static void other_major_version_is_named(void) {
    gw_context_t *context = NULL;
    CU_ASSERT_EQUAL(start(OTHER_MAJOR, &context), GW_ERR_VERSION);
    finish(context);
}

/* ---- requests ---------------------------------------------------------------------------------------------- */

static void expect_broken_at_id(fake_fault_t fault, gw_status_t status) {
    gw_context_t *context = NULL;
    gw_buffer_t *buffer;
    gw_unique_id_t id;
    CU_ASSERT_EQUAL_FATAL(start(fault, &context), GW_OK);
    CU_ASSERT_EQUAL(gw_get_unique_id(context, &id), status);
    CU_ASSERT_EQUAL(gw_get_unique_id(context, &id), status); /* again, at once, and the same */
    CU_ASSERT_EQUAL(gw_buffer_alloc(context, 1, &buffer), status);
    finish(context);
}

static void daemon_that_dies_is_gone(void) {
    expect_broken_at_id(DIE_AT_ID, GW_ERR_DAEMON_GONE);
}

static void garbage_ends_the_session(void) {
    expect_broken_at_id(GARBAGE_AT_ID, GW_ERR_PROTOCOL);
}

static void wrong_reply_is_an_error(void) {
    gw_context_t *context = NULL;
    gw_unique_id_t id;
    CU_ASSERT_EQUAL_FATAL(start(WRONG_TYPE, &context), GW_OK);
    CU_ASSERT_EQUAL(gw_get_unique_id(context, &id), GW_ERR_PROTOCOL);
    finish(context);
}

static void answers_to_nobody_are_dropped(void) {
    gw_context_t *context = NULL;
    gw_unique_id_t id;
    CU_ASSERT_EQUAL_FATAL(start(OLD_ANSWERS, &context), GW_OK);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(gw_get_unique_id(context, &id), GW_OK);
        CU_ASSERT_EQUAL(id.bytes[0], 3);
    }
    finish(context);
}

typedef struct asker {
    gw_context_t *context;
    gw_unique_id_t id;
    gw_status_t status;
} asker_t;

static void *ask(void *argument) {
    asker_t *asker = argument;
    asker->status = gw_get_unique_id(asker->context, &asker->id);
    return NULL;
}

static void threads_get_their_own_answers(void) {
    gw_context_t *context = NULL;
    asker_t askers[2];
    pthread_t threads[2];
    CU_ASSERT_EQUAL_FATAL(start(TURN_AROUND, &context), GW_OK);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 2; i++) {
            askers[i].context = context;
            pthread_create(&threads[i], NULL, ask, &askers[i]);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CU_ASSERT(askers[0].status == GW_OK && askers[1].status == GW_OK);
        CU_ASSERT_EQUAL(askers[0].id.bytes[0] + askers[1].id.bytes[127], 3); /* 1 and 2, one each */
    }
    finish(context);
}

/* ---- groups ------------------------------------------------------------------------------------------------- */

static void expect_no_group(fake_fault_t fault) {
    gw_context_t *context = NULL;
    gw_group_t *group = NULL;
    CU_ASSERT_EQUAL_FATAL(start(fault, &context), GW_OK);
    CU_ASSERT_EQUAL(join(context, &group), GW_ERR_PROTOCOL);
    CU_ASSERT_PTR_NULL(group);
    finish(context);
    CU_ASSERT(fake.left);
}

static void bad_slots_are_refused_and_the_group_left(void) {
    expect_no_group(SLOTS_SHORT);
    expect_no_group(SLOTS_STRANGE);
    expect_no_group(NO_FDS_SENT);
}

static void own_fd_limit_leaves_the_group(void) {
    gw_context_t *context = NULL;
    gw_group_t *group = NULL;
    struct rlimit old;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &old), 0);
    CU_ASSERT_EQUAL_FATAL(start(OUT_OF_FDS, &context), GW_OK);
    gw_status_t status = join(context, &group);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &old), 0);
    CU_ASSERT_EQUAL(status, GW_ERR_FD_LIMIT);
    CU_ASSERT_PTR_NULL(group);
    finish(context);
    CU_ASSERT(fake.left);
}

/* ---- operations ---------------------------------------------------------------------------------------------- */

typedef struct scene {
    gw_context_t *context;
    gw_group_t *group;
    gw_buffer_t *buffer;
    gw_bucket_t *bucket;
    float data[FLOATS];
} scene_t;

static void open_scene(scene_t *scene, fake_fault_t fault, bool copied) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    memset(scene, 0, sizeof(*scene));
    CU_ASSERT_EQUAL_FATAL(start(fault, &scene->context), GW_OK);
    CU_ASSERT_EQUAL_FATAL(join(scene->context, &scene->group), GW_OK);
    gw_status_t status = copied ? gw_buffer_register(scene->context, scene->data, sizeof(scene->data), &scene->buffer)
                                : gw_buffer_alloc(scene->context, sizeof(scene->data), &scene->buffer);
    CU_ASSERT_EQUAL_FATAL(status, GW_OK);
    desc.name = "b";
    desc.count = FLOATS;
    desc.recv = gw_buffer_data(scene->buffer);
    desc.send = desc.recv;
    CU_ASSERT_EQUAL_FATAL(gw_bucket_create(scene->group, &desc, &scene->bucket), GW_OK);
}

static void shared_memory_is_used_in_place(void) {
    scene_t scene;
    gw_op_t op;
    open_scene(&scene, NONE, false);
    float *data = gw_buffer_data(scene.buffer);
    for (int step = 1; step <= 3 * CREDITS; step++) {
        CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
        CU_ASSERT_EQUAL(op, (gw_op_t)step);
        CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_OK);
        CU_ASSERT_EQUAL(data[FLOATS - 1], (float)step);
    }
    CU_ASSERT_EQUAL(gw_wait(scene.group, op - CREDITS + 1, 0), GW_OK);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op - CREDITS, 0), GW_OK); /* its record serves another, but all were good */
    CU_ASSERT_EQUAL(gw_test(scene.group, 1), GW_OK);
    CU_ASSERT_EQUAL(gw_test(scene.group, 0), GW_ERR_NOT_FOUND);
    CU_ASSERT_EQUAL(gw_test(scene.group, op + 1), GW_ERR_NOT_FOUND); /* not yet submitted */
    finish(scene.context);
}

static void registered_memory_is_copied_once(void) {
    scene_t scene;
    gw_op_t op;
    open_scene(&scene, NONE, true);
    for (int step = 1; step <= 3; step++) {
        scene.data[0] = 10 * (float)step;
        CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
        usleep(2000);
        CU_ASSERT_EQUAL(scene.data[0], 10 * (float)step); /* not before somebody looks */
        CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_OK);
        CU_ASSERT_EQUAL(scene.data[0], 10 * (float)step + 1);
        scene.data[0] = -5;
        CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_OK);
        CU_ASSERT_EQUAL(scene.data[0], -5); /* not a second time */
    }
    finish(scene.context);
}

static void descriptor_becomes_readable(void) {
    scene_t scene;
    gw_op_t op;
    int fd;
    open_scene(&scene, NONE, false);
    CU_ASSERT_EQUAL(gw_group_fd(scene.group, &fd), GW_OK);
    struct pollfd polled = {fd, POLLIN, 0};
    for (int step = 0; step < 20; step++) {
        CU_ASSERT_EQUAL(poll(&polled, 1, 0), 0);
        CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
        CU_ASSERT_EQUAL(poll(&polled, 1, 5000), 1);
        CU_ASSERT_EQUAL(gw_test(scene.group, op), GW_OK);
    }
    finish(scene.context);
}

static void unfinished_operation_keeps_its_memory(void) {
    scene_t scene;
    gw_op_t op, second;
    open_scene(&scene, HOLD, false);
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &second), GW_ERR_BUSY);
    CU_ASSERT_EQUAL(gw_test(scene.group, op), GW_IN_PROGRESS);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, 0), GW_ERR_TIMEOUT);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, 5000000), GW_ERR_TIMEOUT);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, -2), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(gw_bucket_free(scene.bucket), GW_ERR_BUSY);
    CU_ASSERT_EQUAL(gw_buffer_release(scene.buffer), GW_ERR_BUSY);
    finish(scene.context);
}

static void daemon_that_dies_frees_waiters(void) {
    scene_t scene;
    gw_op_t op;
    gw_report_t report;
    open_scene(&scene, DIE_AT_SUBMIT, true);
    int64_t began = now_ms();
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_ERR_DAEMON_GONE);
    CU_ASSERT(now_ms() - began < 1000);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(gw_test(scene.group, op), GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(gw_group_check(scene.group, &report), GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(report.status, GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_ERR_DAEMON_GONE);
    CU_ASSERT_EQUAL(gw_bucket_free(scene.bucket), GW_OK); /* nothing is left that could use them */
    CU_ASSERT_EQUAL(gw_buffer_release(scene.buffer), GW_OK);
    finish(scene.context);
}

static void failed_group_stays_failed(void) {
    scene_t scene;
    gw_op_t op;
    gw_report_t report;
    open_scene(&scene, FAIL_AT_SUBMIT, true);
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_OK);
    scene.data[0] = 42;
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_ERR_RANK_DIED);
        CU_ASSERT(last_error_has("rank 5, pid 12, died"));
        CU_ASSERT(last_error_has("make a new group"));
    }
    CU_ASSERT_EQUAL(scene.data[0], 42); /* what failed is not copied out */
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_ERR_RANK_DIED);
    CU_ASSERT_EQUAL(gw_group_check(scene.group, &report), GW_ERR_RANK_DIED);
    CU_ASSERT_STRING_EQUAL(report.message, "rank 5, pid 12, died");
    CU_ASSERT_EQUAL(report.epoch, 3);
    finish(scene.context);
}

static void child_is_told_that_it_was_forked(void) {
    scene_t scene;
    gw_op_t op;
    int status = 0;
    open_scene(&scene, NONE, false);
    pid_t child = fork();
    if (child == 0) {
        bool told = gw_submit(scene.bucket, NULL, &op) == GW_ERR_FORKED &&
                    gw_wait(scene.group, 1, 0) == GW_ERR_FORKED && gw_bucket_free(scene.bucket) == GW_ERR_FORKED &&
                    gw_buffer_release(scene.buffer) == GW_ERR_FORKED &&
                    gw_group_check(scene.group, NULL) == GW_ERR_FORKED;
        gw_disconnect(scene.context);
        _exit(told ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(gw_submit(scene.bucket, NULL, &op), GW_OK); /* the parent goes on */
    CU_ASSERT_EQUAL(gw_wait(scene.group, op, GW_NO_TIMEOUT), GW_OK);
    finish(scene.context);
}

int main(void) {
    static CU_TestInfo connecting[] = {{"nobody listens: the path is named", nobody_listens},
                                       {"the search order is told", search_order_is_told},
                                       {"a refusal keeps its reason", refusal_keeps_its_reason},
                                       {"another major version is named", other_major_version_is_named},
                                       CU_TEST_INFO_NULL};
    static CU_TestInfo requests[] = {{"a daemon that dies is gone", daemon_that_dies_is_gone},
                                     {"garbage ends the session", garbage_ends_the_session},
                                     {"a wrong reply is an error", wrong_reply_is_an_error},
                                     {"answers to nobody are dropped", answers_to_nobody_are_dropped},
                                     {"threads get their own answers", threads_get_their_own_answers},
                                     CU_TEST_INFO_NULL};
    static CU_TestInfo groups[] = {
        {"bad slots are refused, and the group left", bad_slots_are_refused_and_the_group_left},
        {"our own fd limit leaves the group", own_fd_limit_leaves_the_group},
        CU_TEST_INFO_NULL};
    static CU_TestInfo operations[] = {
        {"shared memory is used in place", shared_memory_is_used_in_place},
        {"registered memory is copied once", registered_memory_is_copied_once},
        {"the descriptor becomes readable", descriptor_becomes_readable},
        {"an unfinished operation keeps its memory", unfinished_operation_keeps_its_memory},
        {"a daemon that dies frees waiters", daemon_that_dies_frees_waiters},
        {"a failed group stays failed", failed_group_stays_failed},
        {"a child is told that it was forked", child_is_told_that_it_was_forked},
        CU_TEST_INFO_NULL};
    static CU_SuiteInfo suites[] = {{"connecting", NULL, NULL, NULL, NULL, connecting},
                                    {"requests", NULL, NULL, NULL, NULL, requests},
                                    {"groups", NULL, NULL, NULL, NULL, groups},
                                    {"operations", NULL, NULL, NULL, NULL, operations},
                                    CU_SUITE_INFO_NULL};

    strcpy(folder, "/tmp/gwtest-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    strcat(strcpy(path, folder), "/client.sock");
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    int failed = CU_get_number_of_failures() != 0;
    CU_cleanup_registry();
    unlink(path);
    rmdir(folder);
    return failed;
}
