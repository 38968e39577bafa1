/* net.cu - see net.h. Rows are images; a matrix is stored row by row, which cuBLAS takes for its transpose. */
#include "net.h"

#include "kernels.cuh"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

struct net {
    int device, batch_max;
    enum precision precision;
    cudaStream_t stream;
    cublasHandle_t blas;
    struct images train, test;
    uint32_t order_max;
    uint32_t *order;
    void *gradients; /* those of all layers */
    void *parameter[LAYERS], *velocity[LAYERS], *gradient[LAYERS];
    void *input[LAYERS], *delta[LAYERS]; /* as in struct mlp */
    unsigned char *labels;
    double *row_loss; /* of each image of the step */
    int64_t losses_max;
    double *losses; /* of each step */
    unsigned long long *counter;
};

int net_cuda_failed(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess)
        return 0;
    fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, call, cudaGetErrorString(error), cudaGetErrorName(error));
    return 1;
}

static int blas_failed(cublasStatus_t status, const char *call, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cublasGetStatusString(status));
    return 1;
}
#define BLAS_FAILED(...) blas_failed(__VA_ARGS__, #__VA_ARGS__, __FILE__, __LINE__)

namespace {

// ---- enqueueing

template <typename... Wanted, typename... Given>
cudaError_t launch(const struct net *net, dim3 grid, dim3 block, void (*kernel)(Wanted...), Given... given) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = net->stream;
    return cudaLaunchKernelEx(&config, kernel, Wanted(given)...);
}

dim3 blocks(size_t count) {
    return dim3((unsigned)((count + THREADS - 1) / THREADS));
}

template <typename T> T *as(void *memory) {
    return static_cast<T *>(memory);
}

cublasStatus_t gemm(cublasHandle_t blas, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                    const float *a, int lda, const float *b, int ldb, float *c) {
    const float one = 1, zero = 0;
    return cublasSgemm(blas, op_a, op_b, m, n, k, &one, a, lda, b, ldb, &zero, c, m);
}
cublasStatus_t gemm(cublasHandle_t blas, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                    const double *a, int lda, const double *b, int ldb, double *c) {
    const double one = 1, zero = 0;
    return cublasDgemm(blas, op_a, op_b, m, n, k, &one, a, lda, b, ldb, &zero, c, m);
}

/* Where the n rows go that layer `layer` computes. */
template <typename T> T *output_of(struct net *net, int layer) {
    return as<T>(layer < LAYERS - 1 ? net->input[layer + 1] : net->delta[LAYERS - 1]);
}

template <typename T> T *bias_of(void *const *block, int layer) {
    return as<T>(block[layer]) + (size_t)mlp_inputs(layer) * (size_t)mlp_outputs[layer];
}

/* Leaves the scores of the n images in delta[LAYERS - 1]. */
template <typename T>
int scores(struct net *net, const struct images *images, const uint32_t *order, uint32_t first, int n) {
    if (CUDA_FAILED(
            launch(net, dim3(n), dim3(THREADS), gather<T>, *images, order, first, as<T>(net->input[0]), net->labels)))
        return -1;
    for (int l = 0; l < LAYERS; l++) {
        const int inputs = mlp_inputs(l), outputs = mlp_outputs[l];
        T *output = output_of<T>(net, l);
        if (BLAS_FAILED(gemm(net->blas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, n, inputs, as<T>(net->parameter[l]), inputs,
                             as<T>(net->input[l]), inputs, output)) ||
            CUDA_FAILED(launch(net, blocks((size_t)n * outputs), dim3(THREADS), activate<T>, output,
                               bias_of<T>(net->parameter, l), (size_t)n * outputs, outputs, l == LAYERS - 1)))
            return -1;
    }
    return 0;
}

template <typename T> int forward(struct net *net, uint32_t first, int n, int64_t loss) {
    if (scores<T>(net, &net->train, net->order, first, n) ||
        CUDA_FAILED(launch(net, blocks(n), dim3(THREADS), softmax<T>, as<T>(net->delta[LAYERS - 1]), net->labels, n,
                           net->row_loss)) ||
        CUDA_FAILED(launch(net, dim3(1), dim3(THREADS), mean, net->row_loss, n, net->losses + loss)))
        return -1;
    return 0;
}

template <typename T> int gradient(struct net *net, int layer, int n) {
    const int inputs = mlp_inputs(layer), outputs = mlp_outputs[layer];
    const T *delta = as<T>(net->delta[layer]);
    if (BLAS_FAILED(gemm(net->blas, CUBLAS_OP_N, CUBLAS_OP_T, inputs, outputs, n, as<T>(net->input[layer]), inputs,
                         delta, outputs, as<T>(net->gradient[layer]))) ||
        CUDA_FAILED(launch(net, dim3((outputs + TILE - 1) / TILE), dim3(TILE, TILE), sum_columns<T>, delta, n, outputs,
                           bias_of<T>(net->gradient, layer))))
        return -1;
    return 0;
}

template <typename T> int propagate(struct net *net, int layer, int n) {
    const int inputs = mlp_inputs(layer), outputs = mlp_outputs[layer];
    T *before = as<T>(net->delta[layer - 1]);
    if (BLAS_FAILED(gemm(net->blas, CUBLAS_OP_N, CUBLAS_OP_N, inputs, n, outputs, as<T>(net->parameter[layer]), inputs,
                         as<T>(net->delta[layer]), outputs, before)) ||
        CUDA_FAILED(launch(net, blocks((size_t)n * inputs), dim3(THREADS), times_slope<T>, before,
                           as<T>(net->input[layer]), (size_t)n * inputs)))
        return -1;
    return 0;
}

template <typename T> int update_layer(struct net *net, int layer, double rate, double momentum) {
    const size_t count = mlp_parameter_count(layer);
    return CUDA_FAILED(launch(net, blocks(count), dim3(THREADS), update<T>, as<T>(net->parameter[layer]),
                              as<T>(net->velocity[layer]), as<T>(net->gradient[layer]), count, rate, momentum))
               ? -1
               : 0;
}

template <typename T> int test(struct net *net, uint32_t first, uint32_t count) {
    if (CUDA_FAILED(cudaMemsetAsync(net->counter, 0, sizeof *net->counter, net->stream)))
        return -1;
    for (uint32_t done = 0; done < count;) {
        const uint32_t most = (uint32_t)net->batch_max, n = count - done < most ? count - done : most;
        if (scores<T>(net, &net->test, nullptr, first + done, (int)n) ||
            CUDA_FAILED(launch(net, blocks(n), dim3(THREADS), count_correct<T>, as<T>(net->delta[LAYERS - 1]),
                               net->labels, (int)n, net->counter)))
            return -1;
        done += n;
    }
    return 0;
}

template <typename T> int start(struct net *net, const struct mlp *from) {
    for (int l = 0; l < LAYERS; l++) {
        const size_t count = mlp_parameter_count(l);
        const std::vector<T> values(from->parameter[l], from->parameter[l] + count);
        if (CUDA_FAILED(cudaMemcpyAsync(net->parameter[l], values.data(), count * sizeof(T), cudaMemcpyHostToDevice,
                                        net->stream)) ||
            CUDA_FAILED(cudaMemsetAsync(net->velocity[l], 0, count * sizeof(T), net->stream)) || net_sync(net))
            return -1;
    }
    return 0;
}

// ---- memory

size_t element_bytes(const struct net *net) {
    return net->precision == DOUBLE_PRECISION ? sizeof(double) : sizeof(float);
}

int alloc(size_t bytes, void **memory_out) {
    return CUDA_FAILED(cudaMalloc(memory_out, bytes)) ? -1 : 0;
}

template <typename T> int alloc(size_t count, T **memory_out) {
    void *memory = nullptr;
    if (alloc(count * sizeof(T), &memory))
        return -1;
    *memory_out = static_cast<T *>(memory);
    return 0;
}

int upload(const struct net *net, const struct dataset *set, struct images *images) {
    const size_t pixels = (size_t)set->count * PIXELS;
    images->count = set->count;
    if (alloc(pixels, &images->pixels) || alloc(set->count, &images->labels) ||
        CUDA_FAILED(cudaMemcpyAsync(images->pixels, set->pixels, pixels, cudaMemcpyHostToDevice, net->stream)) ||
        CUDA_FAILED(cudaMemcpyAsync(images->labels, set->labels, set->count, cudaMemcpyHostToDevice, net->stream)))
        return -1;
    return 0;
}

int alloc_layers(struct net *net) {
    const size_t size = element_bytes(net), rows = (size_t)net->batch_max;
    size_t offset = 0;
    if (alloc(net_gradients_bytes(net), &net->gradients))
        return -1;
    for (int l = 0; l < LAYERS; l++) {
        const size_t bytes = mlp_parameter_count(l) * size;
        net->gradient[l] = static_cast<char *>(net->gradients) + offset;
        offset += bytes;
        if (alloc(bytes, &net->parameter[l]) || alloc(bytes, &net->velocity[l]) ||
            alloc(rows * (size_t)mlp_inputs(l) * size, &net->input[l]) ||
            alloc(rows * (size_t)mlp_outputs[l] * size, &net->delta[l]))
            return -1;
    }
    return 0;
}

int open(struct net *net, const struct net_options *options) {
    if (CUDA_FAILED(cudaSetDevice(net->device)) ||
        CUDA_FAILED(cudaStreamCreateWithFlags(&net->stream, cudaStreamNonBlocking)) ||
        BLAS_FAILED(cublasCreate(&net->blas)) || BLAS_FAILED(cublasSetStream(net->blas, net->stream)) ||
        BLAS_FAILED(cublasSetMathMode(net->blas, CUBLAS_PEDANTIC_MATH)) || alloc_layers(net) ||
        alloc(net->order_max, &net->order) || alloc((size_t)net->batch_max, &net->labels) ||
        alloc((size_t)net->batch_max, &net->row_loss) || alloc((size_t)net->losses_max, &net->losses) ||
        alloc(1, &net->counter) || upload(net, options->train, &net->train) || upload(net, options->test, &net->test))
        return -1;
    return net_sync(net);
}

int fetch(struct net *net, void *to, const void *from, size_t bytes) {
    if (CUDA_FAILED(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, net->stream)))
        return -1;
    return net_sync(net);
}

} // namespace

// ---- what net.h declares

int net_new(const struct net_options *options, struct net **net_out) {
    struct net *net = new struct net();
    net->device = options->device;
    net->batch_max = options->batch_max;
    net->precision = options->precision;
    net->order_max = options->order_max;
    net->losses_max = options->losses_max;
    if (open(net, options)) {
        net_free(net);
        return -1;
    }
    *net_out = net;
    return 0;
}

void net_free(struct net *net) {
    if (!net)
        return;
    void *const owned[] = {net->train.pixels, net->train.labels, net->test.pixels, net->test.labels, net->order,
                           net->gradients,    net->labels,       net->row_loss,    net->losses,      net->counter};
    for (void *memory : owned)
        cudaFree(memory);
    for (int l = 0; l < LAYERS; l++)
        for (void *memory : {net->parameter[l], net->velocity[l], net->input[l], net->delta[l]})
            cudaFree(memory);
    if (net->blas)
        cublasDestroy(net->blas);
    if (net->stream)
        cudaStreamDestroy(net->stream);
    delete net;
}

cudaStream_t net_stream(const struct net *net) {
    return net->stream;
}

void *net_gradients(const struct net *net) {
    return net->gradients;
}

size_t net_gradients_bytes(const struct net *net) {
    return mlp_total_count() * element_bytes(net);
}

void *net_layer_gradient(const struct net *net, int layer) {
    return net->gradient[layer];
}

void *net_counter(const struct net *net) {
    return net->counter;
}

int net_start(struct net *net, const struct mlp *from) {
    return net->precision == DOUBLE_PRECISION ? start<double>(net, from) : start<float>(net, from);
}

int net_order(struct net *net, const uint32_t *index, uint32_t count) {
    if (count > net->order_max) {
        fprintf(stderr, "net_order: %u images, at most %u\n", count, net->order_max);
        return -1;
    }
    if (CUDA_FAILED(cudaMemcpyAsync(net->order, index, count * sizeof *index, cudaMemcpyHostToDevice, net->stream)))
        return -1;
    return net_sync(net);
}

int net_forward(struct net *net, uint32_t first, int n, int64_t loss) {
    return net->precision == DOUBLE_PRECISION ? forward<double>(net, first, n, loss)
                                              : forward<float>(net, first, n, loss);
}

int net_gradient(struct net *net, int layer, int n) {
    return net->precision == DOUBLE_PRECISION ? gradient<double>(net, layer, n) : gradient<float>(net, layer, n);
}

int net_propagate(struct net *net, int layer, int n) {
    return net->precision == DOUBLE_PRECISION ? propagate<double>(net, layer, n) : propagate<float>(net, layer, n);
}

int net_update(struct net *net, int layer, double rate, double momentum) {
    return net->precision == DOUBLE_PRECISION ? update_layer<double>(net, layer, rate, momentum)
                                              : update_layer<float>(net, layer, rate, momentum);
}

int net_test(struct net *net, uint32_t first, uint32_t count) {
    return net->precision == DOUBLE_PRECISION ? test<double>(net, first, count) : test<float>(net, first, count);
}

int net_sync(struct net *net) {
    return CUDA_FAILED(cudaStreamSynchronize(net->stream)) ? -1 : 0;
}

int net_losses(struct net *net, int64_t count, double *losses_out) {
    return fetch(net, losses_out, net->losses, (size_t)count * sizeof *losses_out);
}

int net_correct(struct net *net, int64_t *correct_out) {
    return fetch(net, correct_out, net->counter, sizeof *correct_out);
}

int net_parameters(struct net *net, struct mlp *mlp_out) {
    for (int l = 0; l < LAYERS; l++)
        if (fetch(net, mlp_out->parameter[l], net->parameter[l], mlp_parameter_count(l) * sizeof(float)))
            return -1;
    return 0;
}
