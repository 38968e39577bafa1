/* context.c - devices by UUID, their contexts, pinned memory, and the plugin's table. See backend.h */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "held.h"
#include "nvtx.h"

enum { UUID_TEXT_BYTES = 37 };

static int is_lost(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_DEINITIALIZED:
        return 1;
    default:
        return 0;
    }
}

gw_status_t gwd_cuda_fail(CUresult result, const char *call, gw_status_t otherwise, char *text, size_t text_bytes) {
    const char *name = NULL, *words = NULL;

    (void)cuGetErrorName(result, &name); /* NULL for a number that this driver does not know */
    (void)cuGetErrorString(result, &words);
    snprintf(text, text_bytes, "%s: %s (%d), %s", call, name ? name : "error", (int)result, words ? words : "unknown");
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return GW_ERR_NO_MEMORY;
    return is_lost(result) ? GW_ERR_DEVICE : otherwise;
}

/* As nvidia-smi writes it, but for what comes before the first '-': "GPU" or "MIG". */
static void uuid_text(const CUuuid *uuid, char text[UUID_TEXT_BYTES]) {
    const unsigned char *b = (const unsigned char *)uuid->bytes;

    snprintf(text, UUID_TEXT_BYTES, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* A client that could name one device in many ways could have as many arenas pinned. */
static const char *digits_of(const char *wanted) {
    return strncmp(wanted, "GPU-", 4) == 0 || strncmp(wanted, "MIG-", 4) == 0 ? wanted + 4 : "";
}

static CUresult find_device(const char *wanted, CUdevice *device_out) {
    char text[UUID_TEXT_BYTES];
    int n = 0;
    CUresult result = cuDeviceGetCount(&n);

    for (int i = 0; i < n && result == CUDA_SUCCESS; i++) {
        CUdevice device;
        CUuuid uuid;

        result = cuDeviceGet(&device, i);
        if (result == CUDA_SUCCESS)
            result = cuDeviceGetUuid(&uuid, device);
        if (result != CUDA_SUCCESS)
            break;
        uuid_text(&uuid, text);
        if (strcmp(digits_of(wanted), text) == 0) {
            *device_out = device;
            return CUDA_SUCCESS;
        }
    }
    return result == CUDA_SUCCESS ? CUDA_ERROR_NO_DEVICE : result;
}

static int numa_node(CUdevice device) {
    int node;

    return cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) == CUDA_SUCCESS ? node : -1;
}

static gw_status_t open_device(const char *uuid, gwd_context_t **context_out, int *node_out, uint64_t *bytes_out,
                               char *text, size_t text_bytes) {
    gwd_context_t *context = calloc(1, sizeof(*context));
    CUresult result = cuInit(0);
    char call[96];

    if (!context)
        return gwd_cuda_fail(CUDA_ERROR_OUT_OF_MEMORY, "a context", GW_ERR_NO_MEMORY, text, text_bytes);
    snprintf(call, sizeof(call), "cuInit");
    if (result == CUDA_SUCCESS) {
        snprintf(call, sizeof(call), "device '%.63s'", uuid);
        result = find_device(uuid, &context->device);
    }
    if (result == CUDA_SUCCESS) {
        snprintf(call, sizeof(call), "cuDevicePrimaryCtxRetain");
        result = cuDevicePrimaryCtxRetain(&context->context, context->device);
    }
    if (result != CUDA_SUCCESS) {
        free(context);
        return gwd_cuda_fail(result, call, GW_ERR_UNSUPPORTED, text, text_bytes);
    }
    *node_out = numa_node(context->device);
    *bytes_out = gwd_cuda_held_bytes(uuid);
    *context_out = context;
    return GW_OK;
}

static void close_device(gwd_context_t *context) {
    (void)cuDevicePrimaryCtxRelease(context->device); /* a broken context says so, and goes all the same */
    free(context);
}

static gw_status_t pin(gwd_context_t *context, void *address, uint64_t bytes, char *text, size_t text_bytes) {
    CUresult result = cuCtxPushCurrent(context->context);

    if (result == CUDA_SUCCESS) {
        result = cuMemHostRegister(address, bytes, CU_MEMHOSTREGISTER_PORTABLE);
        (void)cuCtxPopCurrent(NULL);
    }
    return result == CUDA_SUCCESS ? GW_OK : gwd_cuda_fail(result, "cuMemHostRegister", GW_ERR_SYSTEM, text, text_bytes);
}

static void unpin(gwd_context_t *context, void *address) {
    if (cuCtxPushCurrent(context->context) != CUDA_SUCCESS)
        return;
    (void)cuMemHostUnregister(address);
    (void)cuCtxPopCurrent(NULL);
}

static const gwd_device_backend_t table = {
    &gwd_cuda_memory,     open_device,   close_device,   pin,           unpin,      gwd_cuda_stream_new,
    gwd_cuda_stream_free, gwd_cuda_copy, gwd_cuda_ended, gw_nvtx_begin, gw_nvtx_end};

extern const gwd_plugin_t gwd_cuda;
__attribute__((visibility("default"))) const gwd_plugin_t gwd_cuda = {GWD_PLUGIN, &table};
