/* table.c - what the plugin gwctl-cuda.so exports: its functions */
#include "gpu_cuda.h"
#include "links.h"

__attribute__((visibility("default"))) extern const gwctl_gpu_api_t gw_ctl_cuda;

const gwctl_gpu_api_t gw_ctl_cuda = {
    .version = GWCTL_GPU_API,
    .list = gwctl_cuda_list,
    .held_bytes = gwctl_cuda_held_bytes,
    .open = gwctl_cuda_open,
    .close = gwctl_cuda_close,
    .pin = gwctl_cuda_pin,
    .words = gwctl_cuda_words,
    .share = gwctl_cuda_share,
    .share_use = gwctl_cuda_share_use,
    .share_verify = gwctl_cuda_share_verify,
    .share_free = gwctl_cuda_share_free,
    .peer = gwctl_cuda_peer,
    .measure = gwctl_cuda_measure,
};
