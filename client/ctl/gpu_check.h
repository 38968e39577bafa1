/* gpu_check.h - what the doctor and its process for GPUs agree on */
#ifndef GWCTL_GPU_CHECK_H
#define GWCTL_GPU_CHECK_H

enum {
    GWCTL_GPU_CHECK_S = 180,  /* it ends itself after this time */
    GWCTL_GPU_CHECK_NONE = 4, /* its exit code when no GPU can be used; its one line says why */
};

#endif
