/* fake.h - a simulated CUDA driver: what its parts share
 *
 * libcuda.so.1 on the CPU, for tests on hosts without a GPU: the calls that this project makes, and no others. Device
 * memory is shared mappings of files, so that another process can open it; a stream is a thread with a queue; a copy is
 * a memcpy. Its device calls itself "Simulated GPU". Where the real driver is lenient about a mistake, this one is not.
 *
 * Environment: FAKE_CUDA_DIR (where memory is shared, /dev/shm/fake-cuda-UID), FAKE_CUDA_DEVICES (2),
 * FAKE_CUDA_COPY_GBPS (copies take at least their time at this rate), FAKE_CUDA_FAIL=call:n (the n-th such call of the
 * process fails with CUDA_ERROR_UNKNOWN; call:n:sticky breaks its context with CUDA_ERROR_ILLEGAL_ADDRESS),
 * FAKE_CUDA_NO_IPC=1 (no legacy IPC handles), CUDA_VISIBLE_DEVICES (indices).
 *
 * Locks: fake_map_lock guards all memory and its table, fake_engine_lock contexts, streams, events and captures. No
 * thread holds both.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The calls themselves are all that the library exports. */
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

enum {
    FAKE_DEVICES_MAX = 16,
    FAKE_GRANULARITY = 2 << 20,
    FAKE_PAGE_BYTES = 4096,
    FAKE_NAME_BYTES = 48,
    FAKE_PATH_BYTES = 512
};
#define FAKE_MEMORY_BYTES  ((size_t)4 << 30) /* of each device */
#define FAKE_CONTEXT_BYTES ((size_t)64 << 20)
#define FAKE_TICKET_NONE   UINT64_MAX

/* ---- setup.c, fail.c: the environment, and what each call does first ---- */

struct fake_setup {
    int n_devices;
    int physical[FAKE_DEVICES_MAX]; /* by ordinal; memory that is shared names the physical device */
    char folder[FAKE_PATH_BYTES];
    double copy_bytes_per_ns; /* 0: no limit */
    bool no_ipc;
};

extern struct fake_setup fake;

/* The environment's settings, read once. */
void fake_setup_read(void);
/* The ordinal of a physical device, -1 when this process does not see it. */
int fake_device_ordinal(int physical);

enum fake_needs {
    FAKE_INIT = 0,    /* cuInit was called, in this process */
    FAKE_CONTEXT = 1, /* and a context is current, alive and not broken */
    FAKE_UNSAFE = 2,  /* and no capture prohibits calls that it cannot see */
};

/* Each call's first step; `call` is __func__. */
CUresult fake_enter(const char *call, unsigned needs);
/* Whether FAKE_CUDA_FAIL wants this call to fail. */
CUresult fake_fail(const char *call);

/* ---- context.c ---- */

struct CUctx_st {
    int device;
    bool alive;
    bool going; /* released: its queues are dropped */
    unsigned retains;
    unsigned generation; /* how often it was made */
    unsigned peers;      /* ordinals whose access was enabled */
    unsigned n_workers;
    atomic_int error; /* sticky CUresult */
    CUstream streams; /* all that are not destroyed, and those that still work */
    CUstream legacy;
};

CUcontext fake_context_current(void);
/* The primary context of a device, alive or not. */
CUcontext fake_context_of(int device);
/* Ends all work of the context with a sticky error. Engine lock held, or not yet shared. */
void fake_context_break(CUcontext context, CUresult error);

/* ---- account.c: memory in use, over all processes ---- */

CUresult fake_account_open(void);
/* Takes bytes of the device, or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult fake_account_take(int device, size_t bytes);
void fake_account_give(int device, size_t bytes);
size_t fake_account_free_bytes(int device);

/* ---- place.c: addresses and what lies behind them ---- */

size_t fake_round(size_t bytes, size_t unit);
/* An inaccessible range of addresses, NULL when there is none. A range given back is handed out again soon.
 * The map lock is held for writing. */
void *fake_place(size_t bytes, size_t alignment);
void fake_unplace(void *at, size_t bytes);
bool fake_place_is_spare(uintptr_t at);
/* Makes a placed range inaccessible again. */
void fake_blank(void *at, size_t bytes);
/* Puts bytes of a file there. */
bool fake_back(void *at, size_t bytes, int fd, off_t offset, int protection);

/* What a memfd that stands for memory says of itself, behind the memory. */
struct fake_label {
    char magic[16];
    uint32_t kind; /* 'V': cuMemCreate, 'P': pool */
    uint32_t handle_types;
    int32_t physical;
    uint32_t pad;
    uint64_t bytes;
};

/* A copy of the descriptor, closed on exec. */
int fake_dup(int fd);
int fake_memfd(const struct fake_label *label);
bool fake_memfd_label(int fd, struct fake_label *label_out);
/* A file of the folder that other processes may open by its name. */
int fake_file_create(size_t bytes, char *name_out);
int fake_file_open(const char *name);
void fake_file_remove(const char *name);
/* Removes what killed processes left. */
void fake_file_sweep(void);
/* Removes this process's files. */
void fake_file_remove_own(void);

/* ---- range.c: all memory that the driver knows ---- */

enum fake_kind {
    FAKE_DEVICE,
    FAKE_IMPORTED, /* by a legacy handle */
    FAKE_MAPPED,   /* cuMemMap */
    FAKE_POOL,
    FAKE_MANAGED,
    FAKE_HOST,
    FAKE_REGISTERED,
};

struct fake_range {
    uintptr_t base;
    size_t bytes;        /* as asked for */
    size_t mapped_bytes; /* whole pages */
    uint64_t id;
    enum fake_kind kind;
    int device;
    CUcontext context;               /* NULL: of none */
    unsigned access;                 /* FAKE_MAPPED: ordinals that may use it */
    unsigned flags;                  /* FAKE_REGISTERED: CU_MEMHOSTREGISTER_ */
    unsigned opens;                  /* FAKE_IMPORTED */
    bool freeing;                    /* FAKE_POOL: cuMemFreeAsync is under way */
    char name[FAKE_NAME_BYTES];      /* FAKE_DEVICE, FAKE_IMPORTED: its file */
    struct fake_handle *handle;      /* FAKE_MAPPED */
    struct CUmemPoolHandle_st *pool; /* FAKE_POOL */
    off_t offset;                    /* FAKE_POOL: in the pool's memory */
};

extern pthread_rwlock_t fake_map_lock;

/* These want the map lock, those that change something for writing. */
struct fake_range *fake_range_find(uintptr_t at);
struct fake_range *fake_range_add(const struct fake_range *range); /* gives it its id; NULL: no memory */
void fake_range_remove(struct fake_range *range);
bool fake_range_overlaps(uintptr_t at, size_t bytes);
unsigned fake_range_count(void);
struct fake_range *fake_range_nth(unsigned index);
/* Removes a range of any kind but FAKE_MAPPED, gives back its addresses and what lay behind them. */
void fake_range_destroy(struct fake_range *range);

/* A place that queued work will use. */
struct fake_spot {
    uintptr_t at;
    uint64_t id; /* of the range that it begins in; 0: host memory that the driver does not know */
};

/* Checks that all of it is memory that the context may use. Takes the map lock. */
CUresult fake_spot_take(uintptr_t at, size_t bytes, CUcontext context, struct fake_spot *spot_out);
/* Whether it still is, from the offset on. The map lock is held. */
bool fake_spot_valid(const struct fake_spot *spot, size_t offset, size_t bytes);

/* ---- vmm.c ---- */

/* Puts the memory of the handle at the range's addresses. */
CUresult fake_handle_map(CUmemGenericAllocationHandle number, struct fake_range *range);
/* Drops what a mapping holds of its handle. */
void fake_handle_drop(struct fake_handle *handle);
/* The reservation that holds the address. */
bool fake_reservation_find(uintptr_t at, uintptr_t *base_out, size_t *bytes_out);
unsigned fake_handle_types(const struct fake_handle *handle);

/* ---- pool.c ---- */

unsigned fake_pool_types(const struct CUmemPoolHandle_st *pool);
bool fake_pool_allows(const struct CUmemPoolHandle_st *pool, int device);
/* The range's memory is free for another allocation of the pool. */
void fake_pool_return(const struct fake_range *range);
/* The end of cuMemFreeAsync, in the stream's order. */
void fake_pool_free(uintptr_t at, uint64_t id);

/* ---- engine.c: queues ---- */

enum fake_op_kind {
    FAKE_OP_COPY,
    FAKE_OP_FILL,
    FAKE_OP_WRITE,
    FAKE_OP_WAIT,
    FAKE_OP_CALL,
    FAKE_OP_EVENT,
    FAKE_OP_AFTER,
    FAKE_OP_FREE
};

struct fake_op {
    struct fake_op *next;
    enum fake_op_kind kind;
    struct fake_spot to, from;
    size_t bytes;
    void *staged;   /* FAKE_OP_COPY: what the source held when it was queued */
    uint32_t value; /* FAKE_OP_FILL, FAKE_OP_WRITE, FAKE_OP_WAIT */
    unsigned flags; /* FAKE_OP_WAIT; FAKE_OP_FILL: bytes of the value */
    CUhostFn call;
    void *argument;
    CUevent event;  /* FAKE_OP_EVENT, with its generation */
    CUstream after; /* FAKE_OP_AFTER, with its ticket */
    uint64_t ticket;
};

struct CUstream_st {
    CUstream next; /* of the context */
    CUcontext context;
    unsigned flags;
    int priority;
    unsigned refs; /* events and ops that name it */
    bool open;
    bool working;          /* has a thread */
    uint64_t queued, done; /* tickets: how many ops came, and how many are through */
    uint64_t after_legacy; /* what it waits for already */
    uint64_t seen_by_legacy;
    struct fake_op *first, *last;
    pthread_cond_t work, moved;
    uint64_t capture; /* id, 0: none */
};

extern pthread_mutex_t fake_engine_lock;
extern pthread_cond_t fake_context_gone; /* or one of its threads */

/* These want the engine lock. */
CUresult fake_stream_find(CUstream handle, CUstream *stream_out);
CUresult fake_stream_new(CUcontext context, unsigned flags, int priority, CUstream *stream_out);
void fake_stream_close(CUstream stream);
void fake_stream_hold(CUstream stream);
void fake_stream_drop(CUstream stream);
/* Queues what makes the legacy default stream wait for blocking ones, and these for it. */
CUresult fake_stream_order(CUstream stream);
/* Waits until the ticket is through; the stream is held. */
void fake_stream_await(CUstream stream, uint64_t ticket);
bool fake_stream_passed(const struct CUstream_st *stream, uint64_t ticket);
/* Takes the op, in all cases. The ticket is FAKE_TICKET_NONE when a capture took it. */
CUresult fake_enqueue_locked(CUstream stream, struct fake_op *op, uint64_t *ticket_out);
/* Waits for all that the context has queued so far; its sticky error. */
CUresult fake_context_await(CUcontext context);

/* An op that waits for a ticket of another stream. */
CUresult fake_enqueue_after(CUstream stream, CUstream other, uint64_t ticket);

/* The context of a stream. Takes the engine lock. */
CUresult fake_stream_context(CUstream handle, CUcontext *context_out);
/* Refuses a stream that captures, and spoils the capture. Takes the engine lock. */
CUresult fake_stream_no_capture(CUstream handle);
/* Queues a copy of the op; with `wait`, returns when it is through. Takes the engine lock. */
CUresult fake_enqueue(CUstream handle, const struct fake_op *op, bool wait);
/* Whether the calling thread is a queue's, where no CUDA call is allowed. */
bool fake_in_worker(void);

/* ---- work.c: what a queue does ---- */

CUresult fake_work(CUstream stream, const struct fake_op *op);
/* Of a clock that only goes forward. */
uint64_t fake_now_ns(void);

/* ---- event.c ---- */

/* The record of this generation is through. The engine lock is held. */
void fake_event_stamp(CUevent event, uint64_t generation);
/* An op no longer names the event. */
void fake_event_drop(CUevent event);
/* Destroys the events of a context, which ends: a broken one lets nobody else do it. The engine lock is held. */
void fake_event_end_all(CUcontext context);

/* ---- capture.c ---- */

/* Whether a call that captures cannot see may be made; spoils those that forbid it. Takes the engine lock. */
CUresult fake_capture_allows(void);

/* These want the engine lock. */

/* Whether the op is a capture's; CUDA_ERROR_STREAM_CAPTURE_INVALIDATED and _IMPLICIT are its errors. */
CUresult fake_capture_status(CUstream stream, bool *capturing_out);
/* Makes the capture invalid, and returns the error. */
CUresult fake_capture_spoil(uint64_t id, CUresult error);
bool fake_capture_lives(uint64_t id);
/* The stream is no more. */
void fake_capture_leave(CUstream stream);

#endif
