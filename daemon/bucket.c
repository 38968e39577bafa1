/* bucket.c - see bucket.h */
#include "bucket.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "escape.h"

const char *gwd_collective_name(gw_collective_t collective) {
    static const char *const names[] = {[GW_ALL_REDUCE] = "all_reduce", [GW_REDUCE_SCATTER] = "reduce_scatter",
                                        [GW_ALL_GATHER] = "all_gather", [GW_BROADCAST] = "broadcast",
                                        [GW_REDUCE] = "reduce",         [GW_BARRIER] = "barrier"};
    return names[collective];
}

const char *gwd_type_name(gw_type_t type) {
    static const char *const names[] = {[GW_F32] = "f32", [GW_F64] = "f64", [GW_F16] = "f16", [GW_BF16] = "bf16",
                                        [GW_I8] = "i8",   [GW_U8] = "u8",   [GW_I32] = "i32", [GW_I64] = "i64"};
    return names[type];
}

const char *gwd_redop_name(gw_redop_t redop) {
    static const char *const names[] = {
        [GW_SUM] = "sum", [GW_AVG] = "avg", [GW_MIN] = "min", [GW_MAX] = "max", [GW_PROD] = "prod"};
    return names[redop];
}

static bool reduces(gw_collective_t collective) {
    return collective == GW_ALL_REDUCE || collective == GW_REDUCE_SCATTER || collective == GW_REDUCE;
}

static bool has_root(gw_collective_t collective) {
    return collective == GW_BROADCAST || collective == GW_REDUCE;
}

static gw_status_t check_numbers(const gwd_bucket_desc_t *desc, uint32_t nranks, char *text, size_t text_bytes) {
    const char *wrong = NULL;
    long long value = 0;

    if (desc->collective < GW_ALL_REDUCE || desc->collective > GW_BARRIER) {
        wrong = "collective";
        value = (long long)desc->collective;
    } else if (desc->type < GW_F32 || desc->type > GW_I64) {
        wrong = "type";
        value = (long long)desc->type;
    } else if (reduces(desc->collective) && (desc->redop < GW_SUM || desc->redop > GW_PROD)) {
        wrong = "reduce operation";
        value = (long long)desc->redop;
    } else if (has_root(desc->collective) && desc->root >= nranks) {
        wrong = "root";
        value = desc->root;
    } else if (desc->priority < -128 || desc->priority > 127) {
        wrong = "priority";
        value = desc->priority;
    } else if (desc->collective == GW_BARRIER && desc->count != 0) {
        wrong = "count of a barrier";
        value = (long long)desc->count;
    }
    if (!wrong)
        return GW_OK;
    snprintf(text, text_bytes, "bucket '%s': %s %lld is not valid", desc->name, wrong, value);
    return GW_ERR_INVALID_ARGUMENT;
}

bool gwd_bucket_is_codable(const gwd_bucket_desc_t *desc) {
    return desc->collective == GW_ALL_REDUCE && desc->type <= GW_BF16 && desc->type != GW_F64 &&
           (desc->redop == GW_SUM || desc->redop == GW_AVG);
}

/* A codec that is asked for is used, or refused: never left out in silence. */
static gw_status_t check_codec(const gwd_bucket_desc_t *desc, char *text, size_t text_bytes) {
    if (desc->codec == GW_CODEC_DEFAULT || desc->codec == GW_CODEC_NONE || gwd_bucket_is_codable(desc))
        return GW_OK;
    snprintf(text, text_bytes, "bucket '%s': codec %s is for all_reduce with sum or avg of f32, f16 and bf16",
             desc->name, gw_codec_name(desc->codec));
    return GW_ERR_UNSUPPORTED;
}

/* Rows must lie inside the bucket; matrices of one bucket come in order and do not overlap. */
static gw_status_t check_layout(const gwd_bucket_desc_t *desc, char *text, size_t text_bytes) {
    uint64_t end = 0;

    for (uint32_t i = 0; i < desc->n_matrices; i++) {
        const gw_matrix_t *m = &desc->matrices[i];
        uint64_t last_row, last;
        bool overflow;

        if (m->rows == 0 || m->columns == 0)
            continue;
        overflow = __builtin_mul_overflow(m->rows - 1, m->stride, &last_row) ||
                   __builtin_add_overflow(last_row, m->columns, &last) ||
                   __builtin_add_overflow(last, m->offset, &last);
        if (overflow || m->stride < m->columns || m->offset < end || last > desc->count) {
            snprintf(text, text_bytes,
                     "bucket '%s': matrix %u (offset %llu, %llu x %llu, stride %llu) does not fit in %llu elements "
                     "after the one before it",
                     desc->name, i, (unsigned long long)m->offset, (unsigned long long)m->rows,
                     (unsigned long long)m->columns, (unsigned long long)m->stride, (unsigned long long)desc->count);
            return GW_ERR_SPAN;
        }
        end = last;
    }
    return GW_OK;
}

/* How many segments of `count` elements a rank sends and receives; 0: it uses no memory there. */
static void span_segments(const gwd_bucket_desc_t *desc, uint32_t rank, uint32_t nranks, uint64_t *send_out,
                          uint64_t *recv_out) {
    bool is_root = desc->root == rank;

    *send_out = desc->collective == GW_REDUCE_SCATTER ? nranks : 1;
    *recv_out = desc->collective == GW_ALL_GATHER ? nranks : 1;
    if (desc->collective == GW_BARRIER || desc->count == 0)
        *send_out = *recv_out = 0;
    if (desc->collective == GW_BROADCAST && !is_root)
        *send_out = 0;
    if (desc->collective == GW_REDUCE && !is_root)
        *recv_out = 0;
}

/* Resolves one span to an address. */
static gw_status_t resolve(const gwd_bucket_desc_t *desc, const char *which, struct gwd_buffer *buffer, uint64_t offset,
                           uint64_t segments, unsigned char **address_out, uint64_t *bytes_out, char *text,
                           size_t text_bytes) {
    uint64_t type_bytes = gw_type_bytes(desc->type), elements, bytes, end;

    if (segments == 0) {
        *address_out = NULL;
        *bytes_out = 0;
        return GW_OK;
    }
    if (!buffer) {
        snprintf(text, text_bytes, "bucket '%s': no %s buffer is given", desc->name, which);
        return GW_ERR_INVALID_ARGUMENT;
    }
    if (__builtin_mul_overflow(desc->count, segments, &elements) ||
        __builtin_mul_overflow(elements, type_bytes, &bytes) || __builtin_add_overflow(offset, bytes, &end) ||
        end > gwd_buffer_bytes(buffer)) {
        snprintf(text, text_bytes,
                 "bucket '%s': %s span of %llu x %llu elements of %s at byte %llu leaves its buffer of "
                 "%llu bytes",
                 desc->name, which, (unsigned long long)segments, (unsigned long long)desc->count,
                 gwd_type_name(desc->type), (unsigned long long)offset, (unsigned long long)gwd_buffer_bytes(buffer));
        return GW_ERR_SPAN;
    }
    if (offset % type_bytes != 0) {
        snprintf(text, text_bytes, "bucket '%s': %s offset %llu is not a multiple of the %llu bytes of %s", desc->name,
                 which, (unsigned long long)offset, (unsigned long long)type_bytes, gwd_type_name(desc->type));
        return GW_ERR_SPAN;
    }
    *address_out = (unsigned char *)gwd_buffer_address(buffer) + offset;
    *bytes_out = bytes;
    return GW_OK;
}

/* In place is one exact relation of the two spans for each collective; apart is always allowed. */
static bool overlap_allowed(const gwd_bucket_desc_t *desc, uint32_t rank, const unsigned char *send,
                            uint64_t send_bytes, const unsigned char *recv, uint64_t recv_bytes) {
    uint64_t segment = desc->count * gw_type_bytes(desc->type);

    if (!send || !recv || send + send_bytes <= recv || recv + recv_bytes <= send)
        return true;
    if (desc->collective == GW_REDUCE_SCATTER)
        return recv == send + rank * segment;
    if (desc->collective == GW_ALL_GATHER)
        return send == recv + rank * segment;
    return send == recv;
}

/* Everything that must agree, as one number: nodes compare it without sending the rest. */
static uint64_t fingerprint(const gwd_bucket_desc_t *desc) {
    static const unsigned char key[crypto_generichash_KEYBYTES_MIN] = "gradwire bucket";
    crypto_generichash_state state;
    uint64_t numbers[6] = {(uint64_t)desc->collective,
                           (uint64_t)desc->type,
                           (uint64_t)desc->redop,
                           desc->root,
                           desc->count,
                           (uint64_t)desc->codec | (uint64_t)desc->no_error_feedback << 32};
    unsigned char hash[crypto_generichash_BYTES_MIN];
    uint64_t result;

    if (!reduces(desc->collective))
        numbers[2] = 0;
    if (!has_root(desc->collective))
        numbers[3] = 0;
    crypto_generichash_init(&state, key, sizeof(key), sizeof(hash));
    crypto_generichash_update(&state, (const unsigned char *)numbers, sizeof(numbers));
    crypto_generichash_update(&state, (const unsigned char *)desc->name, strlen(desc->name));
    if (desc->n_matrices)
        crypto_generichash_update(&state, (const unsigned char *)desc->matrices,
                                  desc->n_matrices * sizeof(desc->matrices[0]));
    crypto_generichash_final(&state, hash, sizeof(hash));
    memcpy(&result, hash, sizeof(result));
    return result;
}

gw_status_t gwd_bucket_new(const gwd_bucket_desc_t *desc, uint32_t rank, uint32_t nranks, gwd_bucket_t **bucket_out,
                           char *text, size_t text_bytes) {
    uint64_t send_segments, recv_segments, send_bytes, recv_bytes;
    unsigned char *send, *recv;
    gwd_bucket_t *bucket;
    gw_status_t status;

    status = check_codec(desc, text, text_bytes);
    if (status == GW_OK)
        status = check_numbers(desc, nranks, text, text_bytes);
    if (status == GW_OK)
        status = check_layout(desc, text, text_bytes);
    if (status != GW_OK)
        return status;
    span_segments(desc, rank, nranks, &send_segments, &recv_segments);
    status = resolve(desc, "send", desc->send_buffer, desc->send_offset, send_segments, &send, &send_bytes, text,
                     text_bytes);
    if (status == GW_OK)
        status = resolve(desc, "recv", desc->recv_buffer, desc->recv_offset, recv_segments, &recv, &recv_bytes, text,
                         text_bytes);
    if (status != GW_OK)
        return status;
    if (!overlap_allowed(desc, rank, send, send_bytes, recv, recv_bytes)) {
        snprintf(text, text_bytes, "bucket '%s': send and recv spans overlap without being in place", desc->name);
        return GW_ERR_SPAN;
    }
    bucket = calloc(1, sizeof(*bucket));
    if (!bucket) {
        snprintf(text, text_bytes, "bucket '%s': out of memory", desc->name);
        return GW_ERR_NO_MEMORY;
    }
    bucket->desc = *desc;
    bucket->send = send;
    bucket->recv = recv;
    bucket->send_device = send ? desc->send_buffer->device : NULL;
    bucket->recv_device = recv ? desc->recv_buffer->device : NULL;
    bucket->bytes = send_bytes > recv_bytes ? send_bytes : recv_bytes;
    bucket->fingerprint = fingerprint(desc);
    bucket->codec = desc->codec == GW_CODEC_DEFAULT ? GW_CODEC_NONE : desc->codec; /* the group may know more */
    *bucket_out = bucket;
    return GW_OK;
}

void gwd_bucket_free(gwd_bucket_t *bucket) {
    free(bucket->desc.matrices);
    free(bucket);
}

bool gwd_bucket_reduces(const gwd_bucket_t *bucket) {
    return reduces(bucket->desc.collective);
}

/* Not by the fingerprint alone: whoever finds two buckets of one fingerprint must not make the daemon write past
 * the end of the smaller one. */
bool gwd_bucket_matches(const gwd_bucket_t *a, const gwd_bucket_t *b) {
    const gwd_bucket_desc_t *x = &a->desc, *y = &b->desc;

    return a->fingerprint == b->fingerprint && x->collective == y->collective && x->type == y->type &&
           x->count == y->count && x->codec == y->codec && x->no_error_feedback == y->no_error_feedback &&
           (!reduces(x->collective) || x->redop == y->redop) && (!has_root(x->collective) || x->root == y->root);
}

void gwd_bucket_describe(const gwd_bucket_t *bucket, char *text, size_t text_bytes) {
    const gwd_bucket_desc_t *d = &bucket->desc;
    const char *redop = reduces(d->collective) ? gwd_redop_name(d->redop) : "-";
    char name[GW_NAME_BYTES + 32], root[24] = "", layout[32] = "", codec[40] = "";

    gw_escape(d->name, sizeof(d->name), name, sizeof(name)); /* other ranks' terminals will show it */

    if (has_root(d->collective))
        snprintf(root, sizeof(root), " root %u", d->root);
    if (d->n_matrices)
        snprintf(layout, sizeof(layout), " %u matrices", d->n_matrices);
    if (d->codec != GW_CODEC_DEFAULT || d->no_error_feedback)
        snprintf(codec, sizeof(codec), " %s%s", gw_codec_name(d->codec),
                 d->no_error_feedback ? " without error feedback" : "");
    snprintf(text, text_bytes, "%s '%s' %s %s x%llu%s%s%s", gwd_collective_name(d->collective), name,
             gwd_type_name(d->type), redop, (unsigned long long)d->count, root, layout, codec);
}
