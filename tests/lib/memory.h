/* memory.h - memory of buckets in test programs: the host's, or a device's, so that one program tests both
 *
 * Which it is, is chosen once:
 *   host                    gw_buffer_alloc, or memory of malloc that is registered
 *   device[:WHICH[:KIND]]   memory of a device, registered. WHICH: a number, counted round the devices, or "auto": that
 *                           of the rank. KIND: see devmem.h.
 * With a device operations are submitted on one stream and waited for by another.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include "devmem.h"
#include "gradwire.h"

typedef struct memory {
    gw_buffer_t *buffer;
    devmem_t device;
    void *host; /* what malloc gave */
} memory_t;

/* False: not one of the words above. */
bool memory_setup(const char *words);
bool memory_is_device(void);

/* Makes the device usable. `rank` is for "auto". Host memory needs neither of these. */
void memory_open(unsigned rank);
void memory_enter(void); /* in every other thread, which gets streams of its own */

/* Zeroed memory in a buffer. `odd`: it begins so many bytes behind an aligned address, and is registered. */
gw_status_t memory_alloc(gw_context_t *context, uint64_t bytes, uint64_t odd, memory_t *memory_out);
gw_status_t memory_share(gw_context_t *context, uint64_t bytes, memory_t *memory_out); /* of its own, not registered */
void memory_free(memory_t *memory); /* once the buffer has been released */

void memory_write(void *to, const void *from, uint64_t bytes);
void memory_read(void *to, const void *from, uint64_t bytes);

/* The stream to submit on; NULL for the host's memory. */
gw_queue_t memory_queue(void);

/* Waits for an operation, by a stream if there is one and more than an instant of time; then its status. */
gw_status_t memory_await(gw_group_t *group, gw_op_t op, int64_t ms);

/* Waits until all that the calling thread's stream has to do is done: the end of a call on memory_queue(). */
gw_status_t memory_settle(gw_group_t *group);

#endif
