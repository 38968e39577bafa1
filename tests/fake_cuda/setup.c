/* setup.c - cuInit, and what the environment says of this simulation */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

enum { DEFAULT_DEVICES = 2 };

struct fake_setup fake;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int owner; /* the process that called cuInit: the driver does not survive a fork */

static const char *setting(const char *name) {
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

/* As the real driver does: the list ends at the first entry that is no device. */
static void read_visible(int n_present) {
    const char *at = getenv("CUDA_VISIBLE_DEVICES");

    if (!at) {
        for (fake.n_devices = 0; fake.n_devices < n_present; fake.n_devices++)
            fake.physical[fake.n_devices] = fake.n_devices;
        return;
    }
    while (fake.n_devices < FAKE_DEVICES_MAX) {
        char *end;
        long index = strtol(at, &end, 10);

        if (end == at || index < 0 || index >= n_present || fake_device_ordinal((int)index) >= 0)
            return;
        fake.physical[fake.n_devices++] = (int)index;
        if (*end != ',')
            return;
        at = end + 1;
    }
}

static void read_all(void) {
    const char *devices = setting("FAKE_CUDA_DEVICES"), *rate = setting("FAKE_CUDA_COPY_GBPS");
    const char *folder = setting("FAKE_CUDA_DIR");
    int n_present = devices ? atoi(devices) : DEFAULT_DEVICES;

    read_visible(n_present < 0 ? 0 : n_present > FAKE_DEVICES_MAX ? FAKE_DEVICES_MAX : n_present);
    if (folder)
        snprintf(fake.folder, sizeof(fake.folder) - FAKE_NAME_BYTES, "%s", folder);
    else
        snprintf(fake.folder, sizeof(fake.folder), "/dev/shm/fake-cuda-%u", (unsigned)geteuid());
    fake.copy_bytes_per_ns = rate ? atof(rate) : 0; /* 1 GB/s is 1 byte/ns */
    fake.no_ipc = setting("FAKE_CUDA_NO_IPC") != NULL && strcmp(getenv("FAKE_CUDA_NO_IPC"), "0") != 0;
}

void fake_setup_read(void) {
    pthread_once(&once, read_all);
}

int fake_device_ordinal(int physical) {
    for (int i = 0; i < fake.n_devices; i++)
        if (fake.physical[i] == physical)
            return i;
    return -1;
}

/* A folder made here is for all users, as device memory is open to whoever has its handle. */
static bool make_folder(void) {
    if (mkdir(fake.folder, 01777) == 0)
        return chmod(fake.folder, 01777) == 0;
    return errno == EEXIST;
}

static void at_exit(void) {
    if (atomic_load(&owner) == (int)getpid())
        fake_file_remove_own();
}

static CUresult init_locked(void) {
    int process = (int)getpid(), expected = atomic_load(&owner);
    CUresult result;

    if (expected == process)
        return CUDA_SUCCESS;
    if (expected != 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (fake.n_devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (!make_folder()) {
        fprintf(stderr, "simulated CUDA: cannot make the folder %s: %s; set FAKE_CUDA_DIR\n", fake.folder,
                strerror(errno));
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    result = fake_account_open();
    if (result != CUDA_SUCCESS)
        return result;
    fake_file_sweep();
    if (atexit(at_exit) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_store(&owner, process);
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags) {
    CUresult result;

    fake_setup_read();
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = fake_fail(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&init_lock);
    result = init_locked();
    pthread_mutex_unlock(&init_lock);
    return result;
}

CUresult fake_enter(const char *call, unsigned needs) {
    CUcontext context;
    CUresult result;
    int process = atomic_load(&owner);

    if (process == 0 || process != (int)getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (fake_in_worker())
        return CUDA_ERROR_NOT_PERMITTED;
    result = fake_fail(call);
    if (result != CUDA_SUCCESS)
        return result;
    if (needs & FAKE_CONTEXT) {
        context = fake_context_current();
        if (!context)
            return CUDA_ERROR_INVALID_CONTEXT;
        result = (CUresult)atomic_load(&context->error);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return needs & FAKE_UNSAFE ? fake_capture_allows() : CUDA_SUCCESS;
}
