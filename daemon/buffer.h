/* buffer.h - memory of a client that the daemon can reach
 *
 * A buffer arrives in numbered parts, is imported on a helper thread, and is then one range of the
 * daemon's addresses. Buckets refer to it; it is unmapped, on a helper thread again, when its session
 * wants that and no bucket refers to it any more. Memory that a client mapped is never used for another.
 */
#ifndef GWD_BUFFER_H
#define GWD_BUFFER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backend.h"
#include "device.h"

struct gwd_session;

enum { GWD_WHY_BYTES = 160 };

typedef struct gwd_buffer {
    struct gwd_session *session;
    uint32_t handle;  /* 0 until it is ready */
    uint32_t request; /* to be answered: of BufferCreate, later of BufferRelease */
    uint64_t bytes;
    bool copied;
    char uuid[GWD_DEVICE_UUID_BYTES]; /* of the device it is on or stands for; "" for the host's */
    char why[GWD_WHY_BYTES];          /* it is copied, as the client says */
    uint32_t kind;                    /* of its first part */
    gwd_device_t *device;             /* whose memory it is; NULL for the host's */
    gwd_memory_t memory;
    gwd_handle_t *parts; /* until it is imported */
    uint32_t n_parts, n_received;
    uint32_t refs;      /* buckets */
    bool releasing;     /* unmap when refs is 0 */
    gw_status_t status; /* of the import */
    char text[256];
    uv_work_t work;
} gwd_buffer_t;

/* Makes a buffer that waits for its parts, charged to the session's user. One that is `copied` is host memory, and
 * `uuid` is that of the device it stands for. Errors, with text:
 * GW_ERR_INVALID_ARGUMENT, GW_ERR_QUOTA, GW_ERR_NO_MEMORY, GW_ERR_UNSUPPORTED. */
gw_status_t gwd_buffer_new(struct gwd_session *session, uint32_t request, uint64_t bytes, uint32_t n_parts, bool copied,
                           const char *uuid, const char *why, gwd_buffer_t **buffer_out, char *text, size_t text_bytes);

/* Takes the next part, fd included in every case. When it is the last, the import begins, and ends with a
 * reply to the session. Errors, with text: the buffer is gone then. */
gw_status_t gwd_buffer_add_part(gwd_buffer_t *buffer, uint32_t index, const gwd_handle_t *part, char *text,
                                size_t text_bytes);

/* Gives up a buffer that waits for parts. */
void gwd_buffer_discard(gwd_buffer_t *buffer);

/* Unmaps it as soon as no bucket refers to it, and then answers `request` (0: nobody). */
void gwd_buffer_release(gwd_buffer_t *buffer, uint32_t request);

void gwd_buffer_ref(gwd_buffer_t *buffer);
void gwd_buffer_unref(gwd_buffer_t *buffer);

static inline uint64_t gwd_buffer_bytes(const gwd_buffer_t *buffer) {
    return buffer->bytes;
}
static inline void *gwd_buffer_address(const gwd_buffer_t *buffer) {
    return buffer->memory.address;
}

#endif
