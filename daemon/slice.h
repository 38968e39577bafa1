/* slice.h - a thread that works in short bursts and wants its turn soon */
#ifndef GWD_SLICE_H
#define GWD_SLICE_H

/* Asks the scheduler for short time slices for the calling thread (Linux 6.12 and later; earlier ones do not know
 * such a wish, and nothing happens). On a host whose cores are all busy training, a thread with the usual slice of
 * 3 ms is woken late by about as much; one that asks for 0.1 ms is let in at once, for no more than its fair share. */
void gwd_slice_short(void);

#endif
