/* codec.c - the speed of the codecs on one core, beside memcpy of the same numbers
 *
 * usage: codec [MIB-OF-FP32 [FORM]]     FORM: avx512, avx2, sse2, neon or generic, not the best
 *
 * All speeds count the bytes of fp32, whatever the codec reads or writes, so they compare with memcpy's. Kinds are
 * measured in turn, a call each, over and over, so that what else the machine does falls on all of them; the median of
 * the calls counts. The targets: 0.8 of memcpy for fp16 and bf16, 0.5 for int8 and int4, to encode and to decode.
 */
#include "codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "seconds.h"
#include "simd/isa.h"

enum { MIB = 25, REPEATS = 41, MIB_MAX = 4096 };

typedef enum kind { ENCODE, DECODE, DECODE_ADD, RESIDUAL, STOCHASTIC, KINDS } kind_t;

typedef struct bench {
    size_t count;
    float *in;
    float *out;
    float *residual;
    unsigned char *wire[GW_CODECS];
    double seconds[GW_CODECS][KINDS][REPEATS];
    double copy_seconds[REPEATS];
} bench_t;

static double gb_per_s(const bench_t *b, double *seconds) {
    return (double)b->count * sizeof(float) / bench_median(seconds, REPEATS) * 1e-9;
}

static void call(bench_t *b, gw_codec_t codec, kind_t kind) {
    static const gw_codec_round_t round = {.seed = 1};
    switch (kind) {
    case DECODE:
    case DECODE_ADD:
        gw_codec_decode(codec, b->wire[codec], b->out, b->count, kind == DECODE_ADD);
        return;
    case RESIDUAL:
        gw_codec_encode(codec, b->in, NULL, b->residual, b->wire[codec], b->count);
        return;
    default:
        gw_codec_encode(codec, b->in, kind == STOCHASTIC ? &round : NULL, NULL, b->wire[codec], b->count);
        return;
    }
}

static void measure(bench_t *b) {
    for (int i = 0; i < REPEATS; i++) {
        double begin = bench_now();
        memcpy(b->out, b->in, b->count * sizeof(float));
        __asm__ volatile("" : : "r"(b->out) : "memory");
        b->copy_seconds[i] = bench_now() - begin;
        for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++) {
            for (int kind = 0; kind < KINDS; kind++) {
                begin = bench_now();
                call(b, (gw_codec_t)codec, (kind_t)kind);
                b->seconds[codec][kind][i] = bench_now() - begin;
            }
        }
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\r%d of %d%s", i + 1, REPEATS, i + 1 < REPEATS ? "" : "\n");
    }
}

static double target_of(gw_codec_t codec) {
    static const double targets[GW_CODECS] = {
        [GW_CODEC_FP16] = 0.8, [GW_CODEC_BF16] = 0.8, [GW_CODEC_INT8] = 0.5, [GW_CODEC_INT4] = 0.5};
    return targets[codec];
}

static int report(bench_t *b) {
    int missed = 0;
    double copy = gb_per_s(b, b->copy_seconds);
    printf("%zu MiB of fp32, one core, %s; GB/s of fp32\n", b->count * sizeof(float) >> 20, gw_codec_isa());
    printf("%-6s %6s %8s %8s %8s %10s %12s %8s  %s\n", "codec", "ratio", "encode", "decode", "add", "+residual",
           "+stochastic", "memcpy", "target");
    for (int i = GW_CODEC_NONE; i < GW_CODECS; i++) {
        gw_codec_t codec = (gw_codec_t)i;
        double speed[KINDS], target = target_of(codec) * copy;
        for (int kind = 0; kind < KINDS; kind++)
            speed[kind] = gb_per_s(b, b->seconds[i][kind]);
        int met = speed[ENCODE] >= target && speed[DECODE] >= target;
        printf("%-6s %6.3f %8.2f %8.2f %8.2f %10.2f %12.2f %8.2f  ", gw_codec_name(codec),
               (double)b->count * sizeof(float) / (double)gw_codec_bytes(codec, b->count), speed[ENCODE], speed[DECODE],
               speed[DECODE_ADD], speed[RESIDUAL], speed[STOCHASTIC], copy);
        if (target > 0)
            printf("%.2f %s\n", target, met ? "met" : "MISSED");
        else
            printf("none\n");
        missed += target > 0 && !met;
    }
    return missed;
}

int main(int argc, char **argv) {
    static bench_t b;
    int mib = argc > 1 ? atoi(argv[1]) : MIB;
    if (argc > 3 || mib < 1 || mib > MIB_MAX || (argc == 3 && !gw_codec_force_isa(argv[2]))) {
        fprintf(stderr, "usage: codec [MIB-OF-FP32 [FORM-OF-THIS-CPU]]\n");
        return 2;
    }
    b.count = ((size_t)mib << 20) / sizeof(float);
    b.in = malloc(b.count * sizeof(float));
    b.out = calloc(b.count, sizeof(float));
    b.residual = calloc(b.count, sizeof(float));
    int failed = !b.in || !b.out || !b.residual;
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS && !failed; codec++)
        failed = (b.wire[codec] = malloc(gw_codec_bytes((gw_codec_t)codec, b.count))) == NULL;
    if (failed) {
        fprintf(stderr, "codec: no memory for %d MiB: give a smaller number\n", mib);
    } else {
        uint32_t state = 1; /* as gradients are: small, of both signs */
        for (size_t i = 0; i < b.count; i++) {
            state = state * 1664525u + 1013904223u;
            b.in[i] = (float)(int32_t)state * 0x1p-40f;
        }
        measure(&b);
        failed = report(&b) != 0;
    }
    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++)
        free(b.wire[codec]);
    free(b.residual);
    free(b.out);
    free(b.in);
    return failed;
}
