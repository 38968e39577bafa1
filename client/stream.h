/* stream.h - operations on device memory, as streams see them
 *
 * The stream that submits says that the input is ready by a word in the operation's slot, which the daemon watches; a
 * stream that wants the result waits for another word there, which the daemon writes. Where the bucket has a bounce
 * arena the streams copy as well.
 */
#ifndef GW_STREAM_H
#define GW_STREAM_H

#include "group.h"

/* Whether the bucket can be submitted on this stream: nothing is captured, and the memory is what it was. */
gw_status_t gw_stream_check(const gw_bucket_t *bucket, gw_queue_t queue);

/* Enqueues what makes the input of operation `sequence` ready. Only if that succeeds may the operation be announced.
 * The group's lock is held. */
gw_status_t gw_stream_ready(gw_bucket_t *bucket, gw_queue_t queue, uint64_t sequence);

/* Makes a stream that has been checked wait for an operation on device memory. The group's lock is held. */
gw_status_t gw_stream_await(gw_group_t *group, gw_record_t *record, gw_queue_t queue);

/* Whether the result of an operation that has ended well is in the bucket's memory; if nobody has begun to copy it
 * there, that is done now. What fails is put into *status_io. The group's lock is held. */
bool gw_stream_is_back(gw_bucket_t *bucket, uint64_t sequence, gw_status_t *status_io);

/* Whether the stream has come past the input of an operation that ended badly: the daemon may not have waited for it,
 * and until then memory and slot are not free. In a group that has failed neither is used again. */
bool gw_stream_has_passed(gw_group_t *group, uint64_t sequence);

/* Frees all streams that wait for the group, and waits until they have passed, so that its memory can go. The daemon
 * has let go of it before. `forked`: only frees memory. */
void gw_stream_end_group(gw_group_t *group, bool forked);

#endif
