/* nvml.h - the few functions of NVIDIA's management library that are used here
 *
 * It comes with the driver, but its header does not come with the toolkit of every distribution, and a container may
 * lack the library. So it is loaded when it is there, and what is used of its interface (stable, append only) is
 * declared here.
 */
#ifndef GWCTL_NVML_H
#define GWCTL_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nvml_device *nvml_device_t;

enum { NVML_OK = 0 };
enum { NVML_LINKS_MAX = 36 };
enum { NVML_REMOTE_GPU = 0, NVML_REMOTE_SWITCH = 2 };
enum { NVML_P2P_NVLINK = 2, NVML_P2P_OK = 0 };

typedef struct nvml_pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device;
    unsigned pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvml_pci_info_t;

typedef struct nvml_process_info {
    unsigned pid;
    unsigned long long used_bytes; /* UINT64_MAX: not known */
    unsigned gpu_instance, compute_instance;
} nvml_process_info_t;

/* init and device_by_uuid are there when nvml_load succeeds; any other may be NULL. All return NVML_OK or an error. */
typedef struct nvml {
    int (*init)(void);
    const char *(*error_string)(int result);
    int (*driver_version)(char *version, unsigned version_bytes);
    int (*device_by_uuid)(const char *uuid, nvml_device_t *device_out);
    int (*link_state)(nvml_device_t device, unsigned link, unsigned *active_out);
    int (*link_remote_type)(nvml_device_t device, unsigned link, unsigned *type_out);
    int (*link_remote_pci)(nvml_device_t device, unsigned link, nvml_pci_info_t *pci_out);
    int (*p2p_status)(nvml_device_t left, nvml_device_t right, int what, int *status_out);
    int (*common_ancestor)(nvml_device_t left, nvml_device_t right, int *level_out);
    int (*processes)(nvml_device_t device, unsigned *count, nvml_process_info_t *processes);
} nvml_t;

/* The library, loaded and started once. NULL: `why` says why there is none. */
const nvml_t *nvml_load(char *why, size_t why_bytes);

#endif
