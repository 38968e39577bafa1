/* mlp.c - the perceptron in single precision, on OpenBLAS. See mlp.h. */
#include "mlp.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const int mlp_outputs[LAYERS] = {128, 1024, 1024, 256, CLASSES};

int mlp_inputs(int layer) {
    return layer == 0 ? PIXELS : mlp_outputs[layer - 1];
}

size_t mlp_parameter_count(int layer) {
    return ((size_t)mlp_inputs(layer) + 1) * (size_t)mlp_outputs[layer];
}

size_t mlp_total_count(void) {
    size_t total = 0;
    for (int l = 0; l < LAYERS; l++)
        total += mlp_parameter_count(l);
    return total;
}

int mlp_alloc(int batch_max, float *gradients, struct mlp *net_out) {
    struct mlp net = {.batch_max = batch_max};
    size_t rows = (size_t)batch_max;
    net.labels = calloc(rows, 1);
    int complete = net.labels != NULL;
    for (int l = 0; l < LAYERS; l++) {
        net.parameter[l] = calloc(mlp_parameter_count(l), sizeof(float));
        net.velocity[l] = calloc(mlp_parameter_count(l), sizeof(float));
        net.input[l] = calloc(rows * (size_t)mlp_inputs(l), sizeof(float));
        net.delta[l] = calloc(rows * (size_t)mlp_outputs[l], sizeof(float));
        net.gradient[l] = gradients;
        gradients += mlp_parameter_count(l);
        complete = complete && net.parameter[l] && net.velocity[l] && net.input[l] && net.delta[l];
    }
    if (!complete) {
        mlp_free(&net);
        return -1;
    }
    *net_out = net;
    return 0;
}

void mlp_free(struct mlp *net) {
    for (int l = 0; l < LAYERS; l++) {
        free(net->parameter[l]);
        free(net->velocity[l]);
        free(net->input[l]);
        free(net->delta[l]);
    }
    free(net->labels);
    memset(net, 0, sizeof *net);
}

void mlp_start(struct mlp *net, uint64_t seed) {
    for (int l = 0; l < LAYERS; l++) {
        size_t weights = (size_t)mlp_inputs(l) * (size_t)mlp_outputs[l];
        double limit = sqrt(6.0 / mlp_inputs(l)); /* uniform, with the variance 2 / inputs */
        for (size_t i = 0; i < weights; i++) {
            double unit = (double)(random_next(&seed) >> 11) * 0x1p-53;
            net->parameter[l][i] = (float)((2.0 * unit - 1.0) * limit);
        }
        memset(net->parameter[l] + weights, 0, (size_t)mlp_outputs[l] * sizeof(float));
        memset(net->velocity[l], 0, mlp_parameter_count(l) * sizeof(float));
    }
}

/* output = input * weights^T + bias, for n rows. */
static void dense(const struct mlp *net, int layer, int n, float *output) {
    int inputs = mlp_inputs(layer), outputs = mlp_outputs[layer];
    const float *weights = net->parameter[layer], *bias = weights + (size_t)inputs * (size_t)outputs;
    for (int i = 0; i < n; i++)
        memcpy(output + (size_t)i * (size_t)outputs, bias, (size_t)outputs * sizeof(float));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, outputs, inputs, 1.0f, net->input[layer], inputs, weights,
                inputs, 1.0f, output, outputs);
}

/* Leaves the scores of the n images in delta[LAYERS - 1]. */
static void scores(struct mlp *net, int n) {
    for (int l = 0; l < LAYERS - 1; l++) {
        float *output = net->input[l + 1];
        dense(net, l, n, output);
        size_t count = (size_t)n * (size_t)mlp_outputs[l];
        for (size_t i = 0; i < count; i++)
            output[i] = output[i] / (1.0f + fabsf(output[i]));
    }
    dense(net, LAYERS - 1, n, net->delta[LAYERS - 1]);
}

double mlp_forward(struct mlp *net, int n) {
    double loss = 0.0;
    scores(net, n);
    for (int i = 0; i < n; i++) {
        float *row = net->delta[LAYERS - 1] + (size_t)i * CLASSES;
        double highest = row[0], sum = 0.0, power[CLASSES];
        for (int c = 1; c < CLASSES; c++)
            highest = row[c] > highest ? row[c] : highest;
        for (int c = 0; c < CLASSES; c++)
            sum += power[c] = exp(row[c] - highest);
        loss += log(sum) - (row[net->labels[i]] - highest);
        for (int c = 0; c < CLASSES; c++)
            row[c] = (float)((power[c] / sum - (c == net->labels[i])) / n);
    }
    return loss / n;
}

void mlp_gradient(struct mlp *net, int layer, int n) {
    int inputs = mlp_inputs(layer), outputs = mlp_outputs[layer];
    float *weights = net->gradient[layer], *bias = weights + (size_t)inputs * (size_t)outputs;
    const float *delta = net->delta[layer];
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, outputs, inputs, n, 1.0f, delta, outputs, net->input[layer],
                inputs, 0.0f, weights, inputs);
    memset(bias, 0, (size_t)outputs * sizeof(float));
    for (int i = 0; i < n; i++)
        for (int o = 0; o < outputs; o++)
            bias[o] += delta[(size_t)i * (size_t)outputs + (size_t)o];
}

void mlp_propagate(struct mlp *net, int layer, int n) {
    int inputs = mlp_inputs(layer), outputs = mlp_outputs[layer];
    float *before = net->delta[layer - 1];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, inputs, outputs, 1.0f, net->delta[layer], outputs,
                net->parameter[layer], inputs, 0.0f, before, inputs);
    size_t count = (size_t)n * (size_t)inputs;
    for (size_t i = 0; i < count; i++) {
        float slope = 1.0f - fabsf(net->input[layer][i]); /* its square is the derivative of softsign */
        before[i] *= slope * slope;
    }
}

void mlp_update(struct mlp *net, int layer, float rate, float momentum) {
    size_t count = mlp_parameter_count(layer);
    float *restrict parameter = net->parameter[layer], *restrict velocity = net->velocity[layer];
    const float *restrict gradient = net->gradient[layer];
    for (size_t i = 0; i < count; i++) {
        velocity[i] = momentum * velocity[i] + gradient[i];
        parameter[i] -= rate * velocity[i];
    }
}

int64_t mlp_correct(struct mlp *net, const struct dataset *set, uint32_t first, uint32_t count) {
    int64_t correct = 0;
    uint32_t index[256];
    for (uint32_t done = 0; done < count;) {
        uint32_t limit = net->batch_max < 256 ? (uint32_t)net->batch_max : 256;
        uint32_t n = count - done < limit ? count - done : limit;
        for (uint32_t i = 0; i < n; i++)
            index[i] = first + done + i;
        dataset_gather(set, index, (int)n, net->input[0], net->labels);
        scores(net, (int)n);
        for (uint32_t i = 0; i < n; i++) {
            const float *row = net->delta[LAYERS - 1] + (size_t)i * CLASSES;
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                best = row[c] > row[best] ? c : best;
            correct += best == net->labels[i];
        }
        done += n;
    }
    return correct;
}

uint64_t mlp_hash(const struct mlp *net) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int l = 0; l < LAYERS; l++) {
        const unsigned char *byte = (const unsigned char *)net->parameter[l];
        size_t bytes = mlp_parameter_count(l) * sizeof(float);
        for (size_t i = 0; i < bytes; i++)
            hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    return hash;
}

double learning_rate(int64_t step, int64_t steps) {
    return 0.1 * (double)(steps - step) / (double)steps;
}
