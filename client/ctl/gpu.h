/* gpu.h - the GPUs of this host: what the plugin gwctl-cuda.so does for gwctl, and who calls it
 *
 * The plugin alone talks to the driver, through the table below; nothing else of gwctl sees a CUDA header. A context is
 * made on a GPU by `open`, in gwctl's own process, and ends with it.
 */
#ifndef GWCTL_GPU_H
#define GWCTL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GWCTL_GPUS_MAX = 64, /* as many as a driver shows to one process */
    GWCTL_UUID_BYTES = 48,
    GWCTL_NAME_BYTES = 96,
    GWCTL_BUS_BYTES = 24,
    GWCTL_LINK_BYTES = 16,
    GWCTL_HANDLE_BYTES = 64,
    GWCTL_WHY_BYTES = 320,
};

typedef struct gwctl_gpu {
    int index;                   /* in the order of the bus, as nvidia-smi counts */
    char uuid[GWCTL_UUID_BYTES]; /* GPU-... or MIG-... */
    char name[GWCTL_NAME_BYTES];
    char bus_id[GWCTL_BUS_BYTES]; /* 0000:18:00.0, as in /sys/bus/pci/devices; "" when unknown */
    int numa_node;                /* -1: unknown */
    uint64_t memory_bytes;
    bool exclusive; /* the compute mode allows no second process */
} gwctl_gpu_t;

typedef struct gwctl_gpus {
    int driver_cuda, built_cuda; /* 13000 is CUDA 13.0: what the driver has, what the plugin was built with */
    char driver[32];             /* 580.82.07; "" when unknown */
    char nvml[GWCTL_WHY_BYTES];  /* why NVML, which knows the links, cannot be asked; "" when it can */
    size_t count;
    gwctl_gpu_t gpu[GWCTL_GPUS_MAX];
    char link[GWCTL_GPUS_MAX][GWCTL_GPUS_MAX][GWCTL_LINK_BYTES]; /* NV18, PIX and so on; "": NVML does not say */
} gwctl_gpus_t;

/* Measured copies, in GB/s (1e9 bytes) a direction. By place in the list of devices that was given. */
typedef struct gwctl_copies {
    uint64_t bytes; /* of one copy */
    double to_host[GWCTL_GPUS_MAX], from_host[GWCTL_GPUS_MAX];
    double both[GWCTL_GPUS_MAX]; /* to the host and from it at once */
    double all;                  /* the same on all GPUs at once: as fast as the slowest */
    double peer[GWCTL_GPUS_MAX][GWCTL_GPUS_MAX], peer_both[GWCTL_GPUS_MAX][GWCTL_GPUS_MAX];
    bool direct[GWCTL_GPUS_MAX][GWCTL_GPUS_MAX]; /* without a detour through host memory */
} gwctl_copies_t;

typedef enum gwctl_outcome {
    GWCTL_WORKS,
    GWCTL_BROKEN, /* a call failed, or something did not happen in time */
    GWCTL_WRONG,  /* all calls went well, and bytes are not what they should be */
    GWCTL_FULL,   /* the device had no memory left to try it with */
} gwctl_outcome_t;

/* Device memory for another process. All but the last line goes there as text, see gpu_import.c. */
typedef enum gwctl_share_kind { GWCTL_SHARE_HANDLE, GWCTL_SHARE_FD } gwctl_share_kind_t;
typedef struct gwctl_share {
    gwctl_share_kind_t kind;
    uint64_t bytes, seed;
    int fd; /* of GWCTL_SHARE_FD, else -1 */
    unsigned char handle[GWCTL_HANDLE_BYTES];

    uint64_t address, allocation; /* the exporter's own */
} gwctl_share_t;

typedef struct gwctl_device gwctl_device_t;

/* Told before each measurement. */
typedef void (*gwctl_step_fn)(const char *what);

/* Where a function does not work, `why` of GWCTL_WHY_BYTES says what the driver said. None of them waits for the device
 * longer than some seconds, but the driver itself may hang: the caller needs an alarm. */
typedef struct gwctl_gpu_api {
    uint32_t version; /* GWCTL_GPU_API */

    /* Finds the GPUs. 0 GPUs is no error. */
    gwctl_outcome_t (*list)(gwctl_gpus_t *gpus, char *why);

    /* Device memory that a process holds, UINT64_MAX when that is not known. */
    uint64_t (*held_bytes)(const char *uuid, long pid);

    gwctl_outcome_t (*open)(int index, gwctl_device_t **device_out, char *why);
    void (*close)(gwctl_device_t *device);

    /* Pins and unpins host memory. */
    gwctl_outcome_t (*pin)(gwctl_device_t *device, uint64_t bytes, char *why);

    /* Whether a stream writes and awaits words in a sealed memfd. */
    gwctl_outcome_t (*words)(gwctl_device_t *device, char *why);

    /* Allocates memory, fills it from `seed`, and makes a handle of it. End it with share_free. */
    gwctl_outcome_t (*share)(gwctl_device_t *device, gwctl_share_kind_t kind, uint64_t seed, gwctl_share_t *share_out,
                             char *why);
    /* The other process: opens it, checks that it holds what `seed` makes, and fills it from seed + 1. */
    gwctl_outcome_t (*share_use)(gwctl_device_t *device, const gwctl_share_t *share, char *why);
    /* Whether it was filled so. */
    gwctl_outcome_t (*share_verify)(gwctl_device_t *device, const gwctl_share_t *share, char *why);
    void (*share_free)(gwctl_device_t *device, gwctl_share_t *share);

    /* Copies both ways at once between two GPUs, again and again, and compares what arrived. */
    gwctl_outcome_t (*peer)(gwctl_device_t *left, gwctl_device_t *right, uint64_t seed, bool *direct_out, char *why);

    gwctl_outcome_t (*measure)(gwctl_device_t *const *devices, size_t n, gwctl_step_fn step, gwctl_copies_t *copies,
                               char *why);
} gwctl_gpu_api_t;

/* The plugin exports its table under the name gw_ctl_cuda. */
enum { GWCTL_GPU_API = 1 };

/* ---- gpu.c -------------------------------------------------------------------------------------- */

typedef enum gwctl_gpu_state {
    GWCTL_GPU_FOUND,
    GWCTL_GPU_NONE,      /* a driver, but no device that this process may see */
    GWCTL_GPU_NO_DRIVER, /* no libcuda.so.1 */
    GWCTL_GPU_NO_PLUGIN, /* gwctl-cuda.so is missing, or does not fit to the driver */
    GWCTL_GPU_BROKEN,    /* the driver does not start */
} gwctl_gpu_state_t;

/* Whether the driver's library can be loaded; it stays loaded, but nothing in it is called. */
bool gwctl_gpu_has_driver(void);

/* Loads the plugin and finds the GPUs. `why` says why there are none. */
gwctl_gpu_state_t gwctl_gpu_find(const gwctl_gpu_api_t **api_out, gwctl_gpus_t *gpus, char *why);

/* ---- pci.c -------------------------------------------------------------------------------------- */

/* Fills in what the kernel knows of each GPU's place: NUMA nodes, and the links that NVML did not name. */
void gwctl_pci_complete(gwctl_gpus_t *gpus);

/* How two devices are connected, from their resolved paths in /sys/devices and their NUMA nodes: PIX, PXB, PHB, NODE or
 * SYS, X for the same path, "?" when the nodes are not known. */
const char *gwctl_pci_relation(const char *left, const char *right, int left_node, int right_node);

#endif
