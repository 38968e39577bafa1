/* submit.c - see submit.h */
#include "submit.h"

#include "gradwire.pb-c.h"

/* protobuf-c allocates the message and what it does not know; a stack is enough for every honest one. */
typedef struct bump {
    _Alignas(16) unsigned char bytes[1024];
    size_t used;
} bump_t;

static void *bump_alloc(void *data, size_t bytes) {
    bump_t *bump = data;
    size_t rounded = (bytes + 15) / 16 * 16;
    void *result;

    if (rounded > sizeof(bump->bytes) - bump->used)
        return NULL;
    result = bump->bytes + bump->used;
    bump->used += rounded;
    return result;
}

static void bump_free(void *data, void *pointer) {
    (void)data;
    (void)pointer;
}

bool gwd_submit_unpack(const uint8_t *body, size_t body_bytes, gwd_submit_t *submit_out) {
    bump_t bump;
    ProtobufCAllocator allocator = {bump_alloc, bump_free, &bump};
    const Gw__Submit *message;

    bump.used = 0;
    message = gw__submit__unpack(&allocator, body_bytes, body);
    if (!message)
        return false;
    *submit_out =
        (gwd_submit_t){message->bucket, message->epoch, message->sequence, message->queue, message->notify != 0};
    return true;
}

size_t gwd_complete_pack(const gwd_complete_t *complete, uint8_t *body_out) {
    Gw__Complete message = GW__COMPLETE__INIT;

    message.sequence = complete->sequence;
    message.status = (uint32_t)complete->status;
    message.matched_ns = complete->matched_ns;
    message.reduce_ns = complete->reduce_ns;
    message.last_rank = complete->last_rank;
    return gw__complete__pack(&message, body_out);
}
