/* admin_wire.c - what a group over several nodes does with its buckets: for `gwctl groups` */

#include "admin.h"
#include "group_codec.h"
#include "server.h"

static uint64_t value(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* For the mean of the buckets there were, else for three quarters of the largest. */
static double predicted_us(const gwd_group_t *group, uint32_t size_class, gw_codec_t codec, uint64_t ops,
                           uint64_t bytes) {
    uint64_t size = ops ? bytes / ops : gwd_size_class_max(size_class) / 4 * 3;

    return 1e6 *
           gwd_codec_predict_s(&group->policy.figures, codec, size, group->map->n_nodes, gwd_group_wire_chunk(group));
}

/* NULL: there is nothing to say of it. */
static cJSON *row_json(const gwd_group_t *group, uint32_t size_class, gw_codec_t codec) {
    const gwd_wire_counters_t *counters = &group->counters->wire[size_class][codec];
    bool is_planned = group->plan.codecs[size_class] == codec, is_measured = group->policy.is_measured;
    uint64_t ops = value(&counters->ops), sent = value(&counters->sent);
    uint64_t max_bytes = gwd_size_class_max(size_class);
    cJSON *json;

    if (ops == 0 && !(is_planned && is_measured && max_bytes != UINT64_MAX))
        return NULL;
    json = cJSON_CreateObject();
    gwd_admin_number(json, "max_bytes", max_bytes);
    cJSON_AddStringToObject(json, "codec", gw_codec_name(codec));
    cJSON_AddBoolToObject(json, "planned", is_planned);
    if (is_measured && (codec == GW_CODEC_NONE || group->policy.figures.coding[codec] > 0))
        cJSON_AddNumberToObject(json, "predicted_us",
                                predicted_us(group, size_class, codec, ops, value(&counters->bytes)));
    if (ops)
        cJSON_AddNumberToObject(json, "measured_us", 1e-3 * (double)value(&counters->ns) / (double)ops);
    gwd_admin_number(json, "ops", ops);
    gwd_admin_number(json, "bytes_before", value(&counters->bytes_before));
    gwd_admin_number(json, "bytes_after", sent);
    return json;
}

cJSON *gwd_admin_wire(const gwd_group_t *group) {
    cJSON *json = cJSON_CreateObject(), *sizes;
    char codec[GWD_CHOICE_BYTES], why[128];

    gwd_choice_format(&group->policy.choice, codec);
    gwd_group_codec_why(group, why, sizeof(why));
    cJSON_AddStringToObject(json, "codec", codec);
    cJSON_AddStringToObject(json, "rounding", group->policy.choice.is_stochastic ? "stochastic" : "nearest");
    cJSON_AddStringToObject(json, "why", why);
    gwd_admin_number(json, "nodes", group->map->n_nodes);
    gwd_admin_number(json, "rails", group->n_rails);
    if (group->policy.is_measured) {
        gwd_admin_number(json, "bytes_per_s", group->policy.figures.bytes_per_s);
        cJSON_AddNumberToObject(json, "latency_us", 1e-3 * (double)group->policy.figures.latency_ns);
    }
    sizes = cJSON_AddArrayToObject(json, "sizes");
    for (uint32_t i = 0; i < GWD_SIZE_CLASSES; i++)
        for (int c = GW_CODEC_NONE; c < GW_CODECS; c++) {
            cJSON *row = row_json(group, i, (gw_codec_t)c);

            if (row)
                cJSON_AddItemToArray(sizes, row);
        }
    return json;
}
