/* words.c - see words.h */
#include "words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void die(const char *what, const char *which) {
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, which);
    exit(2);
}

uint64_t number(const char *word) {
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(word, &end, 0);
    if (errno || *end)
        die("not a number", word);
    return value;
}

static int place(const char *const *names, size_t n, const char *word) {
    for (size_t i = 0; i < n; i++)
        if (names[i] && strcmp(names[i], word) == 0)
            return (int)i;
    return (int)number(word); /* tests of what is refused give numbers */
}

gw_collective_t collective_of(const char *word) {
    static const char *const names[] = {NULL,        "all_reduce", "reduce_scatter", "all_gather",
                                        "broadcast", "reduce",     "barrier"};
    return (gw_collective_t)place(names, 7, word);
}

gw_type_t type_of(const char *word) {
    static const char *const names[] = {NULL, "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64"};
    return (gw_type_t)place(names, 9, word);
}

gw_redop_t redop_of(const char *word) {
    static const char *const names[] = {NULL, "sum", "avg", "min", "max", "prod"};
    return (gw_redop_t)place(names, 6, word);
}

gw_codec_t codec_of(const char *word) {
    static const char *const names[] = {"default", "none", "fp16", "bf16", "fp8", "int8", "int4"};
    return (gw_codec_t)place(names, 7, word);
}

gw_rounding_t rounding_of(const char *word) {
    static const char *const names[] = {NULL, "nearest", "stochastic"};
    return (gw_rounding_t)place(names, 3, word);
}

const char *one_line(const char *text) {
    static char line[1024];

    snprintf(line, sizeof(line), "%s", text);
    for (char *at = line; *at; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
    return line;
}
