/* copy.c - the calls that copy and fill memory
 *
 * As with the real driver, memory that was never pinned makes a copy to the host wait for its end, and a copy from the
 * host read its source before the call returns.
 */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum side { ANY, DEVICE };

struct copy {
    enum side to_side, from_side;
    uintptr_t to, from;
    size_t bytes;
};

static CUresult take(uintptr_t at, size_t bytes, enum side side, CUcontext context, struct fake_spot *spot_out) {
    CUresult result = fake_spot_take(at, bytes, context, spot_out);

    return result == CUDA_SUCCESS && side == DEVICE && spot_out->id == 0 ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Work on memory of a peer is that of the context whose stream does it. */
static CUresult copy(const struct copy *what, CUstream stream, bool wait) {
    struct fake_op op = {.kind = FAKE_OP_COPY, .bytes = what->bytes};
    CUcontext context;
    CUresult result = fake_stream_context(stream, &context);

    if (result == CUDA_SUCCESS)
        result = take(what->to, what->bytes, what->to_side, context, &op.to);
    if (result == CUDA_SUCCESS)
        result = take(what->from, what->bytes, what->from_side, context, &op.from);
    if (result != CUDA_SUCCESS || what->bytes == 0)
        return result;
    if (op.to.id == 0)
        wait = true;
    if (op.from.id == 0 && !wait) {
        op.staged = malloc(what->bytes);
        if (!op.staged)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(op.staged, (const void *)what->from, what->bytes);
    }
    return fake_enqueue(stream, &op, wait);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    return result != CUDA_SUCCESS ? result : copy(&(struct copy){ANY, ANY, dst, src, ByteCount}, NULL, true);
}

CUresult cuMemcpyHtoD(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct copy what = {DEVICE, ANY, dstDevice, (uintptr_t)srcHost, ByteCount};

    return result != CUDA_SUCCESS ? result : copy(&what, NULL, true);
}

CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct copy what = {ANY, DEVICE, (uintptr_t)dstHost, srcDevice, ByteCount};

    return result != CUDA_SUCCESS ? result : copy(&what, NULL, true);
}

CUresult cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);
    struct copy what = {DEVICE, DEVICE, dstDevice, srcDevice, ByteCount};

    return result != CUDA_SUCCESS ? result : copy(&what, NULL, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result : copy(&(struct copy){ANY, ANY, dst, src, ByteCount}, hStream, false);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    struct copy what = {DEVICE, ANY, dstDevice, (uintptr_t)srcHost, ByteCount};

    return result != CUDA_SUCCESS ? result : copy(&what, hStream, false);
}

CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    struct copy what = {ANY, DEVICE, (uintptr_t)dstHost, srcDevice, ByteCount};

    return result != CUDA_SUCCESS ? result : copy(&what, hStream, false);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    struct copy what = {DEVICE, DEVICE, dstDevice, srcDevice, ByteCount};

    return result != CUDA_SUCCESS ? result : copy(&what, hStream, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);
    struct copy what = {DEVICE, DEVICE, dstDevice, srcDevice, ByteCount};

    if (result != CUDA_SUCCESS)
        return result;
    return dstContext && srcContext ? copy(&what, hStream, false) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult fill(CUdeviceptr at, uint32_t value, size_t count, unsigned width, CUstream stream) {
    struct fake_op op = {.kind = FAKE_OP_FILL, .bytes = count * width, .value = value, .flags = width};
    CUcontext context;
    CUresult result = fake_stream_context(stream, &context);

    if (result != CUDA_SUCCESS)
        return result;
    if (at % width != 0 || count > FAKE_MEMORY_BYTES / width)
        return CUDA_ERROR_INVALID_VALUE;
    result = take(at, op.bytes, DEVICE, context, &op.to);
    return result != CUDA_SUCCESS || count == 0 ? result : fake_enqueue(stream, &op, false);
}

CUresult cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    return result != CUDA_SUCCESS ? result : fill(dstDevice, uc, N, 1, NULL);
}

CUresult cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT | FAKE_UNSAFE);

    return result != CUDA_SUCCESS ? result : fill(dstDevice, ui, N, sizeof(ui), NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result : fill(dstDevice, uc, N, 1, hStream);
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
    CUresult result = fake_enter(__func__, FAKE_CONTEXT);

    return result != CUDA_SUCCESS ? result : fill(dstDevice, ui, N, sizeof(ui), hStream);
}
