// gpu_nccl.h - the peer of `make bench-gpu`: NCCL inside the trainer
//
// Its library is loaded when it is asked for: it is large, and need not be there. Where its header was not there either
// when this was built, it cannot be asked for.
#ifndef BENCH_GPU_NCCL_H
#define BENCH_GPU_NCCL_H

#include "gpu_exchange.h"

#if __has_include(<nccl.h>)

#include <dlfcn.h>
#include <nccl.h>

static_assert(sizeof(ncclUniqueId) == ID_BYTES, "an id fits");

class Nccl : public Exchange {
  public:
    Nccl(const Device &device, uint64_t capacity_bytes) : Exchange(device, capacity_bytes) {
        void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr)
            fail("NCCL cannot be loaded: %s", dlerror());
        find(library, "ncclGetVersion", get_version);
        find(library, "ncclGetUniqueId", get_unique_id);
        find(library, "ncclCommInitRank", comm_init_rank);
        find(library, "ncclCommGetAsyncError", comm_get_async_error);
        find(library, "ncclAllReduce", all_reduce);
        find(library, "ncclGetErrorString", get_error_string);
    }

    void make_id(unsigned char *id) override {
        ncclUniqueId made;
        check(get_unique_id(&made), "ncclGetUniqueId");
        memcpy(id, &made, ID_BYTES);
    }
    void join(const unsigned char *id, const Meet &meet) override {
        ncclUniqueId given;
        memcpy(&given, id, ID_BYTES);
        check(comm_init_rank(&comm, (int)meet.n_ranks, given, (int)meet.rank), "ncclCommInitRank");
    }
    std::string describe() const override {
        int version = 0;
        check(get_version(&version), "ncclGetVersion");
        return "\"version\": \"" + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
               std::to_string(version % 100) + "\"";
    }

    void submit(unsigned bucket) override {
        void *data = reinterpret_cast<void *>(at(bucket));
        check(all_reduce(data, data, bucket_bytes / sizeof(float), ncclFloat, ncclAvg, comm, stream), "ncclAllReduce");
    }
    void await(unsigned) override {} // it ran on the stream itself
    void forget() override {}
    void trust() override {
        ncclResult_t later = ncclSuccess;
        check(comm_get_async_error(comm, &later), "ncclCommGetAsyncError");
        check(later, "NCCL, asynchronously");
    }

  protected:
    void declare_buckets(unsigned) override {}

  private:
    template <typename Function> static void find(void *library, const char *name, Function &function_out) {
        function_out = reinterpret_cast<Function>(dlsym(library, name));
        if (function_out == nullptr)
            fail("NCCL has no %s", name);
    }
    void check(ncclResult_t result, const char *call) const {
        if (result != ncclSuccess)
            fail("%s: %s", call, get_error_string(result));
    }

    decltype(&ncclGetVersion) get_version = nullptr;
    decltype(&ncclGetUniqueId) get_unique_id = nullptr;
    decltype(&ncclCommInitRank) comm_init_rank = nullptr;
    decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
    decltype(&ncclAllReduce) all_reduce = nullptr;
    decltype(&ncclGetErrorString) get_error_string = nullptr;
    ncclComm_t comm = nullptr;
};

inline std::unique_ptr<Exchange> nccl_make(const Device &device, uint64_t capacity_bytes) {
    return std::make_unique<Nccl>(device, capacity_bytes);
}

#else

inline std::unique_ptr<Exchange> nccl_make(const Device &, uint64_t) {
    fail("this was built without nccl.h: install libnccl-dev and build again");
}

#endif
#endif
