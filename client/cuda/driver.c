/* driver.c - see driver.h, and the table that the library finds */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gw_device_t *devices; /* only ever grows */

gw_status_t gw_cuda_fail(CUresult result, const char *call, char *text, size_t text_bytes) {
    const char *name = NULL, *meaning = NULL;

    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        name = "an unknown error";
    if (cuGetErrorString(result, &meaning) != CUDA_SUCCESS || meaning == NULL)
        meaning = "the driver has no text for it";
    snprintf(text, text_bytes, "%s: %s (%s)", call, name, meaning);
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return GW_ERR_NO_MEMORY;
    case CUDA_ERROR_INVALID_HANDLE:
        return GW_ERR_INVALID_ARGUMENT;
    default:
        return GW_ERR_SYSTEM;
    }
}

/* ---- making a context current ---------------------------------------------------------------------- */

/* A capture in its strict mode forbids this thread, or all, calls that have nothing to do with it. */
static gw_status_t exchange_mode(int *mode_io, char *text, size_t text_bytes) {
    CUstreamCaptureMode mode = (CUstreamCaptureMode)*mode_io;
    CUresult result = cuThreadExchangeStreamCaptureMode(&mode);

    *mode_io = (int)mode;
    return result == CUDA_SUCCESS ? GW_OK : gw_cuda_fail(result, "cuThreadExchangeStreamCaptureMode", text, text_bytes);
}

gw_status_t gw_cuda_enter(gw_device_t *device, gw_entered_t *entered_out, char *text, size_t text_bytes) {
    CUresult result = cuCtxPushCurrent(device->context);
    CUcontext popped;

    if (result != CUDA_SUCCESS)
        return gw_cuda_fail(result, "cuCtxPushCurrent", text, text_bytes);
    *entered_out = (gw_entered_t){device, CU_STREAM_CAPTURE_MODE_RELAXED};
    gw_status_t status = exchange_mode(&entered_out->capture_mode, text, text_bytes);
    if (status != GW_OK)
        (void)cuCtxPopCurrent(&popped);
    return status;
}

void gw_cuda_leave(const gw_entered_t *entered) {
    CUstreamCaptureMode mode = (CUstreamCaptureMode)entered->capture_mode;
    CUcontext popped;

    /* What was just done can be undone. */
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    (void)cuCtxPopCurrent(&popped);
}

/* ---- devices ------------------------------------------------------------------------------------------ */

/* As nvidia-smi writes it. An instance of a divided GPU has an UUID of its own, and a name that says so. */
static CUresult read_uuid(CUdevice number, char *uuid_out) {
    char name[NAME_BYTES] = "";
    CUuuid uuid;

    CUresult result = cuDeviceGetUuid(&uuid, number);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetName(name, sizeof(name), number);
    if (result != CUDA_SUCCESS)
        return result;
    char *to = uuid_out + snprintf(uuid_out, UUID_BYTES, "%s", strstr(name, " MIG ") != NULL ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        to += snprintf(to, 4, i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       (unsigned)(uint8_t)uuid.bytes[i]);
    return CUDA_SUCCESS;
}

/* Streams that no work of the caller's waits for. */
static CUresult make_sides(gw_device_t *device) {
    int least, greatest;

    CUresult result = cuCtxGetStreamPriorityRange(&least, &greatest);
    if (result == CUDA_SUCCESS)
        result = cuStreamCreateWithPriority(&device->side, CU_STREAM_NON_BLOCKING, least);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuStreamCreateWithPriority(&device->urgent, CU_STREAM_NON_BLOCKING, greatest);
    if (result != CUDA_SUCCESS)
        goto err_side;
    result = cuStreamCreateWithPriority(&device->back, CU_STREAM_NON_BLOCKING, greatest);
    if (result != CUDA_SUCCESS)
        goto err_urgent;
    return CUDA_SUCCESS;

err_urgent:
    (void)cuStreamDestroy(device->urgent);
err_side:
    (void)cuStreamDestroy(device->side);
    return result;
}

static gw_status_t device_new(CUcontext context, CUdevice number, gw_device_t **device_out, char *text,
                              size_t text_bytes) {
    gw_device_t *device = calloc(1, sizeof(*device));
    gw_entered_t entered;

    if (device == NULL) {
        snprintf(text, text_bytes, "the record of a device");
        return GW_ERR_NO_MEMORY;
    }
    device->context = context;
    device->number = number;
    gw_status_t status = GW_OK;
    int error = pthread_mutex_init(&device->lock, NULL);
    if (error != 0) {
        snprintf(text, text_bytes, "the lock of a device: error %d", error);
        status = GW_ERR_SYSTEM;
        goto err_device;
    }
    CUresult result = read_uuid(number, device->uuid);
    status = result == CUDA_SUCCESS ? GW_OK : gw_cuda_fail(result, "cuDeviceGetUuid", text, text_bytes);
    if (status == GW_OK)
        status = gw_cuda_enter(device, &entered, text, text_bytes);
    if (status != GW_OK)
        goto err_lock;
    result = make_sides(device);
    gw_cuda_leave(&entered);
    if (result != CUDA_SUCCESS) {
        status = gw_cuda_fail(result, "cuStreamCreateWithPriority", text, text_bytes);
        goto err_lock;
    }
    *device_out = device;
    return GW_OK;

err_lock:
    pthread_mutex_destroy(&device->lock);
err_device:
    free(device);
    return status;
}

/* *is_ours_out: it is retained for us, for the life of the process. */
static CUresult choose_context(CUdevice number, CUcontext *context_out, bool *is_ours_out) {
    CUcontext current = NULL;
    CUdevice its_number;

    *is_ours_out = false;
    if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != NULL && cuCtxGetDevice(&its_number) == CUDA_SUCCESS &&
        its_number == number) {
        *context_out = current;
        return CUDA_SUCCESS;
    }
    *is_ours_out = true;
    return cuDevicePrimaryCtxRetain(context_out, number);
}

gw_status_t gw_cuda_device(CUcontext context, CUdevice number, gw_device_t **device_out, char *text,
                           size_t text_bytes) {
    bool is_ours = false;

    if (context == NULL) {
        CUresult result = choose_context(number, &context, &is_ours);
        if (result != CUDA_SUCCESS)
            return gw_cuda_fail(result, "cuDevicePrimaryCtxRetain", text, text_bytes);
    }
    pthread_mutex_lock(&lock);
    gw_status_t status = GW_OK;
    gw_device_t *device = devices;
    while (device != NULL && device->context != context)
        device = device->next;
    bool is_known = device != NULL;
    if (!is_known)
        status = device_new(context, number, &device, text, text_bytes);
    if (!is_known && status == GW_OK) {
        device->next = devices;
        devices = device;
    }
    pthread_mutex_unlock(&lock);
    if (is_ours && (is_known || status != GW_OK))
        (void)cuDevicePrimaryCtxRelease(number); /* one reference is enough */
    if (status == GW_OK)
        *device_out = device;
    return status;
}

/* ---- what the library finds ----------------------------------------------------------------------------- */

extern const gw_device_api_t gw_client_cuda;

__attribute__((visibility("default"))) const gw_device_api_t gw_client_cuda = {
    .version = GW_DEVICE_API,
    .memory = &gw_cuda_memory,
    .streams = &gw_cuda_streams,
};
