// gpu_limit.cu - what the links between host and GPUs allow, for `make bench-gpu`
//
// One process copies between pinned memory and all GPUs with their copy engines. A bucket that is reduced on the host
// crosses its GPU's link twice, once each way, and a pipeline does both at once: so what all GPUs reach both ways at
// once is what no exchange through the host can pass. bench/run-gpu sends "copy MS"; the answer has GB/s for each GPU.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "control.h"
#include "gpu_driver.h"

static const unsigned COMMAND_SECONDS = 30;
static const size_t COPY_BYTES = size_t{64} << 20;

static void alarmed(int) {
    static const char text[] = "gpu_limit: copies did not end in time: a GPU hangs\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(3);
}

// One direction of one GPU.
struct Link {
    Link(const Device &device, bool to_device) : device(&device), to_device(to_device), stream(device.stream()) {
        memory = device.memory(COPY_BYTES);
        cu_check(cuMemHostAlloc(&host, COPY_BYTES, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
        memset(host, 1, COPY_BYTES);
    }

    void copy() const {
        if (to_device)
            cu_check(cuMemcpyHtoDAsync(memory, host, COPY_BYTES, stream), "cuMemcpyHtoDAsync");
        else
            cu_check(cuMemcpyDtoHAsync(host, memory, COPY_BYTES, stream), "cuMemcpyDtoHAsync");
    }

    const Device *device;
    bool to_device;
    CUstream stream;
    CUdeviceptr memory = 0;
    void *host = nullptr;
};

// Copies on all `links` at once for about `ms`: GB/s of each, all waiting for the slowest.
static double measure(const std::vector<const Link *> &links, int64_t ms, uint64_t &n_bytes) {
    int64_t start = bench_now_ns(), now = start;
    unsigned n_copies = 0;
    do {
        for (int i = 0; i < 4; i++)
            for (const Link *link : links) {
                link->device->use();
                link->copy();
            }
        for (const Link *link : links) {
            link->device->use();
            cu_check(cuStreamSynchronize(link->stream), "cuStreamSynchronize");
        }
        n_copies += 4;
        now = bench_now_ns();
    } while (now - start < ms * 1000000);
    n_bytes += (uint64_t)n_copies * COPY_BYTES * links.size();
    return (double)n_copies * COPY_BYTES / (double)(now - start);
}

static std::string copy_all(const std::vector<Link> &links, int64_t ms) {
    std::vector<const Link *> out, in, both;
    uint64_t n_bytes = 0; // of all copies together, in both directions
    char text[160];
    for (const Link &link : links) {
        (link.to_device ? in : out).push_back(&link);
        both.push_back(&link);
    }
    measure(both, 1, n_bytes);
    double both_gbps = measure(both, ms, n_bytes);
    double out_gbps = measure(out, ms, n_bytes), in_gbps = measure(in, ms, n_bytes);
    snprintf(text, sizeof text, "{\"both_gbps\": %.3f, \"out_gbps\": %.3f, \"in_gbps\": %.3f, \"bytes\": %llu}",
             both_gbps, out_gbps, in_gbps, (unsigned long long)n_bytes);
    return text;
}

static void run(bench_control_t *control) {
    alarm(COMMAND_SECONDS);
    driver_start();
    int count = device_count();
    std::string hello = "[";
    std::vector<Device> devices;
    std::vector<Link> links;
    devices.reserve((size_t)count);
    for (int i = 0; i < count; i++) {
        devices.emplace_back(i);
        links.emplace_back(devices.back(), false);
        links.emplace_back(devices.back(), true);
        hello += (i > 0 ? ", " : "") + device_text(i);
    }
    if (bench_hello(control, 0, (hello + "]").c_str()) != 0)
        return;
    alarm(0);
    char line[64];
    long ms = 0;
    while (fgets(line, sizeof line, control->in) != nullptr && sscanf(line, "copy %ld", &ms) == 1) {
        alarm(COMMAND_SECONDS);
        fprintf(control->out, "ok %s\n", copy_all(links, ms).c_str());
        alarm(0);
        if (fflush(control->out) != 0)
            return;
    }
}

int main(int argc, char **argv) {
    bench_control_t control;
    if (argc != 2) {
        fprintf(stderr, "usage: gpu_limit CONTROL-SOCKET (started by bench/run-gpu)\n");
        return 2;
    }
    signal(SIGALRM, alarmed);
    if (bench_connect(argv[1], &control) != 0)
        return 1;
    try {
        run(&control);
    } catch (const std::exception &why) {
        fprintf(control.out, "error %s\n", why.what());
        fflush(control.out);
        fprintf(stderr, "gpu_limit: %s\n", why.what());
        _exit(1);
    }
    return 0;
}
