/* child.h - a process that was forked from a trainer, for tests */
#ifndef CHILD_H
#define CHILD_H

#include "gradwire.h"

/* Writes to `out` what a child sees of what its parent made; it stays alive, and so do the sockets it was born with. */
_Noreturn void be_child(gw_context_t *context, gw_group_t *group, gw_bucket_t *bucket, int out);

#endif
