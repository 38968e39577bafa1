/* matrix.c - every collective, type and operation, in place and not, against the rules of kernels.h
 *
 *   matrix NRANKS SEED [threads] [flip] [quick] [host|device...] [sockets=PATH,PATH...]
 *
 * One process a rank (or one thread, with `threads`: all on one connection). Every rank knows the inputs of all, works
 * out what must come out bit by bit (plain loops in rank order, in the accumulator's format, one rounding at the
 * end), and compares the whole result, what lies behind it, and its own input. Where it is cheap the result is also
 * held against gw_kernel_reference and its error bound. With `device` (see memory.h) the buckets lie in a device's
 * memory, and everything else is the same. With `flip` rank 0 changes one bit of one input: a test that does not see it
 * is worth nothing. `quick` takes every fourth case. `sockets` names the daemon of each rank, so that several daemons
 * are several nodes: their ranks are combined first, and then the nodes, in the order of their lowest ranks. The last line is "cases N wrong N same digest HEX PATH"; the digest
 * is of all results, and so the same in every run with the same seed. PATH: how the daemon gets at the memory.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels.h"
#include "memory.h"

enum { RANKS_MAX = 8, COUNT_MAX = 70001, GUARD_BYTES = 64, GUARD = 0xa5, WRONG_SHOWN = 10 };

/* 70001 elements are several chunks of any type, 4099 of f32 are just more than a lane reduces itself. */
static const uint64_t counts[] = {0, 1, 7, 1000, 4099, 70001};
enum { N_COUNTS = sizeof(counts) / sizeof(counts[0]) };

typedef struct test_case {
    gw_collective_t collective;
    gw_type_t type;
    gw_redop_t op;
    bool in_place;
    uint64_t count;
    int root;
    uint64_t number;
} test_case_t;

/* What ranks tell each other and the parent. */
typedef struct board {
    _Atomic int has_id;
    gw_unique_id_t id;
    uint64_t cases[RANKS_MAX], wrong[RANKS_MAX], digest[RANKS_MAX];
    char path[RANKS_MAX][16];
} board_t;

static board_t *board;
static int nranks;
static uint64_t seed;
static bool flip, quick;
static char *sockets[RANKS_MAX]; /* NULL: as the environment says */
static int node_of[RANKS_MAX], n_nodes = 1;

static void die(const char *what) {
    fprintf(stderr, "matrix: %s: %s\n", what, gw_last_error());
    exit(2);
}

static void must(gw_status_t status, const char *what) {
    if (status != GW_OK)
        die(what);
}

/* ---- inputs ------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint32_t to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

/* Ordinary numbers mostly; in every third case any bits at all: infinities, NaNs, subnormals, overflow. */
static uint64_t element_bits(gw_type_t type, bool any, uint64_t random) {
    float f = (float)(int32_t)(random >> 40) * 0x1p-20f;
    double d = (double)(int64_t)random * 0x1p-60;
    uint64_t bits = 0;

    if (any || type >= GW_I8)
        return random;
    switch (type) {
    case GW_F64:
        memcpy(&bits, &d, sizeof(bits));
        return bits;
    case GW_F16: /* 2^-3 to 2^4 */
        return (random & 0x83ff) | (12 + (random >> 32) % 8) << 10;
    case GW_BF16:
        return (random & 0x807f) | (124 + (random >> 32) % 8) << 7;
    default:
        return to_bits(f);
    }
}

static void make_input(const test_case_t *c, int rank, unsigned char *at, uint64_t n) {
    size_t bytes = gw_type_bytes(c->type);

    for (uint64_t i = 0; i < n; i++) {
        uint64_t bits =
            element_bits(c->type, c->number % 3 == 0, mix(seed ^ mix(c->number * 64 + (uint64_t)rank) ^ i << 20));

        memcpy(at + i * bytes, &bits, bytes);
    }
}

/* ---- what must come out -------------------------------------------------------------------------- */

static float decode(gw_type_t type, const unsigned char *at) {
    uint32_t f32;
    uint16_t bits;

    if (type == GW_F32) {
        memcpy(&f32, at, sizeof(f32));
        return from_bits(f32);
    }
    memcpy(&bits, at, sizeof(bits));
    if (type == GW_BF16)
        return from_bits((uint32_t)bits << 16);
    if ((bits & 0x7c00) == 0x7c00)
        return from_bits((uint32_t)(bits & 0x8000) << 16 | 0x7f800000 | (uint32_t)(bits & 0x3ff) << 13);
    /* Scaling by 2^112 moves the exponent from one bias to the other, and makes subnormals normal. */
    return from_bits((uint32_t)(bits & 0x8000) << 16 | (uint32_t)(bits & 0x7fff) << 13) * 0x1p112f;
}

static uint16_t encode_f16(float f) {
    uint32_t bits = to_bits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;

    if (magnitude >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* the sum's last place is the subnormals' */
        return (uint16_t)(sign | (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f)));
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

static void encode(gw_type_t type, float f, unsigned char *at) {
    uint32_t bits = to_bits(f);
    uint16_t half;

    if (isnan(f))
        bits = 0x7fc00000;
    if (type == GW_F32) {
        memcpy(at, &bits, sizeof(bits));
        return;
    }
    if (type == GW_F16)
        half = isnan(f) ? 0x7e00 : encode_f16(f);
    else
        half = (uint16_t)(isnan(f) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(at, &half, sizeof(half));
}

/* One text for both widths. */
#define COMBINE(name, real)                                                                                            \
    static real name(gw_redop_t op, real a, real b) {                                                                  \
        if (op == GW_PROD)                                                                                             \
            return a * b;                                                                                              \
        if (op == GW_SUM || op == GW_AVG)                                                                              \
            return a + b;                                                                                              \
        if (isnan(a) || isnan(b))                                                                                      \
            return (real)NAN;                                                                                          \
        if (a == b)                                                                                                    \
            return (op == GW_MIN) == (signbit(a) != 0) ? a : b;                                                        \
        return (op == GW_MIN) == (a < b) ? a : b;                                                                      \
    }
COMBINE(combine_float, float)
COMBINE(combine_double, double)

static void expect_float(const test_case_t *c, unsigned char *const *in, uint64_t i, unsigned char *out) {
    size_t bytes = gw_type_bytes(c->type);
    float value = 0;

    for (int node = 0; node < n_nodes; node++) {
        float part = 0;
        bool any = false;

        for (int r = 0; r < nranks; r++) {
            float next = decode(c->type, in[r] + i * bytes);

            if (node_of[r] != node)
                continue;
            part = any ? combine_float(c->op, part, next) : next;
            any = true;
        }
        value = node > 0 ? combine_float(c->op, value, part) : part;
    }
    encode(c->type, c->op == GW_AVG ? value / (float)nranks : value, out);
}

static void expect_double(const test_case_t *c, unsigned char *const *in, uint64_t i, unsigned char *out) {
    const uint64_t canonical = UINT64_C(0x7ff8000000000000);
    double value = 0, next;

    for (int node = 0; node < n_nodes; node++) {
        double part = 0;
        bool any = false;

        for (int r = 0; r < nranks; r++) {
            if (node_of[r] != node)
                continue;
            memcpy(&next, in[r] + i * sizeof(next), sizeof(next));
            part = any ? combine_double(c->op, part, next) : next;
            any = true;
        }
        value = node > 0 ? combine_double(c->op, value, part) : part;
    }
    if (c->op == GW_AVG)
        value /= nranks;
    memcpy(out, isnan(value) ? (const void *)&canonical : (const void *)&value, sizeof(value));
}

__extension__ typedef __int128 wide_t;

static wide_t decode_integer(gw_type_t type, const unsigned char *at) {
    int64_t value = 0;

    memcpy(&value, at, gw_type_bytes(type));
    if (type == GW_I8)
        return (int8_t)value;
    return type == GW_I32 ? (int32_t)value : value;
}

static wide_t half_even(wide_t sum, int n) {
    wide_t quotient = sum / n, rest = sum % n;

    if (rest < 0) {
        quotient--;
        rest += n;
    }
    return quotient + (2 * rest > n || (2 * rest == n && quotient % 2 != 0));
}

static void expect_integer(const test_case_t *c, unsigned char *const *in, uint64_t i, unsigned char *out) {
    size_t bytes = gw_type_bytes(c->type);
    wide_t value = decode_integer(c->type, in[0] + i * bytes);
    uint64_t bits;

    for (int r = 1; r < nranks; r++) {
        wide_t next = decode_integer(c->type, in[r] + i * bytes);

        if (c->op == GW_PROD)
            value = (wide_t)(uint64_t)((uint64_t)value * (uint64_t)next);
        else if (c->op == GW_SUM || c->op == GW_AVG)
            value += next;
        else
            value = (c->op == GW_MIN) == (value < next) ? value : next;
    }
    bits = (uint64_t)(c->op == GW_AVG ? half_even(value, nranks) : value);
    memcpy(out, &bits, bytes);
}

static bool reduces(gw_collective_t collective) {
    return collective == GW_ALL_REDUCE || collective == GW_REDUCE_SCATTER || collective == GW_REDUCE;
}

/* Elements first to first + n of the reduction of all inputs. */
static void expect_reduced(const test_case_t *c, unsigned char *const *in, uint64_t first, uint64_t n,
                           unsigned char *out) {
    size_t bytes = gw_type_bytes(c->type);

    for (uint64_t i = first; i < first + n; i++, out += bytes) {
        if (nranks == 1)
            memcpy(out, in[0] + i * bytes, bytes);
        else if (c->type == GW_F64)
            expect_double(c, in, i, out);
        else if (c->type >= GW_I8)
            expect_integer(c, in, i, out);
        else
            expect_float(c, in, i, out);
    }
}

static uint64_t send_count(const test_case_t *c) {
    return c->collective == GW_REDUCE_SCATTER ? c->count * (uint64_t)nranks : c->count;
}

static uint64_t recv_count(const test_case_t *c) {
    return c->collective == GW_ALL_GATHER ? c->count * (uint64_t)nranks : c->count;
}

static void expect(const test_case_t *c, int rank, unsigned char *const *in, unsigned char *out) {
    size_t segment = c->count * gw_type_bytes(c->type);

    if (c->collective == GW_BROADCAST)
        memcpy(out, in[c->root], segment);
    else if (c->collective == GW_ALL_GATHER)
        for (int r = 0; r < nranks; r++)
            memcpy(out + (size_t)r * segment, in[r], segment);
    else
        expect_reduced(c, in, c->collective == GW_REDUCE_SCATTER ? (uint64_t)rank * c->count : 0, c->count, out);
}

static bool waits_on_host;

/* ---- one case ------------------------------------------------------------------------------------ */

/* The memory of a rank: its buffer at the daemon, a picture of it that the CPU can read, and what to compare with. */
typedef struct desk {
    int rank;
    gw_group_t *group;
    unsigned char *buffer, *shared, *in[RANKS_MAX], *expected, *reference;
    double *bound;
} desk_t;

static void complain(const desk_t *d, const test_case_t *c, const char *what) {
    if (board->wrong[d->rank]++ < WRONG_SHOWN)
        fprintf(stderr, "rank %d of %d: collective %d type %d op %d count %" PRIu64 " %s root %d: %s\n", d->rank,
                nranks, (int)c->collective, (int)c->type, (int)c->op, c->count, c->in_place ? "in place" : "apart",
                c->root, what);
}

static void submit_and_wait(const desk_t *d, const test_case_t *c, unsigned char *send, unsigned char *recv,
                            size_t bytes) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    gw_bucket_t *bucket;
    gw_op_t op;

    desc.name = "case";
    desc.collective = c->collective;
    desc.type = c->type;
    desc.redop = c->op;
    desc.root = c->root;
    desc.count = c->count;
    desc.send = d->buffer + (send - d->shared);
    desc.recv = d->buffer + (recv - d->shared);
    if (d->shared != d->buffer)
        memory_write(d->buffer, d->shared, bytes);
    must(gw_bucket_create(d->group, &desc, &bucket), "gw_bucket_create");
    must(gw_submit(bucket, memory_queue(), &op), "gw_submit");
    must(waits_on_host ? gw_wait(d->group, op, GW_NO_TIMEOUT) : memory_await(d->group, op, -1), "waiting");
    if (d->shared != d->buffer)
        memory_read(d->shared, d->buffer, bytes);
    must(gw_bucket_free(bucket), "gw_bucket_free");
}

/* Is the result within what the reference allows? For reductions of a few elements. */
static void hold_against_reference(const desk_t *d, const test_case_t *c, const unsigned char *got) {
    gw_kernel_reference(c->type, c->op, (const void *const *)d->in, (unsigned)nranks, d->reference, d->bound, c->count);
    for (uint64_t i = 0; i < c->count; i++) {
        size_t bytes = gw_type_bytes(c->type);
        double a, b;

        if (memcmp(got + i * bytes, d->reference + i * bytes, bytes) == 0)
            continue;
        if (c->type == GW_F64) {
            memcpy(&a, got + i * bytes, bytes);
            memcpy(&b, d->reference + i * bytes, bytes);
        } else {
            a = c->type < GW_I8 ? (double)decode(c->type, got + i * bytes) : 0;
            b = c->type < GW_I8 ? (double)decode(c->type, d->reference + i * bytes) : 1;
        }
        if (isinf(d->bound[i]) || fabs(a - b) <= d->bound[i])
            continue;
        complain(d, c, "further from the exact result than allowed");
        return;
    }
}

static bool is_untouched(const unsigned char *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (at[i] != GUARD)
            return false;
    return true;
}

static void run_case(desk_t *d, const test_case_t *c) {
    size_t bytes = gw_type_bytes(c->type);
    size_t send_bytes = send_count(c) * bytes, recv_bytes = recv_count(c) * bytes;
    size_t whole = send_bytes > recv_bytes ? send_bytes : recv_bytes;
    unsigned char *send = d->shared, *recv = d->shared + whole + GUARD_BYTES, *end;
    bool receives = c->collective != GW_REDUCE || d->rank == c->root;

    if (c->in_place) {
        recv = d->shared;
        if (c->collective == GW_REDUCE_SCATTER)
            recv = send + (size_t)d->rank * c->count * bytes;
        if (c->collective == GW_ALL_GATHER)
            send = recv + (size_t)d->rank * c->count * bytes;
    }
    memset(d->shared, GUARD, 2 * whole + 2 * GUARD_BYTES);
    for (int r = 0; r < nranks; r++)
        make_input(c, r, d->in[r], send_count(c));
    memcpy(send, d->in[d->rank], send_bytes);
    if (flip && d->rank == 0 && c->number == 17)
        send[send_bytes / 2] ^= 1;
    if (c->in_place && c->collective == GW_BROADCAST && d->rank != c->root)
        memset(recv, GUARD, recv_bytes);
    submit_and_wait(d, c, send, recv, 2 * whole + 2 * GUARD_BYTES);

    expect(c, d->rank, d->in, d->expected);
    end = recv + recv_bytes;
    if (receives && memcmp(recv, d->expected, recv_bytes) != 0)
        complain(d, c, "wrong bits");
    if (!receives && !c->in_place && !is_untouched(recv, recv_bytes))
        complain(d, c, "a result where none is due");
    if ((!c->in_place || c->collective != GW_REDUCE_SCATTER) && !is_untouched(end, GUARD_BYTES))
        complain(d, c, "memory behind the result has changed");
    if (!c->in_place && !(flip && c->number == 17) && memcmp(send, d->in[d->rank], send_bytes) != 0)
        complain(d, c, "the input has changed");
    /* Between nodes products are taken in another order than the reference's, and may overflow in one of them only. */
    if (c->op == GW_PROD && n_nodes > 1)
        receives = false;
    if (receives && c->count <= 1000 && (c->collective == GW_ALL_REDUCE || c->collective == GW_REDUCE))
        hold_against_reference(d, c, recv);
    for (size_t i = 0; c->collective == GW_ALL_REDUCE && i < recv_bytes; i++)
        board->digest[d->rank] = (board->digest[d->rank] ^ recv[i]) * UINT64_C(0x100000001b3);
    board->cases[d->rank]++;
}

/* ---- all cases ----------------------------------------------------------------------------------- */

static void run_all(desk_t *d) {
    test_case_t c = {0};

    for (c.collective = GW_ALL_REDUCE; c.collective <= GW_REDUCE; c.collective++)
        for (c.type = GW_F32; c.type <= GW_I64; c.type++)
            for (c.op = GW_SUM; c.op <= (reduces(c.collective) ? GW_PROD : GW_SUM); c.op++)
                for (int place = 0; place < 2; place++)
                    for (int n = 0; n < N_COUNTS; n++) {
                        c.in_place = place == 1;
                        c.count = counts[n];
                        c.root = (int)(c.number % (uint64_t)nranks);
                        c.number++;
                        /* The largest takes long, and is not needed with every type, operation and place. */
                        if (quick ? c.number % 4 == 1 : n < N_COUNTS - 1 || c.number % 5 == 0)
                            run_case(d, &c);
                    }
    for (int i = 0; i < 10; i++)
        must(gw_barrier(d->group, NULL), "gw_barrier");
}

static void be_rank(int rank, gw_context_t *context) {
    const size_t bytes = (size_t)COUNT_MAX * 8 * (size_t)nranks;
    desk_t d = {.rank = rank};
    const size_t shared_bytes = 2 * bytes + 2 * GUARD_BYTES;
    memory_t memory;

    if (rank == 0) {
        must(gw_get_unique_id(context, &board->id), "gw_get_unique_id");
        board->has_id = 1;
    }
    while (!board->has_id)
        usleep(1000);
    must(gw_group_init(context, &board->id, nranks, rank, &d.group), "gw_group_init");
    must(memory_share(context, shared_bytes, &memory), "making a buffer");
    snprintf(board->path[rank], sizeof(board->path[rank]), "%s", gw_buffer_path(memory.buffer));
    d.buffer = gw_buffer_data(memory.buffer);
    d.shared = memory_is_device() ? malloc(shared_bytes) : d.buffer;
    d.expected = malloc(bytes);
    d.reference = malloc(8000);
    d.bound = calloc(1000, sizeof(*d.bound));
    for (int r = 0; r < nranks; r++)
        d.in[r] = malloc(bytes);
    board->digest[rank] = UINT64_C(0xcbf29ce484222325);
    run_all(&d);
    for (int r = 0; r < nranks; r++)
        free(d.in[r]);
    free(d.bound);
    free(d.reference);
    free(d.expected);
    gw_group_free(d.group);
    must(gw_buffer_release(memory.buffer), "gw_buffer_release");
    memory_free(&memory);
    if (d.shared != d.buffer)
        free(d.shared);
}

/* ---- processes or threads ------------------------------------------------------------------------ */

static gw_context_t *shared_context;

static void *thread_main(void *argument) {
    memory_enter();
    be_rank((int)(intptr_t)argument, shared_context);
    return NULL;
}

/* Their streams share a context: one that waited for all ranks could hold up another's input. See gw_stream_wait. */
static int run_threads(void) {
    pthread_t threads[RANKS_MAX];

    waits_on_host = true;
    memory_open(0);
    must(gw_connect(NULL, &shared_context), "gw_connect");
    for (intptr_t r = 0; r < nranks; r++)
        if (pthread_create(&threads[r], NULL, thread_main, (void *)r) != 0)
            return 2;
    for (int r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    gw_disconnect(shared_context);
    return 0;
}

static int run_processes(void) {
    int code = 0, status;

    for (int r = 0; r < nranks; r++) {
        pid_t pid = fork();

        if (pid < 0)
            return 2;
        if (pid == 0) {
            gw_options_t options = GW_OPTIONS_INIT;
            gw_context_t *context;

            memory_open((unsigned)r);
            options.socket_path = sockets[r];
            must(gw_connect(&options, &context), "gw_connect");
            be_rank(r, context);
            gw_disconnect(context);
            exit(0);
        }
    }
    while (wait(&status) > 0)
        code |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return code;
}

/* A list of paths, one a rank: equal paths are one node. */
static bool take_sockets(char *list) {
    char *rest = NULL, *word = strtok_r(list, ",", &rest);

    n_nodes = 0;
    for (int r = 0; word && r < RANKS_MAX; r++, word = strtok_r(NULL, ",", &rest)) {
        sockets[r] = word;
        node_of[r] = -1;
        for (int other = 0; other < r && node_of[r] < 0; other++)
            if (strcmp(sockets[other], word) == 0)
                node_of[r] = node_of[other];
        if (node_of[r] < 0)
            node_of[r] = n_nodes++;
    }
    return !word;
}

int main(int argc, char **argv) {
    bool threads = false, same = true, understood = argc > 2;
    uint64_t wrong = 0;
    int code;

    for (int i = 3; i < argc; i++) {
        if (strncmp(argv[i], "sockets=", 8) == 0) {
            understood = understood && take_sockets(argv[i] + 8);
            continue;
        }
        threads |= strcmp(argv[i], "threads") == 0;
        flip |= strcmp(argv[i], "flip") == 0;
        quick |= strcmp(argv[i], "quick") == 0;
        understood = understood && (strchr("tfq", argv[i][0]) || memory_setup(argv[i]));
    }
    nranks = argc > 2 ? atoi(argv[1]) : 0;
    if (!understood || nranks < 1 || nranks > RANKS_MAX)
        return fprintf(stderr, "usage: matrix NRANKS SEED [threads] [flip] [quick] [host|device...] [sockets=...]\n"),
               2;
    seed = strtoull(argv[2], NULL, 0);
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return perror("mmap"), 2;
    code = threads ? run_threads() : run_processes();
    for (int r = 0; r < nranks; r++) {
        wrong += board->wrong[r];
        same = same && board->digest[r] == board->digest[0] && board->cases[r] == board->cases[0];
    }
    printf("cases %" PRIu64 " wrong %" PRIu64 " %s digest %016" PRIx64 " %s\n", board->cases[0], wrong,
           same ? "same" : "different", board->digest[0], board->path[0]);
    return code;
}
