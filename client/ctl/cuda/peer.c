/* peer.c - whether copies between two GPUs arrive as they were sent
 *
 * Some hosts say that their GPUs reach each other over PCIe, and then lose or garble what is sent, so the bytes are
 * compared. Both directions run at once, as in every exchange.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "gpu_cuda.h"

#define PEER_BYTES (UINT64_C(4) << 20)
enum { ROUNDS = 4 };

/* One side: what it sends, and where it receives. */
typedef struct side {
    const gwctl_device_t *device;
    CUdeviceptr sent, received;
} side_t;

bool gwctl_cuda_enable_peer(const gwctl_device_t *from, const gwctl_device_t *to) {
    int can = 0;
    if (cuDeviceCanAccessPeer(&can, from->device, to->device) != CUDA_SUCCESS || !can ||
        cuCtxSetCurrent(from->context) != CUDA_SUCCESS)
        return false;
    CUresult result = cuCtxEnablePeerAccess(to->context, 0);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

static gwctl_outcome_t side_open(side_t *side, const gwctl_device_t *device, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(device, why);
    *side = (side_t){.device = device};
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuMemAlloc(&side->sent, PEER_BYTES), "cuMemAlloc", why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuMemAlloc(&side->received, PEER_BYTES), "cuMemAlloc", why);
    return outcome;
}

static void side_close(side_t *side) {
    if (side->device == NULL || cuCtxSetCurrent(side->device->context) != CUDA_SUCCESS)
        return;
    if (side->sent != 0)
        cuMemFree(side->sent);
    if (side->received != 0)
        cuMemFree(side->received);
}

/* Fills both ends, so that memory left over from an earlier round cannot pass for what was sent. */
static gwctl_outcome_t prepare(const side_t *side, uint64_t seed, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(side->device, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_fill(side->device, side->sent, PEER_BYTES, seed, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_fill(side->device, side->received, PEER_BYTES, ~seed, why);
    return outcome;
}

static gwctl_outcome_t start(const side_t *from, const side_t *to, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(from->device, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_say(cuMemcpyPeerAsync(to->received, to->device->context, from->sent, from->device->context,
                                                   PEER_BYTES, from->device->stream[1]),
                                 "cuMemcpyPeerAsync", why);
    return outcome;
}

/* Waits for both, whatever became of the first: the memory is freed next. */
static gwctl_outcome_t finish(const side_t *left, const side_t *right, char *why) {
    char other[GWCTL_WHY_BYTES];
    gwctl_outcome_t outcome = gwctl_cuda_wait(left->device->stream[1], why);
    gwctl_outcome_t second = gwctl_cuda_wait(right->device->stream[1], outcome == GWCTL_WORKS ? why : other);
    return outcome != GWCTL_WORKS ? outcome : second;
}

static gwctl_outcome_t compare(const side_t *side, uint64_t seed, char *why) {
    gwctl_outcome_t outcome = gwctl_cuda_enter(side->device, why);
    if (outcome == GWCTL_WORKS)
        outcome = gwctl_cuda_compare(side->device, side->received, PEER_BYTES, seed, why);
    return outcome;
}

static gwctl_outcome_t run_round(const side_t *left, const side_t *right, uint64_t seed, char *why) {
    gwctl_outcome_t outcome = prepare(left, seed, why);
    if (outcome == GWCTL_WORKS)
        outcome = prepare(right, seed + 1, why);
    if (outcome != GWCTL_WORKS)
        return outcome;
    outcome = start(left, right, why);
    if (outcome == GWCTL_WORKS)
        outcome = start(right, left, why);
    char ignored[GWCTL_WHY_BYTES];
    gwctl_outcome_t finished = finish(left, right, outcome == GWCTL_WORKS ? why : ignored);
    if (outcome == GWCTL_WORKS)
        outcome = finished;
    if (outcome == GWCTL_WORKS)
        outcome = compare(right, seed, why);
    if (outcome == GWCTL_WORKS)
        outcome = compare(left, seed + 1, why);
    return outcome;
}

gwctl_outcome_t gwctl_cuda_peer(gwctl_device_t *left, gwctl_device_t *right, uint64_t seed, bool *direct_out,
                                char *why) {
    side_t sides[2] = {{.device = NULL}};
    bool direct = gwctl_cuda_enable_peer(left, right);
    direct = gwctl_cuda_enable_peer(right, left) && direct;
    gwctl_outcome_t outcome = side_open(&sides[0], left, why);
    if (outcome == GWCTL_WORKS)
        outcome = side_open(&sides[1], right, why);
    for (int round = 0; round < ROUNDS && outcome == GWCTL_WORKS; round++)
        outcome = run_round(&sides[0], &sides[1], seed + 2 * (uint64_t)round, why);
    side_close(&sides[0]);
    side_close(&sides[1]);
    if (outcome == GWCTL_WORKS)
        *direct_out = direct;
    return outcome;
}
