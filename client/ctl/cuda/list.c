/* list.c - which GPUs there are, by the driver, and what NVML knows about them */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_cuda.h"
#include "links.h"
#include "nvml.h"

static void format_uuid(const CUuuid *uuid, const char *kind, char *text) {
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(text, GWCTL_UUID_BYTES, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", kind,
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* A slice of a GPU is known to NVML by the same number with another word before it. */
static void name_device(const CUuuid *uuid, const nvml_t *nvml, char *text) {
    nvml_device_t device;
    format_uuid(uuid, "GPU", text);
    if (nvml == NULL || nvml->device_by_uuid(text, &device) == NVML_OK)
        return;
    format_uuid(uuid, "MIG", text);
    if (nvml->device_by_uuid(text, &device) != NVML_OK)
        format_uuid(uuid, "GPU", text);
}

static gwctl_outcome_t describe(int index, const nvml_t *nvml, gwctl_gpu_t *gpu, char *why) {
    CUdevice device;
    CUuuid uuid;
    size_t bytes = 0;
    int mode = CU_COMPUTEMODE_DEFAULT;
    gwctl_outcome_t outcome = gwctl_cuda_say(cuDeviceGet(&device, index), "cuDeviceGet", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuDeviceGetName(gpu->name, sizeof(gpu->name), device), "cuDeviceGetName", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    gpu->index = index;
    gpu->memory_bytes = bytes;
    gpu->numa_node = -1;
    name_device(&uuid, nvml, gpu->uuid);
    if (cuDeviceGetPCIBusId(gpu->bus_id, sizeof(gpu->bus_id), device) != CUDA_SUCCESS)
        gpu->bus_id[0] = '\0';
    if (cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) == CUDA_SUCCESS)
        gpu->exclusive = mode != CU_COMPUTEMODE_DEFAULT;
    return GWCTL_WORKS;
}

gwctl_outcome_t gwctl_cuda_list(gwctl_gpus_t *gpus, char *why) {
    int count = 0;
    /* Numbers as nvidia-smi's, unless the user wants others. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
    gpus->built_cuda = CUDA_VERSION;
    CUresult result = cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE)
        return GWCTL_WORKS;
    gwctl_outcome_t outcome = gwctl_cuda_say(result, "cuInit", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuDriverGetVersion(&gpus->driver_cuda), "cuDriverGetVersion", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuDeviceGetCount(&count), "cuDeviceGetCount", why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    const nvml_t *nvml = nvml_load(gpus->nvml, sizeof(gpus->nvml));
    if (nvml != NULL &&
        (nvml->driver_version == NULL || nvml->driver_version(gpus->driver, (unsigned)sizeof(gpus->driver)) != NVML_OK))
        gpus->driver[0] = '\0';
    for (int i = 0; i < count && i < GWCTL_GPUS_MAX; i++) {
        outcome = describe(i, nvml, &gpus->gpu[i], why);
        if (outcome != GWCTL_WORKS)
            return outcome;
        gpus->count++;
    }
    if (nvml != NULL)
        gwctl_cuda_links(nvml, gpus);
    return GWCTL_WORKS;
}
