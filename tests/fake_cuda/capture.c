/* capture.c - stream capture as a state: which streams are captured, and which calls that forbids
 *
 * Work on a stream that captures is dropped, since no graph is ever launched here. A call that capture cannot see
 * makes the capture invalid, as the real driver does, so that a test can show that a library left it valid.
 */
#include <stdlib.h>

#include "fake.h"

struct capture {
    struct capture *next;
    uint64_t id;
    CUstreamCaptureMode mode;
    const void *thread; /* that began it: the address of its own mode */
    CUstream origin;
    bool invalid;
};

struct CUgraph_st {
    CUgraph next;
};

static struct capture *captures; /* these are guarded by the engine lock */
static CUgraph graphs;
static uint64_t last_id;
static atomic_uint n_captures;

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static struct capture *find(uint64_t id) {
    struct capture *capture = captures;

    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

static bool forbids(const struct capture *capture) {
    bool own = capture->thread == &thread_mode;

    switch (thread_mode) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL:
        return own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
        return own && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    default:
        return false;
    }
}

CUresult fake_capture_allows(void) {
    CUresult result = CUDA_SUCCESS;

    if (atomic_load(&n_captures) == 0)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&fake_engine_lock);
    for (struct capture *capture = captures; capture; capture = capture->next)
        if (forbids(capture)) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

/* The capture of a blocking stream, which the legacy stream would have to wait for. */
static struct capture *find_blocking(CUcontext context) {
    for (CUstream stream = context->streams; stream; stream = stream->next) {
        struct capture *capture = stream->capture != 0 ? find(stream->capture) : NULL;

        if (capture && !(stream->flags & CU_STREAM_NON_BLOCKING))
            return capture;
    }
    return NULL;
}

CUresult fake_capture_status(CUstream stream, bool *capturing_out) {
    struct capture *capture;

    *capturing_out = false;
    if (!captures)
        return CUDA_SUCCESS;
    if (stream == stream->context->legacy) {
        capture = find_blocking(stream->context);
        if (!capture)
            return CUDA_SUCCESS;
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    capture = stream->capture != 0 ? find(stream->capture) : NULL;
    *capturing_out = capture != NULL;
    return capture && capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult fake_capture_spoil(uint64_t id, CUresult error) {
    struct capture *capture = find(id);

    if (capture)
        capture->invalid = true;
    return error;
}

bool fake_capture_lives(uint64_t id) {
    return find(id) != NULL;
}

static void end(struct capture *capture) {
    struct capture **at = &captures;

    for (int i = 0; i < fake.n_devices; i++)
        for (CUstream stream = fake_context_of(i)->streams; stream; stream = stream->next)
            if (stream->capture == capture->id)
                stream->capture = 0;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    free(capture);
    atomic_fetch_sub(&n_captures, 1);
}

void fake_capture_leave(CUstream stream) {
    struct capture *capture = stream->capture != 0 ? find(stream->capture) : NULL;

    if (capture && capture->origin == stream)
        end(capture);
    else if (capture)
        capture->invalid = true;
    stream->capture = 0;
}

static CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
    struct capture *capture;

    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != 0)
        return CUDA_ERROR_ILLEGAL_STATE;
    capture = malloc(sizeof(*capture));
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *capture = (struct capture){captures, ++last_id, mode, &thread_mode, stream, false};
    captures = capture;
    stream->capture = capture->id;
    atomic_fetch_add(&n_captures, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
        mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS)
        result = begin(stream, mode);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

static CUresult end_capture(CUstream stream, CUgraph *graph_out) {
    struct capture *capture = stream->capture != 0 ? find(stream->capture) : NULL;
    bool invalid;
    CUgraph graph;

    *graph_out = NULL;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mode)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    invalid = capture->invalid;
    end(capture);
    if (invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    graph = malloc(sizeof(*graph));
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->next = graphs;
    graphs = graph;
    *graph_out = graph;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS)
        result = end_capture(stream, phGraph);
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    const struct capture *capture;
    CUstream stream;

    if (result != CUDA_SUCCESS)
        return result;
    if (!captureStatus)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        capture = stream->capture != 0 ? find(stream->capture) : NULL;
        *captureStatus = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
                         : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
        /* Asking is not work: it spoils nothing. */
        if (stream == stream->context->legacy && find_blocking(stream->context))
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    CUstreamCaptureMode before = thread_mode;

    if (result != CUDA_SUCCESS)
        return result;
    if (!mode || (*mode != CU_STREAM_CAPTURE_MODE_GLOBAL && *mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
                  *mode != CU_STREAM_CAPTURE_MODE_RELAXED))
        return CUDA_ERROR_INVALID_VALUE;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    CUgraph *at = &graphs, graph;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake_engine_lock);
    while (*at && *at != hGraph)
        at = &(*at)->next;
    graph = *at;
    if (graph) {
        *at = graph->next;
        free(graph);
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
