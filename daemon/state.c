/* state.c - see state.h */
#include "state.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec_choice.h"

enum {
    VERSION = 2,
    RANKS_MAX = 65536, /* more than any daemon takes: for the size of a table that is not checked yet */
    SUM_BYTES = 32,
    PIECE_BYTES = 1 << 20, /* copied and summed while a cache holds them */
    PLACES_SHOWN = 24,
};

static const char magic[8] = "GWSTATE";

/* All numbers of a state are little-endian, as every host that this runs on. */
typedef struct head {
    char magic[8];
    uint32_t version, nranks, n_nodes, rank;
    uint64_t chunk_bytes, bytes; /* of the whole state */
    uint32_t n_residuals, reserved;
} head_t;

typedef struct entry {
    uint64_t fingerprint, count, n_ops;
    gwd_residual_rule_t rule;
    uint32_t reserved;
} entry_t;

/* ---- placement ------------------------------------------------------------------------------------------ */

static uint32_t node_of(const gwd_placement_t *placement, uint32_t rank) {
    return placement->node_of ? placement->node_of[rank] : 0;
}

bool gwd_placement_carries(const gwd_placement_t *placement) {
    for (uint32_t r = 0; r < placement->rank; r++)
        if (node_of(placement, r) == node_of(placement, placement->rank))
            return false;
    return true;
}

/* "4 ranks on 2 nodes (0 0 1 1)" */
static void describe(const gwd_placement_t *placement, char *text, size_t text_bytes) {
    size_t used = (size_t)snprintf(text, text_bytes, "%u ranks on %u node%s (", placement->nranks, placement->n_nodes,
                                   placement->n_nodes == 1 ? "" : "s");

    for (uint32_t r = 0; r < placement->nranks && r < PLACES_SHOWN && used + 1 < text_bytes; r++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", r ? " " : "", node_of(placement, r));
    if (used + 1 < text_bytes)
        snprintf(text + used, text_bytes - used, "%s)", placement->nranks > PLACES_SHOWN ? " ..." : "");
}

static gw_status_t compare(const gwd_placement_t *state, const gwd_placement_t *group, char *text, size_t text_bytes) {
    bool same = state->nranks == group->nranks && state->n_nodes == group->n_nodes;
    char saved[160], wanted[160];

    for (uint32_t r = 0; same && r < group->nranks; r++)
        same = node_of(state, r) == node_of(group, r);
    if (!same) {
        describe(state, saved, sizeof(saved));
        describe(group, wanted, sizeof(wanted));
        snprintf(
            text, text_bytes,
            "this state is of %s, and the group has %s: start the ranks on nodes as they were, or go on without it",
            saved, wanted);
        return GW_ERR_STATE;
    }
    if (state->rank != group->rank) {
        snprintf(text, text_bytes, "this state is of rank %u, and was given to rank %u: each rank loads its own",
                 state->rank, group->rank);
        return GW_ERR_STATE;
    }
    if (state->chunk_bytes != group->chunk_bytes) {
        snprintf(text, text_bytes,
                 "this state was saved with chunks of %llu bytes between nodes, and here they have %llu: set "
                 "wire.chunk_bytes to what it was on all "
                 "nodes",
                 (unsigned long long)state->chunk_bytes, (unsigned long long)group->chunk_bytes);
        return GW_ERR_STATE;
    }
    return GW_OK;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

static uint64_t numbers_bytes(uint64_t count) {
    return 2 * count * sizeof(float);
}

static uint64_t table_bytes(uint32_t nranks, uint64_t n_residuals) {
    return nranks * sizeof(uint32_t) + n_residuals * sizeof(entry_t);
}

static uint32_t length(const gwd_residual_t *list) {
    uint32_t n = 0;

    for (; list; list = list->next)
        n++;
    return n;
}

uint64_t gwd_state_bytes(const gwd_placement_t *placement, const gwd_residual_t *list) {
    uint64_t bytes = sizeof(head_t) + table_bytes(placement->nranks, length(list)) + SUM_BYTES;

    for (; list; list = list->next)
        bytes += numbers_bytes(list->count);
    return bytes;
}

typedef struct writer {
    unsigned char *at;
    crypto_generichash_state sum;
} writer_t;

/* The sum is of what was to be written, not of what another process may have made of it. */
static void put(writer_t *w, const void *data, uint64_t bytes) {
    for (uint64_t done = 0, piece; done < bytes; done += piece) {
        piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        memcpy(w->at, (const unsigned char *)data + done, piece);
        crypto_generichash_update(&w->sum, (const unsigned char *)data + done, piece);
        w->at += piece;
    }
}

void gwd_state_write(const gwd_placement_t *placement, const gwd_residual_t *list, unsigned char *to) {
    head_t head = {.version = VERSION,
                   .nranks = placement->nranks,
                   .n_nodes = placement->n_nodes,
                   .rank = placement->rank,
                   .chunk_bytes = placement->chunk_bytes,
                   .bytes = gwd_state_bytes(placement, list),
                   .n_residuals = length(list)};
    unsigned char sum[SUM_BYTES];
    writer_t w = {.at = to};

    memcpy(head.magic, magic, sizeof(magic));
    (void)crypto_generichash_init(&w.sum, NULL, 0, sizeof(sum)); /* cannot fail with these sizes */
    put(&w, &head, sizeof(head));
    for (uint32_t r = 0; r < placement->nranks; r++) {
        uint32_t node = node_of(placement, r);

        put(&w, &node, sizeof(node));
    }
    for (const gwd_residual_t *r = list; r; r = r->next) {
        entry_t entry = {r->fingerprint, r->count, r->n_ops, r->rule, 0};

        put(&w, &entry, sizeof(entry));
    }
    for (const gwd_residual_t *r = list; r; r = r->next)
        if (r->count > 0)
            put(&w, r->parts, numbers_bytes(r->count));
    (void)crypto_generichash_final(&w.sum, sum, sizeof(sum));
    memcpy(w.at, sum, sizeof(sum));
}

/* ---- reading -------------------------------------------------------------------------------------------- */

typedef struct reader {
    const unsigned char *at;
    crypto_generichash_state sum;
    head_t head;
    uint32_t *nodes;  /* nranks */
    entry_t *entries; /* n_residuals */
    gwd_residual_t *list;
} reader_t;

/* The sum is of what was read. Whoever calls this knows that so much is there. */
static void get(reader_t *r, void *data, uint64_t bytes) {
    for (uint64_t done = 0, piece; done < bytes; done += piece) {
        piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        memcpy((unsigned char *)data + done, r->at, piece);
        crypto_generichash_update(&r->sum, (unsigned char *)data + done, piece);
        r->at += piece;
    }
}

static gw_status_t damaged(char *text, size_t text_bytes, const char *how) {
    snprintf(text, text_bytes, "the state is damaged (%s): load another copy, or go on without it", how);
    return GW_ERR_STATE;
}

static gw_status_t no_memory(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "the daemon has no memory to load the state");
    return GW_ERR_NO_MEMORY;
}

static gw_status_t read_head(reader_t *r, uint64_t bytes, char *text, size_t text_bytes) {
    const head_t *head = &r->head;

    if (bytes < sizeof(*head) + SUM_BYTES)
        return damaged(text, text_bytes, "it is shorter than any");
    get(r, &r->head, sizeof(r->head));
    if (memcmp(head->magic, magic, sizeof(magic)) != 0)
        return damaged(text, text_bytes, "it was not made by gw_group_state_save");
    if (head->version != VERSION) {
        snprintf(text, text_bytes,
                 "the state has version %u, and this daemon knows %d: load it with the gradwire that saved it",
                 head->version, VERSION);
        return GW_ERR_STATE;
    }
    if (head->bytes != bytes) {
        snprintf(text, text_bytes,
                 "the state is cut or damaged: it has %llu bytes, and says %llu: load another copy, or "
                 "go on without it",
                 (unsigned long long)bytes, (unsigned long long)head->bytes);
        return GW_ERR_STATE;
    }
    if (head->nranks == 0 || head->nranks > RANKS_MAX || head->n_residuals > GWD_RESIDUALS_MAX || head->reserved != 0 ||
        table_bytes(head->nranks, head->n_residuals) > bytes - sizeof(*head) - SUM_BYTES)
        return damaged(text, text_bytes, "its numbers of ranks and residuals cannot be");
    return GW_OK;
}

/* The residuals must fill what is left. */
static bool sizes_add_up(const reader_t *r) {
    uint64_t left = r->head.bytes - sizeof(r->head) - table_bytes(r->head.nranks, r->head.n_residuals) - SUM_BYTES;

    for (uint32_t i = 0; i < r->head.n_residuals; i++) {
        if (r->entries[i].count > left / numbers_bytes(1))
            return false;
        left -= numbers_bytes(r->entries[i].count);
    }
    return left == 0;
}

static gw_status_t read_tables(reader_t *r, char *text, size_t text_bytes) {
    r->nodes = calloc(r->head.nranks, sizeof(*r->nodes));
    r->entries = calloc(r->head.n_residuals + 1u, sizeof(*r->entries));
    if (!r->nodes || !r->entries)
        return no_memory(text, text_bytes);
    get(r, r->nodes, r->head.nranks * sizeof(*r->nodes));
    get(r, r->entries, r->head.n_residuals * sizeof(*r->entries));
    return sizes_add_up(r) ? GW_OK : damaged(text, text_bytes, "its sizes do not add up");
}

static bool is_rule(const entry_t *entry) {
    const gwd_residual_rule_t *rule = &entry->rule;

    return rule->codec < GW_CODECS && rule->size_class < GWD_SIZE_CLASSES && rule->is_default <= 1 &&
           rule->is_stochastic <= 1 && entry->reserved == 0;
}

static gw_status_t read_residuals(reader_t *r, char *text, size_t text_bytes) {
    gwd_residual_t **end = &r->list;

    for (uint32_t i = 0; i < r->head.n_residuals; i++) {
        const entry_t *entry = &r->entries[i];

        if (gwd_residual_find(r->list, entry->fingerprint, entry->count))
            return damaged(text, text_bytes, "it has a residual twice");
        if (!is_rule(entry))
            return damaged(text, text_bytes, "it has a codec that is none");
        *end = gwd_residual_new(entry->fingerprint, entry->count);
        if (!*end)
            return no_memory(text, text_bytes);
        (*end)->n_ops = entry->n_ops;
        (*end)->rule = entry->rule;
        if (entry->count > 0)
            get(r, (*end)->parts, numbers_bytes(entry->count));
        end = &(*end)->next;
    }
    return GW_OK;
}

static gw_status_t check_sum(reader_t *r, char *text, size_t text_bytes) {
    unsigned char sum[SUM_BYTES], said[SUM_BYTES];

    memcpy(said, r->at, sizeof(said));
    (void)crypto_generichash_final(&r->sum, sum, sizeof(sum));
    return memcmp(sum, said, sizeof(sum)) == 0 ? GW_OK : damaged(text, text_bytes, "its checksum is wrong");
}

static gw_status_t check_placement(const reader_t *r, const gwd_placement_t *placement, char *text, size_t text_bytes) {
    const gwd_placement_t saved = {r->head.nranks, r->head.n_nodes, r->head.rank, r->head.chunk_bytes, r->nodes};
    gw_status_t status = compare(&saved, placement, text, text_bytes);

    if (status == GW_OK && r->list && !(placement->n_nodes > 1 && gwd_placement_carries(placement)))
        status = damaged(text, text_bytes, "it has residuals that this rank does not keep");
    return status;
}

gw_status_t gwd_state_read(const unsigned char *from, uint64_t bytes, const gwd_placement_t *placement,
                           gwd_residual_t **list_out, char *text, size_t text_bytes) {
    reader_t r = {.at = from};
    gw_status_t status;

    (void)crypto_generichash_init(&r.sum, NULL, 0, SUM_BYTES); /* cannot fail with these sizes */
    status = read_head(&r, bytes, text, text_bytes);
    if (status == GW_OK)
        status = read_tables(&r, text, text_bytes);
    if (status == GW_OK)
        status = read_residuals(&r, text, text_bytes);
    if (status == GW_OK)
        status = check_sum(&r, text, text_bytes);
    if (status == GW_OK)
        status = check_placement(&r, placement, text, text_bytes);
    free(r.nodes);
    free(r.entries);
    if (status == GW_OK)
        *list_out = r.list;
    else
        gwd_residual_free_list(r.list);
    return status;
}
