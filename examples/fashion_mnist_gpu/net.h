/* net.h - the perceptron of ../fashion_mnist/mlp.h on a GPU, in single or in double precision.
 *
 * Images, order and network lie in the GPU's memory, and every step is enqueued on one stream: nothing here waits for
 * the GPU unless it says so, so the processor runs ahead of it. Matrix products are cuBLAS's, in pedantic mode: the
 * same inputs give the same bits again.
 *
 * All functions that return an int return 0, or -1 after printing the call that failed, its place and CUDA's words.
 */
#ifndef FASHION_GPU_NET_H
#define FASHION_GPU_NET_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "../fashion_mnist/dataset.h"
#include "../fashion_mnist/mlp.h"

/* Whether a call of the CUDA runtime failed; prints it if so. */
#define CUDA_FAILED(...) net_cuda_failed(__VA_ARGS__, #__VA_ARGS__, __FILE__, __LINE__)
int net_cuda_failed(cudaError_t error, const char *call, const char *file, int line);

enum precision { SINGLE_PRECISION, DOUBLE_PRECISION };

struct net_options {
    int device;
    int batch_max; /* images of one step or test at most */
    enum precision precision;
    const struct dataset *train, *test; /* copied to the GPU */
    uint32_t order_max;                 /* length of an order */
    int64_t losses_max;                 /* losses that are kept */
};

struct net;

/* Waits for the GPU. Ownership: end it with net_free. */
int net_new(const struct net_options *options, struct net **net_out);
void net_free(struct net *net);

cudaStream_t net_stream(const struct net *net);

/* The gradients of all layers, one block of memory from cudaMalloc in which the layers follow each other. */
void *net_gradients(const struct net *net);
size_t net_gradients_bytes(const struct net *net);
void *net_layer_gradient(const struct net *net, int layer);

/* Counts the test images that were classified correctly: an int64_t in memory of its own from cudaMalloc. */
void *net_counter(const struct net *net);

/* Starts with the parameters of `start`, and with velocities of zero. Waits for the GPU. */
int net_start(struct net *net, const struct mlp *start);

/* The order in which net_forward reads the training images. Waits for the GPU. */
int net_order(struct net *net, const uint32_t *index, uint32_t count);

/* One step: forward with the n images from place `first` of the order, then for each layer, from the last one, its
 * gradient, and the delta of the layer before it. The mean loss is kept under the number `loss`. */
int net_forward(struct net *net, uint32_t first, int n, int64_t loss);
int net_gradient(struct net *net, int layer, int n);
int net_propagate(struct net *net, int layer, int n);
int net_update(struct net *net, int layer, double rate, double momentum);

/* Writes to the counter how many of the test images first..first + count - 1 are classified correctly. */
int net_test(struct net *net, uint32_t first, uint32_t count);

/* These wait for all that was enqueued. */
int net_sync(struct net *net);
int net_losses(struct net *net, int64_t count, double *losses_out);
int net_correct(struct net *net, int64_t *correct_out);
int net_parameters(struct net *net, struct mlp *mlp_out); /* of a network in single precision */

#ifdef __cplusplus
}
#endif

#endif
