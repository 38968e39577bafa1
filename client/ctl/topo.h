/* topo.h - what `gwctl topo` found */
#ifndef GWCTL_TOPO_H
#define GWCTL_TOPO_H

#include "gpu.h"
#include "gwctl.h"

typedef struct gwctl_topo {
    char reason[GWCTL_WHY_BYTES]; /* why there are no GPUs */
    gwctl_gpus_t gpus;
    bool measured;
    char unmeasured[GWCTL_WHY_BYTES]; /* why the copies could not be measured; "" when that was not asked for */
    gwctl_copies_t copies;
} gwctl_topo_t;

/* topo_json.c: NULL when there is no memory. */
cJSON *gwctl_topo_to_json(const gwctl_topo_t *topo);

#endif
