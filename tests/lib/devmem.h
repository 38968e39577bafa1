/* devmem.h - memory and streams of a device, for test programs
 *
 * The driver's library is loaded when it is asked for, and its few types are declared here: a build without a CUDA
 * toolkit has the same programs, and they start where no driver is. Whatever fails ends the program and says why.
 */
#ifndef DEVMEM_H
#define DEVMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum devmem_kind {
    DEVMEM_MALLOC,  /* cuMemAlloc */
    DEVMEM_ASYNC,   /* cuMemAllocAsync, from the default pool */
    DEVMEM_POOL,    /* from a pool of file descriptors */
    DEVMEM_VMM,     /* cuMemCreate, with file descriptors; several handles where there is room for several */
    DEVMEM_PRIVATE, /* cuMemCreate, without */
    DEVMEM_MANAGED,
    DEVMEM_KINDS
} devmem_kind_t;

typedef struct devmem {
    void *at;
    uint64_t bytes;
    devmem_kind_t kind;
    uint64_t range_bytes; /* of what follows: DEVMEM_VMM and DEVMEM_PRIVATE */
} devmem_t;

/* "malloc", "async", "pool", "vmm", "private", "managed"; DEVMEM_KINDS for any other word. */
devmem_kind_t devmem_kind(const char *word);

/* Loads the driver and makes device `ordinal`, counted round, the one of the whole program and current for the calling
 * thread. Every other thread calls devmem_enter. */
void devmem_open(unsigned ordinal);
void devmem_enter(void);

/* How many devices there are: 0 without a driver. Opens nothing. */
int devmem_count(void);

/* Zeroed memory. */
devmem_t devmem_alloc(devmem_kind_t kind, uint64_t bytes);
void devmem_free(devmem_t *memory);

/* Both return when it is done. */
void devmem_upload(void *to, const void *from, uint64_t bytes, void *stream);
void devmem_download(void *to, const void *from, uint64_t bytes, void *stream);

/* A stream that waits for no other. */
void *devmem_stream_new(void);
void devmem_stream_sync(void *stream);

/* Waits for at most `ms` until the stream has nothing left to do; tells whether that is so. */
bool devmem_stream_wait(void *stream, int64_t ms);

#endif
