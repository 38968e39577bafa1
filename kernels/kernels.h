/* kernels.h - the arithmetic of an exchange on the host
 *
 * One function combines one span of every rank and writes the result to every place that wants it, in one
 * pass over memory: each input is read once and each output written once.
 *
 * Bits are a function of the inputs and their order alone, not of the machine, the number of threads, the
 * chunk size, or which SIMD form runs:
 *  - f32, f16, bf16 accumulate in binary32 in the order of `in`; f64 in binary64; one rounding at the end.
 *  - GW_AVG divides once by n_in (a true division), then rounds once to the type.
 *  - i8, u8, i32, i64: GW_SUM and GW_PROD wrap around; GW_AVG divides the exact sum and rounds half to even.
 *  - GW_MIN and GW_MAX return NaN if any input is NaN; -0 is less than +0.
 *  - every NaN that is written is the canonical quiet one (sign 0, only the quiet bit set).
 *  - no FMA contraction.
 */
#ifndef GW_KERNELS_H
#define GW_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "gradwire.h"

/* Combines `count` elements of each of `n_in` inputs and stores the result to each of `n_out` outputs.
 *   in, out  aligned to the type; an output may be the same as an input or overlap none of them
 *   n_in     at least 1; with 1 the bits are copied unchanged (broadcast, all-gather)
 * Thread: any, at once on disjoint elements.  Errors: none; type and op were checked by the caller. */
void gw_kernel_reduce(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *const *out,
                      unsigned n_out, size_t count);

/* ---- the same in two steps, for ranks on several nodes --------------------------------------------------
 *
 * Each node combines its ranks to a partial result, which has more bits than the type where the reduction needs them;
 * one of them combines the partial results of all nodes, in their order, divides and rounds once. */

/* Bytes of one element of a partial result: 4 of f16 and bf16 that are summed or multiplied, 8 or 16 of integers that
 * are averaged, else those of the type. */
size_t gw_kernel_partial_bytes(gw_type_t type, gw_redop_t op);

/* Whether a partial result of one rank is its input, bit by bit. */
bool gw_kernel_partial_is_input(gw_type_t type, gw_redop_t op);

/* Combines inputs to a partial result. `out` overlaps no input. */
void gw_kernel_partial(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out, size_t count);

/* Combines the partial results of `n_in` nodes, with `n_ranks` ranks together, and stores the result to each output.
 * An output may be an input of the same size of element, or overlap none. */
void gw_kernel_final(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, unsigned n_ranks,
                     void *const *out, unsigned n_out, size_t count);

/* The SIMD form in use on this machine ("avx512", "avx2", "sse2", "neon", "generic"): for gwctl. */
const char *gw_kernel_isa(void);

/* Makes later calls use this form; NULL: the best again. Results are the same, bit for bit.
 * False, and nothing is changed, if there is no such form or the CPU cannot run it. */
bool gw_kernel_force_isa(const char *name);

/* The same, slowly and plainly, in long double or exact integers: what tests compare with.
 * `error_bound_out`, if not NULL, receives for each element the largest difference from the exact result
 * that the rules above allow (0 for integers, min and max). */
void gw_kernel_reference(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *out,
                         double *error_bound_out, size_t count);

/* Moves memory that this core has in its own cache to the one that all cores share (CLDEMOTE on x86-64, where older
 * processors take it as no operation; nothing elsewhere). Contents stay. Thread: any. Blocking: never. */
void gw_kernel_demote(const void *data, uint64_t bytes);

#endif
