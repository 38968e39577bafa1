/* trainer.cu - a trainer with kernels, for the tests on a GPU
 *
 *   trainer RANK NRANKS ID_FILE buckets COUNT SEED   averages COUNT buckets of mixed sizes, types and operations
 *   trainer RANK NRANKS ID_FILE load STEPS           averages large and small buckets while the GPU is full of work
 *   trainer RANK NRANKS ID_FILE hold STEPS           the same; then rank 0 waits for a bucket that no other submits
 *
 * Kernels make every input on one stream and check every result on another, element by element against a closed form in
 * whole numbers, which every type and operation here gives exactly. What it prints is for tests/gpu/\*.py: a word, the
 * time (CLOCK_MONOTONIC, seconds), and figures. GW_TEST_MEMORY=device:N or the rank chooses the device.
 */
#include <cuda_runtime.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

#include "gradwire.h"

namespace {

enum { SLOTS = 8, SHAPES = 12, HUGE_EVERY = 500, BURNS = 4, FREED_WITHIN_MS = 5000, LIFE_S = 180 };
const uint64_t SLOT_BYTES = 4u << 20, HUGE_BYTES = 64u << 20, LEAST_BYTES = 4096;

int rank, nranks;
gw_context_t *context;
gw_group_t *group;
cudaStream_t in_stream, out_stream, burn_stream;
unsigned long long *wrong; /* of the device: elements that were not what they must be */

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

void say(const char *word, const char *more) {
    printf("%s %.6f %s\n", word, now(), more);
    fflush(stdout);
}

void cuda(cudaError_t result, const char *call) {
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "trainer: rank %d: %s: %s\n", rank, call, cudaGetErrorString(result));
    exit(3);
}
#define CUDA(call) cuda((call), #call)

void must(gw_status_t status, const char *call) {
    if (status == GW_OK)
        return;
    fprintf(stderr, "trainer: rank %d: %s: %s\n", rank, call, gw_last_error());
    exit(2);
}
#define MUST(call) must((call), #call)

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- kernels ------------------------------------------------------------------------------------ */

/* A whole number below 2^12 for an element of a bucket; rank r has r more, so that every result is known. */
__device__ unsigned base_of(uint64_t i, unsigned seed) {
    return unsigned((i * 2654435761u + seed) >> 7) & 0xfff;
}

__device__ double result_of(double base, int n, gw_redop_t op) {
    double ranks = double(n) * (n - 1) / 2;

    switch (op) {
    case GW_SUM:
        return n * base + ranks;
    case GW_AVG: /* of whole numbers, half to even, if the type has no halves: those are not used */
        return base + ranks / n;
    case GW_MIN:
        return base;
    default:
        return base + (n - 1);
    }
}

template <typename T> __global__ void make(T *at, uint64_t count, unsigned seed, int r) {
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < count; i += uint64_t(gridDim.x) * blockDim.x)
        at[i] = T(base_of(i, seed) + unsigned(r));
}

template <typename T> __global__ void check(const T *at, uint64_t count, unsigned seed, int n, gw_redop_t op,
                                            unsigned long long *wrong_out) {
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < count; i += uint64_t(gridDim.x) * blockDim.x)
        if (at[i] != T(result_of(base_of(i, seed), n, op)))
            atomicAdd(wrong_out, 1ull);
}

__global__ void burn(float *out, int rounds) {
    float a = threadIdx.x * 1e-3f, b = 1.0001f, c = blockIdx.x * 1e-4f, d = .5f;

    for (int i = 0; i < rounds; i++) {
        a = a * b + c;
        d = d * b + a;
        c = c * b + d;
    }
    if (a + d + c == 12345.f)
        out[0] = a;
}

void launch_make(gw_type_t type, void *at, uint64_t count, unsigned seed, cudaStream_t stream) {
    unsigned blocks = unsigned(count / 256 < 1056 ? count / 256 + 1 : 1056);

    if (type == GW_F32)
        make<<<blocks, 256, 0, stream>>>(static_cast<float *>(at), count, seed, rank);
    else if (type == GW_F64)
        make<<<blocks, 256, 0, stream>>>(static_cast<double *>(at), count, seed, rank);
    else if (type == GW_I32)
        make<<<blocks, 256, 0, stream>>>(static_cast<int32_t *>(at), count, seed, rank);
    else
        make<<<blocks, 256, 0, stream>>>(static_cast<long long *>(at), count, seed, rank);
    CUDA(cudaGetLastError());
}

void launch_check(gw_type_t type, const void *at, uint64_t count, unsigned seed, gw_redop_t op, cudaStream_t stream) {
    unsigned blocks = unsigned(count / 256 < 1056 ? count / 256 + 1 : 1056);

    if (type == GW_F32)
        check<<<blocks, 256, 0, stream>>>(static_cast<const float *>(at), count, seed, nranks, op, wrong);
    else if (type == GW_F64)
        check<<<blocks, 256, 0, stream>>>(static_cast<const double *>(at), count, seed, nranks, op, wrong);
    else if (type == GW_I32)
        check<<<blocks, 256, 0, stream>>>(static_cast<const int32_t *>(at), count, seed, nranks, op, wrong);
    else
        check<<<blocks, 256, 0, stream>>>(static_cast<const long long *>(at), count, seed, nranks, op, wrong);
    CUDA(cudaGetLastError());
}

unsigned long long count_wrong() {
    unsigned long long value = 0;

    CUDA(cudaMemcpyAsync(&value, wrong, sizeof(value), cudaMemcpyDeviceToHost, out_stream));
    CUDA(cudaStreamSynchronize(out_stream));
    return value;
}

/* ---- buckets ------------------------------------------------------------------------------------ */

struct shape {
    gw_bucket_t *bucket;
    void *at;
    uint64_t count;
    gw_type_t type;
    gw_redop_t op;
};

/* Sizes are spread evenly over the orders of magnitude, and not round. The same on all ranks. */
shape declare(void *at, uint64_t bytes, uint64_t random) {
    static const gw_type_t types[] = {GW_F32, GW_F32, GW_F64, GW_I32, GW_I64};
    static const gw_redop_t ops[] = {GW_SUM, GW_AVG, GW_MIN, GW_MAX};
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    shape s;

    s.at = at;
    s.type = types[random % 5];
    s.op = ops[random / 5 % (s.type == GW_F32 || s.type == GW_F64 ? 4 : 1)];
    if (s.op == GW_AVG && (nranks & (nranks - 1)) != 0)
        s.op = GW_SUM; /* only then is the average exact */
    s.count = bytes / gw_type_bytes(s.type);
    desc.name = "bucket";
    desc.type = s.type;
    desc.redop = s.op;
    desc.count = s.count;
    desc.send = desc.recv = at;
    MUST(gw_bucket_create(group, &desc, &s.bucket));
    return s;
}

uint64_t bytes_of(uint64_t random) {
    uint64_t bytes = LEAST_BYTES << random % 10;

    return bytes + (random >> 8) % bytes / 8 * 8;
}

struct slot {
    shape shapes[SHAPES];
    cudaEvent_t checked;
    char *memory;
};

uint64_t resident_kib() {
    char line[128];
    uint64_t kib = 0;
    FILE *status = fopen("/proc/self/status", "re");

    while (status && fgets(line, sizeof(line), status))
        if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

void say_progress(const char *word, uint64_t done) {
    size_t available, total;
    char text[160];

    CUDA(cudaMemGetInfo(&available, &total));
    snprintf(text, sizeof(text), "%" PRIu64 " wrong %llu rss_kib %" PRIu64 " free_mib %zu", done, count_wrong(),
             resident_kib(), available >> 20);
    say(word, text);
}

/* One bucket: made when the slot's last result has been checked, reduced, and checked behind it. */
void do_bucket(slot *s, const shape *shape, unsigned seed, bool flip) {
    gw_op_t op;

    CUDA(cudaStreamWaitEvent(in_stream, s->checked, 0));
    launch_make(shape->type, shape->at, shape->count, seed, in_stream);
    if (flip)
        CUDA(cudaMemsetAsync(static_cast<char *>(shape->at) + (shape->count - 1) * gw_type_bytes(shape->type), 0x7f,
                             gw_type_bytes(shape->type), in_stream));
    MUST(gw_submit(shape->bucket, in_stream, &op));
    MUST(gw_stream_wait(group, op, out_stream));
    launch_check(shape->type, shape->at, shape->count, seed, shape->op, out_stream);
    CUDA(cudaEventRecord(s->checked, out_stream));
}

int do_buckets(uint64_t n, uint64_t seed) {
    const bool flip = rank == 0 && getenv("GW_TEST_FLIP") != NULL;
    gw_buffer_t *buffer;
    slot slots[SLOTS];
    char *memory;
    shape huge;

    CUDA(cudaMalloc(&memory, SLOTS * SLOT_BYTES + HUGE_BYTES));
    MUST(gw_buffer_register(context, memory, SLOTS * SLOT_BYTES + HUGE_BYTES, &buffer));
    say("PATH", gw_buffer_path(buffer));
    for (int i = 0; i < SLOTS; i++) {
        slots[i].memory = memory + i * SLOT_BYTES;
        CUDA(cudaEventCreateWithFlags(&slots[i].checked, cudaEventDisableTiming));
        for (int k = 0; k < SHAPES; k++)
            slots[i].shapes[k] = declare(slots[i].memory, bytes_of(mix(seed + uint64_t(i * SHAPES + k))), mix(seed ^ k) >> 3);
    }
    huge = declare(memory + SLOTS * SLOT_BYTES, HUGE_BYTES, 0);
    for (uint64_t i = 0; i < n; i++) {
        slot *s = &slots[i % SLOTS];
        uint64_t random = mix(seed + i);
        shape *chosen = i % HUGE_EVERY == HUGE_EVERY - 1 ? &huge : &s->shapes[random % SHAPES];

        if (i % 1000 == 999) { /* and some are declared anew */
            CUDA(cudaStreamSynchronize(out_stream));
            MUST(gw_bucket_free(s->shapes[0].bucket));
            s->shapes[0] = declare(s->memory, bytes_of(random >> 5), random >> 20);
        }
        do_bucket(s, chosen, unsigned(random), flip && i == n / 2);
        if (n >= 20 && (i + 1) % (n / 20) == 0)
            say_progress("PROGRESS", i + 1);
    }
    CUDA(cudaStreamSynchronize(out_stream));
    MUST(gw_group_check(group, NULL));
    say_progress("DONE", n);
    return count_wrong() != 0;
}

/* ---- under load --------------------------------------------------------------------------------- */

/* How many rounds of burn take 1 ms. */
int calibrate(float *out) {
    const int rounds = 2000;
    double begin;

    burn<<<132 * 8, 256, 0, burn_stream>>>(out, rounds);
    CUDA(cudaStreamSynchronize(burn_stream));
    begin = now();
    burn<<<132 * 8, 256, 0, burn_stream>>>(out, rounds);
    CUDA(cudaStreamSynchronize(burn_stream));
    return int(rounds * 1e-3 / (now() - begin)) + 1;
}

/* Keeps some kernels queued. */
void keep_busy(float *out, int rounds) {
    static cudaEvent_t ends[BURNS];
    static uint64_t n;

    for (;;) {
        cudaEvent_t *end = &ends[n % BURNS];

        if (!*end)
            CUDA(cudaEventCreateWithFlags(end, cudaEventDisableTiming));
        else if (cudaEventQuery(*end) == cudaErrorNotReady)
            return;
        burn<<<132 * 8, 256, 0, burn_stream>>>(out, rounds);
        CUDA(cudaEventRecord(*end, burn_stream));
        n++;
    }
}

/* What is left to show when the group has failed: streams come free, and the GPU goes on. */
int bury(gw_status_t status, float *out, int rounds) {
    const double deadline = now() + FREED_WITHIN_MS * 1e-3;
    char text[1200];
    shape probe = {NULL, NULL, 0, GW_F32, GW_MIN};
    unsigned long long before;

    snprintf(text, sizeof(text), "%s %s", gw_status_name(status), gw_last_error());
    for (char *c = text; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    say("FAILED", text);
    while (cudaStreamQuery(out_stream) == cudaErrorNotReady || cudaStreamQuery(in_stream) == cudaErrorNotReady)
        if (now() > deadline)
            return say("STUCK", "a stream still waits"), 1;
        else
            usleep(200);
    say("FREED", "");
    before = count_wrong();
    burn<<<132 * 8, 256, 0, burn_stream>>>(out, rounds);
    CUDA(cudaStreamSynchronize(burn_stream));
    CUDA(cudaMalloc(&probe.at, 1 << 20));
    launch_make(GW_F32, probe.at, 1 << 18, 7, out_stream);
    CUDA(cudaMemsetAsync(probe.at, 0x7f, 4, out_stream)); /* one wrong element, and the check sees it */
    launch_check(GW_F32, probe.at, 1 << 18, 7, GW_MIN, out_stream);
    if (count_wrong() == before)
        return say("BLIND", "the check saw no difference"), 1;
    CUDA(cudaDeviceSynchronize());
    say("USABLE", "");
    return 0;
}

int do_load(uint64_t n, bool hold) {
    gw_buffer_t *buffer;
    shape large, little;
    uint64_t steps = 0;
    gw_status_t status = GW_OK;
    char *memory;
    float *out;
    int rounds;

    CUDA(cudaMalloc(&out, 4096));
    rounds = calibrate(out);
    CUDA(cudaMalloc(&memory, HUGE_BYTES + 65536));
    MUST(gw_buffer_register(context, memory, HUGE_BYTES + 65536, &buffer));
    say("PATH", gw_buffer_path(buffer));
    large = declare(memory, HUGE_BYTES, 0);
    little = declare(memory + HUGE_BYTES, 65536, 0);
    for (; status == GW_OK && steps < n; steps++) {
        gw_op_t op[2];

        keep_busy(out, rounds);
        launch_make(large.type, large.at, large.count, unsigned(steps), in_stream);
        launch_make(little.type, little.at, little.count, unsigned(steps), in_stream);
        status = gw_submit(large.bucket, in_stream, &op[0]);
        if (status == GW_OK)
            status = gw_submit(little.bucket, in_stream, &op[1]);
        for (int i = 0; i < 2 && status == GW_OK; i++)
            status = gw_stream_wait(group, op[i], out_stream);
        if (status != GW_OK)
            break;
        launch_check(large.type, large.at, large.count, unsigned(steps), large.op, out_stream);
        launch_check(little.type, little.at, little.count, unsigned(steps), little.op, out_stream);
        while (cudaStreamQuery(out_stream) == cudaErrorNotReady) /* as a trainer, whose CPU is free meanwhile */
            keep_busy(out, rounds);
        status = gw_group_check(group, NULL);
        if (status == GW_OK && count_wrong() != 0)
            return say("WRONG", ""), 1;
        if (steps == 10)
            say("READY", "");
    }
    if (hold && status == GW_OK) {
        gw_op_t op;

        if (rank == 0) {
            MUST(gw_submit(large.bucket, in_stream, &op));
            MUST(gw_stream_wait(group, op, out_stream));
            MUST(gw_stream_wait(group, op, in_stream));
        }
        say("HOLDING", "");
        while ((status = gw_group_check(group, NULL)) == GW_OK)
            keep_busy(out, rounds), usleep(200);
    }
    if (status != GW_OK)
        return bury(status, out, rounds);
    say("DONE", "");
    return 0;
}

void meet(const char *path) {
    gw_unique_id_t id;

    if (rank == 0) {
        char draft[4096];
        FILE *file;

        snprintf(draft, sizeof(draft), "%s.new", path);
        MUST(gw_get_unique_id(context, &id));
        file = fopen(draft, "we");
        if (!file || fwrite(&id, sizeof(id), 1, file) != 1 || fclose(file) != 0 || rename(draft, path) != 0)
            perror(path), exit(2);
    } else {
        int fd;

        for (int tries = 0; (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0; tries++)
            if (tries == 30000)
                fprintf(stderr, "trainer: rank 0 has not come\n"), exit(2);
            else
                usleep(1000);
        if (read(fd, &id, sizeof(id)) != sizeof(id))
            perror(path), exit(2);
        close(fd);
    }
    MUST(gw_group_init(context, &id, nranks, rank, &group));
}

} // namespace

int main(int argc, char **argv) {
    int n_devices = 0, result;

    if (argc < 6 || (argc < 7 && strcmp(argv[4], "buckets") == 0))
        return fprintf(stderr, "usage: trainer RANK NRANKS ID_FILE buckets COUNT SEED | load STEPS | hold STEPS\n"), 2;
    alarm(LIFE_S); /* whatever happens */
    rank = atoi(argv[1]);
    nranks = atoi(argv[2]);
    CUDA(cudaGetDeviceCount(&n_devices));
    CUDA(cudaSetDevice((getenv("GW_TEST_DEVICE") ? atoi(getenv("GW_TEST_DEVICE")) : rank) % n_devices));
    CUDA(cudaStreamCreateWithFlags(&in_stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&out_stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&burn_stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&wrong, sizeof(*wrong)));
    CUDA(cudaMemset(wrong, 0, sizeof(*wrong)));
    MUST(gw_connect(NULL, &context));
    meet(argv[3]);
    if (strcmp(argv[4], "buckets") == 0)
        result = do_buckets(strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10));
    else
        result = do_load(strtoull(argv[5], NULL, 10), strcmp(argv[4], "hold") == 0);
    gw_disconnect(context);
    return result;
}
