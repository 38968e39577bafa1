/* devmem.c - see devmem.h */
#include "devmem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- what cuda.h says, as far as it is needed ---------------------------------------------------- */

typedef struct location {
    int type; /* 1: a device */
    int id;
} location_t;

typedef struct properties {
    int type; /* 1: pinned */
    int handle_types;
    location_t location;
    void *unused;
    unsigned char flags[8];
} properties_t;

typedef struct pool_properties {
    int type;
    int handle_types;
    location_t location;
    void *unused;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
} pool_properties_t;

typedef struct access {
    location_t location;
    int flags; /* 3: read and write */
} access_t;

enum { NOT_READY = 600, HANDLE_FD = 1, NON_BLOCKING = 1, ATTACH_GLOBAL = 1 };

typedef uint64_t address_t;

/* X(name of the field, name in the library, its arguments) */
#define CALLS(X)                                                                                                       \
    X(init, "cuInit", (unsigned))                                                                                      \
    X(error_name, "cuGetErrorName", (int, const char **))                                                              \
    X(device_count, "cuDeviceGetCount", (int *))                                                                       \
    X(device, "cuDeviceGet", (int *, int))                                                                             \
    X(retain, "cuDevicePrimaryCtxRetain", (void **, int))                                                              \
    X(set_current, "cuCtxSetCurrent", (void *))                                                                        \
    X(alloc, "cuMemAlloc_v2", (address_t *, size_t))                                                                   \
    X(free, "cuMemFree_v2", (address_t))                                                                               \
    X(alloc_async, "cuMemAllocAsync", (address_t *, size_t, void *))                                                   \
    X(free_async, "cuMemFreeAsync", (address_t, void *))                                                               \
    X(alloc_managed, "cuMemAllocManaged", (address_t *, size_t, unsigned))                                             \
    X(pool_create, "cuMemPoolCreate", (void **, const pool_properties_t *))                                            \
    X(pool_alloc, "cuMemAllocFromPoolAsync", (address_t *, size_t, void *, void *))                                    \
    X(granularity, "cuMemGetAllocationGranularity", (size_t *, const properties_t *, int))                             \
    X(reserve, "cuMemAddressReserve", (address_t *, size_t, size_t, address_t, unsigned long long))                    \
    X(unreserve, "cuMemAddressFree", (address_t, size_t))                                                              \
    X(create, "cuMemCreate", (unsigned long long *, size_t, const properties_t *, unsigned long long))                 \
    X(map, "cuMemMap", (address_t, size_t, size_t, unsigned long long, unsigned long long))                            \
    X(unmap, "cuMemUnmap", (address_t, size_t))                                                                        \
    X(set_access, "cuMemSetAccess", (address_t, size_t, const access_t *, size_t))                                     \
    X(release, "cuMemRelease", (unsigned long long))                                                                   \
    X(fill, "cuMemsetD8Async", (address_t, unsigned char, size_t, void *))                                             \
    X(to_device, "cuMemcpyHtoDAsync_v2", (address_t, const void *, size_t, void *))                                    \
    X(to_host, "cuMemcpyDtoHAsync_v2", (void *, address_t, size_t, void *))                                            \
    X(stream_create, "cuStreamCreate", (void **, unsigned))                                                            \
    X(stream_sync, "cuStreamSynchronize", (void *))                                                                    \
    X(stream_query, "cuStreamQuery", (void *))

#define FIELD(field, name, arguments) int(*field) arguments;
static struct calls { CALLS(FIELD) } cu;

static const char *const kinds[DEVMEM_KINDS] = {"malloc", "async", "pool", "vmm", "private", "managed"};

static void *library, *context, *pool;
static int device = -1;
static void *filler; /* the stream that memory is zeroed and freed on */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what, const char *why) {
    fprintf(stderr, "devmem: %s: %s\n", what, why);
    exit(2);
}

static void must(int result, const char *call) {
    const char *name = NULL;
    char number[16];

    if (result == 0)
        return;
    snprintf(number, sizeof(number), "%d", result);
    (void)cu.error_name(result, &name);
    die(call, name ? name : number);
}

static bool load(void) {
    static const struct {
        const char *name;
        size_t offset;
    } names[] = {
#define NAME(field, name, arguments) {name, offsetof(struct calls, field)},
        CALLS(NAME)};

    if (library)
        return true;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *call = dlsym(library, names[i].name);

        if (!call)
            die("the driver has no", names[i].name);
        memcpy((char *)&cu + names[i].offset, &call, sizeof(call));
    }
    return true;
}

int devmem_count(void) {
    int n = 0;

    if (!load() || cu.init(0) != 0 || cu.device_count(&n) != 0)
        return 0;
    return n;
}

void devmem_open(unsigned ordinal) {
    int n;

    if (!load())
        die("there is no driver", dlerror());
    must(cu.init(0), "cuInit");
    must(cu.device_count(&n), "cuDeviceGetCount");
    if (n == 0)
        die("cuDeviceGetCount", "no device");
    must(cu.device(&device, (int)(ordinal % (unsigned)n)), "cuDeviceGet");
    must(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
    devmem_enter();
    filler = devmem_stream_new();
}

void devmem_enter(void) {
    must(cu.set_current(context), "cuCtxSetCurrent");
}

devmem_kind_t devmem_kind(const char *word) {
    int kind = 0;

    while (kind < DEVMEM_KINDS && strcmp(kinds[kind], word) != 0)
        kind++;
    return (devmem_kind_t)kind;
}

/* ---- memory --------------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static void make_pool(void) {
    pool_properties_t properties = {.type = 1, .handle_types = HANDLE_FD, .location = {1, device}};

    pthread_mutex_lock(&pool_lock);
    if (!pool)
        must(cu.pool_create(&pool, &properties), "cuMemPoolCreate");
    pthread_mutex_unlock(&pool_lock);
}

/* The first handle is as small as can be, the second holds the rest: a buffer goes over their border. */
static address_t map_handles(devmem_t *memory) {
    const properties_t properties = {
        .type = 1, .handle_types = memory->kind == DEVMEM_VMM ? HANDLE_FD : 0, .location = {1, device}};
    const access_t access = {{1, device}, 3};
    unsigned long long handle;
    size_t unit;
    address_t at;

    must(cu.granularity(&unit, &properties, 0), "cuMemGetAllocationGranularity");
    memory->range_bytes = round_up(memory->bytes, unit);
    must(cu.reserve(&at, memory->range_bytes, 0, 0, 0), "cuMemAddressReserve");
    for (uint64_t done = 0, piece = unit; done < memory->range_bytes;
         done += piece, piece = memory->range_bytes - unit) {
        must(cu.create(&handle, piece, &properties, 0), "cuMemCreate");
        must(cu.map(at + done, piece, 0, handle, 0), "cuMemMap");
        must(cu.release(handle), "cuMemRelease");
    }
    must(cu.set_access(at, memory->range_bytes, &access, 1), "cuMemSetAccess");
    return at;
}

devmem_t devmem_alloc(devmem_kind_t kind, uint64_t bytes) {
    devmem_t memory = {.kind = kind, .bytes = bytes};
    address_t at = 0;

    switch (kind) {
    case DEVMEM_ASYNC:
        must(cu.alloc_async(&at, bytes, filler), "cuMemAllocAsync");
        break;
    case DEVMEM_POOL:
        make_pool();
        must(cu.pool_alloc(&at, bytes, pool, filler), "cuMemAllocFromPoolAsync");
        break;
    case DEVMEM_VMM:
    case DEVMEM_PRIVATE:
        at = map_handles(&memory);
        break;
    case DEVMEM_MANAGED:
        must(cu.alloc_managed(&at, bytes, ATTACH_GLOBAL), "cuMemAllocManaged");
        break;
    default:
        must(cu.alloc(&at, bytes), "cuMemAlloc");
    }
    must(cu.fill(at, 0, bytes, filler), "cuMemsetD8Async");
    devmem_stream_sync(filler);
    memory.at = (void *)(uintptr_t)at;
    return memory;
}

void devmem_free(devmem_t *memory) {
    address_t at = (address_t)(uintptr_t)memory->at;

    if (!at)
        return;
    memory->at = NULL;
    if (memory->kind == DEVMEM_ASYNC || memory->kind == DEVMEM_POOL) {
        must(cu.free_async(at, filler), "cuMemFreeAsync");
        devmem_stream_sync(filler);
    } else if (memory->range_bytes > 0) {
        must(cu.unmap(at, memory->range_bytes), "cuMemUnmap");
        must(cu.unreserve(at, memory->range_bytes), "cuMemAddressFree");
    } else {
        must(cu.free(at), "cuMemFree");
    }
}

void devmem_upload(void *to, const void *from, uint64_t bytes, void *stream) {
    if (bytes == 0)
        return;
    must(cu.to_device((address_t)(uintptr_t)to, from, bytes, stream), "cuMemcpyHtoDAsync");
    devmem_stream_sync(stream);
}

void devmem_download(void *to, const void *from, uint64_t bytes, void *stream) {
    if (bytes == 0)
        return;
    must(cu.to_host(to, (address_t)(uintptr_t)from, bytes, stream), "cuMemcpyDtoHAsync");
    devmem_stream_sync(stream);
}

/* ---- streams -------------------------------------------------------------------------------------- */

void *devmem_stream_new(void) {
    void *stream;

    must(cu.stream_create(&stream, NON_BLOCKING), "cuStreamCreate");
    return stream;
}

void devmem_stream_sync(void *stream) {
    must(cu.stream_sync(stream), "cuStreamSynchronize");
}

bool devmem_stream_wait(void *stream, int64_t ms) {
    const struct timespec pause = {.tv_nsec = 50000};
    struct timespec begin, now;
    int result;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((result = cu.stream_query(stream)) == NOT_READY) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (ms >= 0 && (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 >= ms)
            return false;
        nanosleep(&pause, NULL);
    }
    must(result, "cuStreamQuery");
    return true;
}
