/* group_codec.h - the codec of a group: what its ranks ask for, and what comes of it */
#ifndef GWD_GROUP_CODEC_H
#define GWD_GROUP_CODEC_H

#include "group.h"

/* What a rank that joins asks for; "" and GW_ROUND_DEFAULT: what the configuration says. Errors, with text:
 * GW_ERR_INVALID_ARGUMENT. */
gw_status_t gwd_group_ask(const struct gwd_server *server, const char *codec, uint32_t rounding,
                          gwd_codec_choice_t *choice_out, char *text, size_t text_bytes);

/* Whether the configuration's codec is one. False, with text. */
bool gwd_group_codec_is_configured(const gwd_config_t *config, char *text, size_t text_bytes);

/* Takes what a rank asks for, at the daemon that collects the ranks. If another one has asked for something else the
 * group has a status and a message, which names both, and ends when all ranks are there to hear it. */
void gwd_group_agree(gwd_group_t *group, uint32_t rank, const char *host, const gwd_codec_choice_t *choice);

/* The table of the group's plan. */
void gwd_group_codec_table(const gwd_group_t *group, gw_codec_t table_out[GWD_SIZE_CLASSES]);

/* The codec that a bucket of the group takes. */
gw_codec_t gwd_group_codec_of(const gwd_group_t *group, const gwd_bucket_t *bucket);

/* "asked by the ranks; measured: a node sends 117.0 MB/s, a message takes 55 us" */
void gwd_group_codec_why(const gwd_group_t *group, char *text, size_t text_bytes);

#endif
