/* single.c - one process that trains on the same global batches, without any exchange. See run.h. */
#include "run.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

enum { GLOBAL_BATCH = RANKS * BATCH };

static void train(const struct run *run, struct mlp *net, uint32_t *orders) {
    uint32_t index[GLOBAL_BATCH];
    mlp_start(net, run->seed);
    for (int64_t s = 0; s < run->steps; s++) {
        int64_t epoch_step = s % run->epoch_steps;
        if (epoch_step == 0)
            all_orders(run->seed, (int)(s / run->epoch_steps), RANKS, run->train.count, orders);
        global_batch(orders, shard_count(run->train.count, RANKS), RANKS, BATCH, epoch_step, index);
        dataset_gather(&run->train, index, GLOBAL_BATCH, net->input[0], net->labels);
        run->single_loss[s] = mlp_forward(net, GLOBAL_BATCH);
        for (int l = LAYERS - 1; l >= 0; l--) {
            mlp_gradient(net, l, GLOBAL_BATCH);
            if (l > 0)
                mlp_propagate(net, l, GLOBAL_BATCH);
            mlp_update(net, l, (float)learning_rate(s, run->steps), (float)MOMENTUM);
        }
        atomic_store(&run->results->single_steps, s + 1);
    }
}

int single_run(const struct run *run) {
    struct mlp net = {0};
    int rc = 1;
    uint32_t *orders = calloc((size_t)shard_count(run->train.count, RANKS) * RANKS, sizeof *orders);
    float *gradients = calloc(mlp_total_count(), sizeof *gradients);
    openblas_set_num_threads(1);
    if (!orders || !gradients || mlp_alloc(GLOBAL_BATCH, gradients, &net)) {
        fprintf(stderr, "single process: out of memory\n");
        goto out;
    }
    train(run, &net, orders);
    run->results->single_correct = mlp_correct(&net, &run->test, 0, run->test.count);
    rc = 0;
out:
    mlp_free(&net);
    free(gradients);
    free(orders);
    return rc;
}
