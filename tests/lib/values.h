/* values.h - contents of buckets for tests */
#ifndef VALUES_H
#define VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "gradwire.h"

/* `count` elements: value, value + step, ... To be freed; the process ends when there is no memory. */
unsigned char *values_new(gw_type_t type, uint64_t count, double value, double step, uint64_t *bytes_out);

/* `count` numbers in binary32 between -1 and 1, most of them small, as gradients are. To be freed. */
unsigned char *values_noise(uint64_t count, uint64_t seed, uint64_t *bytes_out);

/* FNV-1a. */
uint64_t values_digest(const unsigned char *bytes, uint64_t n);

#endif
