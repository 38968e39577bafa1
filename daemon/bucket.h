/* bucket.h - a declared operation of one rank
 *
 * The loop makes it from a request, checks every number in it against the buffers, and hands it to the
 * group's lane. From then on `desc` is read by both and written by none; `lane` belongs to the lane until
 * it reports the bucket as detached, and only then may the loop free it.
 */
#ifndef GWD_BUCKET_H
#define GWD_BUCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec.h"
#include "gradwire.h"

struct gwd_buffer;
struct gwd_device;
struct gwd_residual;

/* What a request says, with buffers resolved; buffers NULL where the rank uses none. */
typedef struct gwd_bucket_desc {
    char name[GW_NAME_BYTES];
    gw_collective_t collective;
    gw_type_t type;
    gw_redop_t redop;
    uint32_t root;
    uint64_t count;
    struct gwd_buffer *send_buffer, *recv_buffer;
    uint64_t send_offset, recv_offset; /* bytes */
    int priority;
    gw_codec_t codec; /* between nodes, as the rank asks */
    bool no_error_feedback;
    uint32_t n_matrices;
    gw_matrix_t *matrices; /* owned by the bucket */
} gwd_bucket_desc_t;

typedef struct gwd_bucket {
    uint32_t id; /* within the rank; counted from 1 */
    bool ending; /* the loop has asked the lane for it back */
    gwd_bucket_desc_t desc;
    const void *send; /* addresses in the daemon, or on the device; NULL where unused */
    void *recv;
    struct gwd_device *send_device, *recv_device; /* NULL: host memory */
    uint64_t bytes;                               /* of the larger span: what the plan looks at */
    uint64_t fingerprint;
    gw_codec_t codec;                    /* between nodes: the one that is used */
    struct gwd_wire_blocks *wire_blocks; /* that its chunks go through, of a device's in a group on several nodes */
    struct gwd_residual *residual;       /* the group's, where its codec leaves something; else NULL */
    struct {
        bool detaching;     /* the loop wants it back when its last operation has ended */
        uint64_t cookie;    /* what to answer it with */
        uint32_t in_flight; /* operations that have not ended */
    } lane;
    _Atomic uint64_t rounds; /* operations that ended, for gwctl */
    _Atomic uint64_t last_ns;
} gwd_bucket_t;

/* Checks the request for `rank` of `nranks` and makes the bucket, taking desc->matrices over.
 * Errors, with text: GW_ERR_INVALID_ARGUMENT, GW_ERR_SPAN, GW_ERR_NO_MEMORY; matrices stay the caller's. */
gw_status_t gwd_bucket_new(const gwd_bucket_desc_t *desc, uint32_t rank, uint32_t nranks, gwd_bucket_t **bucket_out,
                           char *text, size_t text_bytes);
void gwd_bucket_free(gwd_bucket_t *bucket);

/* What a bucket counts against the quota: one, and one more for each 64 matrices of its layout. */
static inline uint64_t gwd_bucket_charge(uint32_t n_matrices) {
    return 1 + n_matrices / 64;
}

/* Whether the two may be one operation. Priority and addresses may differ between ranks. */
bool gwd_bucket_matches(const gwd_bucket_t *a, const gwd_bucket_t *b);

/* "all_reduce 'fc1' f32 sum x1000": for messages. */
void gwd_bucket_describe(const gwd_bucket_t *bucket, char *text, size_t text_bytes);

/* Whether a codec other than none can be used. */
bool gwd_bucket_is_codable(const gwd_bucket_desc_t *desc);

/* Whether its redop means anything. */
bool gwd_bucket_reduces(const gwd_bucket_t *bucket);

const char *gwd_collective_name(gw_collective_t collective);
const char *gwd_type_name(gw_type_t type);
const char *gwd_redop_name(gw_redop_t redop);

#endif
