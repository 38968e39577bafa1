/* quota.c - see quota.h */
#include "quota.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t limit(const gwd_config_t *config, gwd_quota_kind_t kind, const char **key_out) {
    switch (kind) {
    case GWD_QUOTA_CLIENTS:
        *key_out = "limits.clients_per_uid";
        return (uint64_t)config->limits_clients_per_uid;
    case GWD_QUOTA_GROUPS:
        *key_out = "limits.groups_per_uid";
        return (uint64_t)config->limits_groups_per_uid;
    case GWD_QUOTA_BUFFERS:
        *key_out = "limits.buffers_per_uid";
        return (uint64_t)config->limits_buffers_per_uid;
    case GWD_QUOTA_BUFFER_BYTES:
        *key_out = "limits.buffer_bytes_per_uid";
        return (uint64_t)config->limits_buffer_bytes_per_uid;
    case GWD_QUOTA_BUCKETS:
        *key_out = "limits.buckets_per_uid";
        return (uint64_t)config->limits_buckets_per_uid;
    case GWD_QUOTA_FDS:
    case GWD_QUOTA_KINDS:
        break;
    }
    *key_out = "limits.fds_per_uid";
    return (uint64_t)config->limits_fds_per_uid;
}

gwd_user_t *gwd_quota_get(gwd_quota_t *quota, uid_t uid) {
    gwd_user_t *user = quota->users;

    while (user && user->uid != uid)
        user = user->next;
    if (!user) {
        user = calloc(1, sizeof(*user));
        if (!user)
            return NULL;
        user->uid = uid;
        user->next = quota->users;
        quota->users = user;
    }
    user->refs++;
    return user;
}

void gwd_quota_put(gwd_quota_t *quota, gwd_user_t *user) {
    gwd_user_t **at = &quota->users;

    if (--user->refs > 0)
        return;
    while (*at != user)
        at = &(*at)->next;
    *at = user->next;
    free(user);
}

gw_status_t gwd_quota_charge(const gwd_quota_t *quota, gwd_user_t *user, gwd_quota_kind_t kind, uint64_t amount,
                             char *text, size_t text_bytes) {
    const char *key;
    uint64_t most = limit(quota->config, kind, &key);

    if (amount > most || user->used[kind] > most - amount) {
        snprintf(text, text_bytes, "uid %u has %llu and wants %llu more, but %s is %llu", (unsigned)user->uid,
                 (unsigned long long)user->used[kind], (unsigned long long)amount, key, (unsigned long long)most);
        return GW_ERR_QUOTA;
    }
    user->used[kind] += amount;
    return GW_OK;
}

void gwd_quota_refund(gwd_user_t *user, gwd_quota_kind_t kind, uint64_t amount) {
    user->used[kind] -= amount;
}
