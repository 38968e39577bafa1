/* stream.c - copies of one direction on a stream, each followed by an event. See backend.h
 *
 * Events, and not words written by the stream: they are of copy engines throughout, so that nothing here waits for the
 * time slice that kernels of other processes get.
 */
#include <stdlib.h>

#include "driver.h"

struct gwd_stream {
    CUcontext context;
    CUstream stream;
    uint64_t started, ended;
    unsigned n_events;
    CUevent events[GWD_STREAM_DEPTH];
};

/* What it waits for can only be the device; a broken one answers at once. */
void gwd_cuda_stream_free(gwd_stream_t *stream) {
    (void)cuCtxSetCurrent(stream->context);
    (void)cuStreamSynchronize(stream->stream);
    for (unsigned i = 0; i < stream->n_events; i++)
        (void)cuEventDestroy(stream->events[i]);
    (void)cuStreamDestroy(stream->stream);
    (void)cuCtxSetCurrent(NULL);
    free(stream);
}

gw_status_t gwd_cuda_stream_new(gwd_context_t *context, gwd_stream_t **stream_out, char *text, size_t text_bytes) {
    gwd_stream_t *stream = calloc(1, sizeof(*stream));
    CUresult result;

    if (!stream)
        return gwd_cuda_fail(CUDA_ERROR_OUT_OF_MEMORY, "a stream's events", GW_ERR_NO_MEMORY, text, text_bytes);
    stream->context = context->context;
    result = cuCtxSetCurrent(stream->context);
    if (result == CUDA_SUCCESS)
        result = cuStreamCreate(&stream->stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) {
        free(stream);
        return gwd_cuda_fail(result, "cuStreamCreate", GW_ERR_DEVICE, text, text_bytes);
    }
    for (; stream->n_events < GWD_STREAM_DEPTH; stream->n_events++) {
        result = cuEventCreate(&stream->events[stream->n_events], CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS) {
            gwd_cuda_stream_free(stream);
            return gwd_cuda_fail(result, "cuEventCreate", GW_ERR_DEVICE, text, text_bytes);
        }
    }
    (void)cuCtxSetCurrent(NULL);
    *stream_out = stream;
    return GW_OK;
}

gw_status_t gwd_cuda_copy(gwd_stream_t *stream, void *to, const void *from, uint64_t bytes, char *text,
                          size_t text_bytes) {
    CUresult result = cuCtxSetCurrent(stream->context); /* one lane serves several devices */

    if (result == CUDA_SUCCESS)
        result = cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream->stream);
    if (result == CUDA_SUCCESS)
        result = cuEventRecord(stream->events[stream->started % GWD_STREAM_DEPTH], stream->stream);
    if (result != CUDA_SUCCESS)
        return gwd_cuda_fail(result, "cuMemcpyAsync", GW_ERR_DEVICE, text, text_bytes);
    stream->started++;
    return GW_OK;
}

gw_status_t gwd_cuda_ended(gwd_stream_t *stream, uint64_t *n_out, char *text, size_t text_bytes) {
    CUresult result = cuCtxSetCurrent(stream->context);

    while (result == CUDA_SUCCESS && stream->ended < stream->started) {
        result = cuEventQuery(stream->events[stream->ended % GWD_STREAM_DEPTH]);
        if (result == CUDA_SUCCESS)
            stream->ended++;
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        return gwd_cuda_fail(result, "cuEventQuery", GW_ERR_DEVICE, text, text_bytes);
    *n_out = stream->ended;
    return GW_OK;
}
