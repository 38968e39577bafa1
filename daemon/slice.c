/* slice.c - see slice.h */
#include "slice.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 100000 };

/* The kernel's struct sched_attr, whose header collides with <sched.h> in some C libraries. */
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns; /* runtime_ns: the slice; 0: the usual one */
} attributes_t;

static atomic_bool unknown; /* to this kernel */

static bool get(attributes_t *attributes) {
    return syscall(SYS_sched_getattr, 0, attributes, sizeof(*attributes), 0) == 0;
}

void gwd_slice_short(bool wanted) {
    attributes_t attributes = {.size = sizeof(attributes)};

    if (atomic_load_explicit(&unknown, memory_order_relaxed) || !get(&attributes))
        return;
    attributes.runtime_ns = wanted ? SLICE_NS : 0;
    if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0 ||
        (wanted && (!get(&attributes) || attributes.runtime_ns != SLICE_NS)))
        atomic_store_explicit(&unknown, true, memory_order_relaxed);
}
