/* group_codec.c - see group_codec.h */
#include "group_codec.h"

#include <stdio.h>

#include "server.h"

bool gwd_group_codec_is_configured(const gwd_config_t *config, char *text, size_t text_bytes) {
    gwd_codec_choice_t choice;
    char why[256];

    if (gwd_choice_parse(config->wire_codec, &choice, why, sizeof(why)))
        return true;
    snprintf(text, text_bytes, "wire.codec: %s", why);
    return false;
}

gw_status_t gwd_group_ask(const gwd_server_t *server, const char *codec, uint32_t rounding,
                          gwd_codec_choice_t *choice_out, char *text, size_t text_bytes) {
    const gwd_config_t *config = &server->config;
    gwd_codec_choice_t choice;

    if (!gwd_choice_parse(codec[0] ? codec : config->wire_codec, &choice, text, text_bytes))
        return GW_ERR_INVALID_ARGUMENT;
    if (rounding > GW_ROUND_STOCHASTIC) {
        snprintf(text, text_bytes, "rounding %u: there are %d and %d", rounding, GW_ROUND_NEAREST, GW_ROUND_STOCHASTIC);
        return GW_ERR_INVALID_ARGUMENT;
    }
    choice.is_configured = !codec[0];
    choice.is_stochastic = rounding == GW_ROUND_DEFAULT ? config->wire_rounding != 0 : rounding == GW_ROUND_STOCHASTIC;
    *choice_out = choice;
    return GW_OK;
}

/* "rank 1 on host a has codec int8 with nearest rounding (wire.codec of its daemon)" */
static void describe(uint32_t rank, const char *host, const gwd_codec_choice_t *choice, char *text, size_t text_bytes) {
    char codec[GWD_CHOICE_BYTES];

    gwd_choice_format(choice, codec);
    snprintf(text, text_bytes, "rank %u on host %s has codec %s with %s rounding (%s)", rank, host, codec,
             choice->is_stochastic ? "stochastic" : "nearest",
             choice->is_configured ? "wire.codec of its daemon" : "it asked for it");
}

void gwd_group_agree(gwd_group_t *group, uint32_t rank, const char *host, const gwd_codec_choice_t *choice) {
    gwd_codec_asker_t *first = &group->codec_asker;
    char theirs[GWD_TEXT_BYTES / 2 - 64], mine[GWD_TEXT_BYTES / 2 - 64];

    if (!group->policy.choice.permitted) {
        group->policy.choice = *choice;
        first->rank = rank;
        snprintf(first->host, sizeof(first->host), "%s", host);
        return;
    }
    if (group->status != GW_OK || gwd_choice_equal(choice, &group->policy.choice))
        return;
    describe(first->rank, first->host, &group->policy.choice, theirs, sizeof(theirs));
    describe(rank, host, choice, mine, sizeof(mine));
    group->status = GW_ERR_BOOTSTRAP;
    snprintf(group->message, sizeof(group->message), "%s, and %s: all ranks of a group must have the same", theirs,
             mine);
}

void gwd_group_codec_table(const gwd_group_t *group, gw_codec_t table_out[GWD_SIZE_CLASSES]) {
    gwd_codec_table(&group->policy, group->map ? group->map->n_nodes : 1, gwd_group_wire_chunk(group), table_out);
}

gw_codec_t gwd_group_codec_of(const gwd_group_t *group, const gwd_bucket_t *bucket) {
    if (!group->map)
        return GW_CODEC_NONE;
    if (bucket->desc.codec != GW_CODEC_DEFAULT)
        return bucket->desc.codec;
    if (!gwd_bucket_is_codable(&bucket->desc))
        return GW_CODEC_NONE;
    return group->plan.codecs[gwd_size_class(bucket->desc.count * sizeof(float))];
}

void gwd_group_codec_why(const gwd_group_t *group, char *text, size_t text_bytes) {
    const gwd_codec_policy_t *policy = &group->policy;
    const char *who = policy->choice.is_configured ? "configured (wire.codec)" : "asked by the ranks";

    if (policy->is_measured)
        snprintf(text, text_bytes, "%s; measured: a node sends %.1f MB/s, a message takes %.0f us", who,
                 (double)policy->figures.bytes_per_s * 1e-6, (double)policy->figures.latency_ns * 1e-3);
    else
        snprintf(text, text_bytes, "%s", who);
}
