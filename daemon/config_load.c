/* config_load.c - where settings come from: the file, the environment, the flags
 *
 * inih splits the file. It cuts over-long lines without a word and gives no line numbers to its handler, so the
 * reader here counts the lines and refuses those that inih would cut.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

#ifndef GWD_CONFIG_FILE
#define GWD_CONFIG_FILE "/etc/gradwire/gradwired.conf"
#endif

#define GWD_ENVIRONMENT_PREFIX "GRADWIRE_"

extern char **environ;

/* ---- the file ----------------------------------------------------------------------------------- */

typedef struct gwd_config_reader {
    gwd_config_t *config;
    FILE *stream;
    const char *name;
    int line;
    int lines[GWD_CONFIG_KEYS]; /* where each key was given; 0: not yet */
    int bad_line;               /* the first one; 0: none */
    char *error;
    size_t error_bytes;
} gwd_config_reader_t;

static void say_bad_line(gwd_config_reader_t *reader, const char *what) {
    if (reader->bad_line != 0)
        return;
    reader->bad_line = reader->line;
    snprintf(reader->error, reader->error_bytes, "%s:%d: %s", reader->name, reader->line, what);
}

static char *read_line(char *line, int line_bytes, void *context) {
    gwd_config_reader_t *reader = context;
    if (fgets(line, line_bytes, reader->stream) == NULL)
        return NULL;
    reader->line++;
    size_t bytes = strlen(line);
    if ((bytes == 0 || line[bytes - 1] != '\n') && !feof(reader->stream)) {
        say_bad_line(reader, "the line is too long (at most 198 characters), or has a NUL byte in it");
        return NULL;
    }
    return line;
}

static int read_value(void *context, const char *section, const char *name, const char *value) {
    gwd_config_reader_t *reader = context;
    char full_name[GWD_CONFIG_STRING_BYTES];
    char what[GWD_CONFIG_ERROR_BYTES];
    char source[GWD_CONFIG_SOURCE_BYTES];
    if (section[0] == '\0') {
        snprintf(what, sizeof(what), "'%.64s' stands before the first [section]", name);
        say_bad_line(reader, what);
        return 0;
    }
    snprintf(full_name, sizeof(full_name), "%.60s.%.60s", section, name);
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        if (strcmp(gwd_config_keys[i].full_name, full_name) != 0)
            continue;
        if (reader->lines[i] != 0) {
            snprintf(what, sizeof(what), "%s was given in line %d already", full_name, reader->lines[i]);
            say_bad_line(reader, what);
            return 0;
        }
        reader->lines[i] = reader->line;
    }
    snprintf(source, sizeof(source), "%.200s:%d", reader->name, reader->line);
    if (gwd_config_set(reader->config, full_name, value, source, what, sizeof(what)) != GW_OK) {
        say_bad_line(reader, what);
        return 0;
    }
    return 1;
}

gw_status_t gwd_config_read_file(gwd_config_t *config, FILE *stream, const char *name, char *error,
                                 size_t error_bytes) {
    gwd_config_reader_t reader = {
        .config = config, .stream = stream, .name = name, .error = error, .error_bytes = error_bytes};
    int bad_line = ini_parse_stream(read_line, &reader, read_value, &reader);
    if (bad_line > 0 && (reader.bad_line == 0 || bad_line < reader.bad_line)) {
        reader.bad_line = 0;
        reader.line = bad_line;
        say_bad_line(&reader, "neither [section], nor name = value, nor a comment");
    } else if (reader.bad_line == 0 && (bad_line < 0 || ferror(stream))) {
        reader.bad_line = 1;
        snprintf(error, error_bytes, "%s: cannot be read: %s", name, strerror(errno));
    }
    return reader.bad_line == 0 ? GW_OK : GW_ERR_INVALID_ARGUMENT;
}

/* A missing file is an error only when it was asked for. */
static gw_status_t load_file(gwd_config_t *config, const char *asked, char *error, size_t error_bytes) {
    const char *name = asked != NULL ? asked : GWD_CONFIG_FILE;
    FILE *stream = fopen(name, "re");
    if (stream == NULL) {
        if (asked == NULL && (errno == ENOENT || errno == ENOTDIR))
            return GW_OK;
        snprintf(error, error_bytes, "%s: cannot be opened: %s; name another file with --config", name,
                 strerror(errno));
        return GW_ERR_INVALID_ARGUMENT;
    }
    config->file = name;
    gw_status_t status = gwd_config_read_file(config, stream, name, error, error_bytes);
    fclose(stream);
    return status;
}

/* ---- the environment ---------------------------------------------------------------------------- */

/* The key that an environment variable sets: the part after the prefix begins with a section and _. Other
 * variables (GRADWIRE_SOCKET is the client's) are none of our business. */
static int key_of_variable(const char *variable, size_t variable_bytes, char full_name[GWD_CONFIG_STRING_BYTES]) {
    const size_t prefix_bytes = sizeof(GWD_ENVIRONMENT_PREFIX) - 1;
    if (strncmp(variable, GWD_ENVIRONMENT_PREFIX, prefix_bytes) != 0)
        return 0;
    size_t bytes = variable_bytes - prefix_bytes;
    if (bytes >= GWD_CONFIG_STRING_BYTES)
        return 0;
    for (size_t i = 0; i < bytes; i++)
        full_name[i] = (char)tolower((unsigned char)variable[prefix_bytes + i]);
    full_name[bytes] = '\0';
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        size_t section_bytes = strlen(gwd_config_keys[i].section);
        if (strncmp(full_name, gwd_config_keys[i].section, section_bytes) == 0 && full_name[section_bytes] == '_') {
            full_name[section_bytes] = '.';
            return 1;
        }
    }
    return 0;
}

static gw_status_t load_environment(gwd_config_t *config, char *error, size_t error_bytes) {
    for (char **entry = environ; *entry != NULL; entry++) {
        char full_name[GWD_CONFIG_STRING_BYTES];
        char what[GWD_CONFIG_ERROR_BYTES];
        const char *value = strchr(*entry, '=');
        if (value == NULL || !key_of_variable(*entry, (size_t)(value - *entry), full_name))
            continue;
        if (gwd_config_set(config, full_name, value + 1, "environment", what, sizeof(what)) != GW_OK) {
            snprintf(error, error_bytes, "environment variable %.*s: %s", (int)(value - *entry), *entry, what);
            return GW_ERR_INVALID_ARGUMENT;
        }
    }
    return GW_OK;
}

/* ---- the flags ---------------------------------------------------------------------------------- */

typedef struct gwd_flag {
    char name[GWD_CONFIG_STRING_BYTES];
    const char *value;
} gwd_flag_t;

static int is_bare(const char *name) {
    static const char *const bare[] = {"help", "version", "print-config", "print-config-man"};
    for (size_t i = 0; i < sizeof(bare) / sizeof(bare[0]); i++) {
        if (strcmp(name, bare[i]) == 0)
            return 1;
    }
    return 0;
}

/* Every setting has a dot in its name; whether there is one of that name is found out when it is set. */
static int is_flag(const char *name) {
    return is_bare(name) || strchr(name, '.') != NULL || strcmp(name, "config") == 0 || strcmp(name, "socket-dir") == 0;
}

/* Takes the flag at argv[*place], as --name=value or --name value, and moves *place behind it. */
static gw_status_t next_flag(int argc, char *const *argv, int *place, gwd_flag_t *flag_out, char *error,
                             size_t error_bytes) {
    const char *text = argv[(*place)++];
    if (strcmp(text, "-h") == 0)
        text = "--help";
    size_t name_bytes = strncmp(text, "--", 2) == 0 ? strcspn(text + 2, "=") : 0;
    snprintf(flag_out->name, sizeof(flag_out->name), "%.*s", (int)(name_bytes < 100 ? name_bytes : 100),
             name_bytes > 0 ? text + 2 : "");
    if (!is_flag(flag_out->name)) {
        snprintf(error, error_bytes, "%.*s is not a flag: see `gradwired --help`",
                 (int)(name_bytes > 0 && name_bytes < 62 ? name_bytes + 2 : 64), text);
        return GW_ERR_INVALID_ARGUMENT;
    }
    flag_out->value = text[2 + name_bytes] == '=' ? text + 2 + name_bytes + 1 : NULL;
    if (is_bare(flag_out->name)) {
        if (flag_out->value == NULL)
            return GW_OK;
        snprintf(error, error_bytes, "--%s takes no value", flag_out->name);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (flag_out->value == NULL && *place < argc)
        flag_out->value = argv[(*place)++];
    if (flag_out->value == NULL) {
        snprintf(error, error_bytes, "--%s needs a value", flag_out->name);
        return GW_ERR_INVALID_ARGUMENT;
    }
    return GW_OK;
}

/* What the flags ask for besides setting values. */
typedef struct gwd_request {
    const char *file; /* NULL: the default */
    char print[32];   /* the name of the first bare flag; "" for none */
} gwd_request_t;

static gw_status_t read_request(int argc, char *const *argv, gwd_request_t *request, char *error, size_t error_bytes) {
    *request = (gwd_request_t){0};
    for (int place = 1; place < argc;) {
        gwd_flag_t flag;
        gw_status_t status = next_flag(argc, argv, &place, &flag, error, error_bytes);
        if (status != GW_OK)
            return status;
        if (is_bare(flag.name) && request->print[0] == '\0')
            snprintf(request->print, sizeof(request->print), "%.31s", flag.name);
        else if (strcmp(flag.name, "config") == 0)
            request->file = flag.value;
    }
    return GW_OK;
}

static gw_status_t load_flags(gwd_config_t *config, int argc, char *const *argv, char *error, size_t error_bytes) {
    for (int place = 1; place < argc;) {
        gwd_flag_t flag;
        char what[GWD_CONFIG_ERROR_BYTES];
        gw_status_t status = next_flag(argc, argv, &place, &flag, error, error_bytes);
        if (status != GW_OK)
            return status;
        if (is_bare(flag.name) || strcmp(flag.name, "config") == 0)
            continue;
        const char *full_name = strcmp(flag.name, "socket-dir") == 0 ? "socket.dir" : flag.name;
        if (gwd_config_set(config, full_name, flag.value, "flag", what, sizeof(what)) != GW_OK) {
            snprintf(error, error_bytes, "flag --%s: %s", flag.name, what);
            return GW_ERR_INVALID_ARGUMENT;
        }
    }
    return GW_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------- */

static gw_status_t load_all(gwd_config_t *config, const char *file, int argc, char *const *argv, char *error,
                            size_t error_bytes) {
    gwd_config_set_defaults(config);
    config->argc = argc;
    config->argv = argv;
    gw_status_t status = load_file(config, file, error, error_bytes);
    if (status == GW_OK)
        status = load_environment(config, error, error_bytes);
    if (status == GW_OK)
        status = load_flags(config, argc, argv, error, error_bytes);
    return status;
}

static gwd_config_result_t finish_print(char *error, size_t error_bytes) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return GWD_CONFIG_PRINTED;
    snprintf(error, error_bytes, "cannot write to the standard output: %s", strerror(errno));
    return GWD_CONFIG_BAD;
}

gwd_config_result_t gwd_config_init(gwd_config_t *config, int argc, char *const *argv, char *error,
                                    size_t error_bytes) {
    gwd_request_t request;
    if (read_request(argc, argv, &request, error, error_bytes) != GW_OK)
        return GWD_CONFIG_BAD;
    if (strcmp(request.print, "help") == 0) {
        gwd_config_print_help(stdout);
        return finish_print(error, error_bytes);
    }
    if (strcmp(request.print, "version") == 0) {
        printf("gradwired %d.%d.%d\n", GW_VERSION_MAJOR, GW_VERSION_MINOR, GW_VERSION_PATCH);
        return finish_print(error, error_bytes);
    }
    if (strcmp(request.print, "print-config-man") == 0) {
        gwd_config_print_man(stdout);
        return finish_print(error, error_bytes);
    }
    if (load_all(config, request.file, argc, argv, error, error_bytes) != GW_OK)
        return GWD_CONFIG_BAD;
    if (strcmp(request.print, "print-config") == 0) {
        gwd_config_print_example(config, stdout);
        return finish_print(error, error_bytes);
    }
    return GWD_CONFIG_RUN;
}

gw_status_t gwd_config_reload(gwd_config_t *config, gwd_config_change_fn on_change, void *context, char *error,
                              size_t error_bytes) {
    gwd_request_t request;
    gwd_config_t *fresh = malloc(sizeof(*fresh));
    if (fresh == NULL) {
        snprintf(error, error_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    gw_status_t status = read_request(config->argc, config->argv, &request, error, error_bytes);
    if (status == GW_OK)
        status = load_all(fresh, request.file, config->argc, config->argv, error, error_bytes);
    if (status != GW_OK)
        goto out;
    config->file = fresh->file;
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        const gwd_config_key_t *key = &gwd_config_keys[i];
        char old_text[GWD_CONFIG_STRING_BYTES];
        char new_text[GWD_CONFIG_STRING_BYTES];
        gwd_config_format(config, key, old_text);
        gwd_config_format(fresh, key, new_text);
        int same = strcmp(old_text, new_text) == 0;
        if (same || key->reloadable) {
            size_t bytes = key->type == GWD_CONFIG_string ? GWD_CONFIG_STRING_BYTES : sizeof(int64_t);
            memcpy((char *)config + key->offset, (char *)fresh + key->offset, bytes);
            memcpy(config->sources[i], fresh->sources[i], sizeof(config->sources[i]));
        }
        if (!same)
            on_change(context, key, old_text, new_text, key->reloadable);
    }
out:
    free(fresh);
    return status;
}
