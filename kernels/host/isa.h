/* isa.h - the SIMD forms of the kernels (internal to kernels/ and its tests)
 *
 * A form is the same source compiled for another instruction set. Each is one row of a table; the best one
 * that the CPU can run is chosen at the first call. All forms give the same bits.
 */
#ifndef GW_KERNELS_HOST_ISA_H
#define GW_KERNELS_HOST_ISA_H

#include <stdbool.h>

#include "kernels.h"

/* One call of gw_kernel_reduce with n_in >= 2, n_out >= 1 and count >= 1. */
typedef struct gw_kernel_job {
    gw_redop_t op;
    const void *const *in;
    void *const *out;
    unsigned n_in;
    unsigned n_out;
    size_t count;
} gw_kernel_job_t;

typedef struct gw_kernel_form {
    const char *name;
    bool (*usable)(void);
    void (*reduce[GW_I64 + 1])(const gw_kernel_job_t *job); /* by gw_type_t; integers without GW_AVG */
} gw_kernel_form_t;

#if defined(__x86_64__)
extern const gw_kernel_form_t gw_kernel_form_avx512;
extern const gw_kernel_form_t gw_kernel_form_avx2;
#endif
extern const gw_kernel_form_t gw_kernel_form_base;

/* GW_AVG of integers, the same in every form. */
void gw_kernel_average_integers(gw_type_t type, const gw_kernel_job_t *job);

/* The quotient of a sum and a number of ranks, rounded half to even. */
__extension__ typedef __int128 gw_int128_t;
int64_t gw_kernel_half_even(gw_int128_t sum, int64_t n);

/* For tests: the forms of this build, best first, ended by NULL. */
const gw_kernel_form_t *const *gw_kernel_forms(void);

#endif
