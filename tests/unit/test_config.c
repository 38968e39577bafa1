/* test_config.c - settings: what is accepted, what is refused and with which words, who wins, and what a reload does */
#include "config.h"
#include "cunit_main.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char error[GWD_CONFIG_ERROR_BYTES];

/* ---- helpers ------------------------------------------------------------------------------------ */

static gw_status_t read_text(gwd_config_t *config, const char *text) {
    gwd_config_set_defaults(config);
    error[0] = '\0';
    FILE *stream = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    gw_status_t status = gwd_config_read_file(config, stream, "a.conf", error, sizeof(error));
    fclose(stream);
    return status;
}

static void check_refused(const char *text, const char *words) {
    gwd_config_t config;
    CU_ASSERT_EQUAL(read_text(&config, text), GW_ERR_INVALID_ARGUMENT);
    if (strstr(error, words) == NULL)
        fprintf(stderr, "expected '%s' in '%s'\n", words, error);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, words));
}

static gw_status_t set(gwd_config_t *config, const char *name, const char *text) {
    error[0] = '\0';
    return gwd_config_set(config, name, text, "test", error, sizeof(error));
}

static gwd_config_result_t init(gwd_config_t *config, int argc, const char *const *argv) {
    error[0] = '\0';
    return gwd_config_init(config, argc, (char *const *)(uintptr_t)argv, error, sizeof(error));
}

static void write_file(const char *path, const char *text) {
    FILE *stream = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT(fputs(text, stream) >= 0);
    CU_ASSERT_EQUAL(fclose(stream), 0);
}

/* ---- values ------------------------------------------------------------------------------------- */

static void defaults_are_valid_and_named_so(void) {
    gwd_config_t config;
    gwd_config_set_defaults(&config);
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        char text[GWD_CONFIG_STRING_BYTES];
        CU_ASSERT_STRING_EQUAL(config.sources[i], "default");
        gwd_config_format(&config, &gwd_config_keys[i], text);
        CU_ASSERT_STRING_EQUAL(text, gwd_config_keys[i].default_text);
        CU_ASSERT(strlen(gwd_config_keys[i].help) > 10);
    }
    CU_ASSERT_EQUAL(config.reduce_chunk_bytes, 256 * 1024);
    CU_ASSERT_EQUAL(config.limits_buffer_bytes_per_uid, INT64_C(64) << 30);
    CU_ASSERT_EQUAL(config.socket_client_mode, 0660);
    CU_ASSERT_EQUAL(config.log_level, 2);
    CU_ASSERT_STRING_EQUAL(config.socket_dir, "");
}

static void sizes_take_suffixes(void) {
    gwd_config_t config;
    gwd_config_set_defaults(&config);
    CU_ASSERT_EQUAL(set(&config, "reduce.chunk_bytes", "5000"), GW_OK);
    CU_ASSERT_EQUAL(config.reduce_chunk_bytes, 5000);
    CU_ASSERT_EQUAL(set(&config, "reduce.chunk_bytes", "1M"), GW_OK);
    CU_ASSERT_EQUAL(config.reduce_chunk_bytes, 1 << 20);
    CU_ASSERT_EQUAL(set(&config, "limits.buffer_bytes_per_uid", "2T"), GW_OK);
    CU_ASSERT_EQUAL(config.limits_buffer_bytes_per_uid, INT64_C(2) << 40);
    static const char *const bad[] = {"",
                                      "K",
                                      "1k",
                                      "1KB",
                                      "1 K",
                                      " 1K",
                                      "-1K",
                                      "+1K",
                                      "0x10",
                                      "1.5M",
                                      "9223372036854775807K",
                                      "99999999999999999999",
                                      "1K\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT_EQUAL(set(&config, "limits.buffer_bytes_per_uid", bad[i]), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(config.limits_buffer_bytes_per_uid, INT64_C(2) << 40);
}

static void numbers_keep_their_bounds(void) {
    gwd_config_t config;
    gwd_config_set_defaults(&config);
    CU_ASSERT_EQUAL(set(&config, "lane.count", "64"), GW_OK);
    CU_ASSERT_EQUAL(set(&config, "lane.count", "65"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_STRING_EQUAL(error, "lane.count = '65': must be a whole number from 0 to 64");
    CU_ASSERT_EQUAL(config.lane_count, 64);
    CU_ASSERT_EQUAL(set(&config, "deadline.late_ms", "9"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(set(&config, "group.credits", "128"), GW_OK);
    CU_ASSERT_EQUAL(set(&config, "group.credits", "100"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_STRING_EQUAL(error, "group.credits = '100': must be a power of two from 64 to 65536");
    CU_ASSERT_EQUAL(set(&config, "group.credits", "32"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(config.group_credits, 128);
}

static void modes_are_octal(void) {
    gwd_config_t config;
    gwd_config_set_defaults(&config);
    CU_ASSERT_EQUAL(set(&config, "socket.client_mode", "666"), GW_OK);
    CU_ASSERT_EQUAL(config.socket_client_mode, 0666);
    CU_ASSERT_EQUAL(set(&config, "socket.client_mode", "0680"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(set(&config, "socket.client_mode", "01777"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(config.socket_client_mode, 0666);
}

static void choices_are_whole_words(void) {
    gwd_config_t config;
    gwd_config_set_defaults(&config);
    CU_ASSERT_EQUAL(set(&config, "log.level", "error"), GW_OK);
    CU_ASSERT_EQUAL(config.log_level, 0);
    CU_ASSERT_EQUAL(set(&config, "log.level", "debug"), GW_OK);
    CU_ASSERT_EQUAL(config.log_level, 4);
    static const char *const bad[] = {"", "warn", "debugging", "error|warning", "INFO"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT_EQUAL(set(&config, "log.level", bad[i]), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(config.log_level, 4);
}

static void strings_have_no_control_characters_and_an_end(void) {
    gwd_config_t config;
    char long_text[97];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    gwd_config_set_defaults(&config);
    CU_ASSERT_EQUAL(set(&config, "socket.dir", "/run/a b"), GW_OK);
    CU_ASSERT_STRING_EQUAL(config.socket_dir, "/run/a b");
    CU_ASSERT_EQUAL(set(&config, "socket.dir", long_text), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(set(&config, "socket.dir", "/run/\033[31m"), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_STRING_EQUAL(config.socket_dir, "/run/a b");
    CU_ASSERT_EQUAL(set(&config, "socket.dir", long_text + 1), GW_OK);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static void a_file_sets_values_and_is_named_as_source(void) {
    gwd_config_t config;
    CU_ASSERT_EQUAL(
        read_text(&config, "# a comment\n[lane]\ncount = 3 ; why not\n\n[log]\nlevel=info\n[socket]\ngroup=\n"), GW_OK);
    CU_ASSERT_EQUAL(config.lane_count, 3);
    CU_ASSERT_EQUAL(config.log_level, 3);
    CU_ASSERT_STRING_EQUAL(config.sources[GWD_CONFIG_KEY_lane_count], "a.conf:3");
    CU_ASSERT_STRING_EQUAL(config.sources[GWD_CONFIG_KEY_log_level], "a.conf:6");
    CU_ASSERT_STRING_EQUAL(config.sources[GWD_CONFIG_KEY_lane_poll_us], "default");
}

static void a_bad_file_is_refused_with_its_line(void) {
    char long_line[400];
    memset(long_line, 'x', sizeof(long_line));
    memcpy(long_line, "\n[lane]\ncount = ", 16);
    long_line[sizeof(long_line) - 1] = '\0';
    check_refused("[lane]\n\ncout = 3\n", "a.conf:3: unknown key 'lane.cout'");
    check_refused("[lanes]\ncount = 3\n", "a.conf:2: unknown key 'lanes.count'");
    check_refused("[lane]\ncount = three\n", "a.conf:2: lane.count = 'three': must be");
    check_refused("[lane]\ncount = 3\npoll_us = 60\ncount = 4\n", "a.conf:4: lane.count was given in line 2 already");
    check_refused("count = 3\n", "a.conf:1: 'count' stands before the first [section]");
    check_refused("[lane]\ncount\n", "a.conf:2: neither");
    check_refused("[lane\ncount = 3\n", "a.conf:1: neither");
    check_refused("[lane]\ncount = 3 # three\n",
                  "a.conf:2: lane.count = '3 # three': must be a whole number from 0 to 64 (a comment after a value");
    check_refused(long_line, "a.conf:3: the line is too long");
    check_refused("[lane]\ncount = 3\n   4\n", "a.conf:3: lane.count was given in line 2 already");
    check_refused("[lane]\ncount = 1000\nbad = 1\n", "a.conf:2: ");
}

static void the_printed_configuration_can_be_read_again(void) {
    gwd_config_t config;
    gwd_config_t again;
    char text[32768];
    gwd_config_set_defaults(&config);
    CU_ASSERT_EQUAL(set(&config, "lane.count", "7"), GW_OK);
    CU_ASSERT_EQUAL(set(&config, "socket.dir", "/srv/gradwire"), GW_OK);
    FILE *stream = fmemopen(text, sizeof(text), "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    gwd_config_print_example(&config, stream);
    CU_ASSERT_EQUAL(fclose(stream), 0);
    CU_ASSERT_EQUAL(read_text(&again, text), GW_OK);
    CU_ASSERT_EQUAL(again.lane_count, 7);
    CU_ASSERT_STRING_EQUAL(again.socket_dir, "/srv/gradwire");
    CU_ASSERT_STRING_EQUAL(again.sources[GWD_CONFIG_KEY_reduce_threads], "default");
    /* All defaults, uncommented, are a valid file too. */
    for (char *c = text; (c = strchr(c, '#')) != NULL; c++) {
        if (c > text && c[-1] == '\n' && c[1] >= 'a' && c[1] <= 'z')
            memmove(c, c + 1, strlen(c));
    }
    CU_ASSERT_EQUAL(read_text(&again, text), GW_OK);
    CU_ASSERT_STRING_NOT_EQUAL(again.sources[GWD_CONFIG_KEY_reduce_threads], "default");
}

/* ---- environment and flags ---------------------------------------------------------------------- */

static void flags_beat_environment_beats_file(void) {
    gwd_config_t config;
    char path[] = "/tmp/gradwire-config-XXXXXX";
    int fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    close(fd);
    write_file(path, "[lane]\ncount = 1\npoll_us = 11\n[reduce]\nthreads = 21\n");
    setenv("GRADWIRE_LANE_COUNT", "2", 1);
    setenv("GRADWIRE_LANE_POLL_US", "12", 1);
    setenv("GRADWIRE_SOCKET", "/run/the-clients", 1); /* not a key of ours */
    const char *const argv[] = {"gradwired", "--config", path, "--lane.count=3", "--socket-dir", "/tmp/x", NULL};
    CU_ASSERT_EQUAL(init(&config, 6, argv), GWD_CONFIG_RUN);
    CU_ASSERT_EQUAL(config.lane_count, 3);
    CU_ASSERT_EQUAL(config.lane_poll_us, 12);
    CU_ASSERT_EQUAL(config.reduce_threads, 21);
    CU_ASSERT_STRING_EQUAL(config.socket_dir, "/tmp/x");
    CU_ASSERT_STRING_EQUAL(config.file, path);
    CU_ASSERT_STRING_EQUAL(config.sources[GWD_CONFIG_KEY_lane_count], "flag");
    CU_ASSERT_STRING_EQUAL(config.sources[GWD_CONFIG_KEY_lane_poll_us], "environment");
    CU_ASSERT_PTR_NOT_NULL(strstr(config.sources[GWD_CONFIG_KEY_reduce_threads], ":5"));
    unsetenv("GRADWIRE_LANE_COUNT");
    unsetenv("GRADWIRE_LANE_POLL_US");
    unsetenv("GRADWIRE_SOCKET");
    unlink(path);
}

static void bad_environment_is_refused(void) {
    gwd_config_t config;
    const char *const argv[] = {"gradwired", "--config=/dev/null", NULL};
    setenv("GRADWIRE_LANE_COUTN", "2", 1);
    CU_ASSERT_EQUAL(init(&config, 2, argv), GWD_CONFIG_BAD);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "environment variable GRADWIRE_LANE_COUTN: unknown key 'lane.coutn'"));
    unsetenv("GRADWIRE_LANE_COUTN");
    setenv("GRADWIRE_DEADLINE_BUCKET_S", "soon", 1);
    CU_ASSERT_EQUAL(init(&config, 2, argv), GWD_CONFIG_BAD);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "GRADWIRE_DEADLINE_BUCKET_S: deadline.bucket_s = 'soon'"));
    unsetenv("GRADWIRE_DEADLINE_BUCKET_S");
}

static void bad_flags_are_refused(void) {
    static const struct {
        const char *flag, *words;
    } bad[] = {
        {"--lane.count=x", "flag --lane.count: lane.count = 'x'"},
        {"--lane.cuont=3", "flag --lane.cuont: unknown key 'lane.cuont'"},
        {"--lanes=3", "--lanes is not a flag"},
        {"--foo", "--foo is not a flag"},
        {"--lane.count", "--lane.count needs a value"},
        {"--help=me", "--help takes no value"},
        {"-v", "-v is not a flag"},
        {"start", "start is not a flag"},
        {"--", "-- is not a flag"},
        {"--config=/nonexistent/gradwired.conf", "/nonexistent/gradwired.conf: cannot be opened: No such file"},
        {"--config=/", "/: cannot be read: Is a directory"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gwd_config_t config;
        const char *const argv[] = {"gradwired", bad[i].flag, NULL};
        CU_ASSERT_EQUAL(init(&config, 2, argv), GWD_CONFIG_BAD);
        if (strstr(error, bad[i].words) == NULL)
            fprintf(stderr, "expected '%s' in '%s'\n", bad[i].words, error);
        CU_ASSERT_PTR_NOT_NULL(strstr(error, bad[i].words));
    }
}

/* ---- reload ------------------------------------------------------------------------------------- */

typedef struct change {
    int applied, refused;
    char last[GWD_CONFIG_STRING_BYTES * 3];
} change_t;

static void on_change(void *context, const gwd_config_key_t *key, const char *old_text, const char *new_text,
                      int applied) {
    change_t *change = context;
    change->applied += applied;
    change->refused += !applied;
    snprintf(change->last, sizeof(change->last), "%s %s %s", key->full_name, old_text, new_text);
}

static void a_reload_applies_what_it_may(void) {
    gwd_config_t config;
    change_t change = {0};
    char path[] = "/tmp/gradwire-config-XXXXXX";
    int fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    close(fd);
    const char *const argv[] = {"gradwired", "--config", path, "--deadline.bucket_s=7", NULL};
    write_file(path, "[deadline]\nlate_ms = 100\n");
    CU_ASSERT_EQUAL(init(&config, 4, argv), GWD_CONFIG_RUN);

    write_file(path, "[deadline]\n\nlate_ms = 100\n");
    CU_ASSERT_EQUAL(gwd_config_reload(&config, on_change, &change, error, sizeof(error)), GW_OK);
    CU_ASSERT_EQUAL(change.applied + change.refused, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(config.sources[GWD_CONFIG_KEY_deadline_late_ms], ":3"));

    write_file(path, "[deadline]\nlate_ms = 200\nbucket_s = 9\n");
    CU_ASSERT_EQUAL(gwd_config_reload(&config, on_change, &change, error, sizeof(error)), GW_OK);
    CU_ASSERT_EQUAL(change.applied, 1);
    CU_ASSERT_EQUAL(change.refused, 0);
    CU_ASSERT_STRING_EQUAL(change.last, "deadline.late_ms 100 200");
    CU_ASSERT_EQUAL(config.deadline_late_ms, 200);
    CU_ASSERT_EQUAL(config.deadline_bucket_s, 7); /* the flag still counts */

    change = (change_t){0};
    write_file(path, "[deadline]\nlate_ms = 200\n[lane]\ncount = 5\n");
    CU_ASSERT_EQUAL(gwd_config_reload(&config, on_change, &change, error, sizeof(error)), GW_OK);
    CU_ASSERT_EQUAL(change.applied, 0);
    CU_ASSERT_EQUAL(change.refused, 1);
    CU_ASSERT_EQUAL(config.lane_count, 0);
    CU_ASSERT_STRING_EQUAL(config.sources[GWD_CONFIG_KEY_lane_count], "default");

    change = (change_t){0};
    write_file(path, "[deadline]\nlate_ms = 300\nbogus = 1\n");
    CU_ASSERT_EQUAL(gwd_config_reload(&config, on_change, &change, error, sizeof(error)), GW_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, ":3: unknown key 'deadline.bogus'"));
    CU_ASSERT_EQUAL(change.applied + change.refused, 0);
    CU_ASSERT_EQUAL(config.deadline_late_ms, 200);
    unlink(path);
}

/* ---- what is printed ---------------------------------------------------------------------------- */

static void json_has_every_key(void) {
    gwd_config_t config;
    gwd_config_set_defaults(&config);
    cJSON *array = gwd_config_json(&config);
    CU_ASSERT_EQUAL(cJSON_GetArraySize(array), GWD_CONFIG_KEYS);
    const cJSON *item = cJSON_GetArrayItem(array, GWD_CONFIG_KEY_reduce_chunk_bytes);
    CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "name")), "reduce.chunk_bytes");
    CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "value")), "256K");
    CU_ASSERT_STRING_EQUAL(cJSON_GetStringValue(cJSON_GetObjectItem(item, "source")), "default");
    CU_ASSERT(cJSON_IsFalse(cJSON_GetObjectItem(item, "reloadable")));
    cJSON_Delete(array);
}

/* Reads a file of the source tree, whose root is the working directory. */
static char *read_source(const char *path) {
    FILE *stream = fopen(path, "r");
    if (stream == NULL) {
        fprintf(stderr, "%s: cannot be opened: run this test in the root of the source tree\n", path);
        return NULL;
    }
    char *text = calloc(1, 65536);
    size_t bytes = text != NULL ? fread(text, 1, 65535, stream) : 0;
    fclose(stream);
    if (bytes == 0) {
        free(text);
        return NULL;
    }
    return text;
}

static void the_example_and_the_manual_are_up_to_date(void) {
    gwd_config_t config;
    static char expected[65536];
    gwd_config_set_defaults(&config);
    FILE *stream = fmemopen(expected, sizeof(expected), "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    gwd_config_print_example(&config, stream);
    CU_ASSERT_EQUAL(fclose(stream), 0);
    char *example = read_source("etc/gradwired.conf.example");
    CU_ASSERT_PTR_NOT_NULL_FATAL(example);
    CU_ASSERT_STRING_EQUAL(example, expected); /* gradwired --config /dev/null --print-config */
    free(example);

    memset(expected, 0, sizeof(expected));
    stream = fmemopen(expected, sizeof(expected), "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    gwd_config_print_man(stream);
    CU_ASSERT_EQUAL(fclose(stream), 0);
    char *manual = read_source("docs/man/gradwired.conf.5");
    CU_ASSERT_PTR_NOT_NULL_FATAL(manual);
    CU_ASSERT_PTR_NOT_NULL(strstr(manual, expected)); /* gradwired --print-config-man */
    free(manual);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"defaults are valid and named so", defaults_are_valid_and_named_so},
        {"sizes take suffixes", sizes_take_suffixes},
        {"numbers keep their bounds", numbers_keep_their_bounds},
        {"modes are octal", modes_are_octal},
        {"choices are whole words", choices_are_whole_words},
        {"strings have no control characters and an end", strings_have_no_control_characters_and_an_end},
        {"a file sets values and is named as source", a_file_sets_values_and_is_named_as_source},
        {"a bad file is refused with its line", a_bad_file_is_refused_with_its_line},
        {"the printed configuration can be read again", the_printed_configuration_can_be_read_again},
        {"flags beat environment beats file", flags_beat_environment_beats_file},
        {"bad environment is refused", bad_environment_is_refused},
        {"bad flags are refused", bad_flags_are_refused},
        {"a reload applies what it may", a_reload_applies_what_it_may},
        {"json has every key", json_has_every_key},
        {"the example and the manual are up to date", the_example_and_the_manual_are_up_to_date},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("config", tests);
}
