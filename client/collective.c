/* collective.c - collectives in one call, as MPI's
 *
 * Each declares its bucket on first use and keeps it: a training loop calls with the same arguments at every
 * step. Of more than GW_CACHE_SIZE different calls the least recently used bucket is ended.
 */
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "group.h"

static const char *name_of(gw_collective_t collective) {
    static const char *const names[] = {[GW_ALL_REDUCE] = "all_reduce", [GW_REDUCE_SCATTER] = "reduce_scatter",
                                        [GW_ALL_GATHER] = "all_gather", [GW_BROADCAST] = "broadcast",
                                        [GW_REDUCE] = "reduce",         [GW_BARRIER] = "barrier"};
    return names[collective];
}

static uint64_t hash_of(const gw_bucket_desc_t *desc) {
    const uint64_t words[] = {(uint64_t)desc->collective, (uint64_t)desc->type, (uint64_t)desc->redop,
                              (uint64_t)desc->root,       desc->count,          (uintptr_t)desc->send,
                              (uintptr_t)desc->recv};
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio: spreads all bits */
        hash ^= hash >> 29;
    }
    return hash;
}

static bool same(const gw_bucket_desc_t *a, const gw_bucket_desc_t *b) {
    return a->collective == b->collective && a->type == b->type && a->redop == b->redop && a->root == b->root &&
           a->count == b->count && a->send == b->send && a->recv == b->recv;
}

/* Finds and pins a free bucket for these arguments; NULL if there is none. The lock is held. */
static gw_bucket_t *find(gw_group_t *group, const gw_bucket_desc_t *desc, uint64_t hash) {
    for (unsigned i = 0; i < group->n_cached; i++) {
        gw_bucket_t *bucket = group->cache[i].bucket;
        if (group->cache[i].hash == hash && same(&bucket->desc, desc) && !bucket->released &&
            bucket->pins == 0) { /* another thread that calls the same at once has a bucket of its own */
            bucket->pins++;
            bucket->last_round = ++group->round;
            return bucket;
        }
    }
    return NULL;
}

/* The entry to give up: one that no thread uses, the longest unused one. The lock is held. */
static gw_cached_t *least_recent(gw_group_t *group) {
    gw_cached_t *least = NULL;
    for (unsigned i = 0; i < group->n_cached; i++) {
        gw_cached_t *cached = &group->cache[i];
        if (cached->bucket->pins == 0 && gw_bucket_settle(cached->bucket) &&
            (least == NULL || cached->bucket->last_round < least->bucket->last_round))
            least = cached;
    }
    return least;
}

/* Keeps a pinned bucket; gives the one that had to make way, or NULL. False: all are under way. The lock is held. */
static bool keep(gw_group_t *group, gw_bucket_t *bucket, uint64_t hash, gw_bucket_t **evicted_out) {
    gw_cached_t *cached;

    *evicted_out = NULL;
    if (group->n_cached < GW_CACHE_SIZE) {
        cached = &group->cache[group->n_cached++];
    } else {
        cached = least_recent(group);
        if (cached == NULL)
            return false;
        *evicted_out = cached->bucket;
    }
    bucket->pins = 1;
    bucket->last_round = ++group->round;
    *cached = (gw_cached_t){.hash = hash, .bucket = bucket};
    return true;
}

/* The same; where streams are that far behind, waits for them, as gw_submit does when all credits are in use. */
static gw_status_t keep_when_possible(gw_group_t *group, gw_bucket_t *bucket, uint64_t hash,
                                      gw_bucket_t **evicted_out) {
    gw_status_t status = GW_OK;

    pthread_mutex_lock(&group->lock);
    while (!keep(group, bucket, hash, evicted_out) && status == GW_OK) {
        pthread_mutex_unlock(&group->lock);
        gw_group_nap();
        status = gw_group_status(group);
        pthread_mutex_lock(&group->lock);
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}

/* Gives a pinned bucket for these arguments, declaring it on first use. */
static gw_status_t get(gw_group_t *group, const gw_bucket_desc_t *desc, gw_bucket_t **bucket_out) {
    uint64_t hash = hash_of(desc);
    gw_bucket_t *evicted;

    pthread_mutex_lock(&group->lock);
    *bucket_out = find(group, desc, hash);
    pthread_mutex_unlock(&group->lock);
    if (*bucket_out != NULL)
        return GW_OK;
    gw_status_t status = gw_bucket_open(group, desc, bucket_out);
    if (status != GW_OK)
        return status;
    status = keep_when_possible(group, *bucket_out, hash, &evicted);
    if (status != GW_OK)
        evicted = *bucket_out;
    if (evicted != NULL)
        (void)gw_bucket_end(evicted); /* if the daemon keeps it, gw_group_free ends it */
    return status;
}

static gw_status_t run(gw_group_t *group, gw_queue_t queue, gw_bucket_desc_t *desc) {
    gw_waiter_t waiter = {.ended = false};
    gw_bucket_t *bucket;
    gw_op_t op;

    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    status = gw_group_status(group);
    if (status != GW_OK)
        return status;
    desc->name = name_of(desc->collective);
    desc->no_error_feedback = 1; /* they have no names of their own: what one leaves out is not the next one's */
    status = get(group, desc, &bucket);
    if (status != GW_OK)
        return status;
    status = gw_bucket_submit(bucket, queue, (uint64_t)gettid(), &waiter, &op);
    if (status == GW_OK && bucket->place != GW_PLACE_DEVICE) /* there the stream waits */
        status = gw_bucket_await(group, op, &waiter, INT64_MAX);
    pthread_mutex_lock(&group->lock);
    bucket->pins--;
    pthread_mutex_unlock(&group->lock);
    return status;
}

gw_status_t gw_all_reduce(const void *send, void *recv, uint64_t count, gw_type_t type, gw_redop_t redop,
                          gw_group_t *group, gw_queue_t queue) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.collective = GW_ALL_REDUCE;
    desc.send = send;
    desc.recv = recv;
    desc.count = count;
    desc.type = type;
    desc.redop = redop;
    return run(group, queue, &desc);
}

gw_status_t gw_reduce_scatter(const void *send, void *recv, uint64_t recv_count, gw_type_t type, gw_redop_t redop,
                              gw_group_t *group, gw_queue_t queue) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.collective = GW_REDUCE_SCATTER;
    desc.send = send;
    desc.recv = recv;
    desc.count = recv_count;
    desc.type = type;
    desc.redop = redop;
    return run(group, queue, &desc);
}

gw_status_t gw_all_gather(const void *send, void *recv, uint64_t send_count, gw_type_t type, gw_group_t *group,
                          gw_queue_t queue) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.collective = GW_ALL_GATHER;
    desc.send = send;
    desc.recv = recv;
    desc.count = send_count;
    desc.type = type;
    return run(group, queue, &desc);
}

gw_status_t gw_broadcast(const void *send, void *recv, uint64_t count, gw_type_t type, int root, gw_group_t *group,
                         gw_queue_t queue) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.collective = GW_BROADCAST;
    desc.send = send;
    desc.recv = recv;
    desc.count = count;
    desc.type = type;
    desc.root = root;
    return run(group, queue, &desc);
}

gw_status_t gw_reduce(const void *send, void *recv, uint64_t count, gw_type_t type, gw_redop_t redop, int root,
                      gw_group_t *group, gw_queue_t queue) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    desc.collective = GW_REDUCE;
    desc.send = send;
    desc.recv = recv;
    desc.count = count;
    desc.type = type;
    desc.redop = redop;
    desc.root = root;
    return run(group, queue, &desc);
}

gw_status_t gw_barrier(gw_group_t *group, gw_queue_t queue) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    if (queue != NULL)
        return gw_fail(GW_ERR_UNSUPPORTED, "queue is %p, but a barrier is for threads: it must be NULL", queue);
    desc.collective = GW_BARRIER;
    return run(group, queue, &desc);
}
