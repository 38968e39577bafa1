/* test_log.c - the form of a line for the journal and elsewhere, levels, and harmless text */
#include "cunit_main.h"
#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* stderr is a file while a test logs; what was logged is in `logged` afterwards. */
static char logged[65536];
static int old_stderr = -1;

static void begin(void) {
    char path[] = "/tmp/gradwire-log-XXXXXX";
    int fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    unlink(path);
    old_stderr = dup(STDERR_FILENO);
    CU_ASSERT_FATAL(old_stderr >= 0 && dup2(fd, STDERR_FILENO) == STDERR_FILENO);
    close(fd);
    unsetenv("JOURNAL_STREAM");
    gwd_log_set_level(GWD_LOG_DEBUG);
}

static void end(void) {
    ssize_t bytes = pread(STDERR_FILENO, logged, sizeof(logged) - 1, 0);
    CU_ASSERT(bytes >= 0);
    logged[bytes > 0 ? bytes : 0] = '\0';
    CU_ASSERT(dup2(old_stderr, STDERR_FILENO) == STDERR_FILENO);
    close(old_stderr);
    gwd_log_set_level(GWD_LOG_NOTICE);
}

static void name_journal(unsigned long long inode_off_by) {
    char text[64];
    struct stat status;
    CU_ASSERT_EQUAL_FATAL(fstat(STDERR_FILENO, &status), 0);
    snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)status.st_dev,
             (unsigned long long)status.st_ino + inode_off_by);
    setenv("JOURNAL_STREAM", text, 1);
}

static void a_plain_line_has_time_level_and_topic(void) {
    begin();
    gwd_log_init();
    gwd_log(GWD_LOG_WARNING, "group", "rank %d is late", 3);
    end();
    int year, end_of_date = 0;
    CU_ASSERT_EQUAL(sscanf(logged, "%4d-%*2d-%*2d %*2d:%*2d:%*2d.%*3d %n", &year, &end_of_date), 1);
    CU_ASSERT(year > 2000);
    CU_ASSERT_STRING_EQUAL(logged + end_of_date, "warning group: rank 3 is late\n");
}

static void the_journal_gets_priorities(void) {
    begin();
    name_journal(0);
    gwd_log_init();
    gwd_log(GWD_LOG_ERROR, "lane", "a");
    gwd_log(GWD_LOG_WARNING, "lane", "b");
    gwd_log(GWD_LOG_NOTICE, "lane", "c");
    gwd_log(GWD_LOG_INFO, "lane", "d");
    gwd_log(GWD_LOG_DEBUG, "lane", "e");
    end();
    CU_ASSERT_STRING_EQUAL(logged, "<3>lane: a\n<4>lane: b\n<5>lane: c\n<6>lane: d\n<7>lane: e\n");
}

/* A daemon started under the journal with its stderr sent elsewhere. */
static void another_stream_is_not_the_journal(void) {
    begin();
    name_journal(1);
    gwd_log_init();
    gwd_log(GWD_LOG_ERROR, "lane", "a");
    end();
    CU_ASSERT_PTR_NULL(strchr(logged, '<'));
    CU_ASSERT_PTR_NULL(strchr(logged, '\033'));
}

static int evaluated;
static int evaluate(void) {
    return ++evaluated;
}

static void levels_are_checked_before_arguments(void) {
    begin();
    name_journal(0);
    gwd_log_init();
    gwd_log_set_level(GWD_LOG_WARNING);
    gwd_log(GWD_LOG_NOTICE, "lane", "%d", evaluate());
    gwd_log(GWD_LOG_WARNING, "lane", "%d", evaluate());
    gwd_log_set_level(GWD_LOG_ERROR);
    gwd_log(GWD_LOG_WARNING, "lane", "%d", evaluate());
    end();
    CU_ASSERT_EQUAL(evaluated, 1);
    CU_ASSERT_STRING_EQUAL(logged, "<4>lane: 1\n");
}

static void text_of_clients_is_harmless(void) {
    begin();
    name_journal(0);
    gwd_log_init();
    gwd_log(GWD_LOG_INFO, "session", "client '%s'", "x\n<0>daemon: forged\033[2J");
    end();
    CU_ASSERT_STRING_EQUAL(logged, "<6>session: client 'x\\x0a<0>daemon: forged\\x1b[2J'\n");
}

static void errno_is_printed_and_kept(void) {
    begin();
    name_journal(0);
    gwd_log_init();
    errno = ENOENT;
    gwd_log(GWD_LOG_INFO, "daemon", "open: %m");
    CU_ASSERT_EQUAL(errno, ENOENT);
    end();
    CU_ASSERT_STRING_EQUAL(logged, "<6>daemon: open: No such file or directory\n");
}

static void a_long_line_ends_in_dots(void) {
    char text[5000];
    memset(text, '\n', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    begin();
    gwd_log_init();
    gwd_log(GWD_LOG_INFO, "session", "%s", text);
    end();
    size_t bytes = strlen(logged);
    CU_ASSERT(bytes > 1000 && bytes < 2049);
    CU_ASSERT_STRING_EQUAL(logged + bytes - 4, "...\n");
    CU_ASSERT_PTR_EQUAL(strchr(logged, '\n'), logged + bytes - 1);
}

static void *log_many(void *context) {
    for (int i = 0; i < 200; i++)
        gwd_log(GWD_LOG_INFO, "lane", "%s", (const char *)context);
    return NULL;
}

static void lines_of_threads_do_not_mix(void) {
    static char texts[2][100];
    pthread_t threads[2];
    begin();
    name_journal(0);
    gwd_log_init();
    for (int i = 0; i < 2; i++) {
        memset(texts[i], 'a' + i, sizeof(texts[i]) - 1);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, log_many, texts[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    end();
    int lines = 0;
    for (char *line = strtok(logged, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        CU_ASSERT(strcmp(line + 9, texts[0]) == 0 || strcmp(line + 9, texts[1]) == 0);
        lines++;
    }
    CU_ASSERT_EQUAL(lines, 400);
}

static void levels_have_names(void) {
    static const char *const names[] = {"error", "warning", "notice", "info", "debug"};

    for (int i = GWD_LOG_ERROR; i <= GWD_LOG_DEBUG; i++)
        CU_ASSERT_EQUAL(gwd_log_find_level(names[i]), i);
    CU_ASSERT_EQUAL(gwd_log_find_level("loud"), -1);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"a plain line has time, level and topic", a_plain_line_has_time_level_and_topic},
        {"the journal gets priorities", the_journal_gets_priorities},
        {"another stream is not the journal", another_stream_is_not_the_journal},
        {"levels are checked before arguments", levels_are_checked_before_arguments},
        {"text of clients is harmless", text_of_clients_is_harmless},
        {"errno is printed and kept", errno_is_printed_and_kept},
        {"a long line ends in dots", a_long_line_ends_in_dots},
        {"lines of threads do not mix", lines_of_threads_do_not_mix},
        {"levels have names", levels_have_names},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("log", tests);
}
