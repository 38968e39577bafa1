// gpu_exchange.h - what differs between the peers of `make bench-gpu`: gradwire here, NCCL in gpu_nccl.h
//
// Both average fp32 in place, on memory of cudaMalloc's kind, on the same stream of the highest priority. A measured
// size uses one or more buckets, which lie in that memory one after another.
#ifndef BENCH_GPU_EXCHANGE_H
#define BENCH_GPU_EXCHANGE_H

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu_driver.h"
#include "gpu_meet.h"
#include "gradwire.h"

constexpr size_t ID_BYTES = 128; // of gradwire and of NCCL
static_assert(sizeof(gw_unique_id_t) == ID_BYTES, "an id fits");

class Exchange {
  public:
    Exchange(const Device &device, uint64_t capacity_bytes)
        : stream(device.stream()), memory(device.memory(capacity_bytes)), capacity_bytes(capacity_bytes) {}
    virtual ~Exchange() = default;

    virtual void make_id(unsigned char *id) = 0; // on rank 0
    virtual void join(const unsigned char *id, const Meet &meet) = 0;
    virtual std::string describe() const = 0; // members of a JSON object

    void declare(uint64_t bytes, unsigned n_buckets) {
        if (bytes * n_buckets > capacity_bytes)
            fail("%u buckets of %llu bytes do not fit into %llu", n_buckets, (unsigned long long)bytes,
                 (unsigned long long)capacity_bytes);
        bucket_bytes = bytes;
        declare_buckets(n_buckets);
    }
    virtual void submit(unsigned bucket) = 0;
    virtual void await(unsigned bucket) = 0; // the stream sees the result of what was submitted last
    virtual void forget() = 0;               // the buckets, after the stream has come to its end
    virtual void trust() = 0;                // throws if an operation went wrong

    void synchronize() const { cu_check(cuStreamSynchronize(stream), "cuStreamSynchronize"); }

    CUstream stream;
    CUdeviceptr memory;
    uint64_t capacity_bytes;

  protected:
    virtual void declare_buckets(unsigned n_buckets) = 0;
    CUdeviceptr at(unsigned bucket) const { return memory + bucket * bucket_bytes; }
    uint64_t bucket_bytes = 0;
};

class Gradwire : public Exchange {
  public:
    Gradwire(const Device &device, uint64_t capacity_bytes) : Exchange(device, capacity_bytes) {
        gw_options_t options = GW_OPTIONS_INIT;
        options.client_name = "bench";
        check(gw_connect(&options, &context));
        check(gw_buffer_register(context, reinterpret_cast<void *>(memory), capacity_bytes, &buffer));
    }
    ~Gradwire() override {
        gw_group_free(group);
        gw_disconnect(context);
    }

    void make_id(unsigned char *id) override {
        gw_unique_id_t made;
        check(gw_get_unique_id(context, &made));
        memcpy(id, made.bytes, ID_BYTES);
    }
    void join(const unsigned char *id, const Meet &meet) override {
        gw_unique_id_t given;
        memcpy(given.bytes, id, ID_BYTES);
        check(gw_group_init(context, &given, (int)meet.n_ranks, (int)meet.rank, &group));
    }
    std::string describe() const override {
        return std::string("\"path\": \"") + gw_buffer_path(buffer) + "\", \"version\": \"" + gw_version() + "\"";
    }

    void submit(unsigned bucket) override { check(gw_submit(buckets[bucket], stream, &operations[bucket])); }
    void await(unsigned bucket) override { check(gw_stream_wait(group, operations[bucket], stream)); }
    void forget() override {
        for (gw_bucket_t *bucket : buckets)
            check(gw_bucket_free(bucket));
        buckets.clear();
    }
    void trust() override {
        gw_report_t report;
        if (gw_group_check(group, &report) != GW_OK)
            fail("the group has failed: %s", report.message);
    }

  protected:
    void declare_buckets(unsigned n_buckets) override {
        operations.assign(n_buckets, 0);
        for (unsigned i = 0; i < n_buckets; i++) {
            std::string name = "bench " + std::to_string(i);
            gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
            gw_bucket_t *made = nullptr;
            desc.name = name.c_str();
            desc.redop = GW_AVG;
            desc.count = bucket_bytes / sizeof(float);
            desc.recv = reinterpret_cast<void *>(at(i));
            desc.send = desc.recv;
            check(gw_bucket_create(group, &desc, &made));
            buckets.push_back(made);
        }
    }

  private:
    static void check(gw_status_t status) {
        if (status != GW_OK)
            fail("%s", gw_last_error());
    }

    gw_context_t *context = nullptr;
    gw_buffer_t *buffer = nullptr;
    gw_group_t *group = nullptr;
    std::vector<gw_bucket_t *> buckets;
    std::vector<gw_op_t> operations;
};

#endif
