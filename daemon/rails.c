/* rails.c - see rails.h */
#include "rails.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE_BYTES = 2 };

static size_t size_at(const uint8_t *at) {
    return (size_t)at[0] | (size_t)at[1] << 8;
}

bool gwd_rails_pack(void **packed, size_t *packed_bytes, const void *address, size_t bytes) {
    uint8_t *grown = bytes > 0 && bytes <= UINT16_MAX ? realloc(*packed, *packed_bytes + SIZE_BYTES + bytes) : NULL;
    uint8_t *at;

    if (!grown)
        return false;
    at = grown + *packed_bytes;
    at[0] = (uint8_t)bytes;
    at[1] = (uint8_t)(bytes >> 8);
    memcpy(at + SIZE_BYTES, address, bytes);
    *packed = grown;
    *packed_bytes += SIZE_BYTES + bytes;
    return true;
}

uint32_t gwd_rails_count(const void *packed, size_t packed_bytes) {
    const uint8_t *at = packed, *end = at + packed_bytes;
    uint32_t n = 0;

    while (end - at > SIZE_BYTES && size_at(at) > 0 && size_at(at) <= (size_t)(end - at) - SIZE_BYTES) {
        at += SIZE_BYTES + size_at(at);
        n++;
    }
    return at == end && n <= GWD_RAILS_MAX ? n : 0;
}

const void *gwd_rails_address(const void *packed, uint32_t rail, size_t *bytes_out) {
    const uint8_t *at = packed;

    while (rail-- > 0)
        at += SIZE_BYTES + size_at(at);
    *bytes_out = size_at(at);
    return at + SIZE_BYTES;
}
