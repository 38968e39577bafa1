/* handlers.h - what each message asks for
 *
 * One table says for each message type which role may send it, how many file descriptors it may carry, and
 * which function serves it. Protobuf ends here: the modules below take plain values.
 */
#ifndef GWD_HANDLERS_H
#define GWD_HANDLERS_H

#include "frame.h"
#include "session.h"

/* Serves one packet; takes fds out of the frame if it keeps them. */
void gwd_handlers_dispatch(gwd_session_t *session, gw_frame_t *frame);

/* The packet's fds did not fit into this process: refuses that request alone. */
void gwd_handlers_no_fds(gwd_session_t *session, const gw_frame_t *frame);

/* A bucket whose layout has not arrived in full. */
void gwd_handlers_drop_incoming_bucket(gwd_session_t *session);

#endif
