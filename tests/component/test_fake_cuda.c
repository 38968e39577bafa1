/* test_fake_cuda.c - the simulated CUDA driver keeps the real one's promises: devices, contexts, memory, copies
 *
 * Its streams are in test_fake_cuda_streams.c, what it shares between processes in test_fake_cuda_processes.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_test.h"

enum { BYTES = 1 << 20 };

static uint64_t id_of(CUdeviceptr at) {
    unsigned long long id = 0;

    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    return id;
}

static void devices_say_what_they_are(void) {
    char name[64], bus[2][16];
    CUuuid uuids[2];
    int count = 0, value = -1, can = -1;
    size_t bytes = 0;

    OK(cuDeviceGetCount(&count));
    CU_ASSERT_EQUAL_FATAL(count, 2);
    OK(cuDeviceGetName(name, sizeof(name), 0));
    CU_ASSERT_STRING_EQUAL(name, "Simulated GPU");
    for (int i = 0; i < 2; i++) {
        OK(cuDeviceGetUuid(&uuids[i], i));
        OK(cuDeviceGetPCIBusId(bus[i], sizeof(bus[i]), i));
    }
    CU_ASSERT_NOT_EQUAL(memcmp(&uuids[0], &uuids[1], sizeof(uuids[0])), 0);
    CU_ASSERT_STRING_NOT_EQUAL(bus[0], bus[1]);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    CU_ASSERT_EQUAL(value, 1);
    OK(cuDeviceTotalMem(&bytes, 0));
    CU_ASSERT(bytes > 0);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CU_ASSERT_EQUAL(can, 1);
    CU_ASSERT_EQUAL(cuDeviceGet(&value, 2), CUDA_ERROR_INVALID_DEVICE);
}

static void contexts_cost_memory_while_they_live(void) {
    size_t before, during, after, total;
    CUcontext context, again, popped;
    unsigned flags;
    int active;

    MUST(cuCtxSetCurrent(contexts[0]));
    OK(cuMemGetInfo(&before, &total));
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    CU_ASSERT_PTR_EQUAL(again, contexts[0]);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuMemGetInfo(&during, &total));
    CU_ASSERT_EQUAL(during, before);

    MUST(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    CU_ASSERT_EQUAL(active, 0);
    CU_ASSERT_EQUAL(cuCtxPushCurrent(contexts[1]), CUDA_ERROR_INVALID_CONTEXT);
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    contexts[1] = context;
    MUST(cuCtxPushCurrent(context));
    OK(cuMemGetInfo(&before, &total));
    CU_ASSERT(before < total);
    (void)new_memory(BYTES);
    OK(cuMemGetInfo(&during, &total));
    CU_ASSERT_EQUAL(before - during, BYTES);
    /* Its memory goes with the context, and those to whom it is current hear of its end. */
    MUST(cuDevicePrimaryCtxRelease(1));
    CU_ASSERT_EQUAL(cuMemGetInfo(&after, &total), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuCtxPopCurrent(&popped));
    CU_ASSERT_PTR_EQUAL(popped, context);
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    MUST(cuCtxPushCurrent(contexts[1]));
    OK(cuMemGetInfo(&after, &total));
    CU_ASSERT_EQUAL(after, before);
    OK(cuCtxPopCurrent(&popped));
}

static void pointers_are_known_for_what_they_are(void) {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
    unsigned type = 99, managed = 99;
    int ordinal = 99, legacy = 99;
    void *answers[] = {&type, &ordinal, &legacy}, *pinned;
    CUdeviceptr at = new_memory(1000), base, shared;
    size_t bytes;

    OK(cuPointerGetAttributes(3, asked, answers, at + 999));
    CU_ASSERT(type == CU_MEMORYTYPE_DEVICE && ordinal == 0 && legacy == 1);
    OK(cuMemGetAddressRange(&base, &bytes, at + 10));
    CU_ASSERT(base == at && bytes == 1000);
    CU_ASSERT_EQUAL(cuMemGetAddressRange(&base, &bytes, at + 1000), CUDA_ERROR_NOT_FOUND);

    CU_ASSERT_EQUAL(cuPointerGetAttribute(&type, asked[0], device_address(&bytes)), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttributes(3, asked, answers, device_address(&bytes)));
    CU_ASSERT(type == 0 && ordinal == CU_DEVICE_INVALID && legacy == 0);

    MUST(cuMemHostAlloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuPointerGetAttributes(3, asked, answers, device_address(pinned)));
    CU_ASSERT(type == CU_MEMORYTYPE_HOST && legacy == 0);
    MUST(cuMemAllocManaged(&shared, 100, CU_MEM_ATTACH_GLOBAL));
    OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, shared));
    CU_ASSERT_EQUAL(managed, 1);
    OK(cuMemFree(shared));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(at));
    CU_ASSERT_EQUAL(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
}

static void new_memory_at_an_old_address_has_another_id(void) {
    CUdeviceptr first = new_memory(BYTES), second;
    uint64_t id = id_of(first);

    OK(cuMemFree(first));
    second = new_memory(BYTES);
    CU_ASSERT_EQUAL(second, first);
    CU_ASSERT(id_of(second) > id);
    OK(cuMemFree(second));
}

static void memory_ends_where_it_ends(void) {
    static char host[PAGE];
    CUdeviceptr at = new_memory(1000);

    OK(cuMemcpyHtoD(at, host, 1000));
    CU_ASSERT_EQUAL(cuMemcpyHtoD(at + 1, host, 1000), CUDA_ERROR_INVALID_VALUE);
    CU_ASSERT_EQUAL(cuMemcpyHtoD(device_address(host), host, 10), CUDA_ERROR_INVALID_VALUE);
    CU_ASSERT_EQUAL(cuMemAlloc(&at, (size_t)1 << 50), CUDA_ERROR_OUT_OF_MEMORY);
    CU_ASSERT_EQUAL(cuMemAlloc(&at, 0), CUDA_ERROR_INVALID_VALUE);
}

static void host_memory_is_registered_once(void) {
    char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr device = 0;

    CU_ASSERT_FATAL(at != MAP_FAILED);
    OK(cuMemHostRegister(at, 2 * PAGE, 0));
    CU_ASSERT_EQUAL(cuMemHostRegister(at + PAGE, PAGE, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostGetDevicePointer(&device, at + 8, 0));
    CU_ASSERT_EQUAL(device, device_address(at + 8));
    /* Not portable: the other context cannot reach it. */
    MUST(cuCtxPushCurrent(contexts[1]));
    CU_ASSERT_EQUAL(cuMemHostGetDevicePointer(&device, at, 0), CUDA_ERROR_INVALID_VALUE);
    CU_ASSERT_EQUAL(cuStreamWriteValue32(NULL, device_address(at), 1, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuCtxPopCurrent(NULL));
    OK(cuMemHostUnregister(at));
    CU_ASSERT_EQUAL(cuMemHostUnregister(at), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CU_ASSERT_EQUAL(cuMemHostGetDevicePointer(&device, at, 0), CUDA_ERROR_INVALID_VALUE);
    munmap(at, 2 * PAGE);
    CU_ASSERT_EQUAL(cuMemHostRegister(at, PAGE, 0), CUDA_ERROR_INVALID_VALUE);
}

/* The source may be used again when the call returns, pinned memory only when the copy is done. */
static void memory_that_is_not_pinned_is_read_at_once(void) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    uint32_t value = 1, *pinned, got[2];
    CUdeviceptr at = new_memory(2 * sizeof(uint32_t));

    MUST(cuMemAllocHost((void **)&pinned, sizeof(*pinned)));
    *pinned = 1;
    set_word(0, 0);
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemcpyHtoDAsync(at, &value, sizeof(value), stream));
    OK(cuMemcpyHtoDAsync(at + sizeof(value), pinned, sizeof(value), stream));
    value = 2;
    *pinned = 2;
    set_word(0, 1);
    OK(cuMemcpyDtoHAsync(got, at, sizeof(got), stream));
    CU_ASSERT(got[0] == 1 && got[1] == 2);
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(at));
    OK(cuMemFreeHost(pinned));
}

static void copies_and_fills_reach_every_byte(void) {
    CUdeviceptr here = new_memory(BYTES), there;
    uint32_t *host = malloc(BYTES);
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    bool right = true;

    CU_ASSERT_PTR_NOT_NULL_FATAL(host);
    MUST(cuCtxPushCurrent(contexts[1]));
    there = new_memory(BYTES);
    MUST(cuCtxPopCurrent(NULL));
    for (unsigned i = 0; i < BYTES / 4; i++)
        host[i] = i * 2654435761U;
    OK(cuMemcpyHtoD(here, host, BYTES));
    OK(cuMemcpyPeerAsync(there, contexts[1], here, contexts[0], BYTES, stream));
    OK(cuMemsetD8Async(here, 0xab, BYTES, stream));
    OK(cuMemsetD32Async(here + BYTES / 2, 0x12345678, BYTES / 8, stream));
    OK(cuStreamSynchronize(stream));
    memset(host, 0, BYTES);
    OK(cuMemcpyDtoH(host, there, BYTES));
    for (unsigned i = 0; i < BYTES / 4; i++)
        right = right && host[i] == i * 2654435761U;
    CU_ASSERT(right);
    OK(cuMemcpyDtoD(there, here, BYTES));
    OK(cuMemcpy(device_address(host), there, BYTES));
    for (unsigned i = 0; i < BYTES / 4; i++)
        right = right && host[i] == (i < BYTES / 8 ? 0xababababU : 0x12345678U);
    CU_ASSERT(right);
    free(host);
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(here));
    OK(cuMemFree(there));
}

/* What the real driver may let pass, or not: here the context is lost, until it is made anew. */
static void work_on_memory_that_is_gone_breaks_the_context(void) {
    char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUstream stream;
    CUdeviceptr memory;

    CU_ASSERT_FATAL(at != MAP_FAILED);
    MUST(cuCtxPushCurrent(contexts[1]));
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    memory = new_memory(PAGE);
    set_word(0, 0);
    OK(cuMemHostRegister(at, PAGE, 0));
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemcpyDtoHAsync(at, memory, PAGE, stream));
    OK(cuMemHostUnregister(at));
    set_word(0, 1);
    CU_ASSERT_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU_ASSERT_EQUAL(cuMemAlloc(&memory, PAGE), CUDA_ERROR_ILLEGAL_ADDRESS);
    MUST(cuCtxPopCurrent(NULL));
    MUST(cuDevicePrimaryCtxRelease(1));
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    MUST(cuCtxPushCurrent(contexts[1]));
    OK(cuMemFree(new_memory(PAGE)));
    MUST(cuCtxPopCurrent(NULL));
    munmap(at, PAGE);
}

static void pools_free_in_the_order_of_the_stream(void) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    size_t before, during, after, total;
    CUmemoryPool pool, of_pointer;
    CUdeviceptr at;

    OK(cuMemGetInfo(&before, &total));
    MUST(cuMemAllocAsync(&at, BYTES, stream));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    CU_ASSERT_PTR_EQUAL(of_pointer, pool);
    set_word(0, 0);
    OK(cuStreamWaitValue32(stream, device_address(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(at, 1, BYTES, stream));
    OK(cuMemFreeAsync(at, stream));
    CU_ASSERT_EQUAL(cuMemFreeAsync(at, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetInfo(&during, &total));
    CU_ASSERT_EQUAL(before - during, BYTES);
    set_word(0, 1);
    OK(cuStreamSynchronize(stream));
    OK(cuMemGetInfo(&after, &total));
    CU_ASSERT_EQUAL(after, before);
    CU_ASSERT_EQUAL(cuMemcpy(at, at, 1), CUDA_ERROR_INVALID_VALUE); /* addresses of nothing */
    OK(cuStreamDestroy(stream));
}

static void mapped_memory_wants_addresses_and_access(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr base, start;
    int fd = -1, mapped = 99;
    size_t unit, bytes;

    MUST(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CU_ASSERT_EQUAL(cuMemCreate(&handle, unit + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemCreate(&handle, unit, &prop, 0));
    MUST(cuMemAddressReserve(&base, 4 * unit, 0, 0, 0));
    MUST(cuMemMap(base + unit, unit, 0, handle, 0));
    CU_ASSERT_EQUAL(cuMemsetD8(base + unit, 1, unit), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(base + unit, unit, &access, 1));
    OK(cuMemsetD8(base + unit, 1, unit));
    CU_ASSERT_EQUAL(cuMemsetD8(base, 1, unit), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAddressRange(&start, &bytes, base + unit + 5));
    CU_ASSERT(start == base + unit && bytes == unit);
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base + unit));
    OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, base + unit));
    CU_ASSERT(start == base && bytes == 4 * unit);
    OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, base));
    CU_ASSERT_EQUAL(mapped, 0);
    CU_ASSERT_EQUAL(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    CUDA_ERROR_INVALID_VALUE); /* it was not made for that */
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(base + unit)));
    CU_ASSERT_EQUAL(again, handle);
    OK(cuMemRelease(again));
    OK(cuMemRelease(handle));
    OK(cuMemsetD8(base + unit, 2, unit)); /* the mapping keeps it */
    CU_ASSERT_EQUAL(cuMemAddressFree(base, 4 * unit), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(base + unit, unit));
    CU_ASSERT_EQUAL(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(base, 4 * unit));
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"devices say what they are", devices_say_what_they_are},
        {"contexts cost memory while they live", contexts_cost_memory_while_they_live},
        {"pointers are known for what they are", pointers_are_known_for_what_they_are},
        {"new memory at an old address has another id", new_memory_at_an_old_address_has_another_id},
        {"memory ends where it ends", memory_ends_where_it_ends},
        {"host memory is registered once", host_memory_is_registered_once},
        {"memory that is not pinned is read at once", memory_that_is_not_pinned_is_read_at_once},
        {"copies and fills reach every byte", copies_and_fills_reach_every_byte},
        {"work on memory that is gone breaks the context", work_on_memory_that_is_gone_breaks_the_context},
        {"pools free in the order of the stream", pools_free_in_the_order_of_the_stream},
        {"mapped memory wants addresses and access", mapped_memory_wants_addresses_and_access},
        CU_TEST_INFO_NULL};

    return cuda_test_run("fake_cuda", tests);
}
