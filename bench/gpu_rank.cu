// gpu_rank.cu - one rank of gradwire or of NCCL for `make bench-gpu`
//
// bench/run-gpu starts the ranks of each peer and has them measured in turn. In between a rank sleeps in a read of its
// control socket; its GPU has nothing to do then. Each line goes to all ranks of a peer, and each rank answers with
// "ok" and a JSON object, or "error" and a text, after which it ends.
//
//   id HEX                       joins the group; rank 0 made the id and gave it with its hello
//   load none|compute|memory     stops or starts kernels beside the exchange (gpu_load.cuh)
//   time BYTES COUNT             COUNT operations one at a time: enqueued, then synchronised with, each timed alone
//   flow BYTES N MS RATE         N buckets in flight, back to back for MS ms; RATE limits bytes a second, 0: not.
//                                BYTES 0: no exchange; only the load is counted
//   check BYTES SEED             one operation on random values, and how many results are wrong (gpu_check.h)
//
// No command may hang: the ranks' meetings end after a time, and an alarm ends the process if the GPU does not answer.
#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "gpu_check.h"
#include "gpu_exchange.h"
#include "gpu_load.cuh"
#include "gpu_meet.h"
#include "gpu_nccl.h"

static const unsigned START_SECONDS = 50;   // until the group is joined; NCCL takes its time
static const unsigned COMMAND_SECONDS = 20; // longer than the daemon's deadline, whose error says more
static const unsigned SKIPPED = 3;          // operations that align the ranks and are not timed
static const unsigned DEPTH = 16;           // operations that a flow enqueues ahead of the GPU
static const int64_t SETTLE_MS = 50;        // of a flow before it counts

static void alarmed(int) {
    static const char text[] = "gpu_rank: a command did not end in time: the GPU or another rank hangs\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(3);
}

static void sleep_until(int64_t at_ns) {
    struct timespec at = {(time_t)(at_ns / 1000000000), (long)(at_ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

// Operations back to back. At most DEPTH are enqueued that the GPU has not come to, so the ranks stop together: an
// operation ends only when rank 0 has submitted it, hence nobody is further ahead of rank 0 than DEPTH and the buckets.
class Flow {
  public:
    Flow(Exchange &exchange, Meet &meet, Load &load) : exchange(exchange), meet(meet), load(load) {
        for (CUevent &event : events)
            cu_check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC), "cuEventCreate");
    }
    ~Flow() {
        for (CUevent event : events)
            cuEventDestroy(event);
    }

    std::string run(uint64_t bytes, unsigned n_buckets, int64_t ms, double bytes_per_s) {
        double gap_ns = bytes_per_s > 0.0 ? (double)bytes * 1e9 / bytes_per_s : 0.0;
        exchange.declare(bytes, n_buckets);
        meet.begin();
        int64_t begin = bench_now_ns();
        double next_ns = (double)begin;
        while (n_submitted < meet.stops_after()) {
            if (gap_ns > 0.0) {
                next_ns = std::max(next_ns + gap_ns, (double)bench_now_ns() - DEPTH * gap_ns);
                sleep_until((int64_t)next_ns);
            }
            step(n_buckets);
            look(bench_now_ns() - begin, ms, n_buckets);
        }
        for (unsigned i = 0; i < n_buckets; i++)
            exchange.await((unsigned)((n_submitted + i) % n_buckets));
        exchange.synchronize();
        exchange.trust();
        exchange.forget();
        return answer(n_ended_last - n_ended_first, last_ns - first_ns);
    }

    // Only the load.
    std::string rest(int64_t ms) {
        meet.barrier();
        int64_t begin = bench_now_ns();
        from = load.sample();
        sleep_until(begin + ms * 1000000);
        to = load.sample();
        return answer(0, bench_now_ns() - begin);
    }

  private:
    // "ops" ended in "ns", which the kernels were counted in; "all" were done.
    std::string answer(uint64_t n_operations, int64_t ns) const {
        char text[160];
        snprintf(text, sizeof text,
                 "{\"ops\": %" PRIu64 ", \"ns\": %" PRId64 ", \"all\": %" PRIu64 ", \"kernels_per_s\": %.2f}",
                 n_operations, ns, n_submitted, load_rate(from, to));
        return text;
    }

    void step(unsigned n_buckets) {
        unsigned bucket = (unsigned)(n_submitted % n_buckets);
        if (n_submitted >= n_buckets)
            exchange.await(bucket);
        exchange.submit(bucket);
        cu_check(cuEventRecord(events[n_submitted % DEPTH], exchange.stream), "cuEventRecord");
        n_submitted++;
        if (n_submitted - n_ended == DEPTH) {
            cu_check(cuEventSynchronize(events[n_ended % DEPTH]), "cuEventSynchronize");
            n_ended++;
        }
    }

    // Notes where counting begins and ends; rank 0 then says where all stop.
    void look(int64_t elapsed_ns, int64_t ms, unsigned n_buckets) {
        if (first_ns < 0 && n_ended > 0 && elapsed_ns >= SETTLE_MS * 1000000) {
            first_ns = elapsed_ns;
            n_ended_first = n_ended;
            from = load.sample();
        } else if (first_ns >= 0 && last_ns < 0 && elapsed_ns >= first_ns + ms * 1000000) {
            last_ns = elapsed_ns;
            n_ended_last = n_ended;
            to = load.sample();
            if (meet.rank == 0)
                meet.stop_after(n_submitted + DEPTH + n_buckets);
        }
    }

    Exchange &exchange;
    Meet &meet;
    Load &load;
    CUevent events[DEPTH] = {};
    uint64_t n_submitted = 0, n_ended = 0, n_ended_first = 0, n_ended_last = 0;
    int64_t first_ns = -1, last_ns = -1;
    LoadSample from{0, 0}, to{0, 0};
};

class Rank {
  public:
    Rank(Exchange &exchange, Meet &meet, const Device &device) : exchange(exchange), meet(meet), load(device.ordinal) {}

    std::string obey(const char *line) {
        uint64_t bytes = 0;
        unsigned count = 0;
        int64_t ms = 0;
        double rate = 0.0;
        char word[2 * ID_BYTES + 1];
        if (sscanf(line, "id %256s", word) == 1)
            return join(word);
        if (sscanf(line, "load %31s", word) == 1)
            return set_load(word);
        if (sscanf(line, "time %" SCNu64 " %u", &bytes, &count) == 2)
            return time(bytes, count);
        if (sscanf(line, "flow %" SCNu64 " %u %" SCNd64 " %lf", &bytes, &count, &ms, &rate) == 4) {
            Flow flow(exchange, meet, load);
            return bytes == 0 ? flow.rest(ms) : flow.run(bytes, count, ms, rate);
        }
        if (sscanf(line, "check %" SCNu64 " %u", &bytes, &count) == 2)
            return check(bytes, count);
        fail("unknown command: %s", line);
    }

  private:
    std::string join(const char *hex) {
        unsigned char id[ID_BYTES];
        for (size_t i = 0; i < ID_BYTES; i++) {
            unsigned byte = 0;
            if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
                fail("not an id: %s", hex);
            id[i] = (unsigned char)byte;
        }
        exchange.join(id, meet);
        // Ones: an average leaves them as they are, so whatever is timed works on common values.
        cu_check(
            cuMemsetD32Async(exchange.memory, 0x3f800000u, exchange.capacity_bytes / sizeof(float), exchange.stream),
            "cuMemsetD32Async");
        exchange.synchronize();
        return "{" + exchange.describe() + "}";
    }

    std::string set_load(const std::string &kind) {
        load.stop();
        meet.barrier();
        if (kind != "none") {
            meet.in_turn([&] { load.prepare(kind); });
            load.start();
            meet.barrier();
        }
        return "{}";
    }

    std::string time(uint64_t bytes, unsigned count) {
        std::string times = "{\"ns\": [";
        exchange.declare(bytes, 1);
        meet.barrier();
        for (unsigned k = 0; k < SKIPPED + count; k++) {
            int64_t start = bench_now_ns();
            exchange.submit(0);
            exchange.await(0);
            exchange.synchronize();
            int64_t ns = bench_now_ns() - start;
            if (k >= SKIPPED)
                times += (k > SKIPPED ? ", " : "") + std::to_string(ns);
        }
        exchange.trust();
        exchange.forget();
        return times + "]}";
    }

    // Copies are enqueued on the stream of the exchange: its order is what makes them come before and after.
    void fill(uint64_t bytes, unsigned seed) {
        data.resize(bytes / sizeof(float));
        check_fill(data, seed, meet.rank);
        cu_check(cuMemcpyHtoDAsync(exchange.memory, data.data(), bytes, exchange.stream), "cuMemcpyHtoDAsync");
        exchange.synchronize();
    }

    std::string check(uint64_t bytes, unsigned seed) {
        exchange.declare(bytes, 1);
        fill(bytes, seed);
        exchange.submit(0);
        exchange.await(0);
        cu_check(cuMemcpyDtoHAsync(data.data(), exchange.memory, bytes, exchange.stream), "cuMemcpyDtoHAsync");
        exchange.synchronize();
        exchange.trust();
        exchange.forget();
        CheckResult result = check_average(data, seed, meet.n_ranks);
        char text[96];
        snprintf(text, sizeof text, "{\"wrong\": %" PRIu64 ", \"digest\": \"%016" PRIx64 "\"}", result.n_wrong,
                 result.digest);
        return text;
    }

    Exchange &exchange;
    Meet &meet;
    Load load;
    std::vector<float> data;
};

static void serve(bench_control_t *control, Rank &rank) {
    char line[512];
    while (fgets(line, sizeof line, control->in) != nullptr) {
        alarm(strncmp(line, "id ", 3) == 0 ? START_SECONDS : COMMAND_SECONDS);
        std::string text = rank.obey(line);
        alarm(0);
        if (fprintf(control->out, "ok %s\n", text.c_str()) < 0 || fflush(control->out) != 0)
            return; // run-gpu has gone
    }
}

static std::string hex_of(const unsigned char *id) {
    std::string text;
    char byte[3];
    for (size_t i = 0; i < ID_BYTES; i++) {
        snprintf(byte, sizeof byte, "%02x", id[i]);
        text += byte;
    }
    return text;
}

static void run(bench_control_t *control, char **argv) {
    alarm(START_SECONDS);
    Meet meet(argv[3], (unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]));
    driver_start();
    Device device(atoi(argv[6]));
    uint64_t capacity_bytes = strtoull(argv[7], nullptr, 10);
    std::unique_ptr<Exchange> exchange;
    if (strcmp(argv[1], "gradwire") == 0)
        exchange = std::make_unique<Gradwire>(device, capacity_bytes);
    else
        exchange = nccl_make(device, capacity_bytes);
    std::string hello = "-";
    if (meet.rank == 0) {
        unsigned char id[ID_BYTES];
        exchange->make_id(id);
        hello = hex_of(id);
    }
    if (bench_hello(control, meet.rank, hello.c_str()) != 0)
        return;
    alarm(0);
    Rank rank(*exchange, meet, device);
    serve(control, rank);
}

int main(int argc, char **argv) {
    bench_control_t control;
    if (argc != 8 || (strcmp(argv[1], "gradwire") != 0 && strcmp(argv[1], "nccl") != 0)) {
        fprintf(stderr, "usage: gpu_rank gradwire|nccl CONTROL-SOCKET MEETING-FILE RANKS RANK DEVICE BYTES "
                        "(started by bench/run-gpu)\n");
        return 2;
    }
    signal(SIGALRM, alarmed);
    if (bench_connect(argv[2], &control) != 0)
        return 1;
    try {
        run(&control, argv);
    } catch (const std::exception &why) {
        fprintf(control.out, "error %s\n", why.what());
        fflush(control.out);
        fprintf(stderr, "gpu_rank: %s\n", why.what());
        _exit(1); // a stream may still wait: what would be ended in order waits with it
    }
    return 0;
}
