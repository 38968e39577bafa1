/* device.c - finding out whose memory a pointer leads to; see device.h */
#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "error.h"
#include "plugin.h"

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(const gw_device_api_t *) api; /* of the plugin, which stays loaded */

/* A device's pointer was made by its driver, in this process: without one there is none. */
static bool has_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

    if (driver == NULL)
        return false;
    dlclose(driver); /* the reference that the question took */
    return true;
}

static const gw_device_api_t *load(char *text, size_t text_bytes) {
    const gw_device_api_t *loaded = atomic_load_explicit(&api, memory_order_acquire);

    if (loaded != NULL)
        return loaded;
    pthread_mutex_lock(&loading);
    loaded = gw_plugin_symbol("libgradwire-cuda.so", "gw_client_cuda", text, text_bytes);
    if (loaded != NULL && loaded->version != GW_DEVICE_API) {
        snprintf(text, text_bytes, "libgradwire-cuda.so belongs to another version of libgradwire");
        loaded = NULL;
    }
    if (loaded != NULL)
        atomic_store_explicit(&api, loaded, memory_order_release);
    pthread_mutex_unlock(&loading);
    return loaded;
}

/* The kernel knows whether the CPU can read there, and says so without a fault. */
static bool is_readable(const void *at) {
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)at, 1};

    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

gw_status_t gw_device_find(const void *data, uint64_t bytes, gw_device_t **device_out) {
    char text[GW_DRIVER_TEXT_BYTES];

    *device_out = NULL;
    if (!has_driver())
        return GW_OK;
    const gw_device_api_t *loaded = load(text, sizeof(text));
    if (loaded == NULL) {
        if (is_readable(data) && is_readable((const uint8_t *)data + bytes - 1))
            return GW_OK;
        return gw_fail_advised(GW_ERR_UNSUPPORTED,
                               "data %p is not the host's memory, and the plugin for a device's cannot be loaded: %s; "
                               "install libgradwire-cuda.so, or name its folder in GRADWIRE_PLUGIN_DIR",
                               data, text);
    }
    gw_status_t status = loaded->memory->find(data, device_out, text, sizeof(text));
    return status == GW_OK ? GW_OK : gw_fail(status, "%s", text);
}

const gw_device_memory_t *gw_device_memory(void) {
    return atomic_load_explicit(&api, memory_order_acquire)->memory;
}

const gw_device_streams_t *gw_device_streams(void) {
    return atomic_load_explicit(&api, memory_order_acquire)->streams;
}
