/* trace_merge.c - traces of several daemons made one. See trace.h
 *
 * All times become those of the first one's clock, by way of the wall clocks, which are as far apart as the hosts keep
 * them. Processes get numbers of their own, so that no two groups share a row.
 */
#include "trace.h"

#include <stdlib.h>

enum { FILE_BYTES_MAX = 1 << 30 };

static cJSON *complain(const char *path, const char *what) {
    fprintf(stderr, "gwctl: %s: %s\n", path, what);
    return NULL;
}

/* The whole file, which the caller frees; NULL: it says why. */
static char *read_file(const char *path) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t n = 0, room = 0;
    if (file == NULL) {
        fprintf(stderr, "gwctl: ");
        perror(path);
        return NULL;
    }
    do {
        room = room > 0 ? 2 * room : 1 << 16;
        char *longer = room <= FILE_BYTES_MAX ? realloc(text, room + 1) : NULL;
        if (longer == NULL)
            break;
        text = longer;
        n += fread(text + n, 1, room - n, file);
    } while (n == room);
    bool good = feof(file) && !ferror(file);
    fclose(file);
    if (!good) {
        complain(path, "it cannot be read, or does not fit into memory");
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

/* A document that `gwctl trace` has written; NULL: it says why. */
static cJSON *load(const char *path) {
    char *text = read_file(path);
    if (text == NULL)
        return NULL;
    cJSON *document = cJSON_Parse(text);
    free(text);
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(document, "otherData");
    if (cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(document, "traceEvents")) &&
        cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(other, "realtime_ahead_us")))
        return document;
    cJSON_Delete(document);
    return complain(path, "that is no trace of `gwctl trace`");
}

/* Adds to a number that is there. */
static void shift(const cJSON *object, const char *field, double by) {
    cJSON *number = cJSON_GetObjectItemCaseSensitive(object, field);
    if (cJSON_IsNumber(number))
        cJSON_SetNumberValue(number, number->valuedouble + by);
}

/* Writes the events of a document; *pid_io: the highest number of a process so far. False: no memory. */
static bool put_events(const cJSON *document, double ahead_us, double *pid_io, bool *began_io, FILE *out) {
    cJSON *event;
    double first = *pid_io;
    cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(document, "traceEvents")) {
        shift(event, "pid", first);
        shift(event, "ts", ahead_us);
        if (gwctl_number(event, "pid") > *pid_io)
            *pid_io = gwctl_number(event, "pid");
        char *text = cJSON_PrintUnformatted(event);
        if (text == NULL)
            return false;
        fprintf(out, "%s%s", *began_io ? ",\n" : "\n", text);
        free(text);
        *began_io = true;
    }
    return true;
}

int gwctl_trace_merge(const char *const *paths, size_t n_paths, FILE *out) {
    double first_us = 0, pid = 0;
    bool began = false, good = true;
    cJSON *nodes = cJSON_CreateArray();
    fputs("{\"traceEvents\":[", out);
    for (size_t i = 0; i < n_paths && good; i++) {
        cJSON *document = load(paths[i]);
        cJSON *other = cJSON_DetachItemFromObjectCaseSensitive(document, "otherData");
        double ahead_us = gwctl_number(other, "realtime_ahead_us");
        first_us = i == 0 ? ahead_us : first_us;
        good = document != NULL && cJSON_AddItemToArray(nodes, other) &&
               put_events(document, ahead_us - first_us, &pid, &began, out);
        cJSON_Delete(document);
    }
    char *text = good ? cJSON_PrintUnformatted(nodes) : NULL;
    cJSON_Delete(nodes);
    fprintf(out, "],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"nodes\":%s}}\n",
            text != NULL ? text : "[]");
    good = good && text != NULL;
    free(text);
    return good ? GWCTL_OK : GWCTL_FAILED;
}
