/* escape.h - text from others, made safe to show
 *
 * Names and reasons come from clients. Printed as they are, an escape sequence in one would reach the operator's
 * terminal, and a newline would forge a line of the log.
 */
#ifndef GW_ESCAPE_H
#define GW_ESCAPE_H

#include <stddef.h>

/* Copies `text`, at most `text_bytes` of it or up to its 0, to `out` with its final 0. Printable UTF-8 stays;
 * control characters, characters that turn the direction of writing, and bytes that are no UTF-8 become \xNN.
 * What does not fit is replaced by "...". `out_bytes` is at least 8. Returns the length. */
size_t gw_escape(const char *text, size_t text_bytes, char *out, size_t out_bytes);

#endif
