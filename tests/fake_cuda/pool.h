/* pool.h - the insides of a memory pool, for the two files that handle them */
#ifndef FAKE_POOL_H
#define FAKE_POOL_H

#include "fake.h"

#define FAKE_POOL_SPAN ((uint64_t)1 << 44)

struct CUmemPoolHandle_st {
    CUmemoryPool next;
    bool open; /* not destroyed */
    bool imported;
    unsigned live; /* allocations */
    int fd;
    int device;
    unsigned handle_types;
    unsigned access; /* ordinals */
    uint64_t end;
};

/* These want the map lock, for writing but for the first. */
bool fake_pool_is(CUmemoryPool handle);
/* Takes the descriptor when it succeeds, else NULL. */
CUmemoryPool fake_pool_new(int fd, int device, unsigned handle_types, bool imported);
/* Places the range's bytes of the pool, from the offset on. */
CUresult fake_pool_add(CUmemoryPool pool, struct fake_range *range, uint64_t offset);

#endif
