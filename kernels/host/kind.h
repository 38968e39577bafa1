/* kind.h - the loops for one element type; included once for each type by form.h
 *
 * Before each inclusion:
 *   GW_KIND     suffix of the names made here
 *   GW_ELEM     the element in memory
 *   GW_ACC      what accumulates GW_LANES elements; load, store, combine and finish of it exist with that suffix
 *   GW_INTEGER  defined for integers: their averages are made elsewhere, and their sums go without fused loops
 *
 * Every loop reads a position of all inputs before it writes that position of any output, so an output may
 * be an input. Every loop combines in the order of `in`, so all give the same bits.
 */
#define GW_PASTE2(a, b) a##_##b
#define GW_PASTE(a, b)  GW_PASTE2(a, b)
#define K(name)         GW_PASTE(name, GW_KIND)
#define GW_LANES        (GW_FORM_BYTES / sizeof(GW_ELEM))

#ifndef GW_INTEGER
/* One vector of each input to one vector of each output. Inlined with constant numbers. */
GW_INLINE void K(step)(const GW_ELEM *const *in, unsigned n_in, GW_ELEM *const *out, unsigned n_out, gw_redop_t op,
                       size_t at) {
    GW_ACC v = K(load)(in[0] + at);
    GW_UNROLL
    for (unsigned r = 1; r < n_in; r++)
        v = K(combine)(op, v, K(load)(in[r] + at));
    v = K(finish)(op, v, n_in);
    GW_UNROLL
    for (unsigned j = 0; j < n_out; j++)
        K(store)(out[j] + at, v);
}

/* The shapes of small hosts: 2, 3 or 4 inputs, to one output or to as many as there are inputs. The numbers
 * are constants where this is inlined, so nothing but loads, sums and stores is left of it; `in_place` halves
 * the registers needed. Two steps a round: with narrow vectors the loop's own instructions count. */
GW_INLINE void K(fused)(const gw_kernel_job_t *job, gw_redop_t op, unsigned n_in, unsigned n_out, bool in_place,
                        size_t count) {
    const GW_ELEM *in[GW_FUSED_RANKS];
    GW_ELEM *out[GW_FUSED_RANKS];
    GW_UNROLL
    for (unsigned r = 0; r < n_in; r++)
        in[r] = job->in[r];
    GW_UNROLL
    for (unsigned j = 0; j < n_out; j++)
        out[j] = in_place ? (GW_ELEM *)in[j] : job->out[j];
    size_t at = 0;
    for (; at + 2 * GW_LANES <= count; at += 2 * GW_LANES) {
        K(step)(in, n_in, out, n_out, op, at);
        K(step)(in, n_in, out, n_out, op, at + GW_LANES);
    }
    if (at < count)
        K(step)(in, n_in, out, n_out, op, at);
}

GW_INLINE void K(fused_n)(const gw_kernel_job_t *job, gw_redop_t op, unsigned n, size_t count) {
    if (job->n_out == 1)
        K(fused)(job, op, n, 1, false, count);
    else if (memcmp(job->in, job->out, n * sizeof(job->in[0])) == 0)
        K(fused)(job, op, n, n, true, count);
    else
        K(fused)(job, op, n, n, false, count);
}

/* False: not one of those shapes. */
GW_INLINE bool K(fused_if_few)(const gw_kernel_job_t *job, gw_redop_t op, size_t count) {
    if (job->n_out != 1 && job->n_out != job->n_in)
        return false;
    switch (job->n_in) {
    case 2:
        K(fused_n)(job, op, 2, count);
        return true;
    case 3:
        K(fused_n)(job, op, 3, count);
        return true;
    case 4:
        K(fused_n)(job, op, 4, count);
        return true;
    default:
        return false;
    }
}
#endif

/* Any number of inputs and outputs: a strip of a few vectors at a time, which stay in registers. (A block that
 * stays in the first-level cache was slower for every shape, up to twice.) */
GW_INLINE void K(strip)(const gw_kernel_job_t *job, gw_redop_t op, size_t vectors, size_t at) {
    GW_ACC acc[GW_STRIP_VECTORS];
    const GW_ELEM *first = (const GW_ELEM *)job->in[0] + at;
    GW_UNROLL
    for (size_t i = 0; i < vectors; i++)
        acc[i] = K(load)(first + i * GW_LANES);
    for (unsigned r = 1; r < job->n_in; r++) {
        const GW_ELEM *in = (const GW_ELEM *)job->in[r] + at;
        GW_UNROLL
        for (size_t i = 0; i < vectors; i++)
            acc[i] = K(combine)(op, acc[i], K(load)(in + i * GW_LANES));
    }
    GW_UNROLL
    for (size_t i = 0; i < vectors; i++)
        acc[i] = K(finish)(op, acc[i], job->n_in);
    for (unsigned j = 0; j < job->n_out; j++) {
        GW_ELEM *out = (GW_ELEM *)job->out[j] + at;
        GW_UNROLL
        for (size_t i = 0; i < vectors; i++)
            K(store)(out + i * GW_LANES, acc[i]);
    }
}

GW_INLINE void K(strips)(const gw_kernel_job_t *job, gw_redop_t op, size_t count) {
    size_t at = 0;
    for (; at + GW_STRIP_VECTORS * GW_LANES <= count; at += GW_STRIP_VECTORS * GW_LANES)
        K(strip)(job, op, GW_STRIP_VECTORS, at);
    for (; at < count; at += GW_LANES)
        K(strip)(job, op, 1, at);
}

/* The last elements, fewer than a vector: the same arithmetic on a vector filled up with zeros. */
GW_INLINE void K(rest)(const gw_kernel_job_t *job, gw_redop_t op, size_t at) {
    size_t bytes = (job->count - at) * sizeof(GW_ELEM);
    GW_ELEM part[GW_LANES] = {0};
    memcpy(part, (const GW_ELEM *)job->in[0] + at, bytes);
    GW_ACC v = K(load)(part);
    for (unsigned r = 1; r < job->n_in; r++) {
        memcpy(part, (const GW_ELEM *)job->in[r] + at, bytes);
        v = K(combine)(op, v, K(load)(part));
    }
    K(store)(part, K(finish)(op, v, job->n_in));
    for (unsigned j = 0; j < job->n_out; j++)
        memcpy((GW_ELEM *)job->out[j] + at, part, bytes);
}

GW_INLINE void K(all)(const gw_kernel_job_t *job, gw_redop_t op) {
    size_t whole = job->count - job->count % GW_LANES;
#ifndef GW_INTEGER
    if ((op != GW_SUM && op != GW_AVG) || !K(fused_if_few)(job, op, whole))
#endif
        K(strips)(job, op, whole);
    if (whole < job->count)
        K(rest)(job, op, whole);
}

static GW_FORM_TARGET void K(reduce)(const gw_kernel_job_t *job) {
    switch (job->op) {
    case GW_SUM:
        K(all)(job, GW_SUM);
        return;
    case GW_AVG:
#ifndef GW_INTEGER
        K(all)(job, GW_AVG);
#endif
        return;
    case GW_MIN:
        K(all)(job, GW_MIN);
        return;
    case GW_MAX:
        K(all)(job, GW_MAX);
        return;
    case GW_PROD:
        K(all)(job, GW_PROD);
        return;
    }
}

#undef GW_PASTE2
#undef GW_PASTE
#undef K
#undef GW_LANES
#undef GW_KIND
#undef GW_ELEM
#undef GW_ACC
#undef GW_INTEGER
