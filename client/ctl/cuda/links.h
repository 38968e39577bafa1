/* links.h - what NVML knows about GPUs: the links between them, and who holds their memory */
#ifndef GWCTL_LINKS_H
#define GWCTL_LINKS_H

#include "gpu.h"
#include "nvml.h"

/* Fills in gpus->link, as far as NVML tells. */
void gwctl_cuda_links(const nvml_t *nvml, gwctl_gpus_t *gpus);

uint64_t gwctl_cuda_held_bytes(const char *uuid, long pid);

#endif
