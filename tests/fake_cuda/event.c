/* event.c - events: each names a ticket of the stream that it was recorded on last */
#include <stdlib.h>

#include "fake.h"

struct CUevent_st {
    CUevent next;  /* of the spare ones */
    CUevent other; /* of all */
    bool open;     /* not destroyed */
    unsigned flags;
    unsigned refs; /* ops that name it */
    CUcontext context;
    CUstream stream; /* NULL: not recorded */
    uint64_t ticket;
    uint64_t generation; /* counts records */
    uint64_t capture;    /* id of the capture that recorded it last, 0: none */
    uint64_t time_ns;
};

static CUevent all, spare; /* structs are never freed, so that a stale handle is noticed; the engine lock is held */

static CUresult find(CUevent event) {
    return event && event->open ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static void end_if_unused(CUevent event) {
    if (event->open || event->refs > 0)
        return;
    event->next = spare;
    spare = event;
}

void fake_event_drop(CUevent event) {
    event->refs--;
    end_if_unused(event);
}

void fake_event_stamp(CUevent event, uint64_t generation) {
    if (event->generation == generation)
        event->time_ns = fake_now_ns();
}

static void forget_record(CUevent event) {
    if (event->stream)
        fake_stream_drop(event->stream);
    event->stream = NULL;
    event->capture = 0;
    event->time_ns = 0;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    CUevent event;

    if (result != CUDA_SUCCESS)
        return result;
    if (!phEvent || Flags & ~known || ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    event = spare;
    if (event) {
        spare = event->next;
    } else {
        event = calloc(1, sizeof(*event));
        if (event) {
            event->other = all;
            all = event;
        }
    }
    if (event) {
        event->open = true;
        event->flags = Flags;
        event->context = fake_context_current();
        *phEvent = event;
    } else {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuEventDestroy(CUevent hEvent) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = find(hEvent);
    if (result == CUDA_SUCCESS) {
        forget_record(hEvent);
        hEvent->open = false;
        end_if_unused(hEvent);
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

void fake_event_end_all(CUcontext context) {
    for (CUevent event = all; event; event = event->other) {
        if (!event->open || event->context != context)
            continue;
        forget_record(event);
        event->open = false;
        end_if_unused(event);
    }
}

/* The engine lock is held. */
static CUresult record(CUevent event, CUstream stream) {
    struct fake_op *op;
    bool capturing;
    uint64_t ticket, capture = stream->capture;
    CUresult result = fake_capture_status(stream, &capturing);

    if (result != CUDA_SUCCESS)
        return result;
    if (stream->context != event->context)
        return CUDA_ERROR_INVALID_HANDLE;
    op = calloc(1, sizeof(*op));
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->kind = FAKE_OP_EVENT;
    op->event = event;
    op->ticket = event->generation + 1;
    event->refs++;
    result = fake_enqueue_locked(stream, op, &ticket);
    if (result != CUDA_SUCCESS)
        return result;
    forget_record(event);
    event->generation++;
    if (capturing) {
        event->capture = capture;
    } else {
        fake_stream_hold(stream);
        event->stream = stream;
        event->ticket = ticket;
    }
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = find(hEvent);
    if (result == CUDA_SUCCESS)
        result = fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS)
        result = record(hEvent, stream);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

/* An event of a capture stands for a node of a graph: the host cannot wait for it. */
static CUresult find_recorded(CUevent event) {
    CUresult result = find(event);

    if (result == CUDA_SUCCESS && event->capture != 0)
        result = fake_capture_spoil(event->capture, CUDA_ERROR_CAPTURED_EVENT);
    return result;
}

static bool is_through(CUevent event) {
    return !event->stream || fake_stream_passed(event->stream, event->ticket);
}

static CUresult error_of(CUevent event) {
    return (CUresult)atomic_load(&event->context->error);
}

CUresult cuEventQuery(CUevent hEvent) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = find_recorded(hEvent);
    if (result == CUDA_SUCCESS)
        result = error_of(hEvent);
    if (result == CUDA_SUCCESS && !is_through(hEvent))
        result = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

/* The event may be recorded elsewhere meanwhile. */
static void await(CUstream stream, uint64_t ticket) {
    if (!stream)
        return;
    fake_stream_hold(stream);
    fake_stream_await(stream, ticket);
    fake_stream_drop(stream);
}

CUresult cuEventSynchronize(CUevent hEvent) {
    CUresult result = fake_enter(__func__, FAKE_UNSAFE);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    result = find_recorded(hEvent);
    if (result == CUDA_SUCCESS) {
        await(hEvent->stream, hEvent->ticket);
        result = error_of(hEvent);
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

/* The engine lock is held. */
static CUresult wait_event(CUstream stream, CUevent event) {
    bool capturing;
    CUresult result = fake_capture_status(stream, &capturing);

    if (result != CUDA_SUCCESS)
        return result;
    if (event->capture != 0 && !fake_capture_lives(event->capture))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->capture != 0 && !capturing) {
        stream->capture = event->capture; /* the stream joins the capture */
        return CUDA_SUCCESS;
    }
    if (capturing && event->capture != stream->capture)
        return event->stream ? fake_capture_spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
    if (capturing || is_through(event))
        return CUDA_SUCCESS;
    return fake_enqueue_after(stream, event->stream, event->ticket);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = find(hEvent);
    if (result == CUDA_SUCCESS)
        result = fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS)
        result = wait_event(stream, hEvent);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    if (result != CUDA_SUCCESS)
        return result;
    if (!pMilliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = find_recorded(hStart);
    if (result == CUDA_SUCCESS)
        result = find_recorded(hEnd);
    if (result == CUDA_SUCCESS &&
        ((hStart->flags | hEnd->flags) & CU_EVENT_DISABLE_TIMING || !hStart->stream || !hEnd->stream))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (!is_through(hStart) || !is_through(hEnd)))
        result = CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS)
        *pMilliseconds = (float)((double)(int64_t)(hEnd->time_ns - hStart->time_ns) * 1e-6);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}
