/* rails.h - the wires of a group on several nodes, one for each lane that carries its data
 *
 * TCP takes most of a core for each of the two ways of a fast link. So the lanes of a node share the work of one group:
 * each has a wire of its own, which leads to the lanes of the same number on the other nodes. A group has as many rails
 * as the node with the fewest lanes has; the first is that of its own lane. See lane_rail.c for how they share it.
 *
 * The addresses of a node's wires travel as one: each with its size before it, 16 bits, little endian.
 */
#ifndef GWD_RAILS_H
#define GWD_RAILS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GWD_RAILS_MAX = 4 };

/* Appends an address to `packed`, which is realloc'ed. False: no memory, or it is too long. */
bool gwd_rails_pack(void **packed, size_t *packed_bytes, const void *address, size_t bytes);

/* How many addresses there are, at most GWD_RAILS_MAX; 0: it is no list of addresses. */
uint32_t gwd_rails_count(const void *packed, size_t packed_bytes);

/* The address of number `rail`, which is below gwd_rails_count; it may be unaligned. */
const void *gwd_rails_address(const void *packed, uint32_t rail, size_t *bytes_out);

#endif
