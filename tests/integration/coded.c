/* coded.c - what a codec makes of averages between nodes
 *
 *   coded [codec=NAME] [group=CHOICE] [rounding=nearest|stochastic] [feedback=no] COUNT ROUNDS SOCKET SOCKET...
 *
 * One process a rank, on the daemon of its socket. The codec is the bucket's, or the group's, or the daemon's; feedback=no
 * turns error feedback off. Every round averages the same inputs, which all ranks know, apart
 * from their results. The line at the end says how far the first round's result, and the mean of all rounds, is from
 * the exact average, in parts of the largest average; "same" or "different" for the ranks' bits in all rounds; and
 * what became of a last round in which one rank has an infinity and a NaN: "kept" if every rank found both in their
 * places and everything else finite; and a digest of all bits.
 *
 *   first 0.0031 mean 0.00012 same kept 6c62272e07bb0142
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codec.h"
#include "gradwire.h"

enum { RANKS_MAX = 8, INFINITE = 5, NOT_A_NUMBER = 700 };

typedef struct board {
    _Atomic int has_id;
    gw_unique_id_t id;
    uint64_t digest[RANKS_MAX];
    double first[RANKS_MAX], mean[RANKS_MAX];
    bool kept[RANKS_MAX];
} board_t;

static board_t *board;
static int nranks;
static uint64_t count;
static long rounds;
static gw_codec_t codec;
static int no_error_feedback;
static gw_group_config_t choices = GW_GROUP_CONFIG_INIT;

static void must(gw_status_t status, const char *what) {
    if (status == GW_OK)
        return;
    fprintf(stderr, "coded: %s: %s\n", what, gw_last_error());
    exit(2);
}

/* Gradients of many magnitudes: a cubed uniform number between -1 and 1. */
static float input(int rank, uint64_t i) {
    uint64_t bits = (i * UINT64_C(0x9e3779b97f4a7c15)) ^ ((uint64_t)rank + 1) * UINT64_C(0xd1342543de82ef95);
    float value;

    bits ^= bits >> 31;
    bits *= UINT64_C(0xbf58476d1ce4e5b9);
    value = (float)(bits >> 40) * 0x1p-23f - 1.0f;
    return value * value * value;
}

static double exact(uint64_t i) {
    double sum = 0;

    for (int r = 0; r < nranks; r++)
        sum += input(r, i);
    return sum / nranks;
}

static void average(gw_group_t *group, gw_bucket_t *bucket) {
    gw_op_t op;

    must(gw_submit(bucket, NULL, &op), "gw_submit");
    must(gw_wait(group, op, GW_NO_TIMEOUT), "gw_wait");
}

static double distance(const double *got, double scale) {
    double most = 0, largest = 0;

    for (uint64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(got[i] / scale - exact(i)));
        largest = fmax(largest, fabs(exact(i)));
    }
    return most / largest;
}

static bool is_kept(const float *got) {
    for (uint64_t i = 0; i < count; i++)
        if (i == INFINITE ? !isinf(got[i]) : i == NOT_A_NUMBER ? !isnan(got[i]) : !isfinite(got[i]))
            return false;
    return true;
}

static void be_rank(int rank, const char *socket) {
    gw_options_t options = GW_OPTIONS_INIT;
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    gw_buffer_t *in, *out;
    gw_context_t *context;
    gw_bucket_t *bucket;
    gw_group_t *group;
    double *sum = calloc(count, sizeof(*sum));
    float *got;

    options.socket_path = socket;
    must(gw_connect(&options, &context), "gw_connect");
    if (rank == 0) {
        must(gw_get_unique_id(context, &board->id), "gw_get_unique_id");
        board->has_id = 1;
    }
    while (!board->has_id)
        usleep(1000);
    must(gw_group_init_config(context, &board->id, nranks, rank, &choices, &group), "gw_group_init_config");
    must(gw_buffer_alloc(context, count * sizeof(float), &in), "gw_buffer_alloc");
    must(gw_buffer_alloc(context, count * sizeof(float), &out), "gw_buffer_alloc");
    got = gw_buffer_data(out);
    for (uint64_t i = 0; i < count; i++)
        ((float *)gw_buffer_data(in))[i] = input(rank, i);
    desc.name = "gradients";
    desc.redop = GW_AVG;
    desc.count = count;
    desc.send = gw_buffer_data(in);
    desc.recv = got;
    desc.codec = codec;
    desc.no_error_feedback = no_error_feedback;
    must(gw_bucket_create(group, &desc, &bucket), "gw_bucket_create");
    board->digest[rank] = UINT64_C(0xcbf29ce484222325);
    for (long round = 0; round < rounds; round++) {
        average(group, bucket);
        for (uint64_t i = 0; i < count; i++) {
            uint32_t bits;

            memcpy(&bits, &got[i], sizeof(bits));
            board->digest[rank] = (board->digest[rank] ^ bits) * UINT64_C(0x100000001b3);
            sum[i] += (double)got[i];
        }
        if (round == 0)
            board->first[rank] = distance(sum, 1);
    }
    board->mean[rank] = distance(sum, (double)rounds);
    if (rank == nranks - 1) {
        ((float *)gw_buffer_data(in))[INFINITE] = INFINITY;
        ((float *)gw_buffer_data(in))[NOT_A_NUMBER] = NAN;
    }
    average(group, bucket);
    board->kept[rank] = is_kept(got);
    gw_group_free(group);
    gw_disconnect(context);
    free(sum);
}

/* The options, which come first; returns how many. */
static int read_options(int argc, char **argv) {
    int i = 1;

    for (; i < argc && strchr(argv[i], '='); i++) {
        char *value = strchr(argv[i], '=') + 1;

        if (strncmp(argv[i], "codec=", 6) == 0 && gw_codec_by_name(value, &codec))
            continue;
        if (strncmp(argv[i], "group=", 6) == 0)
            choices.codec = value;
        else if (strcmp(argv[i], "rounding=stochastic") == 0)
            choices.rounding = GW_ROUND_STOCHASTIC;
        else if (strcmp(argv[i], "rounding=nearest") == 0)
            choices.rounding = GW_ROUND_NEAREST;
        else if (strcmp(argv[i], "feedback=no") == 0)
            no_error_feedback = 1;
        else
            return argc;
    }
    return i - 1;
}

int main(int argc, char **argv) {
    bool same = true, kept = true;
    int code = 0, status, n_options = read_options(argc, argv);

    argv += n_options;
    nranks = argc - n_options - 3;
    if (nranks < 1 || nranks > RANKS_MAX)
        return fprintf(stderr,
                       "usage: coded [codec=NAME] [group=CHOICE] [rounding=R] [feedback=no] COUNT ROUNDS SOCKET...\n"),
               2;
    count = strtoull(argv[1], NULL, 0);
    rounds = strtol(argv[2], NULL, 0);
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return perror("mmap"), 2;
    for (int r = 0; r < nranks; r++) {
        pid_t pid = fork();

        if (pid < 0)
            return 2;
        if (pid == 0) {
            be_rank(r, argv[3 + r]);
            exit(0);
        }
    }
    while (wait(&status) > 0)
        code |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    for (int r = 0; r < nranks; r++) {
        same = same && board->digest[r] == board->digest[0];
        kept = kept && board->kept[r];
    }
    printf("first %.3g mean %.3g %s %s %016" PRIx64 "\n", board->first[0], board->mean[0], same ? "same" : "different",
           kept ? "kept" : "lost", board->digest[0]);
    return code;
}
