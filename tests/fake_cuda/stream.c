/* stream.c - the calls on streams, and words that streams write and wait for */
#include <stdint.h>

#include "fake.h"

/* The calling thread's own default streams; they end with their context. */
static _Thread_local struct {
    CUstream stream;
    unsigned generation;
} own[FAKE_DEVICES_MAX];

static CUresult find_own(CUcontext context, CUstream *stream_out) {
    CUresult result = CUDA_SUCCESS;

    if (!own[context->device].stream || own[context->device].generation != context->generation) {
        result = fake_stream_new(context, CU_STREAM_DEFAULT, 0, &own[context->device].stream);
        own[context->device].generation = context->generation;
    }
    *stream_out = own[context->device].stream;
    return result;
}

static bool is_open(CUcontext context, CUstream handle) {
    for (CUstream stream = context->streams; stream; stream = stream->next)
        if (stream == handle)
            return stream->open && stream != context->legacy;
    return false;
}

CUresult fake_stream_find(CUstream handle, CUstream *stream_out) {
    CUcontext context = fake_context_current();

    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        if (!context)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (!context->alive || context->going)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (handle == CU_STREAM_PER_THREAD)
            return find_own(context, stream_out);
        *stream_out = context->legacy;
        return CUDA_SUCCESS;
    }
    for (int i = 0; i < fake.n_devices; i++)
        if (is_open(fake_context_of(i), handle)) {
            *stream_out = handle;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult fake_stream_context(CUstream handle, CUcontext *context_out) {
    CUstream stream;
    CUresult result;

    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS)
        *context_out = stream->context;
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

static CUresult no_capture_locked(CUstream handle, CUstream *stream_out) {
    bool capturing = false;
    CUresult result = fake_stream_find(handle, stream_out);

    if (result == CUDA_SUCCESS)
        result = fake_capture_status(*stream_out, &capturing);
    if (result == CUDA_SUCCESS && capturing)
        result = fake_capture_spoil((*stream_out)->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return result;
}

CUresult fake_stream_no_capture(CUstream handle) {
    CUstream stream;
    CUresult result;

    pthread_mutex_lock(&fake_engine_lock);
    result = no_capture_locked(handle, &stream);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

static CUresult create(CUstream *stream_out, unsigned flags, int priority) {
    CUresult result;

    if (!stream_out || (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_new(fake_context_current(), flags, priority, stream_out);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result : create(phStream, Flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result : create(phStream, flags, priority);
}

/* Returns at once; what is queued is still done. */
CUresult cuStreamDestroy(CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    if (!hStream || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS)
        fake_stream_close(stream);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuStreamSynchronize(CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = no_capture_locked(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        fake_stream_hold(stream);
        result = fake_stream_order(stream);
        fake_stream_await(stream, stream->queued);
        if (result == CUDA_SUCCESS)
            result = (CUresult)atomic_load(&stream->context->error);
        fake_stream_drop(stream);
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuStreamQuery(CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = no_capture_locked(hStream, &stream);
    if (result == CUDA_SUCCESS)
        result = fake_stream_order(stream);
    if (result == CUDA_SUCCESS)
        result = (CUresult)atomic_load(&stream->context->error);
    if (result == CUDA_SUCCESS && !fake_stream_passed(stream, stream->queued))
        result = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    return pctx ? fake_stream_context(hStream, pctx) : CUDA_ERROR_INVALID_VALUE;
}

/* A word must be where the stream's device reaches it. */
static CUresult queue_word(CUstream handle, struct fake_op *op, CUdeviceptr at) {
    CUcontext context;
    CUresult result = fake_stream_context(handle, &context);

    if (result == CUDA_SUCCESS && at % sizeof(uint32_t) != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = fake_spot_take(at, sizeof(uint32_t), context, &op->to);
    if (result == CUDA_SUCCESS && op->to.id == 0)
        result = CUDA_ERROR_INVALID_VALUE;
    return result != CUDA_SUCCESS ? result : fake_enqueue(handle, op, false);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    struct fake_op op = {.kind = FAKE_OP_WRITE, .value = value};

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT && flags != CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        return CUDA_ERROR_INVALID_VALUE;
    return queue_word(stream, &op, addr);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    struct fake_op op = {.kind = FAKE_OP_WAIT, .value = value, .flags = flags};

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != CU_STREAM_WAIT_VALUE_GEQ && flags != CU_STREAM_WAIT_VALUE_EQ)
        return CUDA_ERROR_NOT_SUPPORTED;
    return queue_word(stream, &op, addr);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    struct fake_op op = {.kind = FAKE_OP_CALL, .call = fn, .argument = userData};

    if (result != CUDA_SUCCESS)
        return result;
    return fn ? fake_enqueue(hStream, &op, false) : CUDA_ERROR_INVALID_VALUE;
}
