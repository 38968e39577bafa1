/* queue.c - see queue.h */
#include "queue.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FIRST_CAPACITY = 64 };

int gwd_queue_init(gwd_queue_t *queue, size_t item_bytes) {
    int error;

    *queue = (gwd_queue_t){.item_bytes = item_bytes, .capacity = FIRST_CAPACITY, .wake_fd = -1};
    queue->items = calloc(queue->capacity, item_bytes);
    if (!queue->items)
        return ENOMEM;
    queue->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->wake_fd < 0) {
        error = errno;
        goto err_items;
    }
    error = pthread_mutex_init(&queue->mutex, NULL);
    if (error)
        goto err_fd;
    return 0;

err_fd:
    close(queue->wake_fd);
err_items:
    free(queue->items);
    return error;
}

void gwd_queue_fini(gwd_queue_t *queue) {
    pthread_mutex_destroy(&queue->mutex);
    close(queue->wake_fd);
    free(queue->items);
}

static bool grow(gwd_queue_t *queue) {
    size_t wanted = queue->capacity * 2;
    unsigned char *items = calloc(wanted, queue->item_bytes);
    size_t first = queue->capacity - queue->head; /* items up to the end of the cycle */

    if (!items)
        return false;
    memcpy(items, queue->items + queue->head * queue->item_bytes, first * queue->item_bytes);
    memcpy(items + first * queue->item_bytes, queue->items, queue->head * queue->item_bytes);
    free(queue->items);
    queue->items = items;
    queue->capacity = wanted;
    queue->head = 0;
    return true;
}

static void wake(gwd_queue_t *queue) {
    uint64_t one = 1;
    ssize_t put = write(queue->wake_fd, &one, sizeof(one));

    (void)put; /* EAGAIN: the counter is full, so the receiver is awake */
}

bool gwd_queue_push(gwd_queue_t *queue, const void *item) {
    bool ok = true;

    pthread_mutex_lock(&queue->mutex);
    if (queue->count == queue->capacity)
        ok = grow(queue);
    if (ok) {
        size_t tail = (queue->head + queue->count) % queue->capacity;
        memcpy(queue->items + tail * queue->item_bytes, item, queue->item_bytes);
        queue->count++;
    }
    pthread_mutex_unlock(&queue->mutex);
    if (ok)
        wake(queue);
    return ok;
}

bool gwd_queue_pop(gwd_queue_t *queue, void *item_out) {
    bool found;

    pthread_mutex_lock(&queue->mutex);
    found = queue->count > 0;
    if (found) {
        memcpy(item_out, queue->items + queue->head * queue->item_bytes, queue->item_bytes);
        queue->head = (queue->head + 1) % queue->capacity;
        queue->count--;
    }
    pthread_mutex_unlock(&queue->mutex);
    return found;
}

void gwd_queue_clear_wake(gwd_queue_t *queue) {
    uint64_t value;
    ssize_t got = read(queue->wake_fd, &value, sizeof(value));

    (void)got; /* EAGAIN: it was empty already */
}
