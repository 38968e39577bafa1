/* fuzz_protobuf.c - any bytes as the body of any message
 *
 * The first byte chooses the message. What is accepted must come back the same when it is packed and read again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"
#include "gradwire.pb-c.h"
#include "submit.h"
#include "unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const descriptors[] = {
    &gw__hello__descriptor,         &gw__welcome__descriptor,          &gw__error__descriptor,
    &gw__done__descriptor,          &gw__get_unique_id__descriptor,    &gw__unique_id__descriptor,
    &gw__group_join__descriptor,    &gw__group_ready__descriptor,      &gw__group_split__descriptor,
    &gw__group_abort__descriptor,   &gw__group_leave__descriptor,      &gw__buffer_create__descriptor,
    &gw__buffer_part__descriptor,   &gw__buffer_ready__descriptor,     &gw__buffer_release__descriptor,
    &gw__bucket_create__descriptor, &gw__bucket_layout__descriptor,    &gw__bucket_ready__descriptor,
    &gw__bucket_free__descriptor,   &gw__submit__descriptor,           &gw__complete__descriptor,
    &gw__admin_request__descriptor, &gw__admin_reply__descriptor,      &gw__group_state_save__descriptor,
    &gw__group_state__descriptor,   &gw__group_state_load__descriptor,
};

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Packed twice, since the first time unknown and repeated fields find their place. */
static void round_trip(const ProtobufCMessageDescriptor *descriptor, const ProtobufCMessage *message) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *once = malloc(bytes + 1), *twice = malloc(bytes + 1);
    ProtobufCMessage *again;

    if (!once || !twice)
        fail("out of memory");
    if (protobuf_c_message_pack(message, once) != bytes)
        fail("the packed size is another than was said");
    again = gwd_unpack(descriptor, once, bytes);
    if (again) { /* else it was beyond the budget of one body */
        if (protobuf_c_message_get_packed_size(again) != bytes)
            fail("another size the second time");
        protobuf_c_message_pack(again, twice);
        if (memcmp(once, twice, bytes) != 0)
            fail("other bytes the second time");
        gwd_unpack_free(again);
    }
    free(once);
    free(twice);
}

static void submit(const uint8_t *body, size_t bytes) {
    gwd_submit_t value;
    Gw__Submit *message;

    if (!gwd_submit_unpack(body, bytes, &value))
        return;
    message = gw__submit__unpack(NULL, bytes, body);
    if (!message || message->bucket != value.bucket || message->epoch != value.epoch ||
        message->sequence != value.sequence || message->queue != value.queue || !message->notify != !value.notify)
        fail("a Submit that reads differently");
    gw__submit__free_unpacked(message, NULL);
}

static void complete(const uint8_t *body, size_t bytes) {
    gwd_complete_t value = {0};
    uint8_t packed[GWD_COMPLETE_BYTES];

    memcpy(&value, body, bytes < sizeof(value) ? bytes : sizeof(value));
    if (gwd_complete_pack(&value, packed) > sizeof(packed))
        fail("a Complete that is too long");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const ProtobufCMessageDescriptor *descriptor;
    ProtobufCMessage *message;

    if (size == 0 || size > GW_BODY_MAX)
        return 0;
    descriptor = descriptors[data[0] % (sizeof(descriptors) / sizeof(descriptors[0]))];
    data++;
    size--;
    message = gwd_unpack(descriptor, data, size);
    if (message) {
        round_trip(descriptor, message);
        gwd_unpack_free(message);
    }
    submit(data, size);
    complete(data, size);
    return 0;
}
