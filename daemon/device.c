/* device.c - see device.h */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "plugin.h"
#include "server.h"

/* ---- opening and closing: helper threads ---------------------------------------------------------- */

static gw_status_t load_backend(gwd_device_t *device, char *text, size_t text_bytes) {
    char why[256];
    const gwd_plugin_t *plugin = gw_plugin_symbol("gradwired-cuda.so", "gwd_cuda", why, sizeof(why));

    if (plugin && plugin->version == GWD_PLUGIN) {
        device->backend = plugin->device;
        return GW_OK;
    }
    snprintf(text, text_bytes, "this daemon cannot use device '%s': %.160s", device->uuid,
             plugin ? "gradwired-cuda.so belongs to another version" : why);
    return GW_ERR_UNSUPPORTED;
}

static void free_streams(gwd_copies_t *copies, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (copies[i].stream)
            copies[i].backend->stream_free(copies[i].stream);
    free(copies);
}

static gw_status_t new_streams(gwd_device_t *device, gwd_copies_t **copies_out, char *text, size_t text_bytes) {
    gwd_copies_t *copies = calloc(device->n_lanes, sizeof(*copies));
    gw_status_t status = GW_OK;

    if (!copies) {
        snprintf(text, text_bytes, "out of memory");
        return GW_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < device->n_lanes && status == GW_OK; i++) {
        copies[i].backend = device->backend;
        copies[i].device = device;
        status = device->backend->stream_new(device->context, &copies[i].stream, text, text_bytes);
    }
    if (status != GW_OK) {
        free_streams(copies, device->n_lanes);
        return status;
    }
    *copies_out = copies;
    return GW_OK;
}

static gw_status_t new_arena(gwd_device_t *device, gwd_arena_t *arena, int64_t bytes, int64_t block_bytes,
                             const char *setting, char *text, size_t text_bytes) {
    gw_status_t status =
        gwd_arena_init(arena, (uint64_t)bytes, (uint64_t)block_bytes, device->node, setting, text, text_bytes);

    if (status != GW_OK)
        return status;
    status = device->backend->pin(device->context, arena->base, arena->bytes, text, text_bytes);
    if (status != GW_OK)
        gwd_arena_fini(arena);
    return status;
}

/* One that was not made is left alone. */
static void free_arena(gwd_device_t *device, gwd_arena_t *arena) {
    if (!arena->base)
        return;
    device->backend->unpin(device->context, arena->base);
    gwd_arena_fini(arena);
}

static gw_status_t open_locked(gwd_device_t *device, char *text, size_t text_bytes) {
    const gwd_config_t *config = &device->server->config;
    uint64_t context_bytes;
    gw_status_t status = load_backend(device, text, text_bytes);

    if (status == GW_OK)
        status = device->backend->open(device->uuid, &device->context, &device->node, &context_bytes, text, text_bytes);
    if (status != GW_OK)
        return status;
    status = new_arena(device, &device->arena, config->device_arena_bytes, config->device_chunk_bytes,
                       "device.arena_bytes", text, text_bytes);
    if (status != GW_OK)
        goto err_context;
    if (config->wire_listen[0])
        status = new_arena(device, &device->wire_arena, config->device_wire_bytes, config->wire_chunk_bytes,
                           "device.wire_bytes", text, text_bytes);
    if (status != GW_OK)
        goto err_arena;
    status = new_streams(device, &device->in, text, text_bytes);
    if (status != GW_OK)
        goto err_wire_arena;
    status = new_streams(device, &device->out, text, text_bytes);
    if (status != GW_OK)
        goto err_in;
    atomic_store(&device->context_bytes, context_bytes);
    atomic_store(&device->is_open, true);
    gwd_log(GWD_LOG_INFO, "device", "%s is open: %llu MiB of its memory, an arena of %llu MiB, NUMA node %d",
            device->uuid, (unsigned long long)context_bytes >> 20, (unsigned long long)device->arena.bytes >> 20,
            device->node);
    return GW_OK;

err_in:
    free_streams(device->in, device->n_lanes);
err_wire_arena:
    free_arena(device, &device->wire_arena);
err_arena:
    free_arena(device, &device->arena);
err_context:
    device->backend->close(device->context);
    device->context = NULL;
    return status;
}

static void close_locked(gwd_device_t *device) {
    device->close_due = false;
    free_streams(device->in, device->n_lanes);
    free_streams(device->out, device->n_lanes);
    free_arena(device, &device->wire_arena);
    free_arena(device, &device->arena);
    device->backend->close(device->context);
    device->context = NULL;
    atomic_store(&device->is_open, false);
    atomic_store(&device->failed, false); /* a new context may do better */
    gwd_log(GWD_LOG_INFO, "device", "%s is closed", device->uuid);
}

gw_status_t gwd_device_open(gwd_device_t *device, char *text, size_t text_bytes) {
    gw_status_t status = GW_OK;

    pthread_mutex_lock(&device->opening);
    if (device->close_due) /* else the context would be closed with this buffer in it */
        close_locked(device);
    if (atomic_load(&device->failed)) {
        snprintf(text, text_bytes, "device %s has failed; it can be used again when all its buffers are released",
                 device->uuid);
        status = GW_ERR_DEVICE;
    } else if (!device->context) {
        status = open_locked(device, text, text_bytes);
    }
    pthread_mutex_unlock(&device->opening);
    return status;
}

/* ---- references: the loop ------------------------------------------------------------------------- */

static void on_timer_closed(uv_handle_t *handle) {
    gwd_device_t *device = handle->data;

    pthread_mutex_destroy(&device->opening);
    free(device);
}

/* Nobody refers to it, and it is not open. */
static void dispose(gwd_device_t *device) {
    gwd_device_t **at = &device->server->devices;

    while (*at != device)
        at = &(*at)->next;
    *at = device->next;
    uv_close((uv_handle_t *)&device->linger, on_timer_closed);
}

static void close_work(uv_work_t *work) {
    gwd_device_t *device = work->data;

    pthread_mutex_lock(&device->opening);
    if (device->close_due)
        close_locked(device);
    pthread_mutex_unlock(&device->opening);
}

static void settle(gwd_device_t *device);

static void close_done(uv_work_t *work, int cancelled) {
    gwd_device_t *device = work->data;

    (void)cancelled; /* nobody cancels it */
    device->closing = false;
    device->suspect = false;
    settle(device);
}

/* A buffer that comes while it is being closed waits for that, or closes it itself, and opens it again. */
static void close_now(gwd_device_t *device) {
    device->closing = true;
    device->close_due = true; /* nobody holds `opening`: there is no buffer */
    if (uv_queue_work(&device->server->loop, &device->work, close_work, close_done) != 0) {
        close_work(&device->work);
        close_done(&device->work, 0);
    }
}

static void on_linger(uv_timer_t *timer) {
    gwd_device_t *device = timer->data;

    if (device->refs == 0 && !device->closing)
        close_now(device);
}

/* The last buffer is gone, or the context. */
static void settle(gwd_device_t *device) {
    bool at_once = device->server->draining || device->suspect || atomic_load(&device->failed);

    if (device->refs > 0 || device->closing)
        return;
    if (!device->context)
        dispose(device);
    else if (at_once)
        close_now(device);
    else
        (void)uv_timer_start(&device->linger, on_linger, (uint64_t)device->server->config.device_linger_s * 1000, 0);
}

gwd_device_t *gwd_device_ref(gwd_server_t *server, const char *uuid) {
    gwd_device_t *device = server->devices;

    while (device && strcmp(device->uuid, uuid) != 0)
        device = device->next;
    if (!device) {
        device = calloc(1, sizeof(*device));
        if (!device)
            return NULL;
        if (pthread_mutex_init(&device->opening, NULL) != 0 || uv_timer_init(&server->loop, &device->linger) != 0) {
            free(device);
            return NULL;
        }
        snprintf(device->uuid, sizeof(device->uuid), "%s", uuid);
        device->server = server;
        device->n_lanes = server->n_lanes;
        device->linger.data = device->work.data = device;
        device->next = server->devices;
        server->devices = device;
    }
    (void)uv_timer_stop(&device->linger);
    device->refs++;
    return device;
}

void gwd_device_unref(gwd_device_t *device) {
    device->refs--;
    settle(device);
}

void gwd_device_drain(gwd_server_t *server) {
    for (gwd_device_t *device = server->devices, *next; device; device = next) {
        next = device->next;
        (void)uv_timer_stop(&device->linger);
        settle(device);
    }
}
