/* mlp.h - a multi-layer perceptron in single precision, taken apart so that gradients can be exchanged early.
 *
 * Dense layers with softsign between them and softmax cross-entropy at the end; stochastic gradient descent with
 * momentum. Softsign, x / (1 + |x|), has no kink: with ReLU one rounding error moves an image across a kink, and some
 * hundred steps later no two ways to sum the same numbers agree any more. Here they do, so curves can be compared
 * step by step. The backward pass is two calls a layer: mlp_gradient makes the layer's gradient, which may then be on
 * its way to other ranks while mlp_propagate and the layers before it are still at work.
 *
 * A layer's parameters are one block of floats, and so are its gradient and velocity: the weights (a row an output)
 * and then the biases. One block is one bucket.
 */
#ifndef FASHION_MLP_H
#define FASHION_MLP_H

#include "dataset.h"

#include <stddef.h>
#include <stdint.h>

enum { LAYERS = 5 };

/* Outputs of layer l; layer l reads what layer l - 1 writes, layer 0 the pixels. */
extern const int mlp_outputs[LAYERS];
int mlp_inputs(int layer);
size_t mlp_parameter_count(int layer); /* weights and biases of one layer */
size_t mlp_total_count(void);          /* of all layers */

struct mlp {
    int batch_max;
    float *parameter[LAYERS];
    float *gradient[LAYERS]; /* the caller's memory */
    float *velocity[LAYERS];
    float *input[LAYERS]; /* of each layer, a row an image; input[0] is filled by the caller */
    float *delta[LAYERS]; /* d loss / d (output of the layer before its activation) */
    unsigned char *labels;
};

/* `gradients` is memory for mlp_total_count floats, where the layers follow each other; it stays the caller's.
 * Returns 0, or -1 when memory is short. Ownership: end it with mlp_free. */
int mlp_alloc(int batch_max, float *gradients, struct mlp *net_out);
void mlp_free(struct mlp *net);

/* Starts again: weights after He from the seed, biases and velocities zero. */
void mlp_start(struct mlp *net, uint64_t seed);

/* The mean loss of the n images in input[0]; also writes the delta of the last layer. */
double mlp_forward(struct mlp *net, int n);
void mlp_gradient(struct mlp *net, int layer, int n);  /* from delta[layer] */
void mlp_propagate(struct mlp *net, int layer, int n); /* delta[layer - 1] from delta[layer] */
void mlp_update(struct mlp *net, int layer, float rate, float momentum);

/* How many images first..first + count - 1 of the set are classified correctly. */
int64_t mlp_correct(struct mlp *net, const struct dataset *set, uint32_t first, uint32_t count);

/* A hash of every bit of all parameters (FNV-1a). */
uint64_t mlp_hash(const struct mlp *net);

/* The learning rate at a step: falls in a straight line to zero. */
double learning_rate(int64_t step, int64_t steps);

#define MOMENTUM 0.9

#endif
