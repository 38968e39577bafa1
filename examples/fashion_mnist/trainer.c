/* trainer.c - one rank: trains on its shard and averages gradients through the daemon. See run.h.
 *
 * This is how a trainer uses libgradwire:
 *  - gradients are written straight into memory of gw_buffer_alloc, so nothing is copied;
 *  - one bucket a layer, declared once;
 *  - a layer is submitted as soon as its gradient is ready, while layers before it are still computing;
 *  - it is waited for only when its parameters are to be updated.
 */
#include "run.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct trainer {
    const struct run *run;
    int rank;
    struct mlp net;
    uint32_t *order; /* the images of this rank's shard, in the order of this epoch */
    gw_context_t *context;
    gw_group_t *group;
    gw_buffer_t *gradients;
    gw_bucket_t *bucket[LAYERS];
    gw_op_t op[LAYERS];
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

static int create_bucket(struct trainer *t, int layer) {
    char name[GW_NAME_BYTES];
    uint64_t inputs = (uint64_t)mlp_inputs(layer), outputs = (uint64_t)mlp_outputs[layer];
    const gw_matrix_t matrices[] = {{0, outputs, inputs, inputs}, {outputs * inputs, outputs, 1, 1}};
    snprintf(name, sizeof name, "layer%d", layer);
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.name = name;
    desc.redop = GW_AVG;
    desc.count = mlp_parameter_count(layer);
    desc.send = desc.recv = t->net.gradient[layer];
    desc.priority = LAYERS - layer; /* the next forward pass needs the first layer first */
    desc.matrices = matrices;
    desc.n_matrices = 2;
    desc.codec = t->run->codec;
    desc.no_error_feedback = t->run->no_error_feedback;
    return check(t, gw_bucket_create(t->group, &desc, &t->bucket[layer]), "gw_bucket_create");
}

static int trainer_open(struct trainer *t) {
    gw_options_t options = GW_OPTIONS_INIT;
    options.socket_path = t->run->socket_path[t->rank];
    if (check(t, gw_connect(&options, &t->context), "gw_connect") || exchange_id(t) ||
        check(t, gw_group_init(t->context, &t->run->results->id, RANKS, t->rank, &t->group), "gw_group_init") ||
        check(t, gw_buffer_alloc(t->context, mlp_total_count() * sizeof(float), &t->gradients), "gw_buffer_alloc"))
        return -1;
    t->order = calloc(shard_count(t->run->train.count, RANKS), sizeof *t->order);
    if (!t->order || mlp_alloc(BATCH, gw_buffer_data(t->gradients), &t->net)) {
        fprintf(stderr, "rank %d: out of memory\n", t->rank);
        return -1;
    }
    for (int l = 0; l < LAYERS; l++)
        if (create_bucket(t, l))
            return -1;
    return 0;
}

static void trainer_close(struct trainer *t) {
    gw_group_free(t->group);
    gw_buffer_release(t->gradients);
    gw_disconnect(t->context);
    mlp_free(&t->net);
    free(t->order);
}

static int submit(struct trainer *t, int layer, struct step *step) {
    int64_t begin_ns = now_ns();
    if (check(t, gw_submit(t->bucket[layer], NULL, &t->op[layer]), "gw_submit"))
        return -1;
    step->submit_end_ns[layer] = now_ns();
    step->submit_total_ns += step->submit_end_ns[layer] - begin_ns;
    return 0;
}

static int wait_for(struct trainer *t, int layer, struct step *step) {
    step->wait_begin_ns[layer] = now_ns();
    if (check(t, gw_wait(t->group, t->op[layer], GW_NO_TIMEOUT), "gw_wait"))
        return -1;
    step->wait_end_ns[layer] = now_ns();
    return 0;
}

static int backward(struct trainer *t, enum mode mode, struct step *step) {
    for (int l = LAYERS - 1; l >= 0; l--) {
        mlp_gradient(&t->net, l, BATCH);
        if (mode == OVERLAPPED && submit(t, l, step))
            return -1;
        if (l > 0)
            mlp_propagate(&t->net, l, BATCH);
    }
    step->backward_ns = now_ns();
    return 0;
}

/* Waits for all gradients, and only then changes parameters: gw_group_check tells whether they can be trusted. */
static int finish_exchange(struct trainer *t, enum mode mode, struct step *step) {
    for (int l = LAYERS - 1; l >= 0 && mode == APART; l--)
        if (submit(t, l, step))
            return -1;
    for (int l = LAYERS - 1; l >= 0 && mode != OFF; l--)
        if (wait_for(t, l, step))
            return -1;
    return check(t, gw_group_check(t->group, NULL), "gw_group_check");
}

/* One step on the images index[0..BATCH-1]; `out` is zero before. */
static int train_step(struct trainer *t, enum mode mode, const uint32_t *index, double rate, struct step *out) {
    out->begin_ns = now_ns();
    dataset_gather(&t->run->train, index, BATCH, t->net.input[0], t->net.labels);
    out->loss = mlp_forward(&t->net, BATCH);
    out->forward_ns = now_ns();
    if (backward(t, mode, out) || finish_exchange(t, mode, out))
        return -1;
    int64_t begin_ns = now_ns();
    const float scaled = (float)(rate * t->run->wrong_scale); /* as if all averages had that factor */
    for (int l = LAYERS - 1; l >= 0; l--)
        mlp_update(&t->net, l, scaled, (float)MOMENTUM);
    out->end_ns = now_ns();
    out->update_total_ns = out->end_ns - begin_ns;
    return 0;
}

/* Each rank tests a part of the test images; the counts are added up through the daemon. */
static int test_accuracy(struct trainer *t, int64_t *count, int64_t *correct_out) {
    uint32_t part = t->run->test.count / RANKS;
    *count = mlp_correct(&t->net, &t->run->test, part * (uint32_t)t->rank, part);
    if (check(t, gw_all_reduce(count, count, 1, GW_I64, GW_SUM, t->group, NULL), "gw_all_reduce"))
        return -1;
    *correct_out = *count;
    return 0;
}

static int train(struct trainer *t, int64_t *count) {
    const struct run *run = t->run;
    struct results *results = run->results;
    mlp_start(&t->net, run->seed);
    for (int64_t s = 0; s < run->steps; s++) {
        int epoch = (int)(s / run->epoch_steps);
        int64_t epoch_step = s % run->epoch_steps;
        if (epoch_step == 0)
            shard_order(run->seed, epoch, t->rank, RANKS, run->train.count, t->order);
        if (train_step(t, OVERLAPPED, t->order + epoch_step * BATCH, learning_rate(s, run->steps),
                       &run->trained[t->rank][s]))
            return -1;
        atomic_store(&results->trainer_steps[t->rank], s + 1);
        if (epoch_step == run->epoch_steps - 1) {
            int64_t correct = 0;
            if (test_accuracy(t, count, &correct))
                return -1;
            results->epoch_hash[epoch][t->rank] = mlp_hash(&t->net);
            if (t->rank == 0)
                results->epoch_correct[epoch] = correct;
        }
    }
    if (t->rank == 0) { /* for a negative control: would one wrong bit be seen? */
        uint32_t *bits = (uint32_t *)(void *)t->net.parameter[0];
        *bits ^= 1;
        results->flipped_hash = mlp_hash(&t->net);
        *bits ^= 1;
    }
    return 0;
}

/* The same first steps of the training again and again, in all modes in turn: forwards, backwards, and so on, so that
 * no mode always comes first. */
static int measure(struct trainer *t) {
    const struct run *run = t->run;
    shard_order(run->seed, 0, t->rank, RANKS, run->train.count, t->order);
    if (check(t, gw_barrier(t->group, NULL), "gw_barrier") || usage_read(run, &run->results->usage_begin[t->rank]))
        return -1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int turn = 0; turn < MODES; turn++) {
            const int mode = round % 2 == 0 ? turn : MODES - 1 - turn;
            mlp_start(&t->net, run->seed);
            if (check(t, gw_barrier(t->group, NULL), "gw_barrier"))
                return -1;
            for (int s = 0; s < ROUND_STEPS; s++)
                if (train_step(t, (enum mode)mode, t->order + s * BATCH, learning_rate(s, run->steps),
                               measured_step(run, t->rank, round, mode, s)))
                    return -1;
            atomic_fetch_add(&run->results->trainer_steps[t->rank], ROUND_STEPS);
            run->results->round_hash[round][mode][t->rank] = mlp_hash(&t->net);
        }
    }
    if (check(t, gw_barrier(t->group, NULL), "gw_barrier"))
        return -1;
    return usage_read(run, &run->results->usage_end[t->rank]);
}

int trainer_run(const struct run *run, int rank) {
    struct trainer t = {.run = run, .rank = rank};
    gw_buffer_t *counter = NULL;
    openblas_set_num_threads(1);
    int rc = trainer_open(&t);
    if (rc == 0)
        rc = check(&t, gw_buffer_alloc(t.context, sizeof(int64_t), &counter), "gw_buffer_alloc");
    if (rc == 0)
        rc = train(&t, gw_buffer_data(counter));
    if (rc == 0 && !run->figures_path)
        rc = measure(&t);
    if (rc == 0) {
        atomic_fetch_add(&run->results->trainers_finished, 1);
        while (!atomic_load(&run->results->trainers_released))
            usleep(1000);
    }
    trainer_close(&t);
    return rc == 0 ? 0 : 1;
}
