// gpu_load.cuh - what a trainer does beside the exchange: kernels of 1 ms that keep its GPU full
//
// A thread of the trainer keeps a few of them queued on a stream of the lowest priority and counts those that have
// ended. "compute" works in registers alone; "memory" reads and writes device memory and computes next to nothing.
// The runtime is used here and nowhere else: these kernels need a real GPU.
#ifndef BENCH_GPU_LOAD_CUH
#define BENCH_GPU_LOAD_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "control.h"
#include "gpu_driver.h"

inline void cuda_check(cudaError_t error, const char *call) {
    if (error != cudaSuccess)
        fail("%s: %s", call, cudaGetErrorName(error));
}

// The chain of dependent multiply-adds cannot be shortened; the comparison keeps it from being left out.
__global__ void load_compute(float4 *memory, size_t, unsigned n_rounds) {
    float a = (float)threadIdx.x * 1e-3f, b = 0.5f, c = (float)blockIdx.x * 1e-4f;
    for (unsigned i = 0; i < n_rounds; i++) {
        a = a * 1.0001f + c;
        b = b * 1.0001f + a;
        c = c * 1.0001f + b;
    }
    if (a + b + c == 12345.0f)
        memory[0].x = a;
}

__global__ void load_memory(float4 *memory, size_t count, unsigned n_rounds) {
    size_t n_threads = (size_t)gridDim.x * blockDim.x;
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = 0; i < n_rounds; i++) {
        float4 value = memory[at];
        value.x += 1.0f;
        memory[at] = value;
        at += n_threads;
        if (at >= count)
            at -= count;
    }
}

struct LoadSample {
    uint64_t n_kernels; // that have ended
    int64_t at_ns;      // when the last of them did
};

// Kernels a second between two samples.
inline double load_rate(const LoadSample &from, const LoadSample &to) {
    if (to.at_ns <= from.at_ns)
        return 0.0;
    return (double)(to.n_kernels - from.n_kernels) * 1e9 / (double)(to.at_ns - from.at_ns);
}

class Load {
  public:
    explicit Load(int ordinal) : ordinal(ordinal) {}
    ~Load() {
        try {
            stop();
        } catch (const Failure &why) {
            fprintf(stderr, "gpu_rank: load: %s\n", why.what());
        }
    }

    // Makes the memory, and finds out how much work takes a millisecond. With nothing else on the GPU.
    void prepare(const std::string &kind) {
        cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
        if (stream == nullptr)
            setup();
        kernel = kind == "compute" ? load_compute : kind == "memory" ? load_memory : nullptr;
        if (kernel == nullptr)
            fail("there is no load %s", kind.c_str());
        unsigned &known = kind == "compute" ? n_rounds_compute : n_rounds_memory;
        if (known == 0) {
            time_ns(16, 4); // the first launch loads the kernel
            known = kind == "compute" ? 2000 : 16;
            for (int i = 0; i < 3; i++)
                known = std::max(1u, (unsigned)((double)known * 1e6 / (double)time_ns(known, 8)));
        }
        n_rounds = known;
    }

    // Returns when the GPU is busy.
    void start() {
        int64_t end = bench_now_ns() + 10 * INT64_C(1000000000);
        stopping = false;
        latest = LoadSample{0, 0};
        thread = std::thread([this] { run(); });
        while (sample().n_kernels < 2 * QUEUED && !has_ended) {
            if (bench_now_ns() > end)
                fail("the load's kernels do not end");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (has_ended)
            stop();
    }

    void stop() {
        if (!thread.joinable())
            return;
        stopping = true;
        thread.join();
        if (!why.empty())
            fail("the load: %s", why.c_str());
    }

    LoadSample sample() {
        std::lock_guard<std::mutex> hold(lock);
        return latest;
    }

  private:
    static constexpr unsigned QUEUED = 8; // kernels that are launched and have not ended

    void setup() {
        int lowest = 0, highest = 0, n_multiprocessors = 0;
        size_t free_bytes = 0, total_bytes = 0;
        cuda_check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
        cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, lowest),
                   "cudaStreamCreateWithPriority");
        cuda_check(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
                   "cudaDeviceGetAttribute");
        cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
        // Four times what fits at once: as one part ends, a kernel of a higher priority gets its place.
        n_blocks = (unsigned)n_multiprocessors * 8 * 4;
        size_t step = (size_t)n_blocks * THREADS * sizeof(float4);
        size_t bytes = std::max(step, std::min<size_t>(size_t{1} << 30, free_bytes / 8) / step * step);
        cuda_check(cudaMalloc(&memory, bytes), "cudaMalloc");
        cuda_check(cudaMemset(memory, 0, bytes), "cudaMemset");
        count = bytes / sizeof(float4);
        // A trainer's thread that waits does not take a core.
        for (cudaEvent_t &event : events)
            cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                       "cudaEventCreateWithFlags");
    }

    void launch(unsigned rounds) {
        kernel<<<n_blocks, THREADS, 0, stream>>>(memory, count, rounds);
        cuda_check(cudaGetLastError(), "the launch of a kernel");
    }

    // Of one kernel, of `n` in a row.
    int64_t time_ns(unsigned rounds, unsigned n) {
        int64_t start = bench_now_ns();
        for (unsigned i = 0; i < n; i++)
            launch(rounds);
        cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        return std::max<int64_t>(1, (bench_now_ns() - start) / n);
    }

    void run() {
        try {
            cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
            for (uint64_t k = 0; !stopping; k++) {
                if (k >= QUEUED) {
                    cuda_check(cudaEventSynchronize(events[k % QUEUED]), "cudaEventSynchronize");
                    std::lock_guard<std::mutex> hold(lock);
                    latest = LoadSample{k - QUEUED + 1, bench_now_ns()};
                }
                launch(n_rounds);
                cuda_check(cudaEventRecord(events[k % QUEUED], stream), "cudaEventRecord");
            }
            cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        } catch (const Failure &failure) {
            why = failure.what();
            has_ended = true;
        }
    }

    static constexpr unsigned THREADS = 256;
    int ordinal;
    cudaStream_t stream = nullptr;
    cudaEvent_t events[QUEUED] = {};
    float4 *memory = nullptr;
    size_t count = 0;
    unsigned n_blocks = 0, n_rounds = 0, n_rounds_compute = 0, n_rounds_memory = 0;
    void (*kernel)(float4 *, size_t, unsigned) = nullptr;
    std::thread thread;
    std::atomic<bool> stopping{false}, has_ended{false};
    std::mutex lock;
    LoadSample latest{0, 0};
    std::string why; // it ended early, once has_ended says so
};

#endif
