/* config.c - the table of settings and the values in it
 *
 * Each value is text on its way in and on its way out; this file is the only one that turns text into values, so
 * the file, the environment, the flags and gwctl all accept the same and refuse the same.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const gwd_config_key_t gwd_config_keys[GWD_CONFIG_KEYS] = {
#define GWD_CONFIG(section, name, type, unit, default_text, min, max, reloadable, help)                                \
    {#section,                                                                                                         \
     #name,                                                                                                            \
     #section "." #name,                                                                                               \
     GWD_CONFIG_##type,                                                                                                \
     unit,                                                                                                             \
     default_text,                                                                                                     \
     min,                                                                                                              \
     max,                                                                                                              \
     reloadable,                                                                                                       \
     help,                                                                                                             \
     offsetof(gwd_config_t, section##_##name)},
#include "config.def"
#undef GWD_CONFIG
};

static void *field_of(gwd_config_t *config, const gwd_config_key_t *key) {
    return (char *)config + key->offset;
}

static int64_t number_of(const gwd_config_t *config, const gwd_config_key_t *key) {
    int64_t value;
    memcpy(&value, (const char *)config + key->offset, sizeof(value));
    return value;
}

static const gwd_config_key_t *find_key(const char *full_name) {
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        if (strcmp(gwd_config_keys[i].full_name, full_name) == 0)
            return &gwd_config_keys[i];
    }
    return NULL;
}

/* Digits only: no sign, no space, nothing that strtoll would forgive. Returns what follows them, or NULL. */
static const char *parse_digits(const char *text, int base, int64_t *value_out) {
    if (text[0] < '0' || text[0] > '9')
        return NULL;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, base);
    if (errno != 0)
        return NULL;
    *value_out = value;
    return end;
}

static int parse_int(const char *text, int base, int64_t *value_out) {
    const char *end = parse_digits(text, base, value_out);
    return end != NULL && *end == '\0';
}

static int parse_bytes(const char *text, int64_t *value_out) {
    static const char suffixes[] = "KMGT";
    int64_t value;
    const char *end = parse_digits(text, 10, &value);
    if (end == NULL)
        return 0;
    if (*end != '\0') {
        const char *suffix = strchr(suffixes, *end);
        if (suffix == NULL || end[1] != '\0')
            return 0;
        int shift = 10 * (int)(suffix - suffixes + 1);
        if (value > INT64_MAX >> shift)
            return 0;
        value <<= shift;
    }
    *value_out = value;
    return 1;
}

/* The place of `text` among the words of "a|b|c", or -1. */
static int64_t parse_choice(const char *text, const char *words) {
    size_t text_bytes = strlen(text);
    for (int64_t place = 0;; place++) {
        size_t word_bytes = strcspn(words, "|");
        if (word_bytes == text_bytes && memcmp(words, text, text_bytes) == 0)
            return place;
        words += word_bytes;
        if (*words == '\0')
            return -1;
        words++;
    }
}

static void format_choice(int64_t place, const char *words, char *text, size_t text_bytes) {
    for (; place > 0; place--)
        words += strcspn(words, "|") + 1;
    snprintf(text, text_bytes, "%.*s", (int)strcspn(words, "|"), words);
}

void gwd_config_format_number(gwd_config_type_t type, int64_t value, char *text, size_t text_bytes) {
    static const char suffixes[] = {0, 'K', 'M', 'G', 'T'};
    if (type == GWD_CONFIG_mode) {
        snprintf(text, text_bytes, "0%" PRIo64, (uint64_t)value);
        return;
    }
    size_t step = 0;
    if (type == GWD_CONFIG_bytes) {
        while (value != 0 && value % 1024 == 0 && step + 1 < sizeof(suffixes)) {
            value /= 1024;
            step++;
        }
    }
    if (step == 0)
        snprintf(text, text_bytes, "%" PRId64, value);
    else
        snprintf(text, text_bytes, "%" PRId64 "%c", value, suffixes[step]);
}

void gwd_config_format(const gwd_config_t *config, const gwd_config_key_t *key, char text[GWD_CONFIG_STRING_BYTES]) {
    if (key->type == GWD_CONFIG_string)
        snprintf(text, GWD_CONFIG_STRING_BYTES, "%s", (const char *)config + key->offset);
    else if (key->type == GWD_CONFIG_choice)
        format_choice(number_of(config, key), key->unit, text, GWD_CONFIG_STRING_BYTES);
    else
        gwd_config_format_number(key->type, number_of(config, key), text, GWD_CONFIG_STRING_BYTES);
}

static int parse_number(const gwd_config_key_t *key, const char *text, int64_t *value_out) {
    int64_t value = 0;
    int good = 0;
    switch (key->type) {
    case GWD_CONFIG_int:
        good = parse_int(text, 10, &value);
        break;
    case GWD_CONFIG_pow2:
        good = parse_int(text, 10, &value) && value > 0 && (value & (value - 1)) == 0;
        break;
    case GWD_CONFIG_bytes:
        good = parse_bytes(text, &value);
        break;
    case GWD_CONFIG_mode:
        good = parse_int(text, 8, &value);
        break;
    case GWD_CONFIG_choice:
        value = parse_choice(text, key->unit);
        good = value >= 0;
        break;
    case GWD_CONFIG_string:
        break;
    }
    if (!good || value < key->min || value > key->max)
        return 0;
    *value_out = value;
    return 1;
}

/* Control characters are in no name that a file or group may sensibly have, and would spoil the log. */
static int good_string(const gwd_config_key_t *key, const char *text) {
    size_t bytes = strlen(text);
    if (bytes >= GWD_CONFIG_STRING_BYTES || (int64_t)bytes < key->min || (int64_t)bytes > key->max)
        return 0;
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return 0;
    }
    return 1;
}

static void say_bad_value(const gwd_config_key_t *key, const char *text, char *error, size_t error_bytes) {
    char low[32];
    char high[32];
    char value[128];
    size_t bytes = strlen(text);
    const char *hint = strpbrk(text, "#;") != NULL ? " (a comment after a value begins with ' ;')" : "";
    if (bytes <= 64)
        snprintf(value, sizeof(value), "'%s'", text);
    else
        snprintf(value, sizeof(value), "'%.64s...' (%zu characters)", text, bytes);
    gwd_config_format_number(key->type, key->min, low, sizeof(low));
    gwd_config_format_number(key->type, key->max, high, sizeof(high));
    static const char *const kinds[] = {
        [GWD_CONFIG_int] = "a whole number",
        [GWD_CONFIG_pow2] = "a power of two",
        [GWD_CONFIG_bytes] = "a size such as 4096, 256K, 1M or 2G",
        [GWD_CONFIG_mode] = "an octal mode",
    };
    if (key->type == GWD_CONFIG_string)
        snprintf(error, error_bytes, "%s = %s: must be text of at most %s characters, none of them a control character",
                 key->full_name, value, high);
    else if (key->type == GWD_CONFIG_choice)
        snprintf(error, error_bytes, "%s = %s: must be one of %s%s", key->full_name, value, key->unit, hint);
    else
        snprintf(error, error_bytes, "%s = %s: must be %s from %s to %s%s", key->full_name, value, kinds[key->type],
                 low, high, hint);
}

gw_status_t gwd_config_set(gwd_config_t *config, const char *full_name, const char *text, const char *source,
                           char *error, size_t error_bytes) {
    const gwd_config_key_t *key = find_key(full_name);
    if (key == NULL) {
        snprintf(error, error_bytes, "unknown key '%.64s': `gradwired --help` lists all", full_name);
        return GW_ERR_NOT_FOUND;
    }
    int64_t value = 0;
    if (key->type == GWD_CONFIG_string ? !good_string(key, text) : !parse_number(key, text, &value)) {
        say_bad_value(key, text, error, error_bytes);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (key->type == GWD_CONFIG_string)
        memcpy(field_of(config, key), text, strlen(text) + 1);
    else
        memcpy(field_of(config, key), &value, sizeof(value));
    snprintf(config->sources[key - gwd_config_keys], GWD_CONFIG_SOURCE_BYTES, "%s", source);
    return GW_OK;
}

void gwd_config_set_defaults(gwd_config_t *config) {
    memset(config, 0, sizeof(*config));
    config->file = "";
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        const gwd_config_key_t *key = &gwd_config_keys[i];
        char error[GWD_CONFIG_ERROR_BYTES];
        if (gwd_config_set(config, key->full_name, key->default_text, "default", error, sizeof(error)) != GW_OK) {
            fprintf(stderr, "gradwired: config.def is wrong: %s\n", error);
            abort();
        }
    }
}
