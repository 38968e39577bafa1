/* alone.c - one process that trains on the same global batches, on one GPU and without any exchange. See run.h.
 *
 * In single precision it is what the ranks must equal but for the order of rounding; in double precision it is what
 * rounding cannot have touched.
 */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

/* The whole epoch, batch after batch: images of all ranks. */
static int load_epoch(const struct run *run, struct net *net, int epoch, uint32_t *orders, uint32_t *batches) {
    const int batch = run->ranks * run->batch;
    all_orders(run->seed, epoch, run->ranks, run->train.count, orders);
    for (int64_t s = 0; s < run->epoch_steps; s++)
        global_batch(orders, run->shard, run->ranks, run->batch, s, batches + s * batch);
    return net_order(net, batches, (uint32_t)(run->epoch_steps * batch));
}

static int train(const struct run *run, struct net *net, enum precision precision, uint32_t *orders,
                 uint32_t *batches) {
    const int batch = run->ranks * run->batch;
    for (int64_t s = 0; s < run->steps; s++) {
        const int64_t epoch_step = s % run->epoch_steps;
        if (epoch_step == 0 && load_epoch(run, net, (int)(s / run->epoch_steps), orders, batches))
            return -1;
        if (net_forward(net, (uint32_t)(epoch_step * batch), batch, s))
            return -1;
        for (int l = LAYERS - 1; l >= 0; l--)
            if (net_gradient(net, l, batch) || (l > 0 && net_propagate(net, l, batch)) ||
                net_update(net, l, learning_rate(s, run->steps), MOMENTUM))
                return -1;
        if (s % CHECK_STEPS == 0 && net_sync(net)) /* so that what is shown as done is not only enqueued */
            return -1;
        atomic_store(&run->results->alone_steps[precision], s + 1);
        tell_progress(run);
    }
    return net_losses(net, run->steps, run->alone_loss[precision]);
}

int alone_run(const struct run *run, enum precision precision) {
    const struct net_options options = {
        .device = precision == SINGLE_PRECISION ? 0 : run->results->gpus - 1,
        .batch_max = GLOBAL_BATCH,
        .precision = precision,
        .train = &run->train,
        .test = &run->test,
        .order_max = run->train.count,
        .losses_max = run->steps,
    };
    struct net *net = NULL;
    struct mlp begin = {0};
    uint32_t *orders = calloc(run->train.count, sizeof *orders), *batches = calloc(run->train.count, sizeof *batches);
    int rc = 1;
    if (!orders || !batches || mlp_alloc(1, NULL, &begin)) {
        fprintf(stderr, "training alone: out of memory\n");
        goto out;
    }
    mlp_start(&begin, run->seed);
    if (net_new(&options, &net) || net_start(net, &begin) || train(run, net, precision, orders, batches))
        goto out;
    if (precision == SINGLE_PRECISION &&
        (net_test(net, 0, run->test.count) || net_correct(net, &run->results->single_correct)))
        goto out;
    rc = 0;
out:
    net_free(net);
    mlp_free(&begin);
    free(orders);
    free(batches);
    return rc;
}
