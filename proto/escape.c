/* escape.c - text from others, made safe to show */
#include "escape.h"

#include <stdint.h>
#include <string.h>

/* The length of the UTF-8 sequence at `s`, its character in *point_out; 0 when it is none. */
static size_t decode(const unsigned char *s, size_t bytes, uint32_t *point_out) {
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (length == 0 || length > bytes)
        return 0;
    uint32_t point = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (s[i] & 0x3fu);
    }
    if (point < lowest[length] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
        return 0;
    *point_out = point;
    return length;
}

static int is_printable(uint32_t point) {
    int control = point < 0x20 || (point >= 0x7f && point <= 0x9f);
    int turns = (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
    return !control && !turns;
}

size_t gw_escape(const char *text, size_t text_bytes, char *out, size_t out_bytes) {
    static const char digits[] = "0123456789abcdef";
    const unsigned char *s = (const unsigned char *)text;
    size_t left = strnlen(text, text_bytes);
    size_t used = 0;
    size_t safe = 0; /* the last place where "..." still fits */
    while (left > 0) {
        uint32_t point = 0;
        size_t length = decode(s, left, &point);
        int plain = length != 0 && is_printable(point);
        size_t taken = length != 0 ? length : 1;
        size_t needed = plain ? taken : 4 * taken;
        if (used + needed + 1 > out_bytes) {
            memcpy(out + safe, "...", 3);
            used = safe + 3;
            break;
        }
        for (size_t i = 0; i < taken; i++) {
            if (plain) {
                out[used++] = (char)s[i];
                continue;
            }
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = digits[s[i] >> 4];
            out[used++] = digits[s[i] & 15];
        }
        if (used + 4 <= out_bytes)
            safe = used;
        s += taken;
        left -= taken;
    }
    out[used] = '\0';
    return used;
}
