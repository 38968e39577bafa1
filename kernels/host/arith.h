/* arith.h - the arithmetic of one lane type; included once for each by form.h
 *
 * Before each inclusion:
 *   GW_KIND  suffix of the names made here
 *   GW_ACC   the vector; GW_BITS: the vector of unsigned integers of the same shape; GW_LANE: one lane
 *   GW_QNAN  bits of the canonical NaN; not defined: integers
 */
#define GW_PASTE2(a, b)    a##_##b
#define GW_PASTE(a, b)     GW_PASTE2(a, b)
#define K(name)            GW_PASTE(name, GW_KIND)
#define GW_SELECT(m, a, b) ((GW_ACC)(((GW_BITS)(m) & (GW_BITS)(a)) | (~(GW_BITS)(m) & (GW_BITS)(b))))

GW_INLINE GW_ACC K(load)(const GW_LANE *p) {
    GW_ACC v;
    memcpy(&v, p, sizeof(v));
    return v;
}

GW_INLINE void K(store)(GW_LANE *p, GW_ACC v) {
    memcpy(p, &v, sizeof(v));
}

#ifdef GW_QNAN
GW_INLINE GW_ACC K(add)(GW_ACC a, GW_ACC b) {
    return a + b;
}

GW_INLINE GW_ACC K(mul)(GW_ACC a, GW_ACC b) {
    return a * b;
}

/* Where neither is smaller, a | b is the equal value, or -0 of two zeros, or some NaN. */
GW_INLINE GW_ACC K(min)(GW_ACC a, GW_ACC b) {
    GW_ACC neither = (GW_ACC)((GW_BITS)a | (GW_BITS)b);
    return GW_SELECT(a < b, a, GW_SELECT(a > b, b, neither));
}

/* The same, but of two zeros a & b is the greater one. */
GW_INLINE GW_ACC K(max)(GW_ACC a, GW_ACC b) {
    GW_ACC equal = (GW_ACC)((GW_BITS)a & (GW_BITS)b);
    GW_ACC nan = (GW_ACC)((GW_BITS)a | (GW_BITS)b);
    return GW_SELECT(a < b, b, GW_SELECT(a > b, a, GW_SELECT(a == b, equal, nan)));
}

GW_INLINE GW_ACC K(finish)(gw_redop_t op, GW_ACC v, unsigned n_in) {
    if (op == GW_AVG)
        v = v / (GW_LANE)n_in;
    return GW_SELECT(v != v, ((GW_BITS){0} + GW_QNAN), v);
}
#else
GW_INLINE GW_ACC K(add)(GW_ACC a, GW_ACC b) {
    return (GW_ACC)((GW_BITS)a + (GW_BITS)b);
}

GW_INLINE GW_ACC K(mul)(GW_ACC a, GW_ACC b) {
    return (GW_ACC)((GW_BITS)a * (GW_BITS)b);
}

GW_INLINE GW_ACC K(min)(GW_ACC a, GW_ACC b) {
    return GW_SELECT(a < b, a, b);
}

GW_INLINE GW_ACC K(max)(GW_ACC a, GW_ACC b) {
    return GW_SELECT(a < b, b, a);
}

GW_INLINE GW_ACC K(finish)(gw_redop_t op, GW_ACC v, unsigned n_in) {
    (void)op;
    (void)n_in;
    return v;
}
#endif

GW_INLINE GW_ACC K(combine)(gw_redop_t op, GW_ACC a, GW_ACC b) {
    switch (op) {
    case GW_MIN:
        return K(min)(a, b);
    case GW_MAX:
        return K(max)(a, b);
    case GW_PROD:
        return K(mul)(a, b);
    case GW_SUM:
    case GW_AVG:
        break;
    }
    return K(add)(a, b);
}

#undef GW_PASTE2
#undef GW_PASTE
#undef K
#undef GW_SELECT
#undef GW_KIND
#undef GW_ACC
#undef GW_BITS
#undef GW_LANE
#undef GW_QNAN
