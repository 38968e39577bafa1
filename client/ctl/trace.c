/* trace.c - the command trace: what it reads, and where it writes. See trace.h */
#include "trace.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static void say_lost(const gwctl_events_t *events) {
    if (events->lost > 0)
        fprintf(
            stderr,
            "gwctl: %llu events were overwritten before they were read: raise trace.events, or trace for less time\n",
            (unsigned long long)events->lost);
    if (events->full)
        fprintf(stderr, "gwctl: only the first %d events are kept: trace for less time\n", GWCTL_EVENTS_MAX);
}

static int write_events(const gwctl_options_t *options, FILE *out) {
    gwctl_events_t events;
    gwctl_rows_t rows;
    int code = gwctl_events_read(options, &events);
    if (code == GWCTL_OK && !gwctl_rows_make(&events, &rows)) {
        fprintf(stderr, "gwctl: out of memory: trace for less time\n");
        code = GWCTL_FAILED;
    } else if (code == GWCTL_OK) {
        gwctl_trace_write(&events, &rows, out);
        gwctl_rows_free(&rows);
        say_lost(&events);
    }
    gwctl_events_free(&events);
    return code;
}

/* Removes what is not whole, if it is a file and no device or pipe. */
static int end_file(FILE *file, const char *path, int code) {
    bool is_whole = ferror(file) == 0;
    struct stat stat;
    bool is_file = fstat(fileno(file), &stat) == 0 && S_ISREG(stat.st_mode);
    is_whole = fclose(file) == 0 && is_whole;
    if (code == GWCTL_OK && is_whole) {
        printf("wrote %s: open it in https://ui.perfetto.dev or chrome://tracing\n", gwctl_cell_text(path).text);
        return GWCTL_OK;
    }
    if (!is_whole)
        fprintf(stderr, "gwctl: %s: %s\n", path, strerror(errno));
    if (is_file)
        (void)remove(path); /* what is left of it is seen to be no JSON */
    return code == GWCTL_OK ? GWCTL_FAILED : code;
}

int gwctl_trace(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    FILE *out = options->out_path != NULL ? fopen(options->out_path, "we") : stdout;
    if (out == NULL) {
        fprintf(stderr, "gwctl: %s: %s\n", options->out_path, strerror(errno));
        return GWCTL_FAILED;
    }
    int code = options->merge ? gwctl_trace_merge(arguments, n_arguments, out) : write_events(options, out);
    return out == stdout ? code : end_file(out, options->out_path, code);
}
