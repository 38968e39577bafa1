/* held.c - see held.h
 *
 * The library is loaded for the question alone, and its few types are declared here: its header is not part of every
 * toolkit.
 */
#include "held.h"

#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

typedef struct process_info {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
} process_info_t;

typedef int (*init_fn)(void);
typedef int (*handle_fn)(const char *uuid, void **device_out);
typedef int (*processes_fn)(void *device, unsigned *n, process_info_t *infos);

enum { PROCESSES_MAX = 512 };

/* ISO C has no conversion from what dlsym gives to a function. */
static void find(void *library, const char *name, void *function_out) {
    *(void **)function_out = dlsym(library, name);
}

static uint64_t ask(void *library, const char *uuid) {
    static const unsigned long long unknown = ~0ull;
    process_info_t infos[PROCESSES_MAX];
    unsigned n = PROCESSES_MAX;
    init_fn init, shutdown;
    handle_fn handle;
    processes_fn processes;
    uint64_t result = 0;
    void *device;

    find(library, "nvmlInit_v2", &init);
    find(library, "nvmlShutdown", &shutdown);
    find(library, "nvmlDeviceGetHandleByUUID", &handle);
    find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &processes);
    if (!init || !shutdown || !handle || !processes || init() != 0)
        return 0;
    if (handle(uuid, &device) == 0 && processes(device, &n, infos) == 0)
        for (unsigned i = 0; i < n; i++)
            if (infos[i].pid == (unsigned)getpid() && infos[i].used_bytes != unknown)
                result = infos[i].used_bytes;
    (void)shutdown();
    return result;
}

uint64_t gwd_cuda_held_bytes(const char *uuid) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    uint64_t result;

    if (!library)
        return 0;
    result = ask(library, uuid);
    (void)dlclose(library);
    return result;
}
