/* lend.c - a process with memory of a device that hands out its handles, for tests that lie about them
 *
 *   lend DEVICE   reads commands from standard input, a Unix socket, and answers each with one packet. The first packet
 *                 is the device's UUID. Memories are numbered 0, 1, 2, ...
 *
 *   ipc BYTES         NUMBER BYTES HANDLE, in hex
 *   vmm BYTES         the same without a handle, and a descriptor
 *   pool BYTES        the same with both
 *   fill NUMBER VALUE each int of it
 *   wrong NUMBER VALUE COUNT   how many of the first ints are others
 *   free NUMBER
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MEMORIES_MAX = 4096, ANSWER_BYTES = 512 };

typedef struct memory {
    CUdeviceptr at;
    size_t bytes;
    char kind; /* 'i', 'v', 'p'; 0: free */
    CUmemGenericAllocationHandle handle;
} memory_t;

static memory_t memories[MEMORIES_MAX];
static int n_memories;
static CUdevice device;
static CUmemoryPool pool;

static void must(CUresult result, const char *call) {
    const char *name = NULL;

    if (result == CUDA_SUCCESS)
        return;
    (void)cuGetErrorName(result, &name);
    fprintf(stderr, "lend: %s: %s\n", call, name ? name : "error");
    exit(2);
}
#define MUST(call) must((call), #call)

static void answer(const char *text, int fd) {
    struct iovec piece = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof(control.room);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
    }
    if (sendmsg(STDIN_FILENO, &message, MSG_NOSIGNAL) < 0)
        exit(0); /* the test has ended */
    if (fd >= 0)
        close(fd);
}

static void to_hex(const void *data, size_t bytes, char *text) {
    for (size_t i = 0; i < bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)data)[i]);
}

static void map_new(memory_t *memory, int *fd_out) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit;

    MUST(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    memory->bytes = (memory->bytes + unit - 1) / unit * unit;
    MUST(cuMemCreate(&memory->handle, memory->bytes, &prop, 0));
    MUST(cuMemAddressReserve(&memory->at, memory->bytes, 0, 0, 0));
    MUST(cuMemMap(memory->at, memory->bytes, 0, memory->handle, 0));
    MUST(cuMemSetAccess(memory->at, memory->bytes, &access, 1));
    MUST(cuMemExportToShareableHandle(fd_out, memory->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void take_from_pool(memory_t *memory, CUmemPoolPtrExportData *data_out, int *fd_out) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};

    if (!pool)
        MUST(cuMemPoolCreate(&pool, &props));
    MUST(cuMemAllocFromPoolAsync(&memory->at, memory->bytes, pool, NULL));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuMemPoolExportToShareableHandle(fd_out, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemPoolExportPointer(data_out, memory->at));
}

static void lend(char kind, size_t bytes) {
    memory_t *memory = &memories[n_memories];
    union {
        CUipcMemHandle ipc;
        CUmemPoolPtrExportData pointer;
    } data;
    char hex[2 * sizeof(data) + 1] = "", text[ANSWER_BYTES];
    int fd = -1;

    *memory = (memory_t){.bytes = bytes, .kind = kind};
    if (kind == 'i') {
        MUST(cuMemAlloc(&memory->at, bytes));
        MUST(cuIpcGetMemHandle(&data.ipc, memory->at));
        to_hex(&data.ipc, sizeof(data.ipc), hex);
    } else if (kind == 'v') {
        map_new(memory, &fd);
    } else {
        take_from_pool(memory, &data.pointer, &fd);
        to_hex(&data.pointer, sizeof(data.pointer), hex);
    }
    snprintf(text, sizeof(text), "%d %zu %s", n_memories++, memory->bytes, hex);
    answer(text, fd);
}

static void give_back(memory_t *memory) {
    if (memory->kind == 'v') {
        MUST(cuMemUnmap(memory->at, memory->bytes));
        MUST(cuMemAddressFree(memory->at, memory->bytes));
        MUST(cuMemRelease(memory->handle));
    } else if (memory->kind) {
        MUST(cuMemFree(memory->at));
    }
    memory->kind = 0;
}

static void obey(const char *line) {
    char word[16] = "", text[ANSWER_BYTES] = "ok";
    unsigned long long a = 0, b = 0, c = 0, wrong = 0;
    memory_t *memory;
    int *values;

    if (sscanf(line, "%15s %llu %llu %llu", word, &a, &b, &c) < 2)
        exit(2);
    if (strcmp(word, "ipc") == 0 || strcmp(word, "vmm") == 0 || strcmp(word, "pool") == 0) {
        if (n_memories == MEMORIES_MAX)
            exit(2);
        lend(word[0], a);
        return;
    }
    memory = &memories[a % MEMORIES_MAX];
    if (strcmp(word, "free") == 0) {
        give_back(memory);
        answer(text, -1);
        return;
    }
    values = malloc(memory->bytes);
    if (!values)
        exit(2);
    if (strcmp(word, "fill") == 0) {
        for (size_t i = 0; i < memory->bytes / sizeof(int); i++)
            values[i] = (int)b;
        MUST(cuMemcpyHtoD(memory->at, values, memory->bytes));
    } else {
        MUST(cuMemcpyDtoH(values, memory->at, memory->bytes));
        for (size_t i = 0; i < c; i++)
            wrong += values[i] != (int)b;
        snprintf(text, sizeof(text), "%llu", wrong);
    }
    free(values);
    answer(text, -1);
}

int main(int argc, char **argv) {
    char line[256], text[64] = "GPU-";
    CUcontext context;
    CUuuid uuid;
    ssize_t n;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, argc > 1 ? atoi(argv[1]) : 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuDeviceGetUuid(&uuid, device));
    to_hex(uuid.bytes, 16, text + 4);
    answer(text, -1);
    while ((n = recv(STDIN_FILENO, line, sizeof(line) - 1, 0)) > 0) {
        line[n] = 0;
        obey(line);
    }
    return 0;
}
