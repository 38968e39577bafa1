/* doctor.c - checks this host and the daemon, and says what to do */
#include "doctor.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gradwire.h"
#include "gwctl.h"

static const char *const verdict_names[] = {"ok", "warning", "failed"};

gwctl_check_t *gwctl_check_add(gwctl_report_t *report, const char *name, gwctl_verdict_t verdict) {
    size_t last = sizeof(report->checks) / sizeof(report->checks[0]) - 1;
    gwctl_check_t *check = &report->checks[report->count < last ? report->count++ : last];
    *check = (gwctl_check_t){.verdict = verdict};
    snprintf(check->name, sizeof(check->name), "%s", name);
    return check;
}

int gwctl_read_line(const char *path, char *line, size_t line_bytes) {
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return 0;
    int got = fgets(line, (int)line_bytes, stream) != NULL;
    fclose(stream);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

/* ---- the daemon --------------------------------------------------------------------------------- */

static void check_version(gwctl_report_t *report, const char *version) {
    int same = strcmp(version, gw_version()) == 0;
    gwctl_check_t *check = gwctl_check_add(report, "versions", same ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    snprintf(check->detail, sizeof(check->detail), "gradwired %s, gwctl and library %s", version, gw_version());
    if (!same)
        snprintf(check->remedy, sizeof(check->remedy), "install the same version of both, then restart gradwired");
}

static void check_state(gwctl_report_t *report, const cJSON *status) {
    int serving = strcmp(gwctl_text(status, "state"), "serving") == 0;
    gwctl_check_t *check = gwctl_check_add(report, "state", serving ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    double clients = gwctl_number(status, "clients"), groups = gwctl_number(status, "groups");
    snprintf(check->detail, sizeof(check->detail), "%.20s, %.0f client%s, %.0f group%s", gwctl_text(status, "state"),
             clients, clients == 1 ? "" : "s", groups, groups == 1 ? "" : "s");
    if (!serving)
        snprintf(check->remedy, sizeof(check->remedy), "restart gradwired when the last group has ended");
}

/* Whether this user may connect to the clients' socket, and who may. */
static void check_client_socket(gwctl_report_t *report, const char *path) {
    struct stat status;
    gwctl_check_t *check = gwctl_check_add(report, "client socket", GWCTL_CHECK_OK);
    if (path[0] == '\0' || stat(path, &status) != 0) {
        check->verdict = GWCTL_CHECK_FAILED;
        snprintf(check->detail, sizeof(check->detail), "%.150s: %s", path, strerror(errno));
        snprintf(
            check->remedy, sizeof(check->remedy),
            "the socket or a folder above it is gone or closed to this user: restart gradwired, or see socket.dir");
        return;
    }
    const struct group *group = getgrgid(status.st_gid);
    snprintf(check->detail, sizeof(check->detail), "%.120s, mode %04o, group %.40s", path,
             (unsigned)(status.st_mode & 07777), group != NULL ? group->gr_name : "without a name");
    if (access(path, R_OK | W_OK) == 0)
        return;
    check->verdict = GWCTL_CHECK_FAILED;
    if (group != NULL)
        snprintf(check->remedy, sizeof(check->remedy),
                 "this user may not connect: usermod -aG %.40s USER, then log in again", group->gr_name);
    else
        snprintf(check->remedy, sizeof(check->remedy),
                 "this user may not connect: set socket.group to one of its groups");
}

/* In a container of its own the daemon can know a client by no number, or by another than the client's own. */
static void check_process_numbers(gwctl_report_t *report, gwctl_connection_t *connection) {
    char *json = NULL;
    size_t unknown = 0;
    bool found = false;
    const cJSON *client;
    if (gwctl_ask(connection, "clients", NULL, 0, &json) != GWCTL_OK)
        return;
    cJSON *clients = cJSON_Parse(json);
    free(json);
    cJSON_ArrayForEach(client, clients) {
        unknown += cJSON_HasObjectItem(client, "pid") && gwctl_number(client, "pid") <= 0;
        found = found || (long)gwctl_number(client, "pid") == (long)getpid();
    }
    bool known = cJSON_IsArray(clients) && cJSON_GetArraySize(clients) > 0;
    cJSON_Delete(clients);
    if (!known)
        return;
    bool good = found && unknown == 0;
    gwctl_check_t *check = gwctl_check_add(report, "process numbers", good ? GWCTL_CHECK_OK : GWCTL_CHECK_WARNING);
    if (unknown > 0)
        snprintf(check->detail, sizeof(check->detail), "the daemon sees %zu client%s as process 0", unknown,
                 unknown == 1 ? "" : "s");
    else
        snprintf(check->detail, sizeof(check->detail), "the daemon sees clients by %s numbers as here",
                 found ? "the same" : "other");
    if (!good)
        snprintf(check->remedy, sizeof(check->remedy),
                 "containers with process numbers of their own: start them with --pid=host; until then a death is seen "
                 "by the socket only, and IPC handles of GPU memory may not open");
}

/* Returns the daemon's process number; 0 when it does not answer. */
static long check_daemon(gwctl_report_t *report, const gwctl_options_t *options) {
    gwctl_connection_t connection;
    char *json = NULL;
    int code = gwctl_open(options->socket_path, &connection);
    if (code == GWCTL_OK)
        code = gwctl_ask(&connection, "status", NULL, 0, &json);
    cJSON *status = json != NULL ? cJSON_Parse(json) : NULL;
    free(json);
    gwctl_check_t *check = gwctl_check_add(report, "daemon", status != NULL ? GWCTL_CHECK_OK : GWCTL_CHECK_FAILED);
    if (status == NULL) {
        snprintf(check->detail, sizeof(check->detail), "%.760s", code != GWCTL_OK ? connection.error : "no JSON");
        snprintf(check->remedy, sizeof(check->remedy), "%s",
                 connection.remedy[0] != '\0' ? connection.remedy : "see the daemon's log: `journalctl -u gradwired`");
        gwctl_close(&connection);
        return 0;
    }
    snprintf(check->detail, sizeof(check->detail), "answers at %.200s", connection.path);
    check_version(report, connection.version);
    check_state(report, status);
    check_client_socket(report, gwctl_text(status, "socket"));
    check_process_numbers(report, &connection);
    gwctl_close(&connection);
    long pid = (long)gwctl_number(status, "pid");
    gwctl_check_process(report, pid, 1);
    cJSON_Delete(status);
    return pid;
}

/* ---- output ------------------------------------------------------------------------------------- */

cJSON *gwctl_check_to_json(const gwctl_check_t *check) {
    cJSON *item = cJSON_CreateObject();
    if (cJSON_AddStringToObject(item, "check", check->name) != NULL &&
        cJSON_AddStringToObject(item, "verdict", verdict_names[check->verdict]) != NULL &&
        cJSON_AddStringToObject(item, "detail", check->detail) != NULL &&
        cJSON_AddStringToObject(item, "remedy", check->remedy) != NULL)
        return item;
    cJSON_Delete(item);
    return NULL;
}

bool gwctl_check_from_json(const cJSON *json, gwctl_check_t *check_out) {
    const char *verdict = gwctl_text(json, "verdict");
    gwctl_check_t check = {.verdict = GWCTL_CHECK_OK};
    while (check.verdict <= GWCTL_CHECK_FAILED && strcmp(verdict, verdict_names[check.verdict]) != 0)
        check.verdict++;
    if (check.verdict > GWCTL_CHECK_FAILED)
        return false;
    snprintf(check.name, sizeof(check.name), "%s", gwctl_text(json, "check"));
    snprintf(check.detail, sizeof(check.detail), "%s", gwctl_text(json, "detail"));
    snprintf(check.remedy, sizeof(check.remedy), "%s", gwctl_text(json, "remedy"));
    *check_out = check;
    return true;
}

static int print_json(const gwctl_report_t *report) {
    cJSON *array = cJSON_CreateArray();
    bool good = array != NULL;
    for (size_t i = 0; i < report->count && good; i++)
        good = cJSON_AddItemToArray(array, gwctl_check_to_json(&report->checks[i]));
    if (!good) {
        cJSON_Delete(array);
        array = NULL;
    }
    return gwctl_print_json(array);
}

static void print_report(const gwctl_report_t *report) {
    static const gwctl_colour_t colours[] = {GWCTL_GREEN, GWCTL_YELLOW, GWCTL_RED};
    size_t counts[3] = {0};
    for (size_t i = 0; i < report->count; i++) {
        const gwctl_check_t *check = &report->checks[i];
        counts[check->verdict]++;
        printf("%s%-7s%s  %-22s ", gwctl_colour(colours[check->verdict]), verdict_names[check->verdict],
               gwctl_colour(GWCTL_PLAIN), check->name);
        gwctl_print_text(check->detail);
        putchar('\n');
        if (check->remedy[0] != '\0') {
            printf("%-33s-> ", "");
            gwctl_print_text(check->remedy);
            putchar('\n');
        }
    }
    printf("ok %zu, warning %zu, failed %zu\n", counts[0], counts[1], counts[2]);
}

int gwctl_doctor(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    gwctl_report_t report = {.count = 0};
    int code = GWCTL_OK;
    (void)arguments;
    (void)n_arguments;
    long daemon_pid = check_daemon(&report, options);
    gwctl_check_process(&report, (long)getpid(), 0);
    gwctl_check_host(&report);
    gwctl_check_gpus(&report, daemon_pid);
    if (options->json)
        code = print_json(&report);
    else
        print_report(&report);
    for (size_t i = 0; i < report.count; i++) {
        if (report.checks[i].verdict == GWCTL_CHECK_FAILED)
            code = GWCTL_FAILED;
    }
    return code;
}
