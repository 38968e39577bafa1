/* codec_choice.c - see codec_choice.h */
#include "codec_choice.h"

#include <stdio.h>
#include <string.h>

#include "escape.h"

enum { SMALLEST_CLASS_BYTES = 4096 };

static const char prefix[] = "auto:";

/* ---- words -------------------------------------------------------------------------------------- */

static uint32_t bit(gw_codec_t codec) {
    return 1u << (unsigned)codec;
}

/* "bf16,int8", each of which is permitted then. */
static bool parse_list(const char *list, uint32_t *permitted) {
    char word[8];
    gw_codec_t codec;

    for (;;) {
        size_t length = strcspn(list, ",");

        if (length >= sizeof(word))
            return false;
        memcpy(word, list, length);
        word[length] = 0;
        if (!gw_codec_by_name(word, &codec))
            return false;
        *permitted |= bit(codec);
        if (list[length] == 0)
            return true;
        list += length + 1;
    }
}

bool gwd_choice_parse(const char *text, gwd_codec_choice_t *choice_out, char *why, size_t why_bytes) {
    gwd_codec_choice_t choice = {.is_auto = strncmp(text, prefix, sizeof(prefix) - 1) == 0};
    gw_codec_t codec;
    char safe[64];

    if (choice.is_auto) {
        choice.permitted = bit(GW_CODEC_NONE);
        if (parse_list(text + sizeof(prefix) - 1, &choice.permitted))
            goto good;
    } else if (gw_codec_by_name(text, &codec)) {
        choice.permitted = bit(codec);
        goto good;
    }
    gw_escape(text, strlen(text), safe, sizeof(safe));
    snprintf(
        why, why_bytes,
        "'%s' is no codec: there are none, fp16, bf16, fp8, int8 and int4, and auto with those that it may take, as "
        "auto:bf16,int8",
        safe);
    return false;
good:
    *choice_out = choice;
    return true;
}

void gwd_choice_format(const gwd_codec_choice_t *choice, char text[GWD_CHOICE_BYTES]) {
    size_t used = (size_t)snprintf(text, GWD_CHOICE_BYTES, "%s", choice->is_auto ? prefix : "");
    const char *comma = "";

    for (int codec = GW_CODEC_NONE; codec < GW_CODECS; codec++) {
        if (!(choice->permitted & bit((gw_codec_t)codec)) || used >= GWD_CHOICE_BYTES)
            continue;
        used += (size_t)snprintf(text + used, GWD_CHOICE_BYTES - used, "%s%s", comma, gw_codec_name((gw_codec_t)codec));
        comma = ",";
    }
}

bool gwd_choice_equal(const gwd_codec_choice_t *a, const gwd_codec_choice_t *b) {
    return a->permitted == b->permitted && a->is_auto == b->is_auto && a->is_stochastic == b->is_stochastic;
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

void gwd_figures_join(gwd_codec_figures_t *slowest, const gwd_codec_figures_t *other) {
    slowest->bytes_per_s = least(slowest->bytes_per_s, other->bytes_per_s);
    if (other->latency_ns > slowest->latency_ns)
        slowest->latency_ns = other->latency_ns;
    for (int i = 0; i < GW_CODECS; i++)
        slowest->coding[i] = least(slowest->coding[i], other->coding[i]);
}

uint64_t gwd_size_class_max(uint32_t size_class) {
    return size_class + 1 < GWD_SIZE_CLASSES ? (uint64_t)SMALLEST_CLASS_BYTES << size_class : UINT64_MAX;
}

uint32_t gwd_size_class(uint64_t bytes) {
    uint32_t size_class = 0;

    while (bytes > gwd_size_class_max(size_class))
        size_class++;
    return size_class;
}

/* Three messages wait for each other: the announcement, the partial result, the result. Link and cores work at the same
 * time but for a chunk, which has to be encoded before it can go. */
double gwd_codec_predict_s(const gwd_codec_figures_t *figures, gw_codec_t codec, uint64_t bytes, uint32_t n_nodes,
                           uint64_t chunk_bytes) {
    uint64_t count = bytes / sizeof(float), n_chunks = bytes / chunk_bytes + (bytes % chunk_bytes != 0);
    double sent = 2.0 * (double)gw_codec_bytes(codec, count) * (n_nodes - 1) / n_nodes;
    double link = sent / (double)figures->bytes_per_s;
    double cores = codec == GW_CODEC_NONE ? 0 : (double)bytes / (double)figures->coding[codec];
    double more = link > cores ? link : cores, less = link > cores ? cores : link;

    return 3e-9 * (double)figures->latency_ns + more + less / (double)(n_chunks ? n_chunks : 1);
}

/* A coarser codec must be that much faster: what it saves is compared with what it leaves out. With a factor for each
 * codec, rather than a rule between two, a slower link never takes a finer one. */
static double reluctance(gw_codec_t codec) {
    static const double factors[GW_CODECS] = {[GW_CODEC_NONE] = 1,  [GW_CODEC_FP16] = 1.1, [GW_CODEC_BF16] = 1.1,
                                              [GW_CODEC_FP8] = 1.2, [GW_CODEC_INT8] = 1.2, [GW_CODEC_INT4] = 1.3};
    return factors[codec];
}

static gw_codec_t best_codec(const gwd_codec_policy_t *policy, uint64_t bytes, uint32_t n_nodes, uint64_t chunk_bytes) {
    /* Of two that are as good the one that is named first is taken. */
    static const gw_codec_t order[] = {GW_CODEC_NONE, GW_CODEC_FP16, GW_CODEC_BF16,
                                       GW_CODEC_INT8, GW_CODEC_FP8,  GW_CODEC_INT4};
    gw_codec_t best = GW_CODEC_NONE;
    double best_s = 0;

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        gw_codec_t codec = order[i];
        double s;

        if (!(policy->choice.permitted & bit(codec)) || (codec != GW_CODEC_NONE && policy->figures.coding[codec] == 0))
            continue;
        s = gwd_codec_predict_s(&policy->figures, codec, bytes, n_nodes, chunk_bytes) * reluctance(codec);
        if (codec != GW_CODEC_NONE && s >= best_s)
            continue;
        best = codec;
        best_s = s;
    }
    return best;
}

static gw_codec_t only_codec(uint32_t permitted) {
    return (gw_codec_t)__builtin_ctz(permitted);
}

void gwd_codec_table(const gwd_codec_policy_t *policy, uint32_t n_nodes, uint64_t chunk_bytes,
                     gw_codec_t table_out[GWD_SIZE_CLASSES]) {
    for (uint32_t i = 0; i < GWD_SIZE_CLASSES; i++) {
        uint64_t largest = gwd_size_class_max(i + 1 < GWD_SIZE_CLASSES ? i : i - 1);

        if (!policy->choice.is_auto)
            table_out[i] = only_codec(policy->choice.permitted);
        else if (!policy->is_measured || n_nodes < 2 || policy->figures.bytes_per_s == 0)
            table_out[i] = GW_CODEC_NONE;
        else
            table_out[i] = best_codec(policy, largest, n_nodes, chunk_bytes);
    }
}
