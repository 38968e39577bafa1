/* streams.c - what the library enqueues on streams; see device.h
 *
 * Words are written and awaited by the stream itself: no kernel, and nothing that another user's process could not do
 * as well. A write comes after everything that the stream did before, also for the CPU.
 */
#include "driver.h"
#include "nvtx.h"

#include <stdio.h>

static CUstream stream_of(gw_queue_t queue) {
    return (CUstream)queue;
}

static CUdeviceptr address_of(const void *at) {
    return (CUdeviceptr)(uintptr_t)at;
}

static gw_status_t say(CUresult result, const char *call, char *text, size_t text_bytes) {
    return result == CUDA_SUCCESS ? GW_OK : gw_cuda_fail(result, call, text, text_bytes);
}

static bool is_default(CUstream stream) {
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* The default streams are those of whatever context is current. */
static gw_status_t check_context(gw_device_t *device, CUstream stream, char *text, size_t text_bytes) {
    CUcontext context = device->context;

    CUresult result = is_default(stream) ? CUDA_SUCCESS : cuStreamGetCtx(stream, &context);
    if (result != CUDA_SUCCESS)
        return gw_cuda_fail(result, "cuStreamGetCtx", text, text_bytes);
    if (context == device->context)
        return GW_OK;
    snprintf(text, text_bytes, "the stream %p belongs to another device, or another context, than the memory",
             (void *)stream);
    return GW_ERR_INVALID_ARGUMENT;
}

/* The capture is asked for first: of the calls here it is the one that every capture allows. */
static gw_status_t check(gw_device_t *device, gw_queue_t queue, char *text, size_t text_bytes) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstream stream = stream_of(queue);
    CUcontext popped;

    CUresult result = cuCtxPushCurrent(device->context);
    if (result != CUDA_SUCCESS)
        return gw_cuda_fail(result, "cuCtxPushCurrent", text, text_bytes);
    gw_status_t status = GW_OK;
    result = cuStreamIsCapturing(stream, &capture);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        snprintf(text, text_bytes, "the default stream waits for a stream that is being captured");
        status = GW_ERR_CAPTURE;
    } else if (result != CUDA_SUCCESS) {
        status = gw_cuda_fail(result, "cuStreamIsCapturing", text, text_bytes);
    } else if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
        snprintf(text, text_bytes, "stream %p", queue);
        status = GW_ERR_CAPTURE;
    } else {
        status = check_context(device, stream, text, text_bytes);
    }
    (void)cuCtxPopCurrent(&popped);
    return status;
}

static gw_status_t copy(gw_queue_t stream, void *to, const void *from, uint64_t bytes, char *text, size_t text_bytes) {
    return say(cuMemcpyAsync(address_of(to), address_of(from), bytes, stream_of(stream)), "cuMemcpyAsync", text,
               text_bytes);
}

static gw_status_t write_word(gw_queue_t stream, void *word, uint32_t value, char *text, size_t text_bytes) {
    return say(cuStreamWriteValue32(stream_of(stream), address_of(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32", text, text_bytes);
}

static gw_status_t await_word(gw_queue_t stream, void *word, uint32_t value, char *text, size_t text_bytes) {
    return say(cuStreamWaitValue32(stream_of(stream), address_of(word), value, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32", text, text_bytes);
}

static gw_queue_t side(gw_device_t *device, bool urgent) {
    return urgent ? device->urgent : device->side;
}

static gw_queue_t back(gw_device_t *device) {
    return device->back;
}

static CUevent event_of(gw_event_t *event) {
    return (CUevent)(void *)event;
}

static gw_status_t event_new(gw_event_t **event_out, char *text, size_t text_bytes) {
    CUevent event;

    CUresult result = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        *event_out = (gw_event_t *)(void *)event;
    return say(result, "cuEventCreate", text, text_bytes);
}

static void event_free(gw_event_t *event) {
    (void)cuEventDestroy(event_of(event)); /* a context that is gone took it along */
}

static gw_status_t event_record(gw_event_t *event, gw_queue_t stream, char *text, size_t text_bytes) {
    return say(cuEventRecord(event_of(event), stream_of(stream)), "cuEventRecord", text, text_bytes);
}

static gw_status_t event_await(gw_queue_t stream, gw_event_t *event, char *text, size_t text_bytes) {
    return say(cuStreamWaitEvent(stream_of(stream), event_of(event), CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent", text,
               text_bytes);
}

static gw_status_t event_test(gw_event_t *event, char *text, size_t text_bytes) {
    CUresult result = cuEventQuery(event_of(event));

    return result == CUDA_ERROR_NOT_READY ? GW_IN_PROGRESS : say(result, "cuEventQuery", text, text_bytes);
}

const gw_device_streams_t gw_cuda_streams = {
    .enter = gw_cuda_enter,
    .leave = gw_cuda_leave,
    .check = check,
    .copy = copy,
    .write_word = write_word,
    .write_behind = gw_cuda_write_behind,
    .await_word = await_word,
    .side = side,
    .back = back,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_await = event_await,
    .event_test = event_test,
    .range_begin = gw_nvtx_begin,
    .range_end = gw_nvtx_end,
};
