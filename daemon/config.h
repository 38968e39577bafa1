/* config.h - the daemon's settings: where they come from, what they are, who set them
 *
 * config.def is the one list. A value is looked for in four places, and the last one found counts: the default,
 * the configuration file, the environment, the flags. An unknown key or a bad value anywhere stops the start,
 * with the place named, so that a typing error never becomes a default in silence.
 *
 * All functions belong to the loop thread. Other threads get the values they need by message.
 */
#ifndef GWD_CONFIG_H
#define GWD_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "gradwire.h"

#define GWD_CONFIG_STRING_BYTES 128  /* longest string value, with its final 0 */
#define GWD_CONFIG_SOURCE_BYTES 256  /* longest "who set it" */
#define GWD_CONFIG_ERROR_BYTES  1024 /* enough for every message made here */

typedef enum gwd_config_type {
    GWD_CONFIG_int,
    GWD_CONFIG_pow2,
    GWD_CONFIG_bytes,
    GWD_CONFIG_mode,
    GWD_CONFIG_choice,
    GWD_CONFIG_string,
} gwd_config_type_t;

enum {
#define GWD_CONFIG(section, name, ...) GWD_CONFIG_KEY_##section##_##name,
#include "config.def"
#undef GWD_CONFIG
    GWD_CONFIG_KEYS
};

typedef struct gwd_config {
#define GWD_FIELD_int(field)                 int64_t field;
#define GWD_FIELD_pow2(field)                int64_t field;
#define GWD_FIELD_bytes(field)               int64_t field;
#define GWD_FIELD_mode(field)                int64_t field;
#define GWD_FIELD_choice(field)              int64_t field;
#define GWD_FIELD_string(field)              char field[GWD_CONFIG_STRING_BYTES];
#define GWD_CONFIG(section, name, type, ...) GWD_FIELD_##type(section##_##name)
#include "config.def"
#undef GWD_CONFIG
    char sources[GWD_CONFIG_KEYS][GWD_CONFIG_SOURCE_BYTES]; /* "default", "FILE:LINE", "environment", "flag", ... */
    const char *file; /* the file that was read; "" if there was none. Points into argv or to a constant. */
    int argc;         /* kept so that a reload goes the same way again */
    char *const *argv;
} gwd_config_t;

/* One line of config.def. */
typedef struct gwd_config_key {
    const char *section;
    const char *name;
    const char *full_name; /* section.name */
    gwd_config_type_t type;
    const char *unit;
    const char *default_text;
    int64_t min;
    int64_t max;
    int reloadable;
    const char *help;
    size_t offset; /* of the field in gwd_config_t */
} gwd_config_key_t;

extern const gwd_config_key_t gwd_config_keys[GWD_CONFIG_KEYS];

typedef enum gwd_config_result {
    GWD_CONFIG_RUN,     /* go on and serve */
    GWD_CONFIG_PRINTED, /* --help, --version or --print-config was answered on stdout: exit with 0 */
    GWD_CONFIG_BAD,     /* the error text says what and where: exit with 2 */
} gwd_config_result_t;

/* Reads everything: defaults, file, environment, flags. `argv` must stay valid: a reload reads it again. */
gwd_config_result_t gwd_config_init(gwd_config_t *config, int argc, char *const *argv, char *error, size_t error_bytes);

/* Called for each value that a reload found changed; `applied` is 0 where the change takes a restart. */
typedef void (*gwd_config_change_fn)(void *context, const gwd_config_key_t *key, const char *old_text,
                                     const char *new_text, int applied);

/* Reads everything again and takes over what is reloadable. On an error nothing changes.
 * Errors: GW_ERR_INVALID_ARGUMENT, with the text. */
gw_status_t gwd_config_reload(gwd_config_t *config, gwd_config_change_fn on_change, void *context, char *error,
                              size_t error_bytes);

/* Sets all defaults. */
void gwd_config_set_defaults(gwd_config_t *config);

/* Sets one value from text. `source` is who says so. On an error nothing changes.
 * Errors: GW_ERR_NOT_FOUND (no such key), GW_ERR_INVALID_ARGUMENT, with the text. */
gw_status_t gwd_config_set(gwd_config_t *config, const char *full_name, const char *text, const char *source,
                           char *error, size_t error_bytes);

/* Reads a configuration file; `name` is for messages. Errors: GW_ERR_INVALID_ARGUMENT, with "name:line: what". */
gw_status_t gwd_config_read_file(gwd_config_t *config, FILE *stream, const char *name, char *error, size_t error_bytes);

/* Writes a value as text, in the form that gwd_config_set takes. */
void gwd_config_format(const gwd_config_t *config, const gwd_config_key_t *key, char text[GWD_CONFIG_STRING_BYTES]);

/* The same for a bare number of that type, which is no choice. */
void gwd_config_format_number(gwd_config_type_t type, int64_t value, char *text, size_t text_bytes);

/* config_print.c: the same list for people and programs. */
void gwd_config_print_help(FILE *stream);
void gwd_config_print_example(const gwd_config_t *config, FILE *stream);
void gwd_config_print_man(FILE *stream);

/* An array of {"name", "value", "default", "source", "unit", "reloadable", "help"}; NULL when out of memory. */
cJSON *gwd_config_json(const gwd_config_t *config);

#endif
