/* test_fake_cuda_processes.c - memory that processes share by the simulated CUDA driver, and what a kill leaves of it */
#include <dirent.h>

#include "cuda_peer.h"

enum { BYTES = 3 * PAGE };

enum kind { LEGACY, DESCRIPTORS, POOL };

/* An offer of memory, and the answer: what the first word was, or the error. The peer leaves value + 1 there. */
struct message {
    enum kind kind;
    CUresult result;
    uint32_t value;
    uint64_t bytes;
    union {
        CUipcMemHandle handle;
        CUmemPoolPtrExportData pointer;
    } data;
};

static const CUmemAllocationHandleType fds = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/* ---- messages ---- */

static bool send_message(int channel, const struct message *message, int fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec span = {(void *)(uintptr_t)message, sizeof(*message)};
    struct msghdr header = {.msg_iov = &span, .msg_iovlen = 1};

    if (fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        CMSG_FIRSTHDR(&header)->cmsg_level = SOL_SOCKET;
        CMSG_FIRSTHDR(&header)->cmsg_type = SCM_RIGHTS;
        CMSG_FIRSTHDR(&header)->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), &fd, sizeof(fd));
    }
    return sendmsg(channel, &header, MSG_NOSIGNAL) == (ssize_t)sizeof(*message);
}

static bool receive_message(int channel, struct message *message_out, int *fd_out) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec span = {message_out, sizeof(*message_out)};
    struct msghdr header = {
        .msg_iov = &span, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

    *fd_out = -1;
    if (recvmsg(channel, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*message_out))
        return false;
    if (CMSG_FIRSTHDR(&header))
        memcpy(fd_out, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(*fd_out));
    return true;
}

/* ---- memory that is opened ---- */

struct import {
    CUdeviceptr at;
    CUmemoryPool pool;
};

/* Opened twice it is the same memory, and one end leaves it open. */
static CUresult open_legacy(const struct message *offer, struct import *import_out) {
    CUdeviceptr again;
    CUresult result = cuIpcOpenMemHandle(&import_out->at, offer->data.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

    if (result == CUDA_SUCCESS)
        result = cuIpcOpenMemHandle(&again, offer->data.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS && again != import_out->at)
        return CUDA_ERROR_UNKNOWN;
    return result == CUDA_SUCCESS ? cuIpcCloseMemHandle(again) : result;
}

static CUresult open_descriptor(const struct message *offer, int fd, struct import *import_out) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUresult result = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, fds);

    if (result == CUDA_SUCCESS)
        result = cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (result == CUDA_SUCCESS && (prop.location.id != 0 || prop.requestedHandleTypes != fds))
        return CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS)
        result = cuMemAddressReserve(&import_out->at, offer->bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemMap(import_out->at, offer->bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemRelease(handle);
    return result == CUDA_SUCCESS ? cuMemSetAccess(import_out->at, offer->bytes, &access, 1) : result;
}

static CUresult open_pool(const struct message *offer, int fd, struct import *import_out) {
    CUmemPoolPtrExportData pointer = offer->data.pointer;
    CUresult result = cuMemPoolImportFromShareableHandle(&import_out->pool, (void *)(intptr_t)fd, fds, 0);

    return result == CUDA_SUCCESS ? cuMemPoolImportPointer(&import_out->at, import_out->pool, &pointer) : result;
}

static CUresult open_memory(const struct message *offer, int fd, struct import *import_out) {
    switch (offer->kind) {
    case LEGACY:
        return open_legacy(offer, import_out);
    case DESCRIPTORS:
        return open_descriptor(offer, fd, import_out);
    default:
        return open_pool(offer, fd, import_out);
    }
}

static CUresult close_memory(const struct message *offer, const struct import *import) {
    CUresult result;

    if (offer->kind == LEGACY)
        return cuIpcCloseMemHandle(import->at);
    if (offer->kind == DESCRIPTORS) {
        result = cuMemUnmap(import->at, offer->bytes);
        return result == CUDA_SUCCESS ? cuMemAddressFree(import->at, offer->bytes) : result;
    }
    result = cuMemFree(import->at);
    return result == CUDA_SUCCESS ? cuMemPoolDestroy(import->pool) : result;
}

/* The answer is in the offer's place. */
static void answer(struct message *offer, int fd) {
    struct import import = {0, NULL};
    CUdeviceptr base;
    size_t bytes = 0;
    uint32_t next;

    offer->result = open_memory(offer, fd, &import);
    if (offer->result != CUDA_SUCCESS)
        return;
    offer->result = cuMemGetAddressRange(&base, &bytes, import.at + offer->bytes - 1);
    if (offer->result == CUDA_SUCCESS && (base != import.at || bytes != offer->bytes))
        offer->result = CUDA_ERROR_UNKNOWN;
    if (offer->result == CUDA_SUCCESS)
        offer->result = cuMemcpyDtoH(&offer->value, import.at, sizeof(offer->value));
    next = offer->value + 1;
    if (offer->result == CUDA_SUCCESS)
        offer->result = cuMemcpyHtoD(import.at, &next, sizeof(next));
    if (offer->result == CUDA_SUCCESS)
        offer->result = close_memory(offer, &import);
}

/* ---- what a peer does, by its role; 0 when all went well ---- */

static int answer_offers(void) {
    struct message message;
    int fd;

    while (receive_message(PEER_CHANNEL, &message, &fd)) {
        answer(&message, fd);
        if (fd >= 0)
            close(fd);
        if (!send_message(PEER_CHANNEL, &message, -1))
            return 1;
    }
    return 0;
}

/* Offers memory that holds 41, and waits to be killed. */
static int offer_memory(void) {
    struct message message = {.kind = LEGACY, .bytes = BYTES};
    CUdeviceptr at;

    if (cuMemAlloc(&at, BYTES) != CUDA_SUCCESS || cuMemsetD32(at, 41, BYTES / 4) != CUDA_SUCCESS ||
        cuCtxSynchronize() != CUDA_SUCCESS || cuIpcGetMemHandle(&message.data.handle, at) != CUDA_SUCCESS ||
        !send_message(PEER_CHANNEL, &message, -1))
        return 1;
    pause();
    return 1;
}

static int be_there(void) {
    return 0;
}

enum { ANSWERS, OFFERS, THERE };

static const peer_role_t roles[] = {
    {"answers", answer_offers, NULL, NULL}, {"offers", offer_memory, NULL, NULL}, {"there", be_there, NULL, NULL}, {0}};

static uint32_t first_word(CUdeviceptr at) {
    uint32_t value = 0;

    OK(cuMemcpyDtoH(&value, at, sizeof(value)));
    return value;
}

/* The peer finds `value`, and leaves the next one. */
static void expect_shared(struct message *offer, int fd, CUdeviceptr at, int channel) {
    uint32_t value = 1000 + (uint32_t)offer->kind;
    int none;

    OK(cuMemcpyHtoD(at, &value, sizeof(value)));
    CU_ASSERT(send_message(channel, offer, fd));
    CU_ASSERT_FATAL(receive_message(channel, offer, &none));
    OK(offer->result);
    CU_ASSERT_EQUAL(offer->value, value);
    CU_ASSERT_EQUAL(first_word(at), value + 1);
}

/* ---- the tests ---- */

static void a_legacy_handle_opens_memory_elsewhere(void) {
    struct message offer = {.kind = LEGACY, .bytes = BYTES - 100};
    CUdeviceptr at = new_memory(BYTES - 100), own;
    CUipcMemHandle handle;
    int channel, none;
    pid_t peer = peer_start(&roles[ANSWERS], &channel);

    MUST(cuIpcGetMemHandle(&handle, at + PAGE)); /* of the whole allocation, whatever the pointer into it */
    offer.data.handle = handle;
    CU_ASSERT_EQUAL(cuIpcOpenMemHandle(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    expect_shared(&offer, -1, at, channel);
    OK(cuMemFree(at));
    CU_ASSERT(send_message(channel, &offer, -1));
    CU_ASSERT_FATAL(receive_message(channel, &offer, &none));
    CU_ASSERT_EQUAL(offer.result, CUDA_ERROR_MAP_FAILED);
    peer_expect(peer, channel, 0);
}

static void a_descriptor_opens_mapped_memory_elsewhere(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = fds,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct message offer = {.kind = DESCRIPTORS};
    CUmemGenericAllocationHandle handle;
    size_t unit;
    CUdeviceptr at;
    unsigned long long types = 0; /* the real driver writes 8 bytes */
    int channel, fd = -1;
    pid_t peer = peer_start(&roles[ANSWERS], &channel);

    MUST(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    offer.bytes = 2 * unit;
    MUST(cuMemCreate(&handle, offer.bytes, &prop, 0));
    MUST(cuMemAddressReserve(&at, offer.bytes, 0, 0, 0));
    MUST(cuMemMap(at, offer.bytes, 0, handle, 0));
    MUST(cuMemSetAccess(at, offer.bytes, &access, 1));
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at));
    CU_ASSERT_EQUAL(types, (unsigned long long)fds);
    MUST(cuMemExportToShareableHandle(&fd, handle, fds, 0));
    expect_shared(&offer, fd, at, channel);
    CU_ASSERT_EQUAL(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)channel, fds), CUDA_ERROR_INVALID_VALUE);
    close(fd);
    OK(cuMemUnmap(at, offer.bytes));
    OK(cuMemAddressFree(at, offer.bytes));
    OK(cuMemRelease(handle));
    peer_expect(peer, channel, 0);
}

static void a_pool_is_opened_elsewhere_pointer_by_pointer(void) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = fds,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct message offer = {.kind = POOL, .bytes = BYTES};
    CUdeviceptr before, at;
    CUmemoryPool pool;
    int channel, fd = -1;
    pid_t peer = peer_start(&roles[ANSWERS], &channel);

    MUST(cuMemPoolCreate(&pool, &props));
    MUST(cuMemAllocFromPoolAsync(&before, BYTES, pool, NULL));
    MUST(cuMemAllocFromPoolAsync(&at, BYTES, pool, NULL));
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, fds, 0));
    MUST(cuMemPoolExportPointer(&offer.data.pointer, at));
    expect_shared(&offer, fd, at, channel);
    CU_ASSERT_EQUAL(first_word(before), 0);
    close(fd);
    OK(cuMemFreeAsync(at, NULL));
    OK(cuMemFreeAsync(before, NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuCtxSynchronize());
    peer_expect(peer, channel, 0);
}

static unsigned count_files_of(pid_t process) {
    DIR *folder = opendir(getenv("FAKE_CUDA_DIR"));
    const struct dirent *entry;
    unsigned count = 0;
    char stem[32];

    CU_ASSERT_PTR_NOT_NULL_FATAL(folder);
    snprintf(stem, sizeof(stem), "gpu-%d-", (int)process);
    while ((entry = readdir(folder)) != NULL)
        count += strncmp(entry->d_name, stem, strlen(stem)) == 0;
    closedir(folder);
    return count;
}

static void memory_of_a_killed_process_is_good_while_it_is_open(void) {
    size_t before, during, after, total;
    struct message offer;
    int channel, none, other_channel;
    CUdeviceptr at, again;
    pid_t peer, other;

    OK(cuMemGetInfo(&before, &total));
    peer = peer_start(&roles[OFFERS], &channel);
    CU_ASSERT_FATAL(receive_message(channel, &offer, &none));
    OK(cuMemGetInfo(&during, &total));
    CU_ASSERT(during < before - BYTES); /* there is a context as well */
    MUST(cuIpcOpenMemHandle(&at, offer.data.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    kill(peer, SIGKILL);
    peer_expect(peer, channel, SIGKILL);
    OK(cuMemGetInfo(&after, &total));
    CU_ASSERT_EQUAL(after, before);
    CU_ASSERT_EQUAL(first_word(at), 41);
    CU_ASSERT_EQUAL(first_word(at + BYTES - 4), 41);
    OK(cuIpcCloseMemHandle(at));
    CU_ASSERT_EQUAL(cuIpcOpenMemHandle(&again, offer.data.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                    CUDA_ERROR_MAP_FAILED);
    /* The next process takes away what it left. */
    CU_ASSERT_EQUAL(count_files_of(peer), 1);
    other = peer_start(&roles[THERE], &other_channel);
    peer_expect(other, other_channel, 0);
    CU_ASSERT_EQUAL(count_files_of(peer), 0);
}

int main(int argc, char **argv) {
    static CU_TestInfo tests[] = {
        {"a legacy handle opens memory elsewhere", a_legacy_handle_opens_memory_elsewhere},
        {"a descriptor opens mapped memory elsewhere", a_descriptor_opens_mapped_memory_elsewhere},
        {"a pool is opened elsewhere, pointer by pointer", a_pool_is_opened_elsewhere_pointer_by_pointer},
        {"memory of a killed process is good while it is open", memory_of_a_killed_process_is_good_while_it_is_open},
        CU_TEST_INFO_NULL};

    return peer_test_run("fake_cuda_processes", tests, roles, argc, argv);
}
