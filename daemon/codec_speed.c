/* codec_speed.c - see codec_speed.h */
#include "codec_speed.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"

enum { COUNT = 65536 }; /* of a shard, about: what is measured is in the same caches */

#define LONG_ENOUGH_NS UINT64_C(10000000)

typedef struct numbers {
    float in[COUNT], out[COUNT], residual[COUNT];
    unsigned char code[COUNT * sizeof(float)];
} numbers_t;

static void pass(numbers_t *numbers, gw_codec_t codec) {
    float *residual = gw_codec_pattern(codec) == GW_CODEC_SHARDED ? numbers->residual : NULL;

    gw_codec_encode(codec, numbers->in, NULL, residual, numbers->code, COUNT);
    gw_codec_decode(codec, numbers->code, numbers->out, COUNT, true);
    gw_codec_decode(codec, numbers->code, numbers->out, COUNT, false);
}

/* The best pass: others may have been interrupted. */
static uint64_t best_ns(numbers_t *numbers, gw_codec_t codec) {
    uint64_t begin = gwd_now_ns(), now = begin, best = UINT64_MAX;

    while (now - begin < LONG_ENOUGH_NS) {
        uint64_t before = gwd_now_ns();

        pass(numbers, codec);
        now = gwd_now_ns();
        if (now - before < best)
            best = now - before;
    }
    return best ? best : 1;
}

void gwd_codec_speed(uint64_t speed_out[GW_CODECS]) {
    numbers_t *numbers = calloc(1, sizeof(*numbers));
    uint32_t state = 1;

    memset(speed_out, 0, GW_CODECS * sizeof(*speed_out));
    if (!numbers)
        return;
    for (size_t i = 0; i < COUNT; i++) { /* small, of both signs */
        state = state * 1664525u + 1013904223u;
        numbers->in[i] = (float)(int32_t)state * 0x1p-40f;
    }
    for (int codec = GW_CODEC_FP16; codec < GW_CODECS; codec++)
        speed_out[codec] = COUNT * sizeof(float) * UINT64_C(1000000000) / best_ns(numbers, (gw_codec_t)codec);
    free(numbers);
}
