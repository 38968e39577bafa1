/* unpack.c - see unpack.h */
#include "unpack.h"

#include <stdlib.h>

enum { BUDGET_BYTES = 4 << 20 };

static void *bounded_alloc(void *data, size_t bytes) {
    size_t *left = data;

    if (bytes > *left)
        return NULL;
    *left -= bytes;
    return malloc(bytes);
}

static void bounded_free(void *data, void *pointer) {
    (void)data; /* the budget is for one body, and counts what was ever asked for */
    free(pointer);
}

ProtobufCMessage *gwd_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *body, size_t body_bytes) {
    size_t left = BUDGET_BYTES;
    ProtobufCAllocator allocator = {bounded_alloc, bounded_free, &left};

    return protobuf_c_message_unpack(descriptor, &allocator, body_bytes, body);
}

void gwd_unpack_free(ProtobufCMessage *message) {
    size_t left = 0;
    ProtobufCAllocator allocator = {bounded_alloc, bounded_free, &left};

    protobuf_c_message_free_unpacked(message, &allocator);
}
