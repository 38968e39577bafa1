/* rank.c - a trainer that does what it is told, for the integration tests
 *
 * Reads one command a line and answers each with one line: the status, the milliseconds it took, and more where
 * there is more to say. Objects have names, so that one process can hold several groups, buffers and buckets. A
 * test starts as many of these as it wants ranks, and kills, stops and questions them. It is linked with the inside
 * of the library, since some commands do to the shared memory what no library call would.
 *
 *   rank [--memory=WHERE]   see memory.h
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "client/group.h"
#include "memory.h"
#include "state_file.h"
#include "values.h"
#include "words.h"

enum { WORDS_MAX = 64, ITEMS_MAX = 512 };

typedef struct item {
    char name[24];
    char kind; /* g: group, b: buffer, k: bucket */
    void *object;
    memory_t memory; /* of a buffer */
} item_t;

static gw_context_t *context;
static item_t items[ITEMS_MAX];
static char extra[4096]; /* what a command answers beside its status */

/* ---- words and names ---------------------------------------------------------------------------- */

static item_t *find(const char *name, char kind) {
    for (size_t i = 0; i < ITEMS_MAX; i++)
        if (items[i].kind == kind && strcmp(items[i].name, name) == 0)
            return &items[i];
    return NULL;
}

static void *get(const char *name, char kind) {
    item_t *item = find(name, kind);

    if (!item)
        die("there is no such object", name);
    return item->object;
}

static item_t *put(const char *name, char kind, void *object) {
    for (size_t i = 0; i < ITEMS_MAX; i++)
        if (items[i].kind == 0) {
            snprintf(items[i].name, sizeof(items[i].name), "%s", name);
            items[i].kind = kind;
            items[i].object = object;
            items[i].memory = (memory_t){0};
            return &items[i];
        }
    die("too many objects", name);
}

static void drop(const char *name, char kind) {
    item_t *item = find(name, kind);

    memory_free(&item->memory);
    item->kind = 0;
}

/* Everything that has a name went with the connection. */
static void free_memory(void) {
    for (size_t i = 0; i < ITEMS_MAX; i++) {
        if (items[i].kind == 'b')
            memory_free(&items[i].memory);
        items[i].kind = 0;
    }
}

/* "BUFFER:BYTES", or "-" for none. */
static unsigned char *span_of(const char *word) {
    char name[24];
    const char *colon = strchr(word, ':');

    if (strcmp(word, "-") == 0)
        return NULL;
    snprintf(name, sizeof(name), "%.*s", colon ? (int)(colon - word) : (int)strlen(word), word);
    return (unsigned char *)gw_buffer_data(get(name, 'b')) + (colon ? number(colon + 1) : 0);
}

/* ---- connection and groups ---------------------------------------------------------------------- */

static gw_status_t do_connect(char **w, int n) {
    gw_options_t options = GW_OPTIONS_INIT;

    if (n > 1)
        options.client_name = w[1];
    return gw_connect(&options, &context);
}

static gw_status_t do_disconnect(char **w, int n) {
    (void)w;
    (void)n;
    gw_disconnect(context);
    free_memory();
    context = NULL;
    return GW_OK;
}

static gw_status_t do_id(char **w, int n) {
    gw_unique_id_t id;
    gw_status_t status = gw_get_unique_id(context, &id);

    (void)w;
    (void)n;
    for (size_t i = 0; status == GW_OK && i < sizeof(id); i++)
        snprintf(extra + 2 * i, 3, "%02x", id.bytes[i]);
    return status;
}

/* join GROUP ID NRANKS RANK [CODEC [ROUNDING]] */
static gw_status_t do_join(char **w, int n) {
    gw_unique_id_t id = {{0}};
    gw_group_config_t config = GW_GROUP_CONFIG_INIT;
    gw_group_t *group;

    config.codec = n > 5 ? w[5] : NULL;
    config.rounding = n > 6 ? rounding_of(w[6]) : GW_ROUND_DEFAULT;
    for (size_t i = 0; i < sizeof(id) && strlen(w[2]) == 2 * sizeof(id); i++) {
        char pair[3] = {w[2][2 * i], w[2][2 * i + 1], 0};
        id.bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    gw_status_t status = gw_group_init_config(context, &id, (int)number(w[3]), (int)number(w[4]), &config, &group);
    if (status == GW_OK)
        put(w[1], 'g', group);
    return status;
}

/* split GROUP NEW COLOR KEY */
static gw_status_t do_split(char **w, int n) {
    gw_group_t *group;
    gw_status_t status = gw_group_split(get(w[1], 'g'), (int)strtol(w[3], NULL, 0), (int)strtol(w[4], NULL, 0), &group);

    (void)n;
    if (status != GW_OK)
        return status;
    if (group)
        put(w[2], 'g', group);
    snprintf(extra, sizeof(extra), "%d %d", gw_group_rank(group), gw_group_size(group));
    return status;
}

static gw_status_t do_check(char **w, int n) {
    gw_report_t report;
    gw_status_t status = gw_group_check(get(w[1], 'g'), &report);

    (void)n;
    snprintf(extra, sizeof(extra), "%s last=%" PRIu64 " failed=%" PRIu64 " epoch=%u %s", gw_status_name(report.status),
             report.last_completed, report.failed_ops, report.epoch, one_line(report.message));
    return status;
}

static gw_status_t do_abort(char **w, int n) {
    return gw_group_abort(get(w[1], 'g'), n > 2 ? w[2] : NULL);
}

/* save GROUP FILE: answers the size of the state */
static gw_status_t do_save(char **w, int n) {
    size_t bytes = 0;
    gw_status_t status = state_to_file(get(w[1], 'g'), w[2], &bytes);

    (void)n;
    if (status == GW_OK)
        snprintf(extra, sizeof(extra), "%zu", bytes);
    return status;
}

/* load GROUP FILE */
static gw_status_t do_load(char **w, int n) {
    (void)n;
    return state_from_file(get(w[1], 'g'), w[2]);
}

static gw_status_t do_leave(char **w, int n) {
    (void)n;
    gw_group_free(get(w[1], 'g'));
    drop(w[1], 'g');
    return GW_OK;
}

static gw_status_t do_poll(char **w, int n) {
    struct pollfd fd = {.events = POLLIN};
    gw_status_t status = gw_group_fd(get(w[1], 'g'), &fd.fd);

    (void)n;
    if (status == GW_OK)
        snprintf(extra, sizeof(extra), "%s", poll(&fd, 1, (int)number(w[2])) > 0 ? "readable" : "quiet");
    return status;
}

/* ---- memory ------------------------------------------------------------------------------------- */

static gw_status_t keep(gw_status_t status, const char *name, const memory_t *memory) {
    if (status != GW_OK)
        return status;
    put(name, 'b', memory->buffer)->memory = *memory;
    snprintf(extra, sizeof(extra), "%s", gw_buffer_path(memory->buffer));
    return status;
}

/* alloc BUFFER BYTES: answers how the daemon gets at it */
static gw_status_t do_alloc(char **w, int n) {
    memory_t memory;

    (void)n;
    return keep(memory_share(context, number(w[2]), &memory), w[1], &memory);
}

/* register BUFFER BYTES ODD: memory that starts ODD bytes after an aligned address */
static gw_status_t do_register(char **w, int n) {
    memory_t memory;

    (void)n;
    return keep(memory_alloc(context, number(w[2]), number(w[3]), &memory), w[1], &memory);
}

static gw_status_t do_release(char **w, int n) {
    gw_status_t status = gw_buffer_release(get(w[1], 'b'));

    (void)n;
    if (status == GW_OK)
        drop(w[1], 'b');
    return status;
}

/* What the two commands below are about. */
static unsigned char *values_of(char **w, int n, uint64_t *bytes_out) {
    return values_new(type_of(w[2]), number(w[3]), strtod(w[4], NULL), n > 5 ? strtod(w[5], NULL) : 0, bytes_out);
}

/* fill SPAN TYPE COUNT VALUE [STEP] */
static gw_status_t do_fill(char **w, int n) {
    uint64_t bytes;
    unsigned char *values = values_of(w, n, &bytes);

    memory_write(span_of(w[1]), values, bytes);
    free(values);
    return GW_OK;
}

/* expect SPAN TYPE COUNT VALUE [STEP]: answers how many elements differ */
static gw_status_t do_expect(char **w, int n) {
    uint64_t bytes, wrong = 0, unit = gw_type_bytes(type_of(w[2]));
    unsigned char *wanted = values_of(w, n, &bytes), *got = malloc(bytes + 1);

    if (!got)
        die("out of memory", w[3]);
    memory_read(got, span_of(w[1]), bytes);
    for (uint64_t at = 0; at < bytes; at += unit)
        wrong += memcmp(wanted + at, got + at, unit) != 0;
    free(wanted);
    free(got);
    snprintf(extra, sizeof(extra), "%" PRIu64, wrong);
    return GW_OK;
}

/* noise SPAN COUNT SEED: numbers in binary32 between -1 and 1, most of them small, as gradients are */
static gw_status_t do_noise(char **w, int n) {
    uint64_t bytes;
    unsigned char *values = values_noise(number(w[2]), number(w[3]), &bytes);

    (void)n;
    memory_write(span_of(w[1]), values, bytes);
    free(values);
    return GW_OK;
}

/* digest SPAN BYTES: answers a number that other contents would not have */
static gw_status_t do_digest(char **w, int n) {
    uint64_t bytes = number(w[2]);
    unsigned char *got = malloc(bytes + 1);

    (void)n;
    if (!got)
        die("out of memory", w[2]);
    memory_read(got, span_of(w[1]), bytes);
    snprintf(extra, sizeof(extra), "%016" PRIx64, values_digest(got, bytes));
    free(got);
    return GW_OK;
}

/* punch SPAN BYTES: takes whole pages away from under both mappings */
static gw_status_t do_punch(char **w, int n) {
    (void)n;
    if (madvise(span_of(w[1]), number(w[2]), MADV_REMOVE) != 0)
        die("MADV_REMOVE", strerror(errno));
    return GW_OK;
}

/* scribble GROUP: writes noise over all that client and daemon share for the group */
static gw_status_t do_scribble(char **w, int n) {
    gw_group_t *group = get(w[1], 'g');
    size_t bytes = gw_slots_bytes(group->credits);

    (void)n;
    for (size_t at = 0; at < bytes; at += 256)
        if (getrandom((char *)group->slots + at, bytes - at < 256 ? bytes - at : 256, 0) < 0)
            die("getrandom", strerror(errno));
    return GW_OK;
}

/* ---- buckets and operations --------------------------------------------------------------------- */

/* bucket NAME GROUP COLLECTIVE TYPE REDOP COUNT SEND RECV [root=N] [priority=N] [as=NAME] [columns=N] [codec=NAME] [nofeedback] */
static gw_status_t do_bucket(char **w, int n) {
    gw_bucket_desc_t desc = GW_BUCKET_DESC_INIT;
    gw_matrix_t matrix = {0};
    gw_bucket_t *bucket;

    desc.name = w[1];
    desc.collective = collective_of(w[3]);
    desc.type = type_of(w[4]);
    desc.redop = redop_of(w[5]);
    desc.count = number(w[6]);
    desc.send = span_of(w[7]);
    desc.recv = span_of(w[8]);
    for (int i = 9; i < n; i++) {
        if (strncmp(w[i], "root=", 5) == 0)
            desc.root = (int)strtol(w[i] + 5, NULL, 0);
        else if (strncmp(w[i], "priority=", 9) == 0)
            desc.priority = (int)strtol(w[i] + 9, NULL, 0);
        else if (strncmp(w[i], "codec=", 6) == 0)
            desc.codec = codec_of(w[i] + 6);
        else if (strcmp(w[i], "nofeedback") == 0)
            desc.no_error_feedback = 1;
        else if (strncmp(w[i], "as=", 3) == 0)
            desc.name = w[i] + 3;
        else if (strncmp(w[i], "columns=", 8) == 0)
            matrix.columns = matrix.stride = number(w[i] + 8);
        else
            die("unknown word", w[i]);
    }
    if (matrix.columns) {
        matrix.rows = desc.count / matrix.columns;
        desc.matrices = &matrix;
        desc.n_matrices = 1;
    }
    gw_status_t status = gw_bucket_create(get(w[2], 'g'), &desc, &bucket);
    if (status == GW_OK)
        put(w[1], 'k', bucket);
    return status;
}

static gw_status_t do_drop(char **w, int n) {
    gw_status_t status = gw_bucket_free(get(w[1], 'k'));

    (void)n;
    if (status == GW_OK)
        drop(w[1], 'k');
    return status;
}

static gw_status_t do_submit(char **w, int n) {
    gw_op_t op = 0;
    gw_status_t status = gw_submit(get(w[1], 'k'), memory_queue(), &op);

    (void)n;
    if (status == GW_OK)
        snprintf(extra, sizeof(extra), "%" PRIu64, op);
    return status;
}

/* wait GROUP OP MS: -1 waits for ever */
static gw_status_t do_wait(char **w, int n) {
    (void)n;
    return memory_await(get(w[1], 'g'), number(w[2]), strtoll(w[3], NULL, 0));
}

static gw_status_t do_test(char **w, int n) {
    (void)n;
    return gw_test(get(w[1], 'g'), number(w[2]));
}

/* loop GROUP BUCKET TIMES: submits and waits; answers how often it went well */
static gw_status_t do_loop(char **w, int n) {
    gw_status_t status = GW_OK;
    uint64_t done = 0;
    gw_op_t op;

    (void)n;
    while (done < number(w[3]) && status == GW_OK) {
        status = gw_submit(get(w[2], 'k'), memory_queue(), &op);
        if (status == GW_OK)
            status = memory_await(get(w[1], 'g'), op, -1);
        done += status == GW_OK;
    }
    snprintf(extra, sizeof(extra), "%" PRIu64, done);
    return status;
}

/* settle GROUP: waits until the stream of calls has nothing left to do */
static gw_status_t do_settle(char **w, int n) {
    (void)n;
    return memory_settle(get(w[1], 'g'));
}

/* call GROUP COLLECTIVE TYPE REDOP COUNT SEND RECV [ROOT [later]]: one call does it all; later: settle is to follow */
static gw_status_t do_call(char **w, int n) {
    gw_group_t *group = get(w[1], 'g');
    gw_type_t type = type_of(w[3]);
    gw_redop_t redop = redop_of(w[4]);
    uint64_t count = number(w[5]);
    void *send = span_of(w[6]), *recv = span_of(w[7]);
    int root = n > 8 ? (int)number(w[8]) : 0;
    gw_queue_t queue = memory_queue();
    gw_status_t status;

    switch (collective_of(w[2])) {
    case GW_ALL_REDUCE:
        status = gw_all_reduce(send, recv, count, type, redop, group, queue);
        break;
    case GW_REDUCE_SCATTER:
        status = gw_reduce_scatter(send, recv, count, type, redop, group, queue);
        break;
    case GW_ALL_GATHER:
        status = gw_all_gather(send, recv, count, type, group, queue);
        break;
    case GW_BROADCAST:
        status = gw_broadcast(send, recv, count, type, root, group, queue);
        break;
    case GW_REDUCE:
        status = gw_reduce(send, recv, count, type, redop, root, group, queue);
        break;
    default:
        return gw_barrier(group, NULL);
    }
    return status == GW_OK && n < 10 ? memory_settle(group) : status;
}

/* ---- the process -------------------------------------------------------------------------------- */

static gw_status_t do_sleep(char **w, int n) {
    (void)n;
    usleep((useconds_t)number(w[1]) * 1000);
    return GW_OK;
}

static gw_status_t do_pid(char **w, int n) {
    (void)w;
    (void)n;
    snprintf(extra, sizeof(extra), "%d", (int)getpid());
    return GW_OK;
}

/* fds SPARE: lets the process open no more than SPARE further descriptors */
static gw_status_t do_fds(char **w, int n) {
    uint64_t spare = number(w[1]);
    struct rlimit limit;
    int fd = 0;

    (void)n;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        die("getrlimit", strerror(errno));
    while (fcntl(fd, F_GETFD) >= 0 || spare-- > 0)
        fd++;
    limit.rlim_cur = (rlim_t)fd;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        die("setrlimit", strerror(errno));
    return GW_OK;
}

/* fork GROUP BUCKET: answers the child's pid and the statuses it got */
static gw_status_t do_fork(char **w, int n) {
    int fds[2];
    pid_t child;
    ssize_t got;

    (void)n;
    fflush(stdout);
    if (pipe(fds) != 0 || (child = fork()) < 0)
        die("fork", strerror(errno));
    if (child == 0)
        be_child(context, get(w[1], 'g'), get(w[2], 'k'), fds[1]);
    close(fds[1]);
    got = read(fds[0], extra, sizeof(extra) - 1);
    extra[got > 0 ? got : 0] = 0;
    close(fds[0]);
    return GW_OK;
}

static gw_status_t do_devices(char **w, int n) {
    (void)w;
    (void)n;
    snprintf(extra, sizeof(extra), "%d", devmem_count());
    return GW_OK;
}

static gw_status_t do_exit(char **w, int n) {
    (void)n;
    _exit((int)number(w[1]));
}

/* ---- the loop ----------------------------------------------------------------------------------- */

typedef struct command {
    const char *name;
    int n_words; /* at least, itself included */
    gw_status_t (*run)(char **words, int n_words);
} command_t;

static const command_t commands[] = {
    {"connect", 1, do_connect},
    {"disconnect", 1, do_disconnect},
    {"id", 1, do_id},
    {"join", 5, do_join},
    {"split", 5, do_split},
    {"check", 2, do_check},
    {"abort", 2, do_abort},
    {"save", 3, do_save},
    {"load", 3, do_load},
    {"leave", 2, do_leave},
    {"poll", 3, do_poll},
    {"alloc", 3, do_alloc},
    {"register", 4, do_register},
    {"release", 2, do_release},
    {"fill", 5, do_fill},
    {"expect", 5, do_expect},
    {"noise", 4, do_noise},
    {"digest", 3, do_digest},
    {"punch", 3, do_punch},
    {"scribble", 2, do_scribble},
    {"bucket", 9, do_bucket},
    {"drop", 2, do_drop},
    {"submit", 2, do_submit},
    {"wait", 4, do_wait},
    {"test", 3, do_test},
    {"loop", 4, do_loop},
    {"call", 8, do_call},
    {"settle", 2, do_settle},
    {"sleep", 2, do_sleep},
    {"pid", 1, do_pid},
    {"fds", 2, do_fds},
    {"fork", 3, do_fork},
    {"devices", 1, do_devices},
    {"exit", 2, do_exit},
};

static void obey(char **words, int n_words) {
    struct timespec begin, end;
    gw_status_t status;

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, words[0]) != 0)
            continue;
        if (n_words < commands[i].n_words)
            die("too few words", words[0]);
        extra[0] = 0;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        status = commands[i].run(words, n_words);
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%s %.3f %s%s%s\n", gw_status_name(status),
               (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-6, extra,
               extra[0] && status != GW_OK ? " " : "",
               status != GW_OK && status != GW_IN_PROGRESS ? one_line(gw_last_error()) : "");
        return;
    }
    die("unknown command", words[0]);
}

int main(int argc, char **argv) {
    char line[4096], *words[WORDS_MAX];

    if (argc > 1 && (strncmp(argv[1], "--memory=", 9) != 0 || !memory_setup(argv[1] + 9)))
        die("not understood", argv[1]);
    memory_open(0);

    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        int n_words = 0;

        for (char *word = strtok(line, " \n"); word && n_words < WORDS_MAX; word = strtok(NULL, " \n"))
            words[n_words++] = word;
        if (n_words > 0)
            obey(words, n_words);
    }
    gw_disconnect(context);
    free_memory();
    return 0;
}
