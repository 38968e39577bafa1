/* links.c - see links.h
 *
 * A link of an NVLink GPU ends at another GPU, or at a switch that all GPUs of the host hang on. A pair behind switches
 * is joined by as many links as the GPU with fewer of them has, as `nvidia-smi topo` counts.
 */
#include "links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is known of one GPU's links. */
typedef struct end {
    nvml_device_t device; /* NULL: NVML does not know it */
    unsigned domain, bus, slot;
    unsigned to_switch;              /* active links to a switch, or to an end that is not told */
    unsigned to_gpu[GWCTL_GPUS_MAX]; /* active links to each of the others */
} end_t;

static void find_end(const nvml_t *nvml, const gwctl_gpu_t *gpu, end_t *end) {
    *end = (end_t){.domain = ~0u};
    if (nvml->device_by_uuid(gpu->uuid, &end->device) != NVML_OK)
        end->device = NULL;
    if (sscanf(gpu->bus_id, "%x:%x:%x", &end->domain, &end->bus, &end->slot) != 3)
        end->domain = ~0u;
}

static void count_link(const nvml_t *nvml, end_t *ends, size_t n, end_t *end, unsigned link) {
    nvml_pci_info_t pci = {.domain = ~0u};
    unsigned type = NVML_REMOTE_SWITCH;
    if (nvml->link_remote_type != NULL && nvml->link_remote_type(end->device, link, &type) != NVML_OK)
        type = NVML_REMOTE_SWITCH;
    if (nvml->link_remote_pci != NULL && nvml->link_remote_pci(end->device, link, &pci) == NVML_OK) {
        for (size_t j = 0; j < n; j++) {
            if (&ends[j] != end && ends[j].domain == pci.domain && ends[j].bus == pci.bus &&
                ends[j].slot == pci.device) {
                end->to_gpu[j]++;
                return;
            }
        }
    }
    if (type != NVML_REMOTE_GPU) /* a GPU that this process does not see is nobody's peer here */
        end->to_switch++;
}

static void count_links(const nvml_t *nvml, end_t *ends, size_t n) {
    for (size_t i = 0; i < n && nvml->link_state != NULL; i++) {
        for (unsigned link = 0; link < NVML_LINKS_MAX && ends[i].device != NULL; link++) {
            unsigned active = 0;
            if (nvml->link_state(ends[i].device, link, &active) == NVML_OK && active != 0)
                count_link(nvml, ends, n, &ends[i], link);
        }
    }
}

static unsigned count_between(const nvml_t *nvml, const end_t *left, const end_t *right, size_t right_place) {
    int status = NVML_P2P_OK;
    if (left->to_gpu[right_place] > 0)
        return left->to_gpu[right_place];
    /* Partitions of a switch may keep two GPUs apart. */
    if (nvml->p2p_status != NULL &&
        (nvml->p2p_status(left->device, right->device, NVML_P2P_NVLINK, &status) != NVML_OK || status != NVML_P2P_OK))
        return 0;
    return left->to_switch < right->to_switch ? left->to_switch : right->to_switch;
}

/* The word for the closest thing that both hang on. */
static const char *word_of(int level) {
    switch (level) {
    case 10:
        return "PIX";
    case 20:
        return "PXB";
    case 30:
        return "PHB";
    case 40:
        return "NODE";
    case 50:
        return "SYS";
    default:
        return "";
    }
}

void gwctl_cuda_links(const nvml_t *nvml, gwctl_gpus_t *gpus) {
    size_t n = gpus->count;
    end_t *ends = calloc(n + 1, sizeof(*ends));
    if (ends == NULL)
        return; /* the kernel is asked instead */
    for (size_t i = 0; i < n; i++)
        find_end(nvml, &gpus->gpu[i], &ends[i]);
    count_links(nvml, ends, n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            int level = -1;
            if (i == j || ends[i].device == NULL || ends[j].device == NULL)
                continue;
            unsigned links = count_between(nvml, &ends[i], &ends[j], j);
            if (links > 0)
                snprintf(gpus->link[i][j], GWCTL_LINK_BYTES, "NV%u", links);
            else if (nvml->common_ancestor != NULL &&
                     nvml->common_ancestor(ends[i].device, ends[j].device, &level) == NVML_OK)
                snprintf(gpus->link[i][j], GWCTL_LINK_BYTES, "%s", word_of(level));
        }
    }
    free(ends);
}

uint64_t gwctl_cuda_held_bytes(const char *uuid, long pid) {
    char ignored[GWCTL_WHY_BYTES];
    const nvml_t *nvml = nvml_load(ignored, sizeof(ignored));
    nvml_process_info_t processes[256];
    unsigned count = sizeof(processes) / sizeof(processes[0]);
    nvml_device_t device;
    if (nvml == NULL || nvml->processes == NULL || nvml->device_by_uuid(uuid, &device) != NVML_OK ||
        nvml->processes(device, &count, processes) != NVML_OK)
        return UINT64_MAX;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if ((long)processes[i].pid == pid)
            bytes = processes[i].used_bytes;
    }
    return bytes;
}
