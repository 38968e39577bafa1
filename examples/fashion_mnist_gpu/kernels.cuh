/* kernels.cuh - the kernels of the perceptron: all but its matrix products.
 *
 * Each number is computed by one thread, or by threads that add up in a fixed order, so the same inputs give the same
 * bits. T is float or double.
 */
#ifndef FASHION_GPU_KERNELS_CUH
#define FASHION_GPU_KERNELS_CUH

#include "../fashion_mnist/dataset.h"

#include <cuda_runtime.h>
#include <stddef.h>

enum { THREADS = 256, TILE = 32 }; /* a block has THREADS threads, or TILE x TILE */

struct images {
    unsigned char *pixels, *labels;
    uint32_t count;
};

/* A row of pixels a block. Without an order the rows are the images from `first`. */
template <typename T>
__global__ void gather(struct images images, const uint32_t *order, uint32_t first, T *input, unsigned char *labels) {
    const uint32_t row = blockIdx.x, image = order ? order[first + row] : first + row;
    for (int p = threadIdx.x; p < PIXELS; p += blockDim.x)
        input[(size_t)row * PIXELS + p] = T(images.pixels[(size_t)image * PIXELS + p]) / T(255) - T(PIXEL_MEAN);
    if (threadIdx.x == 0)
        labels[row] = images.labels[image];
}

/* Adds the bias, and applies softsign but for the last layer. */
template <typename T> __global__ void activate(T *output, const T *bias, size_t count, int outputs, bool is_last) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const T x = output[i] + bias[i % outputs];
    output[i] = is_last ? x : x / (T(1) + fabs(x));
}

/* Turns the scores of an image into the delta, and gives its loss: in double precision, as mlp_forward does. */
template <typename T> __global__ void softmax(T *scores, const unsigned char *labels, int n, double *row_loss) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n)
        return;
    T *score = scores + (size_t)row * CLASSES;
    double highest = score[0], sum = 0.0, power[CLASSES];
    for (int c = 1; c < CLASSES; c++)
        highest = fmax(highest, double(score[c]));
    for (int c = 0; c < CLASSES; c++)
        sum += power[c] = exp(double(score[c]) - highest);
    row_loss[row] = log(sum) - (double(score[labels[row]]) - highest);
    for (int c = 0; c < CLASSES; c++)
        score[c] = T((power[c] / sum - (c == labels[row])) / n);
}

/* One block: the mean of n numbers. */
__global__ void mean(const double *value, int n, double *mean_out) {
    __shared__ double part[THREADS];
    double sum = 0.0;
    for (int i = threadIdx.x; i < n; i += THREADS)
        sum += value[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *mean_out = part[0] / n;
}

/* The bias gradients: sums of columns. A block of TILE x TILE threads adds up TILE columns. */
template <typename T> __global__ void sum_columns(const T *matrix, int rows, int columns, T *sum_out) {
    __shared__ T part[TILE][TILE];
    const int column = blockIdx.x * TILE + threadIdx.x;
    T sum = 0;
    for (int row = threadIdx.y; row < rows && column < columns; row += TILE)
        sum += matrix[(size_t)row * columns + column];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int half = TILE / 2; half > 0; half /= 2) {
        if (threadIdx.y < half)
            part[threadIdx.y][threadIdx.x] += part[threadIdx.y + half][threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && column < columns)
        sum_out[column] = part[0][threadIdx.x];
}

/* The derivative of softsign is the square of 1 - |its value|. */
template <typename T> __global__ void times_slope(T *delta, const T *output, size_t count) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const T slope = T(1) - fabs(output[i]);
    delta[i] *= slope * slope;
}

template <typename T>
__global__ void update(T *parameter, T *velocity, const T *gradient, size_t count, T rate, T momentum) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    velocity[i] = fma(momentum, velocity[i], gradient[i]);
    parameter[i] = fma(-rate, velocity[i], parameter[i]);
}

template <typename T>
__global__ void count_correct(const T *scores, const unsigned char *labels, int n, unsigned long long *counter) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n)
        return;
    const T *score = scores + (size_t)row * CLASSES;
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        best = score[c] > score[best] ? c : best;
    if (best == labels[row])
        atomicAdd(counter, 1ull);
}

#endif
