/* reduce.c - gw_kernel_reduce: picks the form for this CPU and passes the work on */
#include <stdatomic.h>
#include <string.h>

#include "host/isa.h"

static _Atomic(const gw_kernel_form_t *) chosen; /* NULL: not chosen yet */

const gw_kernel_form_t *const *gw_kernel_forms(void) {
    static const gw_kernel_form_t *const forms[] = {
#if defined(__x86_64__)
        &gw_kernel_form_avx512,
        &gw_kernel_form_avx2,
#endif
        &gw_kernel_form_base,
        NULL,
    };
    return forms;
}

/* Two threads may both choose at the first call: they choose the same. */
static const gw_kernel_form_t *current_form(void) {
    const gw_kernel_form_t *form = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (form)
        return form;
    const gw_kernel_form_t *const *next = gw_kernel_forms();
    while (!(*next)->usable())
        next++;
    atomic_store_explicit(&chosen, *next, memory_order_relaxed);
    return *next;
}

bool gw_kernel_force_isa(const char *name) {
    const gw_kernel_form_t *found = NULL;
    for (const gw_kernel_form_t *const *form = gw_kernel_forms(); name && *form; form++)
        if (strcmp((*form)->name, name) == 0 && (*form)->usable())
            found = *form;
    if (name && !found)
        return false;
    atomic_store_explicit(&chosen, found, memory_order_relaxed);
    return true;
}

const char *gw_kernel_isa(void) {
    return current_form()->name;
}

static void copy_to_all(const void *in, void *const *out, unsigned n_out, size_t bytes) {
    for (unsigned j = 0; j < n_out; j++)
        if (out[j] != in)
            memcpy(out[j], in, bytes);
}

static size_t element_bytes(gw_type_t type) {
    static const unsigned char bytes[] = {
        [GW_F32] = 4, [GW_F64] = 8, [GW_F16] = 2, [GW_BF16] = 2, [GW_I8] = 1, [GW_U8] = 1, [GW_I32] = 4, [GW_I64] = 8,
    };
    return bytes[type];
}

void gw_kernel_reduce(gw_type_t type, gw_redop_t op, const void *const *in, unsigned n_in, void *const *out,
                      unsigned n_out, size_t count) {
    const gw_kernel_job_t job = {.op = op, .in = in, .out = out, .n_in = n_in, .n_out = n_out, .count = count};
    if (count == 0 || n_out == 0)
        return;
    if (n_in == 1)
        copy_to_all(in[0], out, n_out, count * element_bytes(type));
    else if (op == GW_AVG && type >= GW_I8)
        gw_kernel_average_integers(type, &job);
    else
        current_form()->reduce[type](&job);
}
