/* gpu_share.h - how shares travel from the process that checks to the one that imports */
#ifndef GWCTL_GPU_SHARE_H
#define GWCTL_GPU_SHARE_H

#include "gpu.h"

enum { GWCTL_SHARE_LINE_BYTES = 320 };

/* One line of text a share, with the UUID of its device. Reading it returns false when the text is no share. */
void gwctl_share_to_line(const char *uuid, const gwctl_share_t *share, char *line);
bool gwctl_share_from_line(const char *line, char *uuid, gwctl_share_t *share_out);

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
