/* work.c - what the queues do: copies, fills, words that are written and waited for, host calls */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "fake.h"

enum { PART_BYTES = 256 << 10, N_SPINS = 50, PAUSE_NS = 20000 };

uint64_t fake_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void pause_ns(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000U), .tv_nsec = (long)(ns % 1000000000U)};

    nanosleep(&time, NULL);
}

/* A copy takes at least its time at the rate that was asked for. */
static void keep_rate(uint64_t begin_ns, size_t bytes) {
    uint64_t due, now;

    if (fake.copy_bytes_per_ns <= 0)
        return;
    due = begin_ns + (uint64_t)((double)bytes / fake.copy_bytes_per_ns);
    now = fake_now_ns();
    if (now < due)
        pause_ns(due - now);
}

static CUresult copy(CUstream stream, const struct fake_op *op) {
    const char *from = op->staged ? op->staged : (const char *)op->from.at;
    char *to = (char *)op->to.at;
    uint64_t begin_ns = fake_now_ns();
    size_t part;

    for (size_t at = 0; at < op->bytes; at += part) {
        bool valid;

        if (atomic_load(&stream->context->error) != CUDA_SUCCESS)
            return CUDA_SUCCESS;
        part = op->bytes - at < PART_BYTES ? op->bytes - at : PART_BYTES;
        pthread_rwlock_rdlock(&fake_map_lock);
        valid = fake_spot_valid(&op->to, at, part) && (op->staged || fake_spot_valid(&op->from, at, part));
        if (valid)
            memmove(to + at, from + at, part);
        pthread_rwlock_unlock(&fake_map_lock);
        if (!valid)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        keep_rate(begin_ns, at + part);
    }
    return CUDA_SUCCESS;
}

static CUresult fill(const struct fake_op *op) {
    bool valid;

    pthread_rwlock_rdlock(&fake_map_lock);
    valid = fake_spot_valid(&op->to, 0, op->bytes);
    if (valid && op->flags == 1)
        memset((void *)op->to.at, (int)op->value, op->bytes);
    for (size_t at = 0; valid && op->flags == sizeof(uint32_t) && at < op->bytes; at += sizeof(uint32_t))
        *(uint32_t *)(op->to.at + at) = op->value;
    pthread_rwlock_unlock(&fake_map_lock);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult write_word(const struct fake_op *op) {
    bool valid;

    pthread_rwlock_rdlock(&fake_map_lock);
    valid = fake_spot_valid(&op->to, 0, sizeof(uint32_t));
    if (valid)
        __atomic_store_n((uint32_t *)op->to.at, op->value, __ATOMIC_RELEASE);
    pthread_rwlock_unlock(&fake_map_lock);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static bool is_reached(uint32_t word, const struct fake_op *op) {
    return op->flags == CU_STREAM_WAIT_VALUE_EQ ? word == op->value : (int32_t)(word - op->value) >= 0;
}

static CUresult wait_word(CUstream stream, const struct fake_op *op) {
    for (unsigned n = 0; atomic_load(&stream->context->error) == CUDA_SUCCESS; n++) {
        uint32_t word = 0;
        bool valid;

        pthread_rwlock_rdlock(&fake_map_lock);
        valid = fake_spot_valid(&op->to, 0, sizeof(uint32_t));
        if (valid)
            word = __atomic_load_n((const uint32_t *)op->to.at, __ATOMIC_ACQUIRE);
        pthread_rwlock_unlock(&fake_map_lock);
        if (!valid)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (is_reached(word, op))
            return CUDA_SUCCESS;
        if (n < N_SPINS)
            sched_yield();
        else
            pause_ns(PAUSE_NS);
    }
    return CUDA_SUCCESS;
}

CUresult fake_work(CUstream stream, const struct fake_op *op) {
    switch (op->kind) {
    case FAKE_OP_COPY:
        return copy(stream, op);
    case FAKE_OP_FILL:
        return fill(op);
    case FAKE_OP_WRITE:
        return write_word(op);
    case FAKE_OP_WAIT:
        return wait_word(stream, op);
    case FAKE_OP_CALL:
        op->call(op->argument);
        break;
    case FAKE_OP_FREE:
        fake_pool_free(op->to.at, op->to.id);
        break;
    case FAKE_OP_EVENT:
    case FAKE_OP_AFTER:
        break; /* the queue's own */
    }
    return CUDA_SUCCESS;
}
