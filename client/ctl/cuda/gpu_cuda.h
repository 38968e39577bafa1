/* gpu_cuda.h - what the files of the plugin gwctl-cuda.so share */
#ifndef GWCTL_GPU_CUDA_H
#define GWCTL_GPU_CUDA_H

#include <cuda.h>

#include "gpu.h"

/* A GPU with a context of this process: the primary one, which is given back by close. */
struct gwctl_device {
    CUdevice device;
    CUcontext context;
    CUstream stream[2]; /* neither waits for the other */
    int numa_node;      /* where its host memory belongs; -1: anywhere */
};

/* ---- device.c ----------------------------------------------------------------------------------- */

/* Says what a call of the driver said. */
gwctl_outcome_t gwctl_cuda_say(CUresult result, const char *call, char *why);

/* Enters the device: the calls that follow are about it. */
gwctl_outcome_t gwctl_cuda_enter(const gwctl_device_t *device, char *why);

/* Waits, for some seconds at most, until all work of a stream is done. */
gwctl_outcome_t gwctl_cuda_wait(CUstream stream, char *why);

gwctl_outcome_t gwctl_cuda_open(int index, gwctl_device_t **device_out, char *why);
void gwctl_cuda_close(gwctl_device_t *device);

/* ---- memory.c ----------------------------------------------------------------------------------- */

double gwctl_cuda_now_s(void);

/* Pinned host memory on the device's NUMA node, as far as the kernel allows it. */
gwctl_outcome_t gwctl_cuda_host_alloc(const gwctl_device_t *device, uint64_t bytes, void **memory_out, char *why);
void gwctl_cuda_host_free(void *memory, uint64_t bytes);

gwctl_outcome_t gwctl_cuda_pin(gwctl_device_t *device, uint64_t bytes, char *why);

/* Fills device memory with what `seed` makes, and compares it with that. `bytes` is a multiple of 8. */
gwctl_outcome_t gwctl_cuda_fill(const gwctl_device_t *device, CUdeviceptr memory, uint64_t bytes, uint64_t seed,
                                char *why);
gwctl_outcome_t gwctl_cuda_compare(const gwctl_device_t *device, CUdeviceptr memory, uint64_t bytes, uint64_t seed,
                                   char *why);

/* ---- the rest of the table ---------------------------------------------------------------------- */

gwctl_outcome_t gwctl_cuda_list(gwctl_gpus_t *gpus, char *why);
gwctl_outcome_t gwctl_cuda_words(gwctl_device_t *device, char *why);
gwctl_outcome_t gwctl_cuda_share(gwctl_device_t *device, gwctl_share_kind_t kind, uint64_t seed,
                                 gwctl_share_t *share_out, char *why);
gwctl_outcome_t gwctl_cuda_share_use(gwctl_device_t *device, const gwctl_share_t *share, char *why);
gwctl_outcome_t gwctl_cuda_share_verify(gwctl_device_t *device, const gwctl_share_t *share, char *why);
void gwctl_cuda_share_free(gwctl_device_t *device, gwctl_share_t *share);

/* Lets copies go straight from one device to another. False: they go through host memory. */
bool gwctl_cuda_enable_peer(const gwctl_device_t *from, const gwctl_device_t *to);
gwctl_outcome_t gwctl_cuda_peer(gwctl_device_t *left, gwctl_device_t *right, uint64_t seed, bool *direct_out,
                                char *why);
gwctl_outcome_t gwctl_cuda_measure(gwctl_device_t *const *devices, size_t n, gwctl_step_fn step, gwctl_copies_t *copies,
                                   char *why);

#endif
