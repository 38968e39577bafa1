/* transport_ucx_memory.c - memory that is registered with UCX once, for all messages from it
 *
 * A network card with RDMA reads only memory that it has been told of. UCX does that for each large send, and takes it
 * back after it, unless the send names a registration. It has no cache of its own here: see transport_ucx.c.
 */
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "transport_ucx.h"

enum { WORTH_BYTES = 64 << 10 }; /* smaller payloads are copied by UCX */

/* How many regions begin at or below this address. */
static size_t rank_of(const gwd_regions_t *regions, const void *address) {
    size_t low = 0, high = regions->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if ((uintptr_t)regions->list[middle].address <= (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(gwd_regions_t *regions, gwd_region_t region) {
    size_t at = rank_of(regions, region.address);

    if (regions->n == regions->room) {
        size_t room = regions->room > 0 ? 2 * regions->room : 16;
        gwd_region_t *list = realloc(regions->list, room * sizeof(*list));

        if (list == NULL)
            return false;
        regions->list = list;
        regions->room = room;
    }
    memmove(&regions->list[at + 1], &regions->list[at], (regions->n - at) * sizeof(region));
    regions->list[at] = region;
    regions->n++;
    return true;
}

void gwd_transport_register(gwd_transport_t *transport, void *address, uint64_t bytes) {
    const ucp_mem_map_params_t parameters = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = address,
        .length = (size_t)bytes,
        .prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE, /* nothing comes from outside by itself */
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    gwd_region_t region = {.address = address, .bytes = bytes};
    ucs_status_t status;
    bool is_known;

    if (bytes < WORTH_BYTES)
        return;
    status = ucp_mem_map(transport->context, &parameters, &region.handle);
    if (status != UCS_OK) {
        gwd_log(GWD_LOG_WARNING, "wire",
                "%llu bytes cannot be registered with the network (%s), so each send from them takes longer: raise the "
                "limit of locked memory (LimitMEMLOCK of the unit)",
                (unsigned long long)bytes, ucs_status_string(status));
        return;
    }
    pthread_rwlock_wrlock(&transport->regions.lock);
    is_known = insert(&transport->regions, region);
    pthread_rwlock_unlock(&transport->regions.lock);
    if (!is_known)
        (void)ucp_mem_unmap(transport->context, region.handle); /* cannot fail: it was mapped so */
}

void gwd_transport_deregister(gwd_transport_t *transport, void *address) {
    gwd_regions_t *regions = &transport->regions;
    ucp_mem_h handle = NULL;
    size_t at;

    pthread_rwlock_wrlock(&regions->lock);
    at = rank_of(regions, address);
    if (at > 0 && regions->list[at - 1].address == address) {
        handle = regions->list[at - 1].handle;
        memmove(&regions->list[at - 1], &regions->list[at], (regions->n - at) * sizeof(*regions->list));
        regions->n--;
    }
    pthread_rwlock_unlock(&regions->lock);
    if (handle != NULL)
        (void)ucp_mem_unmap(transport->context, handle); /* cannot fail: it was mapped so */
}

void gwd_ucx_name_memory(gwd_transport_t *transport, const void *data, uint64_t bytes,
                         ucp_request_param_t *parameters) {
    gwd_regions_t *regions = &transport->regions;
    const gwd_region_t *region;
    size_t at;

    if (bytes < WORTH_BYTES)
        return;
    pthread_rwlock_rdlock(&regions->lock);
    at = rank_of(regions, data);
    region = at > 0 ? &regions->list[at - 1] : NULL;
    if (region != NULL && (uintptr_t)data - (uintptr_t)region->address + bytes <= region->bytes) {
        parameters->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        parameters->memh = region->handle;
    }
    pthread_rwlock_unlock(&regions->lock);
}
