/* config_print.c - config.def as help, as an example file, as the manual's table, and as JSON */
#include "config.h"

#include <string.h>

#define GWD_HELP_COLUMNS 100

/* Writes text in lines of at most `columns`, each begun with `prefix`. */
static void print_wrapped(FILE *stream, const char *prefix, const char *text, size_t columns) {
    size_t room = columns - strlen(prefix);
    while (*text != '\0') {
        size_t bytes = strlen(text);
        if (bytes > room) {
            bytes = room;
            while (bytes > 1 && text[bytes] != ' ')
                bytes--;
        }
        fprintf(stream, "%s%.*s\n", prefix, (int)bytes, text);
        text += bytes;
        while (*text == ' ')
            text++;
    }
}

static const char *after_reload(const gwd_config_key_t *key) {
    return key->reloadable ? "a reload applies a change" : "a change takes a restart";
}

static int begins_section(size_t i) {
    return i == 0 || strcmp(gwd_config_keys[i].section, gwd_config_keys[i - 1].section) != 0;
}

/* "0 to 64 threads", "one of error|warning", "group, at most 64 characters" */
static void format_range(const gwd_config_key_t *key, char *text, size_t text_bytes) {
    char low[32];
    char high[32];
    gwd_config_format_number(key->type, key->min, low, sizeof(low));
    gwd_config_format_number(key->type, key->max, high, sizeof(high));
    if (key->type == GWD_CONFIG_choice)
        snprintf(text, text_bytes, "one of %s", key->unit);
    else if (key->type == GWD_CONFIG_string)
        snprintf(text, text_bytes, "%s, at most %s characters", key->unit, high);
    else
        snprintf(text, text_bytes, "%s to %s %s%s", low, high, key->unit,
                 key->type == GWD_CONFIG_pow2 ? ", a power of two" : "");
}

void gwd_config_print_help(FILE *stream) {
    fputs("usage: gradwired [flag ...]\n"
          "\n"
          "Averages gradients for the trainers of this host. It stays in the foreground and logs to stderr.\n"
          "\n"
          "  --config FILE        read this file instead of /etc/gradwire/gradwired.conf\n"
          "  --socket-dir DIR     short for --socket.dir=DIR\n"
          "  --SECTION.NAME=VALUE set a value; flags count before the environment, the environment before the file\n"
          "  --print-config       print the settings as a configuration file, and exit\n"
          "  --print-config-man   print the settings as a table for the manual, and exit\n"
          "  --version            print the version, and exit\n"
          "  -h, --help           print this, and exit\n"
          "\n"
          "SIGTERM and SIGINT drain and exit, a second one exits at once. SIGHUP reads the configuration again.\n"
          "\n"
          "Settings (environment: GRADWIRE_SECTION_NAME; * is applied by a reload):\n",
          stream);
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        const gwd_config_key_t *key = &gwd_config_keys[i];
        char range[128];
        format_range(key, range, sizeof(range));
        fprintf(stream, "\n  %s = %s%s (%s)\n", key->full_name, key->default_text, key->reloadable ? " *" : "", range);
        print_wrapped(stream, "      ", key->help, GWD_HELP_COLUMNS);
    }
}

/* Values that somebody set stand as they are, defaults as comments: the output is a configuration file that gives
 * the same settings again. */
void gwd_config_print_example(const gwd_config_t *config, FILE *stream) {
    fputs("# Configuration of gradwired: see gradwired.conf(5).\n"
          "#\n"
          "# Every setting stands here with its default. Remove the # to change one. Environment variables\n"
          "# (GRADWIRE_SECTION_NAME) and flags (--section.name=value) count before this file.\n"
          "# A size may end in K, M, G or T. A comment stands on a line of its own, or after \" ;\".\n",
          stream);
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        const gwd_config_key_t *key = &gwd_config_keys[i];
        char range[128];
        char text[GWD_CONFIG_STRING_BYTES];
        format_range(key, range, sizeof(range));
        gwd_config_format(config, key, text);
        int is_default = strcmp(config->sources[i], "default") == 0;
        if (begins_section(i))
            fprintf(stream, "\n[%s]\n", key->section);
        fputs("\n", stream);
        print_wrapped(stream, "# ", key->help, GWD_HELP_COLUMNS);
        fprintf(stream, "# (%s; %s)\n", range, after_reload(key));
        fprintf(stream, "%s%s =%s%s\n", is_default ? "#" : "", key->name, text[0] != '\0' ? " " : "", text);
    }
}

/* mdoc wants each sentence on a line of its own. */
static void print_man_sentences(FILE *stream, const char *text) {
    for (const char *c = text; *c != '\0'; c++) {
        if (c[0] == '.' && c[1] == ' ') {
            fputs(".\n", stream);
            c++;
        } else if (c[0] == '-') {
            fputs("\\-", stream);
        } else {
            fputc(c[0], stream);
        }
    }
    fputc('\n', stream);
}

void gwd_config_print_man(FILE *stream) {
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        const gwd_config_key_t *key = &gwd_config_keys[i];
        char range[128];
        format_range(key, range, sizeof(range));
        if (begins_section(i)) {
            if (i != 0)
                fputs(".El\n", stream);
            fprintf(stream, ".Ss [%s]\n.Bl -tag -width Ds\n", key->section);
        }
        fprintf(stream, ".It Va %s\n", key->name);
        print_man_sentences(stream, key->help);
        if (key->default_text[0] != '\0')
            fprintf(stream, "Default: %s.\n", key->default_text);
        fprintf(stream, "Range: %s.\n", range);
        fprintf(stream, "%c%s.\n", 'A', after_reload(key) + 1);
    }
    fputs(".El\n", stream);
}

static int add_key(cJSON *array, const gwd_config_t *config, size_t i) {
    const gwd_config_key_t *key = &gwd_config_keys[i];
    char text[GWD_CONFIG_STRING_BYTES];
    gwd_config_format(config, key, text);
    cJSON *item = cJSON_CreateObject();
    if (item == NULL || !cJSON_AddItemToArray(array, item)) {
        cJSON_Delete(item);
        return 0;
    }
    return cJSON_AddStringToObject(item, "name", key->full_name) != NULL &&
           cJSON_AddStringToObject(item, "value", text) != NULL &&
           cJSON_AddStringToObject(item, "default", key->default_text) != NULL &&
           cJSON_AddStringToObject(item, "source", config->sources[i]) != NULL &&
           cJSON_AddStringToObject(item, "unit", key->unit) != NULL &&
           cJSON_AddBoolToObject(item, "reloadable", key->reloadable) != NULL &&
           cJSON_AddStringToObject(item, "help", key->help) != NULL;
}

cJSON *gwd_config_json(const gwd_config_t *config) {
    cJSON *array = cJSON_CreateArray();
    if (array == NULL)
        return NULL;
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        if (!add_key(array, config, i)) {
            cJSON_Delete(array);
            return NULL;
        }
    }
    return array;
}
