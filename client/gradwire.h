/* gradwire.h - average gradients through the gradwire daemon of this host
 *
 * A trainer connects to the daemon, joins a group, gives the daemon memory, and submits buckets of it.
 * The daemon combines each bucket with the same bucket of every other rank and signals completion.
 *
 * The rules that hold everywhere:
 *
 *  1. Words are those of MPI and NCCL: rank, group (communicator), reduce operation, all-reduce.
 *  2. Every function that can fail returns a gw_status_t. GW_OK is 0. gw_last_error() has the full
 *     sentence of the calling thread's last failure: what, which object, and what to do.
 *  3. Out-parameters come last, end in _out, and are written on success only.
 *  4. Sizes are 64-bit, and the unit stands in the name: _bytes, _ns; `count` is a number of elements.
 *  5. What gw_X_init, gw_X_alloc, gw_X_register, gw_X_create or gw_connect gives, the caller owns and
 *     ends with the function named in its comment. Ending NULL is allowed and does nothing.
 *  6. Every function may be called from any thread. Ending an object that another thread still uses
 *     is an error of the caller.
 *  7. Submitting and waiting are two calls. Memory of a bucket belongs to the daemon from gw_submit
 *     until gw_wait or gw_test says it is finished, or a stream has come past gw_stream_wait; in
 *     between it must be neither read nor written.
 *  8. All ranks submit the same operations of a group in the same order. The order of submission
 *     fixes which operations belong together; a difference is reported on every rank, by name.
 *  9. When a group fails, the contents of unfinished buckets are undefined, its status stays what it
 *     is, and gw_group_check tells before an optimiser step is trusted (of streams, once they have come there).
 * 10. After fork() the child must not use what the parent made: every call says GW_ERR_FORKED.
 *
 * Each comment uses the same words: Ownership, Thread, Blocking, Errors. Where one is missing, the
 * rules above are all there is to say.
 */
#ifndef GRADWIRE_H
#define GRADWIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GW_VERSION_MAJOR 0
#define GW_VERSION_MINOR 1
#define GW_VERSION_PATCH 0

#if defined(__GNUC__)
#define GW_API __attribute__((visibility("default")))
#else
#define GW_API
#endif

/* Statuses, grouped by the largest thing that is lost for good. proto/status.def is the one list. */
typedef enum gw_status {
#define GW_STATUS(name, code, lost, text, remedy) GW_##name = code,
#include <gradwire/status.def>
#undef GW_STATUS
} gw_status_t;

/* Element types. Sums of 16-bit types are accumulated in fp32, of 8- and 32-bit integers exactly. */
typedef enum gw_type {
    GW_F32 = 1,
    GW_F64 = 2,
    GW_F16 = 3,  /* IEEE 754 binary16 */
    GW_BF16 = 4, /* the upper half of binary32 */
    GW_I8 = 5,
    GW_U8 = 6,
    GW_I32 = 7,
    GW_I64 = 8,
} gw_type_t;

/* Reduce operations. GW_AVG divides the sum in rank order by the number of ranks, once, and rounds
 * once; integers round half to even. Integer sums and products wrap around as C's unsigned types do.
 * NaN is carried to all ranks by every operation, GW_MIN and GW_MAX included. */
typedef enum gw_redop {
    GW_SUM = 1,
    GW_AVG = 2,
    GW_MIN = 3,
    GW_MAX = 4,
    GW_PROD = 5,
} gw_redop_t;

/* Collective operations, as in MPI. */
typedef enum gw_collective {
    GW_ALL_REDUCE = 1,
    GW_REDUCE_SCATTER = 2,
    GW_ALL_GATHER = 3,
    GW_BROADCAST = 4,
    GW_REDUCE = 5,
    GW_BARRIER = 6,
} gw_collective_t;

typedef struct gw_context gw_context_t; /* a connection to the daemon */
typedef struct gw_group gw_group_t;     /* a rank's membership of a group */
typedef struct gw_buffer gw_buffer_t;   /* memory that the daemon can reach */
typedef struct gw_bucket gw_bucket_t;   /* a declared operation, submitted again and again */
typedef struct {
    unsigned char bytes[128];
} gw_unique_id_t;

/* Where the input becomes ready and the result is needed. For a bucket of device memory a CUDA stream (cudaStream_t or
 * CUstream; NULL is the legacy default stream) of that device; for one of host memory NULL: the input is ready when
 * gw_submit is called. */
typedef void *gw_queue_t;

/* One submitted operation: its sequence number in the group, counted from 1. */
typedef uint64_t gw_op_t;

#define GW_NO_TIMEOUT INT64_C(-1)
#define GW_NAME_BYTES 128 /* longest name of a bucket, with its final 0 */

/* ---- statuses ---------------------------------------------------------------------------------- */

/* The name of a status ("GW_ERR_RANK_DIED"). Static memory. An unknown code gives "GW_ERR_UNKNOWN". */
GW_API const char *gw_status_name(gw_status_t status);

/* What the status means and what to do, as one sentence. Static memory, never NULL. */
GW_API const char *gw_status_string(gw_status_t status);

/* The full message of the last call of this thread that failed, with the names of ranks, buckets and
 * limits concerned; "" when none failed. Ownership: the library's, valid until the thread's next call. */
GW_API const char *gw_last_error(void);

/* "MAJOR.MINOR.PATCH" of the library in use. Static memory. */
GW_API const char *gw_version(void);

/* Bytes of one element; 0 for an unknown type. */
GW_API size_t gw_type_bytes(gw_type_t type);

/* ---- connection --------------------------------------------------------------------------------- */

/* Options of gw_connect. Start from GW_OPTIONS_INIT: fields are only ever appended. */
typedef struct gw_options {
    size_t struct_bytes;     /* sizeof(gw_options_t) of the caller: GW_OPTIONS_INIT sets it */
    const char *socket_path; /* NULL: the search order below */
    const char *client_name; /* shown by gwctl; NULL: the name of the program */
} gw_options_t;
#define GW_OPTIONS_INIT                                                                                                \
    { sizeof(gw_options_t), NULL, NULL }

/* Connects to the daemon. Without socket_path it tries, in this order: $GRADWIRE_SOCKET (alone, if
 * set), $XDG_RUNTIME_DIR/gradwire/client.sock, /tmp/gradwire-<uid>/client.sock (only if the folder is
 * this user's), /run/gradwire/client.sock. `options` may be NULL.
 * Ownership: end it with gw_disconnect.  Blocking: a round trip to the daemon.
 * Errors: GW_ERR_NO_DAEMON (the message lists the paths tried), GW_ERR_VERSION, GW_ERR_FD_LIMIT,
 * GW_ERR_QUOTA, GW_ERR_DRAINING, GW_ERR_NO_MEMORY. */
GW_API gw_status_t gw_connect(const gw_options_t *options, gw_context_t **context_out);

/* Closes the connection. Groups and buffers that still exist are ended as by gw_group_free and
 * gw_buffer_release; their handles must not be used any more. In a forked child it only frees the
 * child's copies. */
GW_API void gw_disconnect(gw_context_t *context);

/* ---- groups -------------------------------------------------------------------------------------- */

/* Makes the id of a new group. One rank calls it and passes the 128 bytes to the others by any means
 * (a file, MPI, a torch store). It is a secret: whoever has it may join. Where the daemon has wire.listen,
 * ranks on other hosts may, too.
 * Blocking: a round trip.  Errors: GW_ERR_QUOTA, GW_ERR_DRAINING, GW_ERR_DAEMON_GONE. */
GW_API gw_status_t gw_get_unique_id(gw_context_t *context, gw_unique_id_t *id_out);

/* Joins the group `id` as `rank` of `nranks`, each rank through the daemon of its own host. Several groups a
 * process are allowed, and several ranks.
 * Ownership: end it with gw_group_free.
 * Blocking: until all ranks have joined, or deadline.bootstrap_s of the daemon has passed.
 * Errors: those of a group that does not come together are for all its ranks, late ones too.
 * GW_ERR_INVALID_ARGUMENT (rank outside 0..nranks-1, rank taken, nranks differs),
 * GW_ERR_UNKNOWN_ID (used up, or of another daemon that has no wire.listen), GW_ERR_BOOTSTRAP (names the missing
 * ranks, the host that is not reached, or what the daemons must have alike and have not), GW_ERR_RANK_DIED,
 * GW_ERR_PROTOCOL_RANK, GW_ERR_QUOTA, GW_ERR_DRAINING, GW_ERR_FD_LIMIT, GW_ERR_NO_MEMORY, GW_ERR_DAEMON_GONE. */
GW_API gw_status_t gw_group_init(gw_context_t *context, const gw_unique_id_t *id, int nranks, int rank,
                                 gw_group_t **group_out);

/* How codecs round. Stochastic rounding is right on average, and off by up to twice as much each time; its random bits
 * are a function of the bucket and of how many operations it has had, so the same run gives the same bits again. */
typedef enum gw_rounding {
    GW_ROUND_DEFAULT, /* what the daemon's wire.rounding says: to nearest, unless it was changed */
    GW_ROUND_NEAREST,
    GW_ROUND_STOCHASTIC,
} gw_rounding_t;

/* What all ranks of a group must agree on. Start from GW_GROUP_CONFIG_INIT: fields are only ever appended.
 * `codec` is for buckets with GW_CODEC_DEFAULT, between nodes: "none", "fp16", "bf16", "fp8", "int8", "int4"; or
 * "auto:" and those that it may take, as "auto:bf16,int8" (none always): the group measures its links when it is made,
 * and takes what is fastest for each size of bucket, for as long as it lives. A coarser codec must be faster by a
 * tenth to three tenths. `gwctl groups` shows the choice. */
typedef struct gw_group_config {
    size_t struct_bytes; /* sizeof(gw_group_config_t) of the caller: GW_GROUP_CONFIG_INIT sets it */
    const char *codec;   /* NULL: what the daemon's wire.codec says */
    gw_rounding_t rounding;
} gw_group_config_t;
#define GW_GROUP_CONFIG_INIT                                                                                           \
    { sizeof(gw_group_config_t), NULL, GW_ROUND_DEFAULT }

/* gw_group_init with choices, which groups made of it by gw_group_split have, too. `config` may be NULL.
 * Ownership, Blocking: as gw_group_init; with auto, some 200 ms more.
 * Errors: those of gw_group_init; GW_ERR_INVALID_ARGUMENT (no such codec), GW_ERR_BOOTSTRAP on all ranks (they ask for
 * different ones, or their daemons are configured so: it names two of them). */
GW_API gw_status_t gw_group_init_config(gw_context_t *context, const gw_unique_id_t *id, int nranks, int rank,
                                        const gw_group_config_t *config, gw_group_t **group_out);

/* Splits a group as MPI_Comm_split: ranks of one color form a new group, ordered by key, then by rank.
 * A negative color joins none, and *group_out becomes NULL. All ranks of `group` must call it. It succeeds on all
 * ranks or fails on all; when a rank or a node is lost at its very end, some may get a group that has failed instead.
 * Whatever happens to a split, `group` goes on unless it has failed itself. The new groups have its codec and rounding.
 * Ownership: end the result with gw_group_free; it does not depend on `group` any more.
 * Blocking: until all ranks have called it, or deadline.bootstrap_s.
 * Errors: as gw_group_init, GW_ERR_RANK_LEFT, and the status of `group` if it has failed. */
GW_API gw_status_t gw_group_split(gw_group_t *group, int color, int key, gw_group_t **group_out);

/* What gw_group_check knows. */
typedef struct gw_report {
    gw_status_t status;      /* of the group: GW_OK or why it failed; it never changes back */
    uint64_t last_completed; /* all operations up to this sequence number have ended, well but for failed_ops;
                                every surviving rank of a failed group sees the same number, and on another
                                host perhaps another one, by what was in flight */
    uint64_t failed_ops;     /* operations that failed alone (GW_ERR_MISMATCH) since the group began */
    uint32_t epoch;          /* counts the lives of the group; data of an old one is dropped */
    char message[512];       /* why, with rank, host, pid and bucket; "" while all is well */
} gw_report_t;

/* Tells whether every operation so far can be trusted: call it before an optimiser step. Of operations that a stream
 * waits for it knows when they have ended: synchronise with the stream first, or call it after the step. Returns the
 * group's status, or GW_ERR_MISMATCH if one operation failed since. `report_out` may be NULL, and is
 * written in every case. Blocking: never. No system call but one poll.
 * A group may fail when all operations of a step have ended well on all ranks, and some have taken the step. So where
 * those who are left are to go on together, each calls gw_wait for every operation of the step, and takes it if all of
 * them have ended well: on one host that is the same for all ranks, whenever they ask, unless the daemon itself was
 * killed. */
GW_API gw_status_t gw_group_check(gw_group_t *group, gw_report_t *report_out);

/* Fails the group on every rank with GW_ERR_ABORTED and `reason` (may be NULL). Waiting calls of all
 * ranks return. The handle is still to be freed. Blocking: a round trip. */
GW_API gw_status_t gw_group_abort(gw_group_t *group, const char *reason);

/* Leaves the group and frees the handle and its buckets. Ranks that go on submitting get
 * GW_ERR_RANK_LEFT; an operation of this rank that is unfinished fails the group, and streams that wait for it are
 * freed.
 * Blocking: a round trip, so that the daemon has let go of the buckets when it returns; after operations on device
 * memory also until the device has done what was enqueued on it, so no stream of it may be captured meanwhile. */
GW_API void gw_group_free(gw_group_t *group);

/* This rank's number, and how many ranks there are; -1 for NULL. */
GW_API int gw_group_rank(const gw_group_t *group);
GW_API int gw_group_size(const gw_group_t *group);

/* A file descriptor that becomes readable when an operation submitted after this call finishes or the
 * group fails: for poll and event loops. When it is readable, call gw_test for what is unfinished. It stays readable
 * until gw_test or gw_wait has seen every end, those included that a stream waits for; of device memory an end may be
 * seen a little after the descriptor has become readable, once the result has been copied back.
 * Ownership: the group's; do not read, write or close it. */
GW_API gw_status_t gw_group_fd(gw_group_t *group, int *fd_out);

/* What a rank must keep so that training in new processes, with new daemons, goes on bit for bit where it was: what
 * lossy codecs left out between nodes so far. Every rank saves and loads its own; the lowest rank of each node carries
 * the node's part, about 8 bytes an element of all buckets with such codecs, and the others' states are small. So are
 * those of a group on one node, or without such codecs. A state fits groups of the same number of ranks, on nodes in
 * the same way, and daemons with the same wire.chunk_bytes. Groups must round alike, and use the same codec for buckets
 * with GW_CODEC_DEFAULT, of which the state has something. Where "auto:" has chosen another codec this time, the state
 * is loaded all the same, but training does not go on with the same bits.
 * Save when this rank has waited for all that it has submitted; operations that are submitted meanwhile wait.
 * Ownership: end it with gw_group_state_free.
 * Blocking: until it is copied, twice, and its checksum made.
 * Errors: GW_ERR_BUSY (an operation is under way), the group's status if it has failed, GW_ERR_QUOTA, GW_ERR_FD_LIMIT,
 * GW_ERR_NO_MEMORY, GW_ERR_DAEMON_GONE. */
GW_API gw_status_t gw_group_state_save(gw_group_t *group, void **state_out, size_t *bytes_out);

/* Frees what gw_group_state_save gave. */
GW_API void gw_group_state_free(void *state);

/* Replaces what the group has kept by a state; each rank loads its own before it submits again. Its buckets need not be
 * declared yet: what is loaded waits for those of the same name, type, count, layout and codec. It counts against
 * the quota of the user who made the group, and, while it is read, of this rank's user beside what it replaces.
 * Everything is checked before anything changes. Blocking: as gw_group_state_save.
 * Errors: GW_ERR_STATE (damaged, of another version, of ranks that were placed otherwise, or of buckets that were coded
 * otherwise; the message says which), as gw_group_state_save. */
GW_API gw_status_t gw_group_state_load(gw_group_t *group, const void *state, size_t bytes);

/* ---- memory --------------------------------------------------------------------------------------- */

/* Allocates zeroed memory that trainer and daemon share (a sealed memfd): nothing is ever copied.
 * `bytes` at least 1. The memory counts against this process's limits, and against the user's quota.
 * Ownership: end it with gw_buffer_release.  Blocking: a round trip.
 * Errors: GW_ERR_INVALID_ARGUMENT (bytes is 0), GW_ERR_NO_MEMORY, GW_ERR_QUOTA, GW_ERR_FD_LIMIT,
 * GW_ERR_DAEMON_GONE. */
GW_API gw_status_t gw_buffer_alloc(gw_context_t *context, uint64_t bytes, gw_buffer_t **buffer_out);

/* Registers memory that the caller already has, at any address and alignment.
 *
 * Host memory: the daemon cannot map it, so every operation on it is copied through a shared arena of the same size:
 * into it by gw_submit, out of it by gw_wait or the gw_test that finds it finished, in the calling thread. Where speed
 * counts, use gw_buffer_alloc.
 *
 * Device memory (CUDA; all of it on one device): the library asks the driver what the memory is, and takes the first
 * way that works; gw_buffer_path shows which, and `gwctl buffers` why memory is copied.
 *   "ipc"     cudaMalloc, cuMemAlloc: a legacy IPC handle. Allocations that share its 2 MiB block are opened with it.
 *   "vmm"     cuMemCreate with file descriptors as handle type, PyTorch's expandable segments: one fd an allocation
 *   "pool"    cudaMallocFromPoolAsync, from a pool with file descriptors as handle type
 *   "stream"  everything else (cudaMallocAsync's default pool, managed memory, containers that forbid the above): the
 *             caller's own stream copies each bucket to an arena that is shared with the daemon, and back
 * Small buckets go by the stream in any case: it returns them sooner.
 * A device's memory that the daemon has opened is not given back to the device before gw_buffer_release, even if
 * its owner frees it; memory of a pool must be released here before it is freed (the driver's rule). An operation on
 * memory that was freed or replaced since is refused with GW_ERR_BUFFER_STALE.
 *
 * Ownership: the memory stays the caller's and must outlive the registration. Errors: as gw_buffer_alloc,
 * GW_ERR_UNSUPPORTED (neither host nor device memory, or the plugin for its device is not installed). */
GW_API gw_status_t gw_buffer_register(gw_context_t *context, void *data, uint64_t bytes, gw_buffer_t **buffer_out);

/* How the daemon gets at the memory: "shared" (gw_buffer_alloc), "copied" (registered host memory), or for device
 * memory "ipc", "vmm", "pool" or "stream". Static memory. */
GW_API const char *gw_buffer_path(const gw_buffer_t *buffer);

/* Ends a buffer. When it returns the daemon has unmapped it. Buckets that use it must have no
 * unfinished operation, which includes the stream that brings its result back; they cannot be submitted
 * again. Registered memory itself is left alone.
 * Blocking: a round trip.  Errors: GW_ERR_BUSY (nothing is released). */
GW_API gw_status_t gw_buffer_release(gw_buffer_t *buffer);

/* The memory of a buffer, page-aligned for gw_buffer_alloc, the caller's pointer for gw_buffer_register; and its size
 * as it was asked for. NULL and 0 for NULL. */
GW_API void *gw_buffer_data(const gw_buffer_t *buffer);
GW_API uint64_t gw_buffer_bytes(const gw_buffer_t *buffer);

/* ---- buckets -------------------------------------------------------------------------------------- */

/* How a bucket may shrink on its way between nodes. A codec is a permission: inside a node nothing is encoded, and NONE
 * is exact. DEFAULT leaves it to the group (gw_group_config_t, else the daemon's wire.codec), whose codec is used where
 * it can be: others than NONE are for GW_ALL_REDUCE with GW_SUM or GW_AVG of f32, f16 and bf16.
 * What FP8, INT8 and INT4 leave out is kept and added to the next round of the bucket (error feedback: Seide et al.
 * 2014, Karimireddy et al. 2019), for at most 4096 buckets a group. That costs the daemon up to 8 bytes an element,
 * until the group ends; gw_group_state_save keeps it for longer, and `no_error_feedback` of a bucket turns it off.
 * All ranks get the same bits. Infinities and NaNs travel unencoded. */
typedef enum gw_codec {
    GW_CODEC_DEFAULT,
    GW_CODEC_NONE,
    GW_CODEC_FP16, /* 2 bytes an element; beyond 65504 the largest finite number */
    GW_CODEC_BF16, /* 2 bytes */
    GW_CODEC_FP8,  /* 1.016 bytes: E4M3 and a scale for 256 elements */
    GW_CODEC_INT8, /* 1.016 bytes */
    GW_CODEC_INT4, /* 0.516 bytes */
} gw_codec_t;

/* One matrix inside a bucket, in elements; a vector has one column. No codec reads them yet; all ranks must give the
 * same. */
typedef struct gw_matrix {
    uint64_t offset; /* of its first element from the start of the bucket */
    uint64_t rows;
    uint64_t columns;
    uint64_t stride; /* elements between the starts of two rows, at least `columns` */
} gw_matrix_t;

/* A bucket: an operation on fixed memory, declared once and submitted every step.
 *
 * `count`, and which memory is read and written, for n ranks:
 *   all_reduce      send count            recv count
 *   reduce_scatter  send n * count        recv count            in place: recv == send + rank * count
 *   all_gather      send count            recv n * count        in place: send == recv + rank * count
 *   broadcast       send count (root)     recv count            in place: send == recv
 *   reduce          send count            recv count (root)     in place: send == recv
 *   barrier         no memory, count 0
 * Elsewhere in place means send == recv. Spans that overlap in any other way are refused. Memory that
 * a rank does not use (send off the root of a broadcast, recv off the root of a reduce) may be NULL. */
typedef struct gw_bucket_desc {
    size_t struct_bytes; /* sizeof(gw_bucket_desc_t): GW_BUCKET_DESC_INIT sets it */
    const char *name;    /* shown in errors, statistics and gwctl; must agree on all ranks; NULL: "" */
    gw_collective_t collective;
    gw_type_t type;
    gw_redop_t redop;            /* ignored where nothing is reduced */
    int root;                    /* broadcast and reduce only */
    uint64_t count;              /* elements; 0 is allowed and completes */
    const void *send;            /* inside a buffer of the group's context, aligned to the type */
    void *recv;                  /* likewise */
    int priority;                /* -128..127: among buckets that all ranks have submitted the highest is reduced first;
                                    in a group on several nodes operations begin in the order of submission; 0 is
                                    normal */
    const gw_matrix_t *matrices; /* layout, copied; may be NULL */
    size_t n_matrices;
    gw_codec_t codec;      /* between nodes; must agree on all ranks */
    int no_error_feedback; /* 1: what the codec leaves out is lost, as with PowerSGD's use_error_feedback=False in
                              PyTorch: no memory, and worse averages; must agree on all ranks; 0 is normal */
} gw_bucket_desc_t;
#define GW_BUCKET_DESC_INIT                                                                                            \
    { sizeof(gw_bucket_desc_t), NULL, GW_ALL_REDUCE, GW_F32, GW_SUM, 0, 0, NULL, NULL, 0, NULL, 0, GW_CODEC_DEFAULT, 0 }

/* Declares a bucket with the daemon.
 * Ownership: end it with gw_bucket_free; gw_group_free ends what is left.  Blocking: a round trip.
 * Errors: GW_ERR_INVALID_ARGUMENT, GW_ERR_NOT_FOUND (memory in no buffer), GW_ERR_SPAN, GW_ERR_QUOTA,
 * GW_ERR_UNSUPPORTED (a codec that the operation cannot have). In a group on several nodes GW_ERR_QUOTA can also mean
 * memory for chunks under way, that of a device's arena (device.wire_bytes), or what codecs leave out. */
GW_API gw_status_t gw_bucket_create(gw_group_t *group, const gw_bucket_desc_t *desc, gw_bucket_t **bucket_out);

/* Ends a bucket; it must have no unfinished operation. Errors: GW_ERR_BUSY.
 * Blocking: a round trip; as gw_group_free if it goes by the stream and an operation of it has failed. */
GW_API gw_status_t gw_bucket_free(gw_bucket_t *bucket);

/* Submits a bucket. Returns at once with the operation to wait for. The group holds a fixed number of operations in
 * flight (credits, at least 64); when all are in use the call waits for the oldest one.
 * Host memory: its input is ready now. Device memory: it is ready when `queue` has come to this point; what the stream
 * does later does not wait for the operation until gw_stream_wait says so. The stream may be destroyed right after.
 * A bucket that is still in flight must be waited for, by gw_wait, gw_test, gw_stream_wait or gw_event_record, before
 * it is submitted again; after the last two the new input must come from a stream that is ordered after that wait.
 * Errors: the group's status if it has failed, GW_ERR_BUSY, GW_ERR_DAEMON_GONE, GW_ERR_BUFFER_STALE,
 * GW_ERR_NOT_FOUND (its memory has been released), GW_ERR_INVALID_ARGUMENT (a stream of another device),
 * GW_ERR_CAPTURE (the stream is being captured into a graph, which stays valid), GW_ERR_SYSTEM (the driver's),
 * GW_ERR_UNSUPPORTED (a queue other than NULL for host memory). */
GW_API gw_status_t gw_submit(gw_bucket_t *bucket, gw_queue_t queue, gw_op_t *op_out);

/* Makes `queue`, a stream of the bucket's device, wait for an operation: what is enqueued on it later sees the result.
 * Several streams may wait for one operation; where the bucket goes by the stream, the first of them copies the result,
 * and the others wait for that. A group's failure and the daemon's end free waiting streams within 2 s;
 * the result is then undefined, so synchronise and ask gw_group_check before an optimiser step is trusted.
 * An operation without memory has no stream that could wait: a barrier, a count of 0; then this does nothing.
 * Several ranks of one process on one device share its copy engines' queues, where a stream that waits can hold up the
 * input of the rank it waits for: those ranks use gw_wait.
 * Blocking: never, unless the driver's queue of the stream is full.
 * Errors: GW_ERR_NOT_FOUND (as gw_wait), GW_ERR_CAPTURE, GW_ERR_UNSUPPORTED (host memory), GW_ERR_INVALID_ARGUMENT (a
 * stream of another device), the status of a group that has failed, unless the operation had ended well before. For one
 * that ended well so long ago that it is not remembered the stream is not looked at: GW_OK. */
GW_API gw_status_t gw_stream_wait(gw_group_t *group, gw_op_t op, gw_queue_t queue);

/* Records `event` (cudaEvent_t or CUevent of the bucket's device): it is complete when the operation's result is there.
 * For whoever waits by events of his own. The library waits on a stream of its own for each device, and another for
 * priorities above 0: an event on one of them is not complete before those recorded earlier. Blocking, errors: as
 * gw_stream_wait; GW_ERR_NOT_FOUND also when `credits` later operations have been submitted. */
GW_API gw_status_t gw_event_record(gw_group_t *group, gw_op_t op, void *event);

/* Waits until an operation has finished, for at most timeout_ns (GW_NO_TIMEOUT: for ever; it still ends
 * when a rank dies, the deadline passes or the daemon goes away). Waiting again for a finished operation
 * gives the same answer. It looks for at most 50 us (as long again where a device copies the result back), letting
 * other threads run in between, and then sleeps.
 * Returns the operation's status, GW_ERR_TIMEOUT, or GW_ERR_NOT_FOUND: it was not submitted, or it is one of those up
 * to the last that failed, and `credits` later ones have been submitted since, so that how it ended is forgotten. */
GW_API gw_status_t gw_wait(gw_group_t *group, gw_op_t op, int64_t timeout_ns);

/* The same without waiting: GW_IN_PROGRESS while it is not finished. */
GW_API gw_status_t gw_test(gw_group_t *group, gw_op_t op);

/* ---- collectives in one call ----------------------------------------------------------------------- */

/* Submit and wait in one call, as MPI's. Buckets are declared on first use and kept (256 of them a
 * group, the least recently used goes first). Memory must lie in a buffer of the group's context.
 * With device memory they are enqueued on the stream `queue` and return, as NCCL's: what the stream does next sees the
 * result. gw_barrier takes no stream: it is for the calling thread. A codec of the group works without error feedback
 * here: for that, declare buckets with names.
 * Blocking: host memory and a count of 0 until finished, device memory as gw_submit.
 * Errors: those of gw_bucket_create, gw_submit, gw_wait and gw_stream_wait. */
GW_API gw_status_t gw_all_reduce(const void *send, void *recv, uint64_t count, gw_type_t type, gw_redop_t redop,
                                 gw_group_t *group, gw_queue_t queue);
GW_API gw_status_t gw_reduce_scatter(const void *send, void *recv, uint64_t recv_count, gw_type_t type,
                                     gw_redop_t redop, gw_group_t *group, gw_queue_t queue);
GW_API gw_status_t gw_all_gather(const void *send, void *recv, uint64_t send_count, gw_type_t type, gw_group_t *group,
                                 gw_queue_t queue);
GW_API gw_status_t gw_broadcast(const void *send, void *recv, uint64_t count, gw_type_t type, int root,
                                gw_group_t *group, gw_queue_t queue);
GW_API gw_status_t gw_reduce(const void *send, void *recv, uint64_t count, gw_type_t type, gw_redop_t redop, int root,
                             gw_group_t *group, gw_queue_t queue);
GW_API gw_status_t gw_barrier(gw_group_t *group, gw_queue_t queue);

#ifdef __cplusplus
}
#endif

#endif
