/* node_rank.c - one rank of gradwire for `make bench-nodes`
 *
 *   node_rank CONTROL-SOCKET RANKS RANK
 *
 * As host_rank.c, but KIND is a codec, and each operation averages the same inputs into other memory, so that codecs
 * can be held against the exact average. The answer to a run says how far the last result is from it, in 1e-9 of the
 * largest average: "ok ERROR NS NS ...". Inputs have many magnitudes, as gradients have. Without a codec every bit is
 * checked.
 */
#include <math.h>

#include "codec.h"
#include "gradwire.h"
#include "rank.h"

#define HEX_BYTES (2 * sizeof(gw_unique_id_t) + 1)

typedef struct node {
    gw_context_t *context;
    gw_group_t *group;
    gw_buffer_t *in, *out;
    gw_bucket_t *bucket;
    int n_ranks, rank;
    uint64_t count;
} node_t;

/* A cubed uniform number between -1 and 1. */
static float node_input(int rank, uint64_t i) {
    uint64_t bits = (i * UINT64_C(0x9e3779b97f4a7c15)) ^ ((uint64_t)rank + 1) * UINT64_C(0xd1342543de82ef95);

    bits ^= bits >> 31;
    bits *= UINT64_C(0xbf58476d1ce4e5b9);
    float value = (float)(bits >> 40) * 0x1p-23f - 1.0f;
    return value * value * value;
}

static bool node_prepare(node_t *node, const char *codec, uint64_t bytes) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;

    node->count = bytes / sizeof(float);
    if (!gw_codec_by_name(codec, &desc.codec) || gw_buffer_alloc(node->context, bytes, &node->in) != GW_OK ||
        gw_buffer_alloc(node->context, bytes, &node->out) != GW_OK)
        return false;
    float *in = gw_buffer_data(node->in);
    for (uint64_t i = 0; i < node->count; i++)
        in[i] = node_input(node->rank, i);
    desc.name = codec;
    desc.redop = GW_AVG;
    desc.count = node->count;
    desc.send = in;
    desc.recv = gw_buffer_data(node->out);
    return gw_bucket_create(node->group, &desc, &node->bucket) == GW_OK;
}

static bool node_operation(const node_t *node) {
    gw_op_t op = 0;
    return gw_submit(node->bucket, NULL, &op) == GW_OK && gw_wait(node->group, op, GW_NO_TIMEOUT) == GW_OK;
}

static double node_error(const node_t *node) {
    const float *out = gw_buffer_data(node->out);
    double largest = 0, most = 0;

    for (uint64_t i = 0; i < node->count; i++) {
        double sum = 0;
        for (int r = 0; r < node->n_ranks; r++)
            sum += node_input(r, i);
        sum /= node->n_ranks;
        largest = fmax(largest, fabs(sum));
        most = fmax(most, fabs((double)out[i] - sum));
    }
    return most / largest;
}

/* How many elements are not the average of binary32 numbers that are added in the order of the ranks, one a node. */
static uint64_t node_wrong(const node_t *node) {
    const float *out = gw_buffer_data(node->out);
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < node->count; i++) {
        float sum = node_input(0, i);
        for (int r = 1; r < node->n_ranks; r++)
            sum += node_input(r, i);
        wrong += out[i] != sum / (float)node->n_ranks;
    }
    return wrong;
}

static bool node_finish(node_t *node) {
    return gw_bucket_free(node->bucket) == GW_OK && gw_buffer_release(node->in) == GW_OK &&
           gw_buffer_release(node->out) == GW_OK;
}

/* Does one run and answers; false: it failed. */
static bool node_run(node_t *node, bench_control_t *control, const char *codec, uint64_t bytes, unsigned timed) {
    int64_t *times = calloc(timed + 1u, sizeof *times);
    bool ok = times != NULL && node_prepare(node, codec, bytes);

    for (unsigned k = 0; ok && k < BENCH_SKIPPED + timed; k++) {
        int64_t start = bench_now_ns();
        ok = node_operation(node);
        if (k >= BENCH_SKIPPED)
            times[k - BENCH_SKIPPED] = bench_now_ns() - start;
    }
    uint64_t wrong = ok && strcmp(codec, "none") == 0 ? node_wrong(node) : 0;
    if (wrong > 0) {
        fprintf(control->out, "error %" PRIu64 " wrong elements\n", wrong);
        ok = false;
    } else if (ok) {
        fprintf(control->out, "ok %.0f", node_error(node) * 1e9);
        for (unsigned k = 0; k < timed; k++)
            fprintf(control->out, " %" PRId64, times[k]);
        fputc('\n', control->out);
        ok = node_finish(node);
    } else {
        fprintf(control->out, "error %s\n", gw_last_error());
    }
    free(times);
    return fflush(control->out) == 0 && ok;
}

static bool node_id_read(bench_control_t *control, gw_unique_id_t *id_out) {
    char line[HEX_BYTES + 16];

    if (fgets(line, sizeof line, control->in) == NULL || strncmp(line, "id ", 3) != 0)
        return false;
    for (size_t i = 0; i < sizeof id_out->bytes; i++) {
        unsigned byte = 0;
        if (sscanf(line + 3 + 2 * i, "%2x", &byte) != 1)
            return false;
        id_out->bytes[i] = (unsigned char)byte;
    }
    return true;
}

static bool node_join(node_t *node, bench_control_t *control) {
    gw_unique_id_t id = {{0}};
    char hex[HEX_BYTES] = "-";

    if (gw_connect(NULL, &node->context) != GW_OK || (node->rank == 0 && gw_get_unique_id(node->context, &id) != GW_OK))
        return false;
    for (size_t i = 0; node->rank == 0 && i < sizeof id.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", id.bytes[i]);
    return bench_hello(control, (unsigned)node->rank, hex) == 0 && node_id_read(control, &id) &&
           gw_group_init(node->context, &id, node->n_ranks, node->rank, &node->group) == GW_OK;
}

int main(int argc, char **argv) {
    bench_control_t control;
    node_t node = {0};
    char line[256], codec[32];
    uint64_t bytes;
    unsigned n_ranks, blocks, timed;
    bool ok = true;

    if (argc != 4) {
        fprintf(stderr, "usage: node_rank CONTROL-SOCKET RANKS RANK (started by bench/run-nodes)\n");
        return 2;
    }
    node.n_ranks = atoi(argv[2]);
    node.rank = atoi(argv[3]);
    if (bench_connect(argv[1], &control) != 0)
        return 1;
    if (!node_join(&node, &control)) {
        fprintf(stderr, "%s\n", gw_last_error());
        return 1;
    }
    while (ok && fgets(line, sizeof line, control.in) != NULL)
        ok = sscanf(line, "run %31s %" SCNu64 " %u %u %u", codec, &bytes, &n_ranks, &blocks, &timed) == 5 &&
             node_run(&node, &control, codec, bytes, blocks * timed);
    gw_group_free(node.group);
    gw_disconnect(node.context);
    return !ok;
}
