/* network.c - what the perceptron consists of, and how it starts: the part that computes nothing. See mlp.h. */
#include "mlp.h"

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
