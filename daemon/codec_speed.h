/* codec_speed.h - how fast this machine's cores encode and decode */
#ifndef GWD_CODEC_SPEED_H
#define GWD_CODEC_SPEED_H

#include <stdint.h>

#include "codec.h"

/* Bytes of binary32 a second that one core encodes once and decodes twice, as a node does with each number of an
 * all_reduce; all 0 without memory. Thread: any. Blocking: some 10 ms for each codec. */
void gwd_codec_speed(uint64_t speed_out[GW_CODECS]);

#endif
