/* log.c - the daemon's log: one line a message, to stderr */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "escape.h"

/* A line is one write(2), so that lines of several threads do not mix. */
#define GWD_LOG_LINE_BYTES 2048

typedef enum gwd_log_form {
    GWD_LOG_PLAIN,
    GWD_LOG_TERMINAL,
    GWD_LOG_JOURNAL,
} gwd_log_form_t;

atomic_int gwd_log_level = GWD_LOG_NOTICE;

static const char *const level_names[] = {"error", "warning", "notice", "info", "debug"};
static const int journal_priorities[] = {3, 4, 5, 6, 7};
static const char *const level_colours[] = {"\033[1;31m", "\033[33m", "\033[1m", "", "\033[2m"};
static const int n_levels = sizeof(level_names) / sizeof(level_names[0]);

static gwd_log_form_t log_form = GWD_LOG_PLAIN;

/* systemd names the device and inode of the journal's stream, since stderr may have been redirected since. */
static int is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device;
    unsigned long long inode;
    struct stat status;
    if (stream == NULL || sscanf(stream, "%llu:%llu", &device, &inode) != 2 || fstat(STDERR_FILENO, &status) != 0)
        return 0;
    return status.st_dev == (dev_t)device && status.st_ino == (ino_t)inode;
}

void gwd_log_init(void) {
    if (is_journal())
        log_form = GWD_LOG_JOURNAL;
    else if (isatty(STDERR_FILENO) && getenv("NO_COLOR") == NULL)
        log_form = GWD_LOG_TERMINAL;
    else
        log_form = GWD_LOG_PLAIN;
}

static size_t write_prefix(gwd_log_level_t level, const char *topic, char *line, size_t line_bytes) {
    if (log_form == GWD_LOG_JOURNAL)
        return (size_t)snprintf(line, line_bytes, "<%d>%s: ", journal_priorities[level], topic);
    struct timespec now;
    struct tm local;
    char date[32];
    const char *colour = log_form == GWD_LOG_TERMINAL ? level_colours[level] : "";
    const char *plain = colour[0] != '\0' ? "\033[0m" : "";
    clock_gettime(CLOCK_REALTIME, &now);
    if (localtime_r(&now.tv_sec, &local) == NULL || strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &local) == 0)
        date[0] = '\0';
    return (size_t)snprintf(line, line_bytes, "%s.%03d %s%-7s%s %s: ", date, (int)(now.tv_nsec / 1000000), colour,
                            level_names[level], plain, topic);
}

void gwd_log_write(gwd_log_level_t level, const char *topic, const char *format, ...) {
    char message[GWD_LOG_LINE_BYTES];
    char line[GWD_LOG_LINE_BYTES];
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    int formatted = vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    if (formatted < 0)
        snprintf(message, sizeof(message), "(a message that cannot be formatted: %s)", format);
    size_t bytes = write_prefix(level, topic, line, sizeof(line));
    bytes += gw_escape(message, sizeof(message), line + bytes, sizeof(line) - bytes - 1);
    line[bytes++] = '\n';
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line, bytes);
    } while (written < 0 && errno == EINTR); /* a log that cannot be written has nowhere to complain */
    errno = error;
}

void gwd_log_set_level(gwd_log_level_t level) {
    atomic_store_explicit(&gwd_log_level, (int)level, memory_order_relaxed);
}

int gwd_log_find_level(const char *name) {
    for (int i = 0; i < n_levels; i++) {
        if (strcmp(level_names[i], name) == 0)
            return i;
    }
    return -1;
}
