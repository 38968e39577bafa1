/* codec.h - fewer bytes for a bucket of fp32 on a slow hop, at a bounded error
 *
 * A codec turns `count` numbers of binary32 into gw_codec_bytes(codec, count) bytes and back:
 *
 *   name  bytes   method                                                      largest error of a number x
 *   none  4       as they are                                                 0
 *   fp16  2       IEEE 754 binary16                                           |x| / 2^11, or 2^-25 below 2^-14
 *   bf16  2       the upper half of binary32                                  |x| / 2^8, or 2^-134 below 2^-126
 *   fp8   1.016   E4M3 (Micikevicius et al. 2022) times a scale of its block  |x| / 2^4, or s / 2^10 below s / 2^6
 *   int8  1.016   -127 to 127 times a scale of its block                      s / 2
 *   int4  0.516   -7 to 7 times a scale of its block                          s / 2
 *
 * Errors are those of rounding to nearest; stochastic rounding (as in QSGD, Alistarh et al. 2017) allows twice as
 * much, but is right on average. With the last three, arithmetic adds at most s / 2^15, and for fp8 |x| / 2^21 +
 * 2^-150. s, the scale, is the largest magnitude of the block divided by 448 (fp8), 127 or 7; below 2^-126, the next
 * number up. A block of zeros has scale 0. (simd/block.h has the proof.) What an encoding left out can be kept and
 * added next time: error feedback (Seide et al. 2014 for one bit; Karimireddy et al. 2019 show why that converges).
 *
 * On the wire numbers are little-endian, as all machines are that this is for. fp16 and bf16 are plain arrays. The
 * others send block after block of GW_CODEC_BLOCK numbers: the scale, then words of 32 bits. A block of n numbers with
 * p of them to a word has w = ceil(n / p) words, and number i is the (i / w)th from the low end of word i % w; unused
 * places are zero. So SIMD of any width packs without moving a number sideways. int8 and int4 are in two's complement.
 * Codes that are never written (fp8's NaN, -128, -8) are read as what the others suggest: 480, -128, -8.
 *
 * Numbers that are not finite, and large ones:
 *  - fp16 and bf16 carry infinities, and every NaN as the canonical one (sign 0, only the quiet bit set). A finite
 *    number too large for them becomes the largest finite one of its sign: the residual keeps the rest.
 *  - fp8, int8 and int4: a block that holds one decodes to NaN throughout, and its residuals stay as they were. Who can
 *    do better asks gw_codec_is_finite first.
 *
 * Bits are a function of the arguments alone: not of the machine, which SIMD form runs, or how a bucket is cut, if the
 * cuts are at multiples of GW_CODEC_BLOCK. No FMA contraction, every NaN that is computed is the canonical one.
 */
#ifndef GW_CODEC_H
#define GW_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

enum {
    GW_CODECS = GW_CODEC_INT4 + 1,
    GW_CODEC_BLOCK = 256, /* numbers that share a scale */
};

/* How an exchange sums what is encoded: LINEAR as it was sent; SHARDED: the owner of a shard decodes, sums in
 * binary32, and encodes the result again. */
typedef enum gw_codec_pattern {
    GW_CODEC_LINEAR,
    GW_CODEC_SHARDED,
} gw_codec_pattern_t;

/* Stochastic rounding. The random bits of a number are a function of `seed` and its index modulo 2^32. At least 13 of
 * them decide between two neighbours, so the mean is off by at most 2^-13 of their distance. Numbers that the codec has
 * stay as they are. */
typedef struct gw_codec_round {
    uint64_t seed;
    uint64_t first; /* index of the first number */
} gw_codec_round_t;

/* "none", "fp16", "bf16", "fp8", "int8", "int4"; and "default", which is no codec, but what a group is asked to choose:
 * all other functions take none but the six. */
const char *gw_codec_name(gw_codec_t codec);

/* False, and nothing is written, if there is no such codec. */
bool gw_codec_by_name(const char *name, gw_codec_t *codec_out);

gw_codec_pattern_t gw_codec_pattern(gw_codec_t codec);

/* The bytes that `count` numbers take. For multiples a of GW_CODEC_BLOCK, bytes(a + b) is bytes(a) + bytes(b). */
uint64_t gw_codec_bytes(gw_codec_t codec, uint64_t count);

/* Encodes `count` numbers of `in` and writes exactly gw_codec_bytes(codec, count) bytes to `out`.
 *   round      NULL: to nearest, half to even
 *   residual   NULL, or `count` numbers: what is encoded is v = in + residual, in one rounding, and then residual
 *              becomes v - decoded(v), in one rounding; 0 where v is not finite (none, fp16, bf16)
 *   in, residual, out   overlap nowhere, and are aligned to 4 bytes
 * Thread: any, at once on disjoint memory.  Errors: none. */
void gw_codec_encode(gw_codec_t codec, const float *in, const gw_codec_round_t *round, float *residual, void *out,
                     size_t count);

/* Decodes `count` numbers from `in` into `out`, or with `add` adds them to what is there. Any bytes are accepted.
 * Thread: any, at once on disjoint memory.  Errors: none. */
void gw_codec_decode(gw_codec_t codec, const void *in, float *out, size_t count, bool add);

/* Whether no number is an infinity or NaN. Stops reading soon after the first. */
bool gw_codec_is_finite(const float *in, size_t count);

/* The SIMD form in use on this machine ("avx512", "avx2", "sse2", "neon", "generic"). */
const char *gw_codec_isa(void);

/* Makes later calls use this form; NULL: the best again. Results are the same, bit for bit.
 * False, and nothing is changed, if there is no such form or the CPU cannot run it. */
bool gw_codec_force_isa(const char *name);

/* Encode and decode again, slowly and plainly, number by number: what tests compare with, bit for bit. */
void gw_codec_reference_encode(gw_codec_t codec, const float *in, const gw_codec_round_t *round, float *residual,
                               void *out, size_t count);
void gw_codec_reference_decode(gw_codec_t codec, const void *in, float *out, size_t count, bool add);

#endif
