/* topo_json.c - the document of `gwctl --json topo`
 *
 *   {"gpus": [{"index", "uuid", "name", "bus_id", "numa_node": number or null, "memory_bytes"}],
 *    "reason"?: why there are none,
 *    "driver": text or null, "cuda": "13.0", "plugin_cuda": "13.0",
 *    "links": [[word, ...], ...], row and column as the GPUs: "X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "?",
 *    "copies"?: {"bytes": of one copy, "unit": "GB/s",
 *                "gpus": [{"index", "to_host", "from_host", "both_ways"}], "all_both_ways": number or null,
 *                "pairs": [{"from", "to", "direct": true | false, "alone", "both_ways"}]},
 *    "copies_failed"?: why they could not be measured}
 *
 * Without GPUs there are "gpus", empty, and "reason" alone. Every rate is of one direction.
 */
#include <stdio.h>

#include "topo.h"

/* Adds an item, or remembers that it was not possible. cJSON takes NULL for a parent or child without harm. */
static void put(bool *good, cJSON *object, const char *name, cJSON *item) {
    if (cJSON_AddItemToObject(object, name, item))
        return;
    cJSON_Delete(item);
    *good = false;
}

static void append(bool *good, cJSON *array, cJSON *item) {
    if (cJSON_AddItemToArray(array, item))
        return;
    cJSON_Delete(item);
    *good = false;
}

static cJSON *text_or_null(const char *text) {
    return text[0] != '\0' ? cJSON_CreateString(text) : cJSON_CreateNull();
}

/* Hundredths are more than a measurement is worth. */
static cJSON *rate(double gb_per_s) {
    return cJSON_CreateNumber((double)(int64_t)(gb_per_s * 100 + 0.5) / 100);
}

static cJSON *cuda_version(int number) {
    char text[24];
    snprintf(text, sizeof(text), "%d.%d", number / 1000, number % 1000 / 10);
    return cJSON_CreateString(text);
}

static cJSON *list_gpus(const gwctl_gpus_t *gpus, bool *good) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < gpus->count; i++) {
        const gwctl_gpu_t *gpu = &gpus->gpu[i];
        cJSON *item = cJSON_CreateObject();
        put(good, item, "index", cJSON_CreateNumber(gpu->index));
        put(good, item, "uuid", cJSON_CreateString(gpu->uuid));
        put(good, item, "name", cJSON_CreateString(gpu->name));
        put(good, item, "bus_id", text_or_null(gpu->bus_id));
        put(good, item, "numa_node", gpu->numa_node >= 0 ? cJSON_CreateNumber(gpu->numa_node) : cJSON_CreateNull());
        put(good, item, "memory_bytes", cJSON_CreateNumber((double)gpu->memory_bytes));
        append(good, list, item);
    }
    return list;
}

static cJSON *list_links(const gwctl_gpus_t *gpus, bool *good) {
    cJSON *rows = cJSON_CreateArray();
    for (size_t i = 0; i < gpus->count; i++) {
        cJSON *row = cJSON_CreateArray();
        for (size_t j = 0; j < gpus->count; j++)
            append(good, row, cJSON_CreateString(gpus->link[i][j]));
        append(good, rows, row);
    }
    return rows;
}

static cJSON *list_pairs(const gwctl_topo_t *topo, bool *good) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < topo->gpus.count; i++) {
        for (size_t j = 0; j < topo->gpus.count; j++) {
            if (i == j)
                continue;
            cJSON *item = cJSON_CreateObject();
            put(good, item, "from", cJSON_CreateNumber(topo->gpus.gpu[i].index));
            put(good, item, "to", cJSON_CreateNumber(topo->gpus.gpu[j].index));
            put(good, item, "direct", cJSON_CreateBool(topo->copies.direct[i][j]));
            put(good, item, "alone", rate(topo->copies.peer[i][j]));
            put(good, item, "both_ways", rate(topo->copies.peer_both[i][j]));
            append(good, list, item);
        }
    }
    return list;
}

static cJSON *describe_copies(const gwctl_topo_t *topo, bool *good) {
    const gwctl_copies_t *copies = &topo->copies;
    cJSON *object = cJSON_CreateObject();
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < topo->gpus.count; i++) {
        cJSON *item = cJSON_CreateObject();
        put(good, item, "index", cJSON_CreateNumber(topo->gpus.gpu[i].index));
        put(good, item, "to_host", rate(copies->to_host[i]));
        put(good, item, "from_host", rate(copies->from_host[i]));
        put(good, item, "both_ways", rate(copies->both[i]));
        append(good, list, item);
    }
    put(good, object, "bytes", cJSON_CreateNumber((double)copies->bytes));
    put(good, object, "unit", cJSON_CreateString("GB/s"));
    put(good, object, "gpus", list);
    put(good, object, "all_both_ways", topo->gpus.count > 1 ? rate(copies->all) : cJSON_CreateNull());
    put(good, object, "pairs", list_pairs(topo, good));
    return object;
}

cJSON *gwctl_topo_to_json(const gwctl_topo_t *topo) {
    bool good = true;
    cJSON *document = cJSON_CreateObject();
    put(&good, document, "gpus", list_gpus(&topo->gpus, &good));
    if (topo->reason[0] != '\0') {
        put(&good, document, "reason", cJSON_CreateString(topo->reason));
    } else {
        put(&good, document, "driver", text_or_null(topo->gpus.driver));
        put(&good, document, "cuda", cuda_version(topo->gpus.driver_cuda));
        put(&good, document, "plugin_cuda", cuda_version(topo->gpus.built_cuda));
        put(&good, document, "links", list_links(&topo->gpus, &good));
        if (topo->measured)
            put(&good, document, "copies", describe_copies(topo, &good));
        if (topo->unmeasured[0] != '\0')
            put(&good, document, "copies_failed", cJSON_CreateString(topo->unmeasured));
    }
    if (!good) {
        cJSON_Delete(document);
        return NULL;
    }
    return document;
}
