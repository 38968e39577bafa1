/* nvml.c - see nvml.h */
#include "nvml.h"

#include <dlfcn.h>
#include <stdio.h>

static nvml_t nvml;

/* POSIX lets an address of data be a function's; C does not say so, hence the union. */
typedef union nvml_symbol {
    void *data;
    void (*function)(void);
} nvml_symbol_t;

static void (*find(void *library, const char *name))(void) {
    nvml_symbol_t symbol = {.data = dlsym(library, name)};
    return symbol.data != NULL ? symbol.function : NULL;
}

#define FIND(field, name) nvml.field = (__typeof__(nvml.field))find(library, name)

static void find_all(void *library) {
    FIND(init, "nvmlInit_v2");
    FIND(error_string, "nvmlErrorString");
    FIND(driver_version, "nvmlSystemGetDriverVersion");
    FIND(device_by_uuid, "nvmlDeviceGetHandleByUUID");
    FIND(link_state, "nvmlDeviceGetNvLinkState");
    FIND(link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
    FIND(link_remote_pci, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    FIND(p2p_status, "nvmlDeviceGetP2PStatus");
    FIND(common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    FIND(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
}

const nvml_t *nvml_load(char *why, size_t why_bytes) {
    static bool loaded;
    if (loaded)
        return &nvml;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, why_bytes, "%s", dlerror());
        return NULL;
    }
    find_all(library);
    int result = nvml.init != NULL && nvml.device_by_uuid != NULL ? nvml.init() : -1;
    if (result != NVML_OK) {
        const char *text = result > 0 && nvml.error_string != NULL ? nvml.error_string(result) : NULL;
        snprintf(why, why_bytes, "libnvidia-ml.so.1 does not start: %s", text != NULL ? text : "it lacks functions");
        dlclose(library);
        return NULL;
    }
    loaded = true;
    return &nvml;
}
