/* fake_daemon.h - a daemon that misbehaves on purpose, for tests of the client library
 *
 * A thread serves one session with one group of one rank, whose only operation adds 1 to every float of the
 * bucket. What goes wrong, and when, is chosen by the fault.
 */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frame.h"
#include "slots.h"

enum { FAKE_CREDITS = 4, FAKE_FLOATS = 100 };

typedef enum fake_fault {
    NONE,
    REFUSE,         /* an error in place of a welcome, before the client has said anything */
    OTHER_MAJOR,    /* the welcome is of another major version */
    DIE_AT_ID,      /* close the connection in place of a unique id */
    GARBAGE_AT_ID,  /* answer with a packet that is none */
    WRONG_TYPE,     /* answer with Done where an id is due */
    OLD_ANSWERS,    /* answer requests that nobody waits for, first */
    TURN_AROUND,    /* answer two requests in opposite order */
    SLOTS_SHORT,    /* the memory of the slots is too short */
    SLOTS_STRANGE,  /* they are of another version */
    NO_FDS_SENT,    /* GroupReady without its fds */
    OUT_OF_FDS,     /* lower the fd limit of this process before GroupReady goes out */
    HOLD,           /* take submits and do nothing */
    DIE_AT_SUBMIT,  /* close everything */
    FAIL_AT_SUBMIT, /* fail the group at the second submit */
} fake_fault_t;

typedef struct fake {
    fake_fault_t fault;
    pthread_t thread;
    int listener, session, channel;
    gw_slots_header_t *slots;
    float *memory;
    size_t memory_bytes;
    uint64_t submits;
    bool left;       /* GroupLeave has come */
    uint32_t turned; /* the request that is answered second */
    uint8_t storage[GW_PACKET_MAX];
} fake_t;

/* Listens at `path` and serves one session. Exits the process if it cannot: then there is nothing to test. */
void fake_daemon_start(fake_t *fake, const char *path, fake_fault_t fault);

/* Waits until the client has gone, and takes everything down. */
void fake_daemon_stop(fake_t *fake);

#endif
