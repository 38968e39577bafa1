// gpu_check.h - whether an average is right: random inputs of all ranks against their average in double precision
//
// Inputs are fp32 in -1..1, a function of seed, rank and element, so that each rank can make those of all. An average
// of n values is right when it differs from the exact one by at most (n + 1) 2^-24 times the average of their
// magnitudes: what n - 1 additions and a division, or n products and n - 1 additions, may round away in any order.
// Memory that was left as it was, or averaged over fewer ranks, is far outside of that.
#ifndef BENCH_GPU_CHECK_H
#define BENCH_GPU_CHECK_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct CheckResult {
    uint64_t n_wrong;
    uint64_t digest; // of the bits: the same on all ranks
};

inline float check_input(uint32_t seed, uint32_t rank, uint64_t i) {
    uint64_t x =
        (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + (((uint64_t)seed << 32) | rank) * UINT64_C(0xd1342543de82ef95);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return (float)(int32_t)(uint32_t)x * 0x1p-31f;
}

inline void check_fill(std::vector<float> &data, uint32_t seed, uint32_t rank) {
    for (uint64_t i = 0; i < data.size(); i++)
        data[i] = check_input(seed, rank, i);
}

inline CheckResult check_average(const std::vector<float> &data, uint32_t seed, unsigned n_ranks) {
    CheckResult result = {0, 0};
    double bound = (n_ranks + 1) * 0x1p-24 / n_ranks;
    for (uint64_t i = 0; i < data.size(); i++) {
        double sum = 0.0, magnitude = 0.0;
        for (unsigned rank = 0; rank < n_ranks; rank++) {
            double value = (double)check_input(seed, rank, i);
            sum += value;
            magnitude += std::fabs(value);
        }
        // Written so that a NaN is wrong.
        result.n_wrong += !(std::fabs((double)data[i] - sum / n_ranks) <= bound * magnitude);
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        result.digest = (result.digest ^ bits) * UINT64_C(0x100000001b3);
    }
    return result;
}

#endif
