/* queue.h - messages by value from one thread to another
 *
 * The loop and the lanes share nothing else. A message is copied in and copied out under a mutex that is
 * held for the copy alone, and the receiver is woken through an eventfd that its epoll or libuv loop
 * watches. The queue grows as needed, so a sender never blocks and never fails half way. It is off the
 * hot path: a Submit goes from the client to the lane without it.
 */
#ifndef GWD_QUEUE_H
#define GWD_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct gwd_queue {
    pthread_mutex_t mutex;
    size_t item_bytes;
    unsigned char *items; /* cyclic */
    size_t capacity, head;
    _Atomic size_t count; /* written under the mutex */
    int wake_fd;          /* eventfd, non-blocking */
} gwd_queue_t;

/* Returns 0, or an errno value. */
int gwd_queue_init(gwd_queue_t *queue, size_t item_bytes);
void gwd_queue_fini(gwd_queue_t *queue);

/* Copies an item in and wakes the receiver. Returns false when memory is exhausted. Thread: any. */
bool gwd_queue_push(gwd_queue_t *queue, const void *item);

/* Copies the oldest item out; false when there is none. Thread: the receiver. */
bool gwd_queue_pop(gwd_queue_t *queue, void *item_out);

/* Whether there is nothing to pop at this moment. Thread: any. */
static inline bool gwd_queue_empty(const gwd_queue_t *queue) {
    return atomic_load_explicit(&queue->count, memory_order_acquire) == 0;
}

/* Empties the eventfd: called before popping until false, so that no wake is lost. */
void gwd_queue_clear_wake(gwd_queue_t *queue);

#endif
