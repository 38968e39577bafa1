/* slice.h - a thread that wants its turn soon when it is woken
 *
 * On a host whose cores are all busy training, a thread that is woken waits for the end of somebody's time slice,
 * about 3 ms. Linux 6.12 and later let a thread ask for short slices; it then gets its turn early, for no more than
 * its fair share. Earlier kernels do not know the wish, and nothing happens. A thread asks before it sleeps and
 * takes the wish back when it is awake: sched_yield of a thread with short slices lets others run for as short.
 */
#ifndef GWD_SLICE_H
#define GWD_SLICE_H

#include <stdbool.h>

/* For the calling thread. */
void gwd_slice_short(bool wanted);

#endif
