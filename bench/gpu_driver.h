// gpu_driver.h - the CUDA driver's calls as the GPU benchmarks use them: what fails throws, by name
//
// The driver's own interface and no runtime, so that these programs run with the simulated driver of the tests too.
#ifndef BENCH_GPU_DRIVER_H
#define BENCH_GPU_DRIVER_H

#include <cuda.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw Failure(text);
}

inline void cu_check(CUresult result, const char *call) {
    const char *name = nullptr;
    if (result == CUDA_SUCCESS)
        return;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr)
        name = "an error without a name";
    fail("%s: %s", call, name);
}

// A device of this process with its primary context, which the runtime shares.
class Device {
  public:
    explicit Device(int ordinal) : ordinal(ordinal) {
        cu_check(cuDeviceGet(&device, ordinal), "cuDeviceGet");
        cu_check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        use();
    }

    // Makes the context current for the calling thread.
    void use() const { cu_check(cuCtxSetCurrent(context), "cuCtxSetCurrent"); }

    // A stream of the highest priority, beside the default stream.
    CUstream stream() const {
        int lowest = 0, highest = 0;
        CUstream made = nullptr;
        cu_check(cuCtxGetStreamPriorityRange(&lowest, &highest), "cuCtxGetStreamPriorityRange");
        cu_check(cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, highest), "cuStreamCreateWithPriority");
        return made;
    }

    CUdeviceptr memory(uint64_t bytes) const {
        CUdeviceptr made = 0;
        cu_check(cuMemAlloc(&made, bytes), "cuMemAlloc");
        return made;
    }

    int ordinal;

  private:
    CUdevice device = 0;
    CUcontext context = nullptr;
};

inline void driver_start() {
    cu_check(cuInit(0), "cuInit");
}

inline int device_count() {
    int count = 0;
    cu_check(cuDeviceGetCount(&count), "cuDeviceGetCount");
    return count;
}

// {"name": ..., "uuid": ..., "bus": ..., "bytes": ...}
inline std::string device_text(int ordinal) {
    CUdevice device = 0;
    char name[128] = "", bus[32] = "", uuid_text[64] = "GPU-", text[512];
    CUuuid uuid;
    size_t bytes = 0, at = 4;
    cu_check(cuDeviceGet(&device, ordinal), "cuDeviceGet");
    cu_check(cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
    cu_check(cuDeviceGetPCIBusId(bus, sizeof bus, device), "cuDeviceGetPCIBusId");
    cu_check(cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid");
    cu_check(cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(uuid_text + at, sizeof uuid_text - at, "%s%02x",
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned)(uint8_t)uuid.bytes[i]);
    snprintf(text, sizeof text, "{\"name\": \"%s\", \"uuid\": \"%s\", \"bus\": \"%s\", \"bytes\": %zu}", name,
             uuid_text, bus, bytes);
    return text;
}

#endif
