/* driver.h - contexts and errors of the CUDA driver: what the parts of the plugin share */
#ifndef GW_CUDA_DRIVER_H
#define GW_CUDA_DRIVER_H

#include <cuda.h>
#include <pthread.h>

#include "device.h"

enum { UUID_BYTES = 48, FOLLOWERS_MAX = 16 };

/* A stream that does what is to be done behind the work of another; see follower.c. */
typedef struct gw_follower {
    CUstream leader, stream;
    CUevent event;
    pthread_mutex_t lock;
} gw_follower_t;

struct gw_device {
    struct gw_device *next;
    CUcontext context;
    CUdevice number;
    char uuid[UUID_BYTES];
    CUstream side, urgent, back;
    pthread_mutex_t lock; /* of the number of followers, which only ever grows */
    unsigned n_followers;
    gw_follower_t followers[FOLLOWERS_MAX];
};

extern const gw_device_memory_t gw_cuda_memory;
extern const gw_device_streams_t gw_cuda_streams;

/* Writes what the driver says of a call that failed, and gives our status for it. */
gw_status_t gw_cuda_fail(CUresult result, const char *call, char *text, size_t text_bytes);

/* enter and leave of the table of streams. */
gw_status_t gw_cuda_enter(gw_device_t *device, gw_entered_t *entered_out, char *text, size_t text_bytes);
void gw_cuda_leave(const gw_entered_t *entered);

/* write_behind of the table of streams. */
gw_status_t gw_cuda_write_behind(gw_device_t *device, gw_queue_t stream, void *word, uint32_t value, char *text,
                                 size_t text_bytes);

/* The device for a pointer's context. `context` NULL: the memory belongs to none; then the calling thread's, if that is
 * on the device `number`, else its primary one. */
gw_status_t gw_cuda_device(CUcontext context, CUdevice number, gw_device_t **device_out, char *text, size_t text_bytes);

#endif
