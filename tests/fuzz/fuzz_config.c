/* fuzz_config.c - any text as configuration file and as single values
 *
 * What is accepted must be within its bounds, and be accepted again, unchanged, in the form that the daemon shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *what, const char *text) {
    fprintf(stderr, "%s: %s\n", what, text);
    abort();
}

static void check(const gwd_config_t *config) {
    static gwd_config_t again;
    char text[GWD_CONFIG_STRING_BYTES], second[GWD_CONFIG_STRING_BYTES], error[GWD_CONFIG_ERROR_BYTES];

    gwd_config_set_defaults(&again);
    for (size_t i = 0; i < GWD_CONFIG_KEYS; i++) {
        const gwd_config_key_t *key = &gwd_config_keys[i];

        if (key->type != GWD_CONFIG_string) {
            const int64_t *value = (const int64_t *)(const void *)((const char *)config + key->offset);

            if (*value < key->min || *value > key->max)
                fail("out of bounds", key->full_name);
        }
        gwd_config_format(config, key, text);
        if (gwd_config_set(&again, key->full_name, text, "fuzz", error, sizeof(error)) != GW_OK)
            fail("its own form is refused", error);
        gwd_config_format(&again, key, second);
        if (strcmp(text, second) != 0)
            fail("its own form reads differently", text);
    }
}

static void read_file(const uint8_t *data, size_t size) {
    static gwd_config_t config;
    char error[GWD_CONFIG_ERROR_BYTES] = "";
    FILE *stream = fmemopen((void *)(uintptr_t)data, size, "r");

    if (!stream)
        return;
    gwd_config_set_defaults(&config);
    if (gwd_config_read_file(&config, stream, "file", error, sizeof(error)) == GW_OK)
        check(&config);
    else if (strncmp(error, "file:", 5) != 0)
        fail("an error without its place", error);
    fclose(stream);
}

/* The first byte chooses the key. */
static void set_value(const uint8_t *data, size_t size) {
    static gwd_config_t config;
    char text[2048], error[GWD_CONFIG_ERROR_BYTES] = "";
    const gwd_config_key_t *key = &gwd_config_keys[data[0] % GWD_CONFIG_KEYS];
    size_t bytes = size - 1 < sizeof(text) - 1 ? size - 1 : sizeof(text) - 1;

    memcpy(text, data + 1, bytes);
    text[bytes] = '\0';
    gwd_config_set_defaults(&config);
    if (gwd_config_set(&config, key->full_name, text, "fuzz", error, sizeof(error)) != GW_OK && error[0] == '\0')
        fail("refused without a word", key->full_name);
    check(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    read_file(data, size);
    set_value(data, size);
    return 0;
}
