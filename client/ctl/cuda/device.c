/* device.c - a context on a GPU, and waiting for it without end in sight never */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "gpu_cuda.h"

#define WAIT_S 20.0 /* far more than any step takes, also on a host that is busy training */

gwctl_outcome_t gwctl_cuda_say(CUresult result, const char *call, char *why) {
    const char *name = NULL;
    const char *text = NULL;
    if (result == CUDA_SUCCESS)
        return GWCTL_WORKS;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || cuGetErrorString(result, &text) != CUDA_SUCCESS)
        snprintf(why, GWCTL_WHY_BYTES, "%s failed with error %d", call, (int)result);
    else
        snprintf(why, GWCTL_WHY_BYTES, "%s failed with %s (%d): %s", call, name, (int)result, text);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? GWCTL_FULL : GWCTL_BROKEN;
}

gwctl_outcome_t gwctl_cuda_enter(const gwctl_device_t *device, char *why) {
    return gwctl_cuda_say(cuCtxSetCurrent(device->context), "cuCtxSetCurrent", why);
}

gwctl_outcome_t gwctl_cuda_wait(CUstream stream, char *why) {
    double end_s = gwctl_cuda_now_s() + WAIT_S;
    CUresult result;
    while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        if (gwctl_cuda_now_s() > end_s) {
            snprintf(why, GWCTL_WHY_BYTES, "a copy or a word was not done after %.0f s", WAIT_S);
            return GWCTL_BROKEN;
        }
        sched_yield();
    }
    return gwctl_cuda_say(result, "cuStreamQuery", why);
}

/* The node that the kernel names for the device; it decides about speed only, so nothing is said when it is unknown. */
static int find_numa_node(CUdevice device) {
    char bus_id[GWCTL_BUS_BYTES];
    char path[64 + GWCTL_BUS_BYTES];
    int node = -1;
    if (cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != CUDA_SUCCESS)
        return -1;
    for (char *letter = bus_id; *letter != '\0'; letter++)
        *letter = *letter >= 'A' && *letter <= 'F' ? (char)(*letter - 'A' + 'a') : *letter;
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus_id);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return -1;
    if (fscanf(stream, "%d", &node) != 1)
        node = -1;
    fclose(stream);
    return node;
}

gwctl_outcome_t gwctl_cuda_open(int index, gwctl_device_t **device_out, char *why) {
    gwctl_device_t *device = calloc(1, sizeof(*device));
    gwctl_outcome_t outcome;
    if (device == NULL) {
        snprintf(why, GWCTL_WHY_BYTES, "out of host memory");
        return GWCTL_FULL;
    }
    outcome = gwctl_cuda_say(cuDeviceGet(&device->device, index), "cuDeviceGet", why);
    if (outcome != GWCTL_WORKS)
        goto err_free;
    outcome =
        gwctl_cuda_say(cuDevicePrimaryCtxRetain(&device->context, device->device), "cuDevicePrimaryCtxRetain", why);
    if (outcome != GWCTL_WORKS)
        goto err_free;
    outcome = gwctl_cuda_enter(device, why);
    for (int i = 0; i < 2 && outcome == GWCTL_WORKS; i++)
        outcome = gwctl_cuda_say(cuStreamCreate(&device->stream[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate", why);
    if (outcome != GWCTL_WORKS)
        goto err_close;
    device->numa_node = find_numa_node(device->device);
    *device_out = device;
    return GWCTL_WORKS;

err_close:
    gwctl_cuda_close(device);
    return outcome;
err_free:
    free(device);
    return outcome;
}

void gwctl_cuda_close(gwctl_device_t *device) {
    if (cuCtxSetCurrent(device->context) == CUDA_SUCCESS) {
        for (int i = 0; i < 2; i++) {
            if (device->stream[i] != NULL)
                cuStreamDestroy(device->stream[i]);
        }
    }
    cuDevicePrimaryCtxRelease(device->device);
    free(device);
}
