/* gpu_share.h - how shares travel from the process that checks to the one that imports */
#ifndef GWCTL_GPU_SHARE_H
#define GWCTL_GPU_SHARE_H

#include "gpu.h"

/* What became of shares, each tried by one process that is started for all of them. */
typedef struct gwctl_trial {
    const gwctl_gpu_t *gpu;
    gwctl_device_t *device;
    gwctl_share_t share;
    bool shared; /* share is there, and to be freed */
    gwctl_outcome_t outcome;
    char why[GWCTL_WHY_BYTES];
} gwctl_trial_t;

void gwctl_share_try(const gwctl_gpu_api_t *api, gwctl_trial_t *trials, size_t n);

#endif
