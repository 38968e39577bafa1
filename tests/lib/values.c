/* values.c - see values.h */
#include "values.h"

#include <stdlib.h>
#include <string.h>

#include "words.h"

static unsigned char *allocate(uint64_t bytes) {
    unsigned char *values = malloc(bytes + 1);

    if (!values)
        die("out of memory", "for values");
    return values;
}

/* Unaligned memory is as good as any to a caller who registers it. */
static void store(unsigned char *at, gw_type_t type, double value) {
    const float f32 = (float)value;
    const int64_t i64 = (int64_t)value;

    if (type == GW_F32)
        memcpy(at, &f32, sizeof(f32));
    else if (type == GW_F64)
        memcpy(at, &value, sizeof(value));
    else
        memcpy(at, &i64, gw_type_bytes(type));
}

unsigned char *values_new(gw_type_t type, uint64_t count, double value, double step, uint64_t *bytes_out) {
    unsigned char *values = allocate(count * gw_type_bytes(type));

    for (uint64_t i = 0; i < count; i++)
        store(values + i * gw_type_bytes(type), type, value + (double)i * step);
    *bytes_out = count * gw_type_bytes(type);
    return values;
}

unsigned char *values_noise(uint64_t count, uint64_t seed, uint64_t *bytes_out) {
    uint64_t bits = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    unsigned char *values = allocate(count * sizeof(float));

    for (uint64_t i = 0; i < count; i++) {
        float value;

        bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        value = (float)(bits >> 40) * 0x1p-23f - 1.0f;
        store(values + i * sizeof(float), GW_F32, (double)(value * value * value));
    }
    *bytes_out = count * sizeof(float);
    return values;
}

uint64_t values_digest(const unsigned char *bytes, uint64_t n) {
    uint64_t digest = UINT64_C(0xcbf29ce484222325);

    for (uint64_t i = 0; i < n; i++)
        digest = (digest ^ bytes[i]) * UINT64_C(0x100000001b3);
    return digest;
}
