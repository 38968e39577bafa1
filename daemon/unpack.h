/* unpack.h - protobuf bodies from anybody, with bounded memory
 *
 * A body of 64 KiB can ask for many times its size in small objects. One budget bounds what it gets. One
 * body is unpacked at a time, on the loop thread.
 */
#ifndef GWD_UNPACK_H
#define GWD_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/* NULL when the body is malformed or beyond the budget. End it with gwd_unpack_free. */
ProtobufCMessage *gwd_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *body, size_t body_bytes);
void gwd_unpack_free(ProtobufCMessage *message);

#endif
