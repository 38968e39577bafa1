/* engine.c - the queues behind streams
 *
 * Each stream that has work has a thread, made with its first op. Tickets count the ops of a stream: one is through
 * when `done` has reached it. The legacy default stream waits for what blocking streams have queued before, and they
 * for what it has, by ops of their own (FAKE_OP_AFTER).
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "fake.h"

pthread_mutex_t fake_engine_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_context_gone = PTHREAD_COND_INITIALIZER;

static _Thread_local bool in_worker;

bool fake_in_worker(void) {
    return in_worker;
}

void fake_stream_hold(CUstream stream) {
    stream->refs++;
}

static void end_if_unused(CUstream stream) {
    CUstream *at = &stream->context->streams;

    if (stream->open || stream->working || stream->refs > 0)
        return;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->moved);
    free(stream);
}

void fake_stream_drop(CUstream stream) {
    stream->refs--;
    end_if_unused(stream);
}

bool fake_stream_passed(const struct CUstream_st *stream, uint64_t ticket) {
    return stream->done >= ticket;
}

void fake_stream_await(CUstream stream, uint64_t ticket) {
    while (!fake_stream_passed(stream, ticket))
        pthread_cond_wait(&stream->moved, &fake_engine_lock);
}

CUresult fake_context_await(CUcontext context) {
    CUstream stream = context->streams;

    if (stream)
        fake_stream_hold(stream);
    while (stream) {
        CUstream next;

        fake_stream_await(stream, stream->queued);
        next = stream->next; /* held till now, so it still is in the list */
        if (next)
            fake_stream_hold(next);
        fake_stream_drop(stream);
        stream = next;
    }
    return (CUresult)atomic_load(&context->error);
}

CUresult fake_stream_new(CUcontext context, unsigned flags, int priority, CUstream *stream_out) {
    CUstream stream = calloc(1, sizeof(*stream));

    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->moved, NULL);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->open = true;
    stream->next = context->streams;
    context->streams = stream;
    *stream_out = stream;
    return CUDA_SUCCESS;
}

/* What is queued is still done. */
void fake_stream_close(CUstream stream) {
    fake_capture_leave(stream);
    stream->open = false;
    pthread_cond_signal(&stream->work);
    end_if_unused(stream);
}

static void op_end(struct fake_op *op) {
    if (op->kind == FAKE_OP_AFTER)
        fake_stream_drop(op->after);
    if (op->kind == FAKE_OP_EVENT)
        fake_event_drop(op->event);
    free(op->staged);
    free(op);
}

/* Waits for a ticket of another stream, unless this one's context is broken. */
static void run_after(CUstream stream, const struct fake_op *op) {
    while (!fake_stream_passed(op->after, op->ticket) && atomic_load(&stream->context->error) == CUDA_SUCCESS) {
        struct timespec until; /* the other context's end wakes this thread, its own might not */

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&op->after->moved, &fake_engine_lock, &until);
    }
}

/* The engine lock is held, and let go while the op works. */
static void run(CUstream stream, struct fake_op *op) {
    CUresult result = CUDA_SUCCESS;
    bool broken = atomic_load(&stream->context->error) != CUDA_SUCCESS;

    if (op->kind == FAKE_OP_AFTER) {
        run_after(stream, op);
    } else if (op->kind == FAKE_OP_EVENT) {
        fake_event_stamp(op->event, op->ticket);
    } else if (!broken || op->kind == FAKE_OP_FREE) {
        pthread_mutex_unlock(&fake_engine_lock);
        result = fake_work(stream, op);
        pthread_mutex_lock(&fake_engine_lock);
    }
    if (result != CUDA_SUCCESS)
        fake_context_break(stream->context, result);
}

static void *work(void *argument) {
    CUstream stream = argument;

    in_worker = true;
    pthread_mutex_lock(&fake_engine_lock);
    while (stream->open || stream->first) {
        struct fake_op *op = stream->first;

        if (!op) {
            pthread_cond_wait(&stream->work, &fake_engine_lock);
            continue;
        }
        stream->first = op->next;
        if (!stream->first)
            stream->last = NULL;
        run(stream, op);
        stream->done++;
        pthread_cond_broadcast(&stream->moved);
        op_end(op);
    }
    stream->working = false;
    stream->context->n_workers--;
    pthread_cond_broadcast(&fake_context_gone);
    end_if_unused(stream);
    pthread_mutex_unlock(&fake_engine_lock);
    return NULL;
}

/* Signals are for the program's own threads. */
static bool start_worker(CUstream stream) {
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    int error;

    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &detached, work, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (error != 0)
        return false;
    stream->working = true;
    stream->context->n_workers++;
    return true;
}

static void push(CUstream stream, struct fake_op *op) {
    op->next = NULL;
    if (stream->last)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->queued++;
    pthread_cond_signal(&stream->work);
}

static CUresult queue_after(CUstream stream, CUstream other, uint64_t ticket) {
    struct fake_op *op;

    if (fake_stream_passed(other, ticket))
        return CUDA_SUCCESS;
    op = calloc(1, sizeof(*op));
    if (!op || (!stream->working && !start_worker(stream))) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->kind = FAKE_OP_AFTER;
    op->after = other;
    op->ticket = ticket;
    fake_stream_hold(other);
    push(stream, op);
    return CUDA_SUCCESS;
}

static bool is_blocking(const struct CUstream_st *stream) {
    return stream != stream->context->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

CUresult fake_stream_order(CUstream stream) {
    CUstream legacy = stream->context->legacy;
    CUresult result = CUDA_SUCCESS;

    if (is_blocking(stream) && legacy->queued > stream->after_legacy) {
        stream->after_legacy = legacy->queued;
        return queue_after(stream, legacy, legacy->queued);
    }
    if (stream != legacy)
        return CUDA_SUCCESS;
    for (CUstream other = stream->context->streams; other && result == CUDA_SUCCESS; other = other->next)
        if (is_blocking(other) && other->queued > other->seen_by_legacy) {
            other->seen_by_legacy = other->queued;
            result = queue_after(legacy, other, other->queued);
        }
    return result;
}

CUresult fake_enqueue_locked(CUstream stream, struct fake_op *op, uint64_t *ticket_out) {
    CUresult result = (CUresult)atomic_load(&stream->context->error);
    bool capturing = false;

    *ticket_out = FAKE_TICKET_NONE;
    if (result == CUDA_SUCCESS)
        result = fake_capture_status(stream, &capturing);
    if (result == CUDA_SUCCESS && !capturing) {
        result = fake_stream_order(stream);
        if (result == CUDA_SUCCESS && !stream->working && !start_worker(stream))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS) {
            push(stream, op);
            *ticket_out = stream->queued;
            return CUDA_SUCCESS;
        }
    }
    op_end(op); /* what a capture takes would be a node of its graph, which nobody launches here */
    return result;
}

CUresult fake_enqueue_after(CUstream stream, CUstream other, uint64_t ticket) {
    struct fake_op *op = calloc(1, sizeof(*op));

    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->kind = FAKE_OP_AFTER;
    op->after = other;
    op->ticket = ticket;
    fake_stream_hold(other);
    return fake_enqueue_locked(stream, op, &ticket);
}

CUresult fake_enqueue(CUstream handle, const struct fake_op *op, bool wait) {
    struct fake_op *copy = malloc(sizeof(*copy));
    CUstream stream;
    uint64_t ticket;
    CUresult result;

    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *op;
    pthread_mutex_lock(&fake_engine_lock);
    result = fake_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = fake_enqueue_locked(stream, copy, &ticket);
    else
        free(copy);
    if (result == CUDA_SUCCESS && wait && ticket != FAKE_TICKET_NONE) {
        fake_stream_hold(stream);
        fake_stream_await(stream, ticket);
        result = (CUresult)atomic_load(&stream->context->error);
        fake_stream_drop(stream);
    }
    pthread_mutex_unlock(&fake_engine_lock);
    return result;
}
