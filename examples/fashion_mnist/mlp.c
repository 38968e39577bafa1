/* mlp.c - the perceptron in single precision, on OpenBLAS. See mlp.h. */
#include "mlp.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

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
