/* gpu.c - the plugin that knows the GPUs, or why there is none */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "doctor.h"
#include "plugin.h"

bool gwctl_gpu_has_driver(void) {
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL;
}

gwctl_gpu_state_t gwctl_gpu_find(const gwctl_gpu_api_t **api_out, gwctl_gpus_t *gpus, char *why) {
    char text[GWCTL_WHY_BYTES - 80];
    *gpus = (gwctl_gpus_t){.count = 0};
    if (!gwctl_gpu_has_driver()) {
        snprintf(why, GWCTL_WHY_BYTES, "no NVIDIA driver: there is no libcuda.so.1");
        return GWCTL_GPU_NO_DRIVER;
    }
    const gwctl_gpu_api_t *api = gw_plugin_symbol("gwctl-cuda.so", "gw_ctl_cuda", text, sizeof(text));
    if (api == NULL) {
        snprintf(why, GWCTL_WHY_BYTES, "the plugin gwctl-cuda.so cannot be loaded: %s", text);
        return GWCTL_GPU_NO_PLUGIN;
    }
    if (api->version != GWCTL_GPU_API) {
        snprintf(why, GWCTL_WHY_BYTES, "the plugin gwctl-cuda.so belongs to another version of gwctl");
        return GWCTL_GPU_NO_PLUGIN;
    }
    if (api->list(gpus, why) != GWCTL_WORKS)
        return GWCTL_GPU_BROKEN;
    if (gpus->count == 0) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        snprintf(why, GWCTL_WHY_BYTES, "there is an NVIDIA driver, but no device%s%.100s",
                 visible != NULL ? " among CUDA_VISIBLE_DEVICES=" : "", visible != NULL ? visible : "");
        return GWCTL_GPU_NONE;
    }
    /* NVML knows its version, where there is one; else the kernel's part may tell. */
    if (gpus->driver[0] == '\0' && !gwctl_read_line("/sys/module/nvidia/version", gpus->driver, sizeof(gpus->driver)))
        gpus->driver[0] = '\0';
    gwctl_pci_complete(gpus);
    *api_out = api;
    return GWCTL_GPU_FOUND;
}
