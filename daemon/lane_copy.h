/* lane_copy.h - copies between devices and arenas that a lane has under way
 *
 * Inner header of lane_copy.c, lane_staged.c and lane_flight_copy.c.
 */
#ifndef GWD_LANE_COPY_H
#define GWD_LANE_COPY_H

#include "device.h"
#include "lane_group.h"

/* Some copies, and who goes on when all have ended. */
typedef struct gwd_copying {
    const gwd_op_t *op; /* that they are for */
    bool in;            /* from devices to the host's memory; else back */
    void (*ended)(struct gwd_copying *copying);
    uint32_t n;               /* under way, and one more while they are being started */
    uint64_t begin_ns, bytes; /* when the first was started, and of all */
    gwd_device_t *lost;       /* it failed, and what it should have brought is not there; NULL while all is well */
} gwd_copying_t;

/* Begins to start some. */
void gwd_lane_copying_begin(gwd_copying_t *copying, const gwd_op_t *op, bool in, void (*ended)(gwd_copying_t *copying));

/* Starts one. Where it cannot be started, copying->lost says so. */
void gwd_lane_copy(gwd_copying_t *copying, gwd_device_t *device, void *to, const void *from, uint64_t bytes);

/* All have been started: from now on, and perhaps at once, copying->ended may be called. */
void gwd_lane_copying_started(gwd_copying_t *copying);

/* So many of a lane's may be under way. False: not now. */
bool gwd_lane_copies_reserve(gwd_lane_t *lane, uint32_t n);
void gwd_lane_copies_unreserve(gwd_lane_t *lane, uint32_t n);

/* Fails the operation's group, since the device has failed. */
void gwd_lane_device_lost(const gwd_op_t *op, const gwd_device_t *device);

#endif
