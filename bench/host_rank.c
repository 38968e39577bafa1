/* host_rank.c - one rank of gradwire for `make bench-host`
 *
 * Kind "shared" measures memory from gw_buffer_alloc, "registered" memory of this process that
 * gw_buffer_register copies. A time is that of gw_submit and gw_wait together, as a trainer sees it.
 * Rank 0 makes the group's id and gives it to run-host with its hello; run-host passes it to all ranks.
 */
#include <sys/mman.h>

#include "gradwire.h"
#include "rank.h"

#define HEX_BYTES (2 * sizeof(gw_unique_id_t) + 1)

static gw_context_t *context;
static gw_group_t *group;
static gw_buffer_t *buffer;
static gw_bucket_t *bucket;

static const char *host_failed(void) {
    return gw_last_error();
}

static const char *host_buffer(bench_run_t *run) {
    if (strcmp(run->kind, "shared") == 0)
        return gw_buffer_alloc(context, run->bytes, &buffer) == GW_OK ? NULL : host_failed();
    void *memory = mmap(NULL, run->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return "mmap failed";
    return gw_buffer_register(context, memory, run->bytes, &buffer) == GW_OK ? NULL : host_failed();
}

static const char *host_prepare(bench_run_t *run) {
    const char *why = host_buffer(run);
    if (why != NULL)
        return why;
    run->memory[0] = gw_buffer_data(buffer);
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.name = run->kind;
    desc.count = run->bytes / sizeof(float);
    desc.send = run->memory[0];
    desc.recv = run->memory[0];
    return gw_bucket_create(group, &desc, &bucket) == GW_OK ? NULL : host_failed();
}

static const char *host_operation(bench_run_t *run) {
    gw_op_t op = 0;
    (void)run;
    if (gw_submit(bucket, NULL, &op) != GW_OK || gw_wait(group, op, GW_NO_TIMEOUT) != GW_OK)
        return host_failed();
    return NULL;
}

static void host_finish(bench_run_t *run) {
    if (gw_bucket_free(bucket) != GW_OK || gw_buffer_release(buffer) != GW_OK)
        fprintf(stderr, "%s\n", gw_last_error());
    if (strcmp(run->kind, "shared") != 0 && munmap(run->memory[0], run->bytes) != 0)
        perror("munmap");
}

static void host_id_print(const gw_unique_id_t *id, char *hex) {
    for (size_t i = 0; i < sizeof id->bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", id->bytes[i]);
}

/* Reads "id HEX". Returns 0, or -1 if it is anything else. */
static int host_id_read(bench_control_t *control, gw_unique_id_t *id_out) {
    char line[HEX_BYTES + 16];
    if (fgets(line, sizeof line, control->in) == NULL || strncmp(line, "id ", 3) != 0)
        return -1;
    for (size_t i = 0; i < sizeof id_out->bytes; i++) {
        unsigned byte = 0;
        if (sscanf(line + 3 + 2 * i, "%2x", &byte) != 1)
            return -1;
        id_out->bytes[i] = (unsigned char)byte;
    }
    return 0;
}

static gw_status_t host_join(bench_control_t *control, int n_ranks, int rank) {
    gw_unique_id_t id = {{0}};
    char hex[HEX_BYTES] = "-";
    gw_options_t options = GW_OPTIONS_INIT;
    options.client_name = "bench";
    gw_status_t status = gw_connect(&options, &context);
    if (status == GW_OK && rank == 0) {
        status = gw_get_unique_id(context, &id);
        host_id_print(&id, hex);
    }
    if (status != GW_OK)
        return status;
    if (bench_hello(control, (unsigned)rank, hex) != 0 || host_id_read(control, &id) != 0) {
        fprintf(stderr, "bench: run-host has gone\n");
        exit(1);
    }
    return gw_group_init(context, &id, n_ranks, rank, &group);
}

int main(int argc, char **argv) {
    static const bench_peer_t peer = {host_prepare, host_operation, host_finish};
    bench_control_t control;
    if (argc != 4) {
        fprintf(stderr, "usage: host_rank CONTROL-SOCKET RANKS RANK (started by bench/run-host)\n");
        return 2;
    }
    int rank = atoi(argv[3]);
    if (bench_connect(argv[1], &control) != 0)
        return 1;
    if (host_join(&control, atoi(argv[2]), rank) != GW_OK) {
        fprintf(stderr, "%s\n", gw_last_error());
        return 1;
    }
    int failed = bench_serve(&control, &peer, (unsigned)rank) != 0;
    gw_group_free(group);
    gw_disconnect(context);
    return failed;
}
