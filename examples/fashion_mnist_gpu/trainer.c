/* trainer.c - one rank: trains on its shard, on a GPU, and averages gradients through the daemon. See run.h.
 *
 * This is how a trainer with a GPU uses libgradwire:
 *  - gradients stay where they are, in memory of cudaMalloc, which is registered once;
 *  - one bucket a layer, declared once;
 *  - a layer is submitted with the stream as soon as its gradient is enqueued, before the layers before it are;
 *  - the stream waits, not the processor: gw_stream_wait before the layer's update. The processor runs steps ahead;
 *  - when it trusts what it has, it asks: gw_group_check, now and then in passing, and at the end of each epoch with
 *    nothing outstanding.
 */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct trainer {
    const struct run *run;
    int rank;
    struct net *net;
    cudaStream_t stream;
    struct mlp host; /* the parameters at the start, and what comes back to be hashed */
    uint32_t *order; /* the images of this rank's shard, in the order of this epoch */
    gw_context_t *context;
    gw_group_t *group;
    gw_buffer_t *gradients, *counter;
    gw_bucket_t *bucket[LAYERS];
    gw_op_t op[LAYERS];
    cudaEvent_t mark[ROUND_STEPS][PARTS], end; /* of the measurement */
};

/* Prints why a call failed, and returns -1 if it did. */
static int check(const struct trainer *t, gw_status_t status, const char *what) {
    if (status == GW_OK)
        return 0;
    fprintf(stderr, "rank %d: %s: %s: %s\n", t->rank, what, gw_status_name(status), gw_last_error());
    return -1;
}

/* Rank 0 makes the id of the group, and the others read it: here through memory that the processes share. */
static int exchange_id(const struct trainer *t) {
    struct results *results = t->run->results;
    if (t->rank == 0) {
        if (check(t, gw_get_unique_id(t->context, &results->id), "gw_get_unique_id"))
            return -1;
        atomic_store(&results->id_ready, 1);
    }
    while (!atomic_load(&results->id_ready))
        usleep(1000);
    return 0;
}

static int join(struct trainer *t) {
    gw_options_t options = GW_OPTIONS_INIT;
    options.socket_path = t->run->socket_path;
    if (check(t, gw_connect(&options, &t->context), "gw_connect") || exchange_id(t))
        return -1;
    return check(t, gw_group_init(t->context, &t->run->results->id, t->run->ranks, t->rank, &t->group),
                 "gw_group_init");
}

static int open_net(struct trainer *t) {
    const struct run *run = t->run;
    const struct net_options options = {
        .device = t->rank % run->results->gpus,
        .batch_max = run->measured_batch > GLOBAL_BATCH ? run->measured_batch : GLOBAL_BATCH,
        .precision = SINGLE_PRECISION,
        .train = &run->train,
        .test = &run->test,
        .order_max = run->shard,
        .losses_max = run->steps > ROUND_STEPS ? run->steps : ROUND_STEPS,
    };
    t->order = calloc(run->shard, sizeof *t->order);
    if (!t->order || mlp_alloc(1, NULL, &t->host)) {
        fprintf(stderr, "rank %d: out of memory\n", t->rank);
        return -1;
    }
    mlp_start(&t->host, run->seed);
    if (net_new(&options, &t->net))
        return -1;
    t->stream = net_stream(t->net);
    for (int s = 0; s < ROUND_STEPS; s++)
        for (int p = 0; p < PARTS; p++)
            if (CUDA_FAILED(cudaEventCreate(&t->mark[s][p])))
                return -1;
    return CUDA_FAILED(cudaEventCreate(&t->end)) ? -1 : 0;
}

static int create_bucket(struct trainer *t, int layer) {
    char name[GW_NAME_BYTES];
    uint64_t inputs = (uint64_t)mlp_inputs(layer), outputs = (uint64_t)mlp_outputs[layer];
    const gw_matrix_t matrices[] = {{0, outputs, inputs, inputs}, {outputs * inputs, outputs, 1, 1}};
    snprintf(name, sizeof name, "layer%d", layer);
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.name = name;
    desc.redop = GW_AVG;
    desc.count = mlp_parameter_count(layer);
    desc.send = desc.recv = net_layer_gradient(t->net, layer);
    desc.priority = LAYERS - layer; /* the next forward pass needs the first layer first */
    desc.matrices = matrices;
    desc.n_matrices = 2;
    return check(t, gw_bucket_create(t->group, &desc, &t->bucket[layer]), "gw_bucket_create");
}

/* Registers memory on the GPU: all gradients, and the counter of the test. */
static int share(struct trainer *t) {
    void *gradients = net_gradients(t->net), *counter = net_counter(t->net);
    if (check(t, gw_buffer_register(t->context, gradients, net_gradients_bytes(t->net), &t->gradients),
              "gw_buffer_register") ||
        check(t, gw_buffer_register(t->context, counter, sizeof(int64_t), &t->counter), "gw_buffer_register"))
        return -1;
    snprintf(t->run->results->path[t->rank], sizeof t->run->results->path[0], "%s", gw_buffer_path(t->gradients));
    for (int l = 0; l < LAYERS; l++)
        if (create_bucket(t, l))
            return -1;
    return 0;
}

static void trainer_close(struct trainer *t) {
    gw_group_free(t->group);
    gw_buffer_release(t->counter);
    gw_buffer_release(t->gradients);
    gw_disconnect(t->context);
    for (int s = 0; s < ROUND_STEPS; s++)
        for (int p = 0; p < PARTS; p++)
            if (t->mark[s][p])
                cudaEventDestroy(t->mark[s][p]);
    if (t->end)
        cudaEventDestroy(t->end);
    net_free(t->net);
    mlp_free(&t->host);
    free(t->order);
}

static int submit(struct trainer *t, int layer) {
    return check(t, gw_submit(t->bucket[layer], t->stream, &t->op[layer]), "gw_submit");
}

static int backward(struct trainer *t, enum mode mode, int n) {
    for (int l = LAYERS - 1; l >= 0; l--)
        if (net_gradient(t->net, l, n) || (mode == OVERLAPPED && submit(t, l)) ||
            (l > 0 && net_propagate(t->net, l, n)))
            return -1;
    return 0;
}

/* From the last layer, whose gradient was first on its way: while it is updated the others still are. */
static int update(struct trainer *t, enum mode mode, double rate) {
    for (int l = LAYERS - 1; l >= 0 && mode == APART; l--)
        if (submit(t, l))
            return -1;
    for (int l = LAYERS - 1; l >= 0; l--)
        if ((mode != OFF && check(t, gw_stream_wait(t->group, t->op[l], t->stream), "gw_stream_wait")) ||
            net_update(t->net, l, rate, MOMENTUM))
            return -1;
    return 0;
}

static int record(cudaEvent_t *mark, enum part part, cudaStream_t stream) {
    return mark && CUDA_FAILED(cudaEventRecord(mark[part], stream)) ? -1 : 0;
}

/* Enqueues one step on n images from place `first` of the order; the loss is kept under the number of the step. With
 * marks, the events that its parts begin with. */
static int train_step(struct trainer *t, enum mode mode, uint32_t first, int n, int64_t step, cudaEvent_t *mark) {
    if (record(mark, FORWARD, t->stream) || net_forward(t->net, first, n, step) || record(mark, BACKWARD, t->stream) ||
        backward(t, mode, n) || record(mark, UPDATE, t->stream) || update(t, mode, learning_rate(step, t->run->steps)))
        return -1;
    tell_progress(t->run);
    return step % CHECK_STEPS == 0 ? check(t, gw_group_check(t->group, NULL), "gw_group_check") : 0;
}

/* Waits until the GPU has done everything. Only then does gw_group_check speak of all of it. */
static int finish(struct trainer *t) {
    return net_sync(t->net) ? -1 : check(t, gw_group_check(t->group, NULL), "gw_group_check");
}

static int restart(struct trainer *t) {
    mlp_start(&t->host, t->run->seed);
    return net_start(t->net, &t->host);
}

static int hash(struct trainer *t, uint64_t *hash_out) {
    if (net_parameters(t->net, &t->host))
        return -1;
    *hash_out = mlp_hash(&t->host);
    return 0;
}

static int load_epoch(struct trainer *t, int epoch) {
    shard_order(t->run->seed, epoch, t->rank, t->run->ranks, t->run->train.count, t->order);
    return net_order(t->net, t->order, t->run->shard);
}

/* Each rank tests a part of the test images; the counts, on the GPUs, are added up through the daemon. */
static int test(struct trainer *t, int64_t *correct_out) {
    const uint64_t count = t->run->test.count, ranks = (uint64_t)t->run->ranks, rank = (uint64_t)t->rank;
    const uint32_t first = (uint32_t)(count * rank / ranks), last = (uint32_t)(count * (rank + 1) / ranks);
    void *counter = net_counter(t->net);
    if (net_test(t->net, first, last - first) ||
        check(t, gw_all_reduce(counter, counter, 1, GW_I64, GW_SUM, t->group, t->stream), "gw_all_reduce") ||
        net_correct(t->net, correct_out))
        return -1;
    return finish(t);
}

/* For a negative control: would one wrong bit be seen? */
static int hash_flipped(struct trainer *t, uint64_t *hash_out) {
    uint32_t *bits = (uint32_t *)(void *)t->host.parameter[0];
    if (net_parameters(t->net, &t->host))
        return -1;
    *bits ^= 1;
    *hash_out = mlp_hash(&t->host);
    return 0;
}

static int train(struct trainer *t) {
    const struct run *run = t->run;
    struct results *results = run->results;
    for (int64_t s = 0; s < run->steps; s++) {
        const int epoch = (int)(s / run->epoch_steps);
        const int64_t epoch_step = s % run->epoch_steps;
        int64_t correct = 0;
        if (epoch_step == 0 && load_epoch(t, epoch))
            return -1;
        if (train_step(t, OVERLAPPED, (uint32_t)(epoch_step * run->batch), run->batch, s, NULL))
            return -1;
        if (epoch_step == run->epoch_steps - 1 &&
            (finish(t) || test(t, &correct) || hash(t, &results->epoch_hash[epoch][t->rank]) ||
             net_losses(t->net, s + 1, run->trained_loss[t->rank])))
            return -1;
        if (t->rank == 0 && correct > 0)
            results->epoch_correct[epoch] = correct;
        atomic_store(&results->trainer_steps[t->rank], s + 1);
    }
    return t->rank == 0 ? hash_flipped(t, &results->flipped_hash) : 0;
}

/* The first steps of the training again, with the exchange off. */
static int control(struct trainer *t) {
    const struct run *run = t->run;
    const int64_t steps = run->steps < CONTROL_STEPS ? run->steps : CONTROL_STEPS;
    if (restart(t) || load_epoch(t, 0))
        return -1;
    for (int64_t s = 0; s < steps; s++)
        if (train_step(t, OFF, (uint32_t)(s * run->batch), run->batch, s, NULL))
            return -1;
    if (net_losses(t->net, steps, run->results->control_loss[t->rank]))
        return -1;
    return hash(t, &run->results->control_hash[t->rank]);
}

/* What the events of a round say. */
static int read_marks(struct trainer *t, int round, enum mode mode) {
    float(*ms)[PARTS] = t->run->results->part_ms[t->rank][round][mode];
    for (int s = 0; s < ROUND_STEPS; s++)
        for (int p = 0; p < PARTS; p++) {
            const cudaEvent_t next = p + 1 < PARTS         ? t->mark[s][p + 1]
                                     : s + 1 < ROUND_STEPS ? t->mark[s + 1][FORWARD]
                                                           : t->end;
            if (CUDA_FAILED(cudaEventElapsedTime(&ms[s][p], t->mark[s][p], next)))
                return -1;
        }
    return 0;
}

static int measure_round(struct trainer *t, int round, enum mode mode) {
    const struct run *run = t->run;
    const uint32_t n = (uint32_t)run->measured_batch, places = run->shard / n;
    struct span *span = &run->results->measured[round][mode];
    if (restart(t) || check(t, gw_barrier(t->group, NULL), "gw_barrier"))
        return -1;
    const int64_t begin_ns = now_ns(), daemon_ns = daemon_cpu_ns(run);
    for (int s = 0; s < ROUND_STEPS; s++)
        if (train_step(t, mode, (uint32_t)s % places * n, (int)n, s, t->mark[s]))
            return -1;
    if (CUDA_FAILED(cudaEventRecord(t->end, t->stream)) || finish(t))
        return -1;
    if (t->rank == 0)
        *span = (struct span){now_ns() - begin_ns, daemon_cpu_ns(run) - daemon_ns};
    return read_marks(t, round, mode) || hash(t, &run->results->round_hash[round][mode][t->rank]) ? -1 : 0;
}

/* The same steps on large batches again and again, in all modes in turn: forwards, backwards, and so on, so that no
 * mode always comes first. */
static int measure(struct trainer *t) {
    if (load_epoch(t, 0))
        return -1;
    for (int round = 0; round < ROUNDS; round++)
        for (int turn = 0; turn < MODES; turn++) {
            const enum mode mode = (enum mode)(round % 2 == 0 ? turn : MODES - 1 - turn);
            if (measure_round(t, round, mode))
                return -1;
            atomic_fetch_add(&t->run->results->trainer_steps[t->rank], ROUND_STEPS);
        }
    return 0;
}

static int work(struct trainer *t) {
    struct results *results = t->run->results;
    if (restart(t) || check(t, gw_barrier(t->group, NULL), "gw_barrier"))
        return -1;
    const int64_t begin_ns = now_ns(), daemon_ns = daemon_cpu_ns(t->run);
    if (train(t))
        return -1;
    if (t->rank == 0)
        results->training = (struct span){now_ns() - begin_ns, daemon_cpu_ns(t->run) - daemon_ns};
    return control(t) || measure(t) ? -1 : 0;
}

int trainer_run(const struct run *run, int rank) {
    struct trainer t = {.run = run, .rank = rank};
    int rc = open_net(&t) || join(&t) || share(&t) || work(&t) ? 1 : 0;
    if (rc == 0) {
        atomic_fetch_add(&run->results->trainers_finished, 1);
        while (!atomic_load(&run->results->trainers_released))
            usleep(1000);
    }
    trainer_close(&t);
    return rc;
}
