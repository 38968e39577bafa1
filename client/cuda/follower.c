/* follower.c - words that are written behind the work of a stream, at hardly any cost to it; see device.h
 *
 * A stream that writes a word itself stands still for 4 us: all that came before must be visible to the host first. To
 * record an event takes it next to nothing. So another stream waits for the event, and writes. Each stream has a
 * follower of its own: with one for all, what one stream has done would be told only behind what another waits for, and
 * that may be waiting for the first.
 */
#include "driver.h"

/* The handle is one, and the streams are as many as there are threads. */
static bool can_be_followed(const gw_device_t *device, CUstream leader) {
    return leader != CU_STREAM_PER_THREAD && device->n_followers < FOLLOWERS_MAX;
}

static bool make(gw_follower_t *follower, CUstream leader) {
    int least, greatest;

    if (cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS ||
        cuEventCreate(&follower->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    if (cuStreamCreateWithPriority(&follower->stream, CU_STREAM_NON_BLOCKING, greatest) != CUDA_SUCCESS)
        goto err_event;
    if (pthread_mutex_init(&follower->lock, NULL) != 0)
        goto err_stream;
    follower->leader = leader;
    return true;

err_stream:
    (void)cuStreamDestroy(follower->stream);
err_event:
    (void)cuEventDestroy(follower->event);
    return false;
}

/* NULL: it has none, and can have none. A stream that takes the handle of one that is gone takes its follower, too. */
static gw_follower_t *find(gw_device_t *device, CUstream leader) {
    gw_follower_t *found = NULL;

    pthread_mutex_lock(&device->lock);
    for (unsigned i = 0; i < device->n_followers && found == NULL; i++)
        if (device->followers[i].leader == leader)
            found = &device->followers[i];
    if (found == NULL && can_be_followed(device, leader) && make(&device->followers[device->n_followers], leader))
        found = &device->followers[device->n_followers++];
    pthread_mutex_unlock(&device->lock);
    return found;
}

/* A driver's queue that is full makes this wait, so nobody else's lock is held. */
static gw_status_t follow(gw_follower_t *follower, CUdeviceptr word, uint32_t value, char *text, size_t text_bytes) {
    const char *call = "cuEventRecord";

    pthread_mutex_lock(&follower->lock);
    CUresult result = cuEventRecord(follower->event, follower->leader);
    if (result == CUDA_SUCCESS) {
        call = "cuStreamWaitEvent";
        result = cuStreamWaitEvent(follower->stream, follower->event, CU_EVENT_WAIT_DEFAULT);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuStreamWriteValue32";
        result = cuStreamWriteValue32(follower->stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    pthread_mutex_unlock(&follower->lock);
    return result == CUDA_SUCCESS ? GW_OK : gw_cuda_fail(result, call, text, text_bytes);
}

gw_status_t gw_cuda_write_behind(gw_device_t *device, gw_queue_t stream, void *word, uint32_t value, char *text,
                                 size_t text_bytes) {
    gw_follower_t *follower = find(device, (CUstream)stream);

    if (follower == NULL)
        return gw_cuda_streams.write_word(stream, word, value, text, text_bytes);
    return follow(follower, (CUdeviceptr)(uintptr_t)word, value, text, text_bytes);
}
