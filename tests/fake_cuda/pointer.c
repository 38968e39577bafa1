/* pointer.c - what the driver tells of a pointer */
#include <string.h>

#include "fake.h"

union answer {
    CUcontext context;
    unsigned memory_type;
    CUdeviceptr device_pointer;
    void *host_pointer;
    unsigned long long id;
    unsigned flag; /* booleans: the real driver writes an int */
    int ordinal;
    size_t bytes;
    unsigned long long handle_types; /* as wide as the real driver writes it */
    CUmemoryPool pool;
};

/* The size of an answer, 0 for attributes that are not simulated. */
static size_t answer_bytes(CUpointer_attribute attribute) {
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return sizeof(union answer);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return sizeof(int);
    default:
        return 0;
    }
}

static bool is_host(const struct fake_range *range) {
    return range->kind == FAKE_HOST || range->kind == FAKE_REGISTERED;
}

/* The addresses around mapped memory are those that were reserved; mappings in them come and go. */
static void address_range(const struct fake_range *range, uintptr_t *base_out, size_t *bytes_out) {
    *base_out = range->base;
    *bytes_out = range->bytes;
    if (range->kind == FAKE_MAPPED)
        fake_reservation_find(range->base, base_out, bytes_out);
}

static unsigned handle_types(const struct fake_range *range) {
    if (range->kind == FAKE_MAPPED)
        return fake_handle_types(range->handle);
    return range->kind == FAKE_POOL ? fake_pool_types(range->pool) : 0;
}

static CUresult answer_of(const struct fake_range *range, uintptr_t at, CUpointer_attribute attribute,
                          union answer *answer_out) {
    uintptr_t base;
    size_t bytes;

    address_range(range, &base, &bytes);
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        answer_out->context = range->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        answer_out->memory_type = is_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        answer_out->device_pointer = at;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(range) && range->kind != FAKE_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        answer_out->host_pointer = (void *)at;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        answer_out->id = range->id;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        answer_out->ordinal = range->device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        answer_out->device_pointer = base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        answer_out->bytes = bytes;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        answer_out->handle_types = handle_types(range);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        answer_out->pool = range->kind == FAKE_POOL ? range->pool : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        answer_out->flag = range->kind == FAKE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        answer_out->flag = range->kind == FAKE_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        answer_out->flag = 1;
        break;
    default: /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
        answer_out->flag = 0;
        break;
    }
    return CUDA_SUCCESS;
}

/* Addresses that are reserved but not mapped are known as well, for what they are. */
static CUresult answer_unmapped(uintptr_t at, CUpointer_attribute attribute, union answer *answer_out) {
    uintptr_t base;
    size_t bytes;

    if (!fake_reservation_find(at, &base, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        answer_out->device_pointer = base;
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        answer_out->bytes = bytes;
    else if (attribute != CU_POINTER_ATTRIBUTE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult ask(uintptr_t at, CUpointer_attribute attribute, union answer *answer_out) {
    const struct fake_range *range;
    CUresult result;

    memset(answer_out, 0, sizeof(*answer_out));
    pthread_rwlock_rdlock(&fake_map_lock);
    range = fake_range_find(at);
    result = range ? answer_of(range, at, attribute, answer_out) : answer_unmapped(at, attribute, answer_out);
    pthread_rwlock_unlock(&fake_map_lock);
    return result;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    CUresult result = fake_enter(__func__, FAKE_INIT);
    union answer answer;

    if (result != CUDA_SUCCESS)
        return result;
    if (!data || answer_bytes(attribute) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = ask(ptr, attribute, &answer);
    if (result == CUDA_SUCCESS)
        memcpy(data, &answer, answer_bytes(attribute));
    return result;
}

/* Pointers that are not the driver's get zeros here, and CU_DEVICE_INVALID for their device. */
CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr) {
    CUresult result = fake_enter(__func__, FAKE_INIT);

    if (result != CUDA_SUCCESS)
        return result;
    if (numAttributes == 0 || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; i++)
        if (!data[i] || answer_bytes(attributes[i]) == 0)
            return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; i++) {
        union answer answer;

        if (ask(ptr, attributes[i], &answer) != CUDA_SUCCESS) {
            memset(&answer, 0, sizeof(answer));
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
                answer.ordinal = CU_DEVICE_INVALID;
        }
        memcpy(data[i], &answer, answer_bytes(attributes[i]));
    }
    return CUDA_SUCCESS;
}
