/* held.h - how much of a device's memory this process takes, as the management library counts it */
#ifndef GWD_CUDA_HELD_H
#define GWD_CUDA_HELD_H

#include <stdint.h>

/* 0: not known, since there is no libnvidia-ml.so.1 or it does not see this process (in a container).
 * Thread: a helper.  Blocking: yes. */
uint64_t gwd_cuda_held_bytes(const char *uuid);

#endif
