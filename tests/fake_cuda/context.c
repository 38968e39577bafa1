/* context.c - primary contexts, and the stack of current ones that each thread has */
#include <string.h>

#include "fake.h"

enum { STACK_DEPTH = 32, PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5 };

static struct CUctx_st primary[FAKE_DEVICES_MAX];

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

CUcontext fake_context_current(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUcontext fake_context_of(int device) {
    return &primary[device];
}

void fake_context_break(CUcontext context, CUresult error) {
    int none = CUDA_SUCCESS;

    atomic_compare_exchange_strong(&context->error, &none, (int)error);
    for (CUstream stream = context->streams; stream; stream = stream->next)
        pthread_cond_broadcast(&stream->moved);
}

static CUresult create_locked(CUcontext context) {
    CUresult result = fake_account_take(context->device, FAKE_CONTEXT_BYTES);

    if (result != CUDA_SUCCESS)
        return result;
    result = fake_stream_new(context, CU_STREAM_DEFAULT, PRIORITY_LEAST, &context->legacy);
    if (result != CUDA_SUCCESS) {
        fake_account_give(context->device, FAKE_CONTEXT_BYTES);
        return result;
    }
    atomic_store(&context->error, CUDA_SUCCESS);
    context->peers = 0;
    context->generation++;
    context->alive = true;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (dev < 0 || dev >= fake.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    primary[dev].device = dev;
    while (primary[dev].going)
        pthread_cond_wait(&fake_context_gone, &fake_engine_lock);
    if (!primary[dev].alive)
        result = create_locked(&primary[dev]);
    if (result == CUDA_SUCCESS) {
        primary[dev].retains++;
        *pctx = &primary[dev];
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

static void free_memory_of(CUcontext context) {
    pthread_rwlock_wrlock(&fake_map_lock);
    for (unsigned i = 0; i < fake_range_count();) {
        struct fake_range *range = fake_range_nth(i);

        if (range->context == context)
            fake_range_destroy(range);
        else
            i++;
    }
    pthread_rwlock_unlock(&fake_map_lock);
    fake_account_give(context->device, FAKE_CONTEXT_BYTES);
}

/* All that belongs to the context goes with it. The engine lock is held, and let go meanwhile. */
static void destroy(CUcontext context) {
    context->going = true;
    fake_context_break(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    for (CUstream stream = context->streams, next; stream; stream = next) {
        next = stream->next;
        if (stream->open)
            fake_stream_close(stream);
    }
    while (context->n_workers > 0)
        pthread_cond_wait(&fake_context_gone, &fake_engine_lock);
    fake_event_end_all(context);
    context->legacy = NULL;
    context->alive = false;
    pthread_mutex_unlock(&fake_engine_lock);
    free_memory_of(context);
    pthread_mutex_lock(&fake_engine_lock);
    context->going = false;
    pthread_cond_broadcast(&fake_context_gone);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (dev < 0 || dev >= fake.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_engine_lock);
    if (primary[dev].retains == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--primary[dev].retains == 0)
        destroy(&primary[dev]);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (dev < 0 || dev >= fake.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    *flags = 0;
    *active = primary[dev].alive;
    pthread_mutex_unlock(&fake_engine_lock);
    return CUDA_SUCCESS;
}

static bool is_alive(CUcontext context) {
    bool alive = false;

    pthread_mutex_lock(&fake_engine_lock);
    for (int i = 0; i < fake.n_devices; i++)
        alive = alive || (context == &primary[i] && context->alive && !context->going);
    pthread_mutex_unlock(&fake_engine_lock);
    return alive;
}

CUresult cuCtxPushCurrent(CUcontext ctx) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (!is_alive(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (pctx)
        *pctx = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (!ctx) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (!is_alive(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    depth += depth == 0;
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = fake_context_current();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    if (result != CUDA_SUCCESS)
        return result;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = fake_context_current()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_context_await(fake_context_current());
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    if (result != CUDA_SUCCESS)
        return result;
    if (leastPriority)
        *leastPriority = PRIORITY_LEAST;
    if (greatestPriority)
        *greatestPriority = PRIORITY_GREATEST;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    CUcontext context = fake_context_current();

    if (result != CUDA_SUCCESS)
        return result;
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_alive(peerContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peerContext == context)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_engine_lock);
    if (context->peers >> peerContext->device & 1)
        result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1U << peerContext->device;
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}
