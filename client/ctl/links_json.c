/* links_json.c - the document of `gwctl --json links`
 *
 *   {"interval_s": number or null,
 *    "interfaces": [{"name", "kind", "state", "mtu", LINK}],
 *    "host": {COUNTERS},
 *    "rdma": [{"name", "port", "link_layer", "state", "netdev", LINK}]}
 *
 * LINK is "speed_mbit", "in_mbit_s", "out_mbit_s", "in_bytes", "out_bytes", COUNTERS; what is not known is null.
 * COUNTERS is "counters": {name: number or null}, as the kernel names them, and "changes": the same, since
 * interval_s ago. Numbers are exact up to 64 bits.
 */
#include <inttypes.h>
#include <stdio.h>

#include "links.h"

static cJSON *number_or_null(bool known, double number) {
    return known ? cJSON_CreateNumber(number) : cJSON_CreateNull();
}

/* A double would round it. */
static cJSON *exact_or_null(bool known, uint64_t number) {
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, number);
    return known ? cJSON_CreateRaw(text) : cJSON_CreateNull();
}

static cJSON *text_or_null(const char *text) {
    return text[0] != '\0' ? cJSON_CreateString(text) : cJSON_CreateNull();
}

static void put(bool *good, cJSON *object, const char *name, cJSON *item) {
    if (cJSON_AddItemToObject(object, name, item))
        return;
    cJSON_Delete(item);
    *good = false;
}

static void put_counters(bool *good, cJSON *object, const gwctl_counters_t *counters) {
    cJSON *values = cJSON_CreateObject();
    cJSON *changes = cJSON_CreateObject();
    for (size_t i = 0; i < counters->count; i++) {
        const gwctl_counter_t *counter = &counters->counter[i];
        put(good, values, counter->name, exact_or_null(counter->known, counter->value));
        put(good, changes, counter->name, exact_or_null(counter->moved_known, counter->moved));
    }
    put(good, object, "counters", values);
    put(good, object, "changes", changes);
}

static void put_bytes(bool *good, cJSON *object, const char *name, const gwctl_link_t *link, bool out) {
    uint64_t bytes = 0;
    bool known = gwctl_link_bytes(link, out, &bytes);
    put(good, object, name, exact_or_null(known, bytes));
}

static cJSON *describe_link(bool *good, const gwctl_link_t *link) {
    cJSON *object = cJSON_CreateObject();
    put(good, object, "name", cJSON_CreateString(link->name));
    if (link->port != 0) {
        put(good, object, "port", cJSON_CreateNumber((double)link->port));
        put(good, object, "link_layer", text_or_null(link->kind));
        put(good, object, "netdev", text_or_null(link->netdev));
    } else {
        put(good, object, "kind", text_or_null(link->kind));
        put(good, object, "mtu", number_or_null(link->mtu_bytes > 0, (double)link->mtu_bytes));
    }
    put(good, object, "state", text_or_null(link->state));
    put(good, object, "speed_mbit", number_or_null(link->mbit_per_s > 0, link->mbit_per_s));
    put(good, object, "in_mbit_s", number_or_null(link->in_mbit_per_s >= 0, link->in_mbit_per_s));
    put(good, object, "out_mbit_s", number_or_null(link->out_mbit_per_s >= 0, link->out_mbit_per_s));
    put_bytes(good, object, "in_bytes", link, false);
    put_bytes(good, object, "out_bytes", link, true);
    put_counters(good, object, &link->counters);
    return object;
}

cJSON *gwctl_links_to_json(const gwctl_links_t *links) {
    bool good = true;
    cJSON *document = cJSON_CreateObject();
    cJSON *interfaces = cJSON_CreateArray();
    cJSON *rdma = cJSON_CreateArray();
    cJSON *host = cJSON_CreateObject();
    for (size_t i = 0; i < links->count; i++) {
        cJSON *item = describe_link(&good, &links->link[i]);
        if (!cJSON_AddItemToArray(links->link[i].port != 0 ? rdma : interfaces, item)) {
            cJSON_Delete(item);
            good = false;
        }
    }
    put_counters(&good, host, &links->host);
    put(&good, document, "interval_s", number_or_null(links->interval_s > 0, links->interval_s));
    put(&good, document, "interfaces", interfaces);
    put(&good, document, "host", host);
    put(&good, document, "rdma", rdma);
    if (good)
        return document;
    cJSON_Delete(document);
    return NULL;
}
