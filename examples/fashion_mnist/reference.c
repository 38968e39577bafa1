/* reference.c - the same training in double precision: what rounding cannot have touched. See run.h.
 *
 * Written on its own, not from mlp.c, so that it also checks that: it takes only the starting weights from there.
 */
#include "run.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = RANKS * BATCH };

struct layer {
    int inputs, outputs;
    double *weights, *bias; /* and what the optimiser adds up for each: */
    double *weights_velocity, *bias_velocity;
    double *weights_gradient;
    double *output, *delta; /* N rows of outputs */
};

static void layers_free(struct layer *layers) {
    for (int l = 0; l < LAYERS; l++) {
        double *const owned[] = {layers[l].weights,
                                 layers[l].bias,
                                 layers[l].weights_velocity,
                                 layers[l].bias_velocity,
                                 layers[l].weights_gradient,
                                 layers[l].output,
                                 layers[l].delta};
        for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
            free(owned[i]);
    }
}

/* Weights start as the float ones of mlp_start. Returns 0, or -1 when memory is short. */
static int layers_start(struct layer *layers, uint64_t seed) {
    struct mlp net;
    if (mlp_alloc(1, NULL, &net))
        return -1;
    mlp_start(&net, seed);
    int rc = 0;
    for (int l = 0; l < LAYERS && rc == 0; l++) {
        size_t outputs = (size_t)mlp_outputs[l], count = outputs * (size_t)mlp_inputs(l);
        struct layer *layer = &layers[l];
        *layer = (struct layer){
            .inputs = mlp_inputs(l),
            .outputs = mlp_outputs[l],
            .weights = calloc(count, sizeof(double)),
            .bias = calloc(outputs, sizeof(double)),
            .weights_velocity = calloc(count, sizeof(double)),
            .bias_velocity = calloc(outputs, sizeof(double)),
            .weights_gradient = calloc(count, sizeof(double)),
            .output = calloc(N * outputs, sizeof(double)),
            .delta = calloc(N * outputs, sizeof(double)),
        };
        if (!layer->weights || !layer->bias || !layer->weights_velocity || !layer->bias_velocity ||
            !layer->weights_gradient || !layer->output || !layer->delta)
            rc = -1;
        for (size_t i = 0; i < count && rc == 0; i++)
            layer->weights[i] = net.parameter[l][i];
    }
    mlp_free(&net);
    return rc;
}

static void forward(struct layer *layers, const double *pixels) {
    const double *input = pixels;
    for (int l = 0; l < LAYERS; l++) {
        struct layer *a = &layers[l];
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, a->outputs, a->inputs, 1.0, input, a->inputs,
                    a->weights, a->inputs, 0.0, a->output, a->outputs);
        for (int i = 0; i < N * a->outputs; i++) {
            a->output[i] += a->bias[i % a->outputs];
            if (l < LAYERS - 1)
                a->output[i] /= 1.0 + fabs(a->output[i]);
        }
        input = a->output;
    }
}

/* The mean loss, and the delta of the last layer. */
static double loss_of(struct layer *last, const unsigned char *labels) {
    double loss = 0.0;
    for (int i = 0; i < N; i++) {
        const double *score = last->output + i * CLASSES;
        double *delta = last->delta + i * CLASSES;
        double sum = 0.0;
        for (int c = 0; c < CLASSES; c++)
            sum += exp(score[c]);
        for (int c = 0; c < CLASSES; c++)
            delta[c] = (exp(score[c]) / sum - (c == labels[i])) / N;
        loss -= score[labels[i]] - log(sum);
    }
    return loss / N;
}

static void backward(struct layer *layers, const double *pixels, double rate) {
    for (int l = LAYERS - 1; l >= 0; l--) {
        struct layer *a = &layers[l], *before = l > 0 ? &layers[l - 1] : NULL;
        const double *input = before ? before->output : pixels;
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, a->outputs, a->inputs, N, 1.0, a->delta, a->outputs, input,
                    a->inputs, 0.0, a->weights_gradient, a->inputs);
        if (before) {
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, a->inputs, a->outputs, 1.0, a->delta, a->outputs,
                        a->weights, a->inputs, 0.0, before->delta, a->inputs);
            for (int i = 0; i < N * a->inputs; i++)
                before->delta[i] *= (1.0 - fabs(input[i])) * (1.0 - fabs(input[i]));
        }
        for (int i = 0; i < a->outputs * a->inputs; i++) {
            a->weights_velocity[i] = MOMENTUM * a->weights_velocity[i] + a->weights_gradient[i];
            a->weights[i] -= rate * a->weights_velocity[i];
        }
        for (int o = 0; o < a->outputs; o++) {
            double gradient = 0.0;
            for (int i = 0; i < N; i++)
                gradient += a->delta[i * a->outputs + o];
            a->bias_velocity[o] = MOMENTUM * a->bias_velocity[o] + gradient;
            a->bias[o] -= rate * a->bias_velocity[o];
        }
    }
}

int reference_run(const struct run *run) {
    struct layer layers[LAYERS] = {0};
    const uint32_t shard = shard_count(run->train.count, RANKS);
    uint32_t *orders = calloc((size_t)shard * RANKS, sizeof *orders), index[N];
    double *pixels = calloc((size_t)N * PIXELS, sizeof *pixels);
    unsigned char labels[N];
    int rc = 1;
    openblas_set_num_threads(1);
    if (!orders || !pixels || layers_start(layers, run->seed)) {
        fprintf(stderr, "reference in double precision: out of memory\n");
        goto out;
    }
    for (int64_t s = 0; s < run->reference_steps; s++) {
        int64_t epoch_step = s % run->epoch_steps;
        if (epoch_step == 0)
            all_orders(run->seed, (int)(s / run->epoch_steps), RANKS, run->train.count, orders);
        global_batch(orders, shard, RANKS, BATCH, epoch_step, index);
        for (int i = 0; i < N; i++) {
            for (int p = 0; p < PIXELS; p++)
                pixels[i * PIXELS + p] = run->train.pixels[(size_t)index[i] * PIXELS + (size_t)p] / 255.0 - PIXEL_MEAN;
            labels[i] = run->train.labels[index[i]];
        }
        forward(layers, pixels);
        run->reference_loss[s] = loss_of(&layers[LAYERS - 1], labels);
        backward(layers, pixels, learning_rate(s, run->steps));
        atomic_store(&run->results->reference_steps, s + 1);
    }
    rc = 0;
out:
    layers_free(layers);
    free(pixels);
    free(orders);
    return rc;
}
