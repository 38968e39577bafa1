/* measure.h - the figures that `auto` rests on: what the wire and the cores of this node can do
 *
 * A group that forms over several nodes asks for them between Prepared and Go. Its lane probes the wire (lane_probe.c),
 * while all other nodes do the same; cores are measured once a daemon, on a helper thread.
 */
#ifndef GWD_MEASURE_H
#define GWD_MEASURE_H

#include "gradwire.pb-c.h"
#include "group.h"

/* Begins for a prepared group. Ends with gwd_bootstrap_measured, or with the group's failure. */
void gwd_measure_begin(gwd_group_t *group);

/* The lane has ended its part. */
void gwd_measure_wire_is_known(gwd_group_t *group, const gwd_event_t *event);

/* Figures in messages. False: they are not complete. */
bool gwd_measure_read(uint64_t bytes_per_s, uint64_t latency_ns, size_t n_coding, const uint64_t *coding,
                      gwd_codec_figures_t *figures_out);

#endif
