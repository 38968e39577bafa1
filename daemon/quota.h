/* quota.h - what each user has of the daemon, and how much it may have
 *
 * Everything a client makes the daemon hold is charged to the client's uid before it is made, and given
 * back when it ends, so that one user cannot starve another. Limits are read from the configuration at
 * each charge, so a reload applies at once to what is new.
 */
#ifndef GWD_QUOTA_H
#define GWD_QUOTA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config.h"
#include "gradwire.h"
#include "reduce.h"

typedef enum gwd_quota_kind {
    GWD_QUOTA_CLIENTS,
    GWD_QUOTA_GROUPS,
    GWD_QUOTA_BUFFERS,
    GWD_QUOTA_BUFFER_BYTES,
    GWD_QUOTA_BUCKETS,
    GWD_QUOTA_FDS,
    GWD_QUOTA_KINDS
} gwd_quota_kind_t;

typedef struct gwd_user {
    struct gwd_user *next;
    uid_t uid;
    uint64_t refs;
    uint64_t used[GWD_QUOTA_KINDS];
    gwd_share_t share; /* of the reduce threads; only they touch it */
} gwd_user_t;

typedef struct gwd_quota {
    const gwd_config_t *config;
    gwd_user_t *users;
} gwd_quota_t;

/* The account of a uid; give it back with gwd_quota_put. NULL when memory is exhausted. */
gwd_user_t *gwd_quota_get(gwd_quota_t *quota, uid_t uid);
void gwd_quota_put(gwd_quota_t *quota, gwd_user_t *user);

/* Charges, or says in `text` which limit is reached. Errors: GW_ERR_QUOTA; nothing is charged then. */
gw_status_t gwd_quota_charge(const gwd_quota_t *quota, gwd_user_t *user, gwd_quota_kind_t kind, uint64_t amount,
                             char *text, size_t text_bytes);
void gwd_quota_refund(gwd_user_t *user, gwd_quota_kind_t kind, uint64_t amount);

#endif
