/* test_exchange.c - every collective by chunks of every size, against a plain loop; and the reduce threads */
#include "exchange.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cunit_main.h"
#include "reduce.h"

enum { RANKS = 3, COUNT = 37, PARTS = RANKS * COUNT };

static const gw_collective_t collectives[] = {GW_ALL_REDUCE, GW_REDUCE_SCATTER, GW_ALL_GATHER,
                                              GW_BROADCAST,  GW_REDUCE,         GW_BARRIER};

static int32_t sends[RANKS][PARTS], recvs[RANKS][PARTS], wanted[RANKS][PARTS];

static void fill(void) {
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < PARTS; i++) {
            sends[r][i] = 1000 * r + i;
            recvs[r][i] = wanted[r][i] = -1; /* what nobody writes stays */
        }
}

static int32_t sum_at(int i) {
    int32_t sum = 0;

    for (int r = 0; r < RANKS; r++)
        sum += sends[r][i];
    return sum;
}

static void expect(gw_collective_t collective, int root) {
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < PARTS; i++) {
            if (collective == GW_ALL_REDUCE && i < COUNT)
                wanted[r][i] = sum_at(i);
            if (collective == GW_REDUCE && i < COUNT && r == root)
                wanted[r][i] = sum_at(i);
            if (collective == GW_REDUCE_SCATTER && i < COUNT)
                wanted[r][i] = sum_at(r * COUNT + i);
            if (collective == GW_ALL_GATHER)
                wanted[r][i] = sends[i / COUNT][i % COUNT];
            if (collective == GW_BROADCAST && i < COUNT)
                wanted[r][i] = sends[root][i];
        }
}

static gwd_exchange_t make(gw_collective_t collective, uint64_t count, const void **send, void **recv) {
    for (int r = 0; r < RANKS; r++) {
        send[r] = sends[r];
        recv[r] = recvs[r];
    }
    return (gwd_exchange_t){.collective = collective,
                            .type = GW_I32,
                            .redop = GW_SUM,
                            .root = 1,
                            .nranks = RANKS,
                            .n_recv = RANKS,
                            .count = count,
                            .send = send,
                            .recv = recv};
}

static void every_chunk_size_gives_the_same(void) {
    static const uint64_t chunk_bytes[] = {0, 1, 4, 12, 100, 148, 1 << 20};
    const void *send[RANKS];
    void *recv[RANKS];

    for (size_t c = 0; c < sizeof(collectives) / sizeof(collectives[0]); c++)
        for (size_t b = 0; b < sizeof(chunk_bytes) / sizeof(chunk_bytes[0]); b++) {
            gwd_exchange_t x = make(collectives[c], collectives[c] == GW_BARRIER ? 0 : COUNT, send, recv);
            uint64_t n = gwd_exchange_plan(&x, chunk_bytes[b]);

            fill();
            expect(collectives[c], 1);
            for (uint64_t i = n; i > 0; i--) /* in any order: here from the back */
                gwd_exchange_chunk(&x, i - 1);
            CU_ASSERT_EQUAL(memcmp(recvs, wanted, sizeof(recvs)), 0);
            if (n > 0) { /* and a chunk left out shows */
                fill();
                expect(collectives[c], 1);
                for (uint64_t i = 1; i < n; i++)
                    gwd_exchange_chunk(&x, i);
                CU_ASSERT_NOT_EQUAL(memcmp(recvs, wanted, sizeof(recvs)), 0);
            }
        }
}

/* The pieces that copy engines get: none above the size, none much below the others, and no element twice or never. */
static void even_chunks_are_nearly_equal(void) {
    static const uint64_t counts[] = {1, 15, 16, 17, 1000, 16384, 16385, 1000003};
    const void *send[RANKS];
    void *recv[RANKS];

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        gwd_exchange_t x = make(GW_ALL_REDUCE, counts[i], send, recv);
        uint64_t n = gwd_exchange_plan_even(&x, 65536), sum = 0, least = UINT64_MAX, most = 0;

        for (uint64_t k = 0; k < n; k++) {
            gwd_chunk_t chunk;

            gwd_exchange_chunk_at(&x, k, &chunk);
            CU_ASSERT_EQUAL(chunk.in_bytes, sum * sizeof(int32_t));
            CU_ASSERT_EQUAL(chunk.out_bytes, chunk.in_bytes);
            sum += chunk.count;
            least = chunk.count < least ? chunk.count : least;
            most = chunk.count > most ? chunk.count : most;
        }
        CU_ASSERT_EQUAL(sum, counts[i]);
        CU_ASSERT(most * sizeof(int32_t) <= 65536);
        CU_ASSERT(n == 1 || most - least <= 16 * n);
    }
}

/* A result that is needed once is written once, and other memory is left alone. */
static void fewer_results_than_ranks(void) {
    const void *send[RANKS];
    void *recv[RANKS];
    gwd_exchange_t x = make(GW_ALL_REDUCE, COUNT, send, recv);

    x.n_recv = 1;
    fill();
    expect(GW_ALL_REDUCE, 1);
    memcpy(wanted[1], recvs[1], sizeof(recvs) - sizeof(recvs[0]));
    CU_ASSERT_EQUAL(gwd_exchange_plan(&x, 0), 1);
    gwd_exchange_chunk(&x, 0);
    CU_ASSERT_EQUAL(memcmp(recvs, wanted, sizeof(recvs)), 0);
}

static void nothing_is_no_chunk(void) {
    const void *send[RANKS];
    void *recv[RANKS];
    gwd_exchange_t x = make(GW_ALL_REDUCE, 0, send, recv);

    CU_ASSERT_EQUAL(gwd_exchange_plan(&x, 4096), 0);
}

enum { JOBS = 200, JOB_COUNT = 5000 };

typedef struct work {
    gwd_job_t job;
    const void *send[2];
    void *recv[2];
    float in[2][JOB_COUNT], out[2][JOB_COUNT];
} work_t;

static void start(gwd_reduce_t *reduce, gwd_queue_t *finished, gwd_share_t *share, work_t *work, int number) {
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < JOB_COUNT; i++)
            work->in[r][i] = (float)(number + i * (r + 1));
        work->send[r] = work->in[r];
        work->recv[r] = work->out[r];
    }
    work->job.exchange = (gwd_exchange_t){.collective = GW_ALL_REDUCE,
                                          .type = GW_F32,
                                          .redop = GW_SUM,
                                          .nranks = 2,
                                          .n_recv = 2,
                                          .count = JOB_COUNT,
                                          .send = work->send,
                                          .recv = work->recv};
    work->job.priority = number % 3;
    work->job.share = share;
    work->job.finished = finished;
    work->job.n_chunks = gwd_exchange_plan(&work->job.exchange, 1024);
    gwd_reduce_start(reduce, &work->job, false);
}

static int right(const work_t *work, int number) {
    for (int i = 0; i < JOB_COUNT; i++)
        if (work->out[0][i] != (float)(2 * number + 3 * i) || work->out[1][i] != work->out[0][i])
            return 0;
    return 1;
}

static void threads_finish_every_job_once(void) {
    static work_t works[JOBS];
    int came[JOBS] = {0}, n = 0;
    gwd_share_t users[2] = {{0}}, shares[3] = {{.parent = &users[0]}, {.parent = &users[0]}, {.parent = &users[1]}};
    gwd_reduce_t *reduce;
    gwd_queue_t finished;
    gwd_job_t *job;

    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&finished, sizeof(gwd_job_t *)), 0);
    CU_ASSERT_EQUAL_FATAL(gwd_reduce_new(3, 10000, &reduce), 0);
    CU_ASSERT_EQUAL(gwd_reduce_threads(reduce), 3);
    for (int i = 0; i < JOBS; i++)
        start(reduce, &finished, &shares[i % 3], &works[i], i);
    while (n < JOBS) {
        (void)gwd_reduce_help(reduce);
        while (gwd_queue_pop(&finished, &job)) {
            came[(work_t *)(void *)job - works]++;
            n++;
        }
    }
    for (int i = 0; i < JOBS; i++) {
        CU_ASSERT_EQUAL(came[i], 1);
        CU_ASSERT(right(&works[i], i));
    }
    gwd_reduce_free(reduce);
    gwd_queue_fini(&finished);
}

/* Keeps the thread busy, so that the test alone says when a chunk is done. */
typedef struct blocker {
    gwd_job_t job;
    _Atomic bool taken, let_go;
} blocker_t;

static void block(gwd_job_t *job, uint64_t chunk) {
    blocker_t *blocker = (blocker_t *)(void *)job;

    (void)chunk;
    atomic_store(&blocker->taken, true);
    while (!atomic_load(&blocker->let_go))
        (void)sched_yield();
}

static void block_thread(gwd_reduce_t *reduce, gwd_queue_t *finished, gwd_share_t *share, blocker_t *blocker) {
    blocker->job.work = block;
    blocker->job.n_chunks = 1;
    blocker->job.share = share;
    blocker->job.finished = finished;
    gwd_reduce_start(reduce, &blocker->job, false);
    while (!atomic_load(&blocker->taken))
        (void)sched_yield();
}

/* One group with very many jobs, and one with one. */
static void take_turns(gwd_share_t *many_user, gwd_share_t *one_user) {
    static work_t works[JOBS];
    blocker_t blocker = {0};
    gwd_share_t many = {.parent = many_user}, one = {.parent = one_user};
    gwd_reduce_t *reduce;
    gwd_queue_t finished;
    gwd_job_t *job = NULL;
    int before = 0;

    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&finished, sizeof(gwd_job_t *)), 0);
    CU_ASSERT_EQUAL_FATAL(gwd_reduce_new(1, 0, &reduce), 0);
    block_thread(reduce, &finished, &many, &blocker);
    for (int i = 0; i < JOBS - 1; i++)
        start(reduce, &finished, &many, &works[i], i);
    start(reduce, &finished, &one, &works[JOBS - 1], JOBS - 1);
    while (job != &works[JOBS - 1].job) {
        (void)gwd_reduce_help(reduce);
        if (gwd_queue_pop(&finished, &job))
            before++;
    }
    CU_ASSERT(before < JOBS / 4); /* one chunk of the others for each of its own */
    atomic_store(&blocker.let_go, true);
    for (int i = 0; i < JOBS - 1; i++)
        gwd_reduce_cancel(reduce, &works[i].job);
    gwd_reduce_free(reduce);
    gwd_queue_fini(&finished);
}

static void users_take_turns(void) {
    gwd_share_t users[2] = {{0}};

    take_turns(&users[0], &users[1]);
}

static void groups_of_a_user_take_turns(void) {
    gwd_share_t user = {0};

    take_turns(&user, &user);
}

static void a_cancelled_job_comes_back_once(void) {
    static work_t works[JOBS];
    gwd_share_t share = {0};
    gwd_reduce_t *reduce;
    gwd_queue_t finished;
    gwd_job_t *job;
    int n = 0;

    CU_ASSERT_EQUAL_FATAL(gwd_queue_init(&finished, sizeof(gwd_job_t *)), 0);
    CU_ASSERT_EQUAL_FATAL(gwd_reduce_new(2, 0, &reduce), 0);
    for (int i = 0; i < JOBS; i++)
        start(reduce, &finished, &share, &works[i], i);
    for (int i = 0; i < JOBS; i++)
        gwd_reduce_cancel(reduce, &works[i].job);
    gwd_reduce_free(reduce); /* the threads end what they have begun */
    while (gwd_queue_pop(&finished, &job))
        n++;
    CU_ASSERT_EQUAL(n, JOBS);
    gwd_queue_fini(&finished);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"every chunk size gives the same", every_chunk_size_gives_the_same},
        {"even chunks are nearly equal", even_chunks_are_nearly_equal},
        {"fewer results than ranks", fewer_results_than_ranks},
        {"nothing is no chunk", nothing_is_no_chunk},
        {"threads finish every job once", threads_finish_every_job_once},
        {"users take turns", users_take_turns},
        {"groups of a user take turns", groups_of_a_user_take_turns},
        {"a cancelled job comes back once", a_cancelled_job_comes_back_once},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("exchange", tests);
}
