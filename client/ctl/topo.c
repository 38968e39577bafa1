/* topo.c - the GPUs of this host, the links between them, and how fast they copy
 *
 * Everything is found by this process, without the daemon. Measuring takes a context on each GPU, some hundred MiB of its
 * memory, for a few seconds; it ends with this process.
 */
#include "topo.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP_S = 60 }; /* no step takes longer, unless the driver hangs */

/* ---- choosing and measuring --------------------------------------------------------------------- */

static bool matches(const gwctl_gpu_t *gpu, const char *which) {
    size_t length = strlen(which);
    if (length > 0 && strspn(which, "0123456789") == length)
        return strtol(which, NULL, 10) == gpu->index;
    return length > 4 && strncasecmp(gpu->uuid, which, length) == 0;
}

static void drop(gwctl_gpus_t *gpus, size_t place) {
    for (size_t i = place; i + 1 < gpus->count; i++) {
        gpus->gpu[i] = gpus->gpu[i + 1];
        memcpy(gpus->link[i], gpus->link[i + 1], sizeof(gpus->link[i]));
    }
    for (size_t i = 0; i < gpus->count; i++)
        memmove(gpus->link[i][place], gpus->link[i][place + 1], (gpus->count - place - 1) * GWCTL_LINK_BYTES);
    gpus->count--;
}

/* Keeps the GPUs that were asked for, in the order of their indexes. */
static int pick(gwctl_gpus_t *gpus, const gwctl_options_t *options) {
    bool wanted[GWCTL_GPUS_MAX] = {false};
    for (size_t k = 0; k < options->n_devices; k++) {
        size_t n_found = 0;
        for (size_t i = 0; i < gpus->count; i++) {
            if (matches(&gpus->gpu[i], options->devices[k])) {
                wanted[i] = true;
                n_found++;
            }
        }
        if (n_found != 1) {
            fprintf(stderr, "gwctl: %s: %s GPU: `gwctl topo --no-measure` shows all %zu\n",
                    gwctl_cell_text(options->devices[k]).text, n_found == 0 ? "no such" : "more than one", gpus->count);
            return GWCTL_FAILED;
        }
    }
    for (size_t i = gpus->count; i > 0 && options->n_devices > 0; i--) {
        if (!wanted[i - 1])
            drop(gpus, i - 1);
    }
    return GWCTL_OK;
}

static void on_alarm(int number) {
    static const char text[] = "\ngwctl: the GPU driver has not answered for 60 s: see `gwctl doctor`\n";
    (void)number;
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
        _exit(GWCTL_USAGE);
    _exit(GWCTL_FAILED);
}

static void show_step(const char *what) {
    alarm(STEP_S);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kmeasuring: %s ...", what);
}

static void measure(const gwctl_gpu_api_t *api, gwctl_topo_t *topo) {
    gwctl_device_t *devices[GWCTL_GPUS_MAX];
    char why[GWCTL_WHY_BYTES];
    size_t n = 0;
    gwctl_outcome_t outcome = GWCTL_WORKS;
    while (n < topo->gpus.count && outcome == GWCTL_WORKS) {
        char what[96];
        snprintf(what, sizeof(what), "a context on GPU %d", topo->gpus.gpu[n].index);
        show_step(what);
        outcome = api->open(topo->gpus.gpu[n].index, &devices[n], why);
        n += outcome == GWCTL_WORKS;
    }
    if (outcome == GWCTL_WORKS)
        outcome = api->measure(devices, n, show_step, &topo->copies, why);
    show_step("contexts end");
    while (n > 0)
        api->close(devices[--n]);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    topo->measured = outcome == GWCTL_WORKS;
    if (!topo->measured)
        snprintf(topo->unmeasured, sizeof(topo->unmeasured), "%s", why);
}

/* ---- tables ------------------------------------------------------------------------------------- */

static gwctl_cell_t cell_number(const char *format, double number) {
    char text[32];
    snprintf(text, sizeof(text), format, number);
    return gwctl_cell_text(text);
}

static int print_gpus(const gwctl_gpus_t *gpus) {
    static const char *const headers[] = {">INDEX", "NAME", "UUID", "BUS ID", ">NUMA", ">MEMORY"};
    gwctl_table_t table;
    printf("driver %s, CUDA %d.%d\n\n",
           gpus->driver[0] != '\0' ? gwctl_cell_text(gpus->driver).text : "of unknown version",
           gpus->driver_cuda / 1000, gpus->driver_cuda % 1000 / 10);
    gwctl_table_init(&table, headers, 6);
    for (size_t i = 0; i < gpus->count; i++) {
        const gwctl_gpu_t *gpu = &gpus->gpu[i];
        gwctl_table_add(&table, gwctl_cell_count(gpu->index));
        gwctl_table_add(&table, gwctl_cell_text(gpu->name));
        gwctl_table_add(&table, gwctl_cell_text(gpu->uuid));
        gwctl_table_add(&table, gwctl_cell_text(gpu->bus_id[0] != '\0' ? gpu->bus_id : "?"));
        gwctl_table_add(&table, gpu->numa_node >= 0 ? gwctl_cell_count(gpu->numa_node) : gwctl_cell_text("?"));
        gwctl_table_add(&table, gwctl_cell_bytes((double)gpu->memory_bytes));
    }
    return gwctl_table_print(&table, "", "no GPU");
}

/* A square table, a row and a column for each GPU. */
static int print_matrix(const gwctl_topo_t *topo, gwctl_cell_t (*cell)(const gwctl_topo_t *, size_t, size_t)) {
    const gwctl_gpus_t *gpus = &topo->gpus;
    char names[GWCTL_GPUS_MAX][16];
    const char *headers[GWCTL_GPUS_MAX + 1] = {""};
    gwctl_table_t table;
    for (size_t i = 0; i < gpus->count; i++) {
        snprintf(names[i], sizeof(names[i]), ">GPU%d", gpus->gpu[i].index);
        headers[i + 1] = names[i];
    }
    gwctl_table_init(&table, headers, gpus->count + 1);
    for (size_t i = 0; i < gpus->count; i++) {
        gwctl_table_add(&table, gwctl_cell_text(names[i] + 1));
        for (size_t j = 0; j < gpus->count; j++)
            gwctl_table_add(&table, cell(topo, i, j));
    }
    return gwctl_table_print(&table, "", "no GPU");
}

static gwctl_cell_t link_cell(const gwctl_topo_t *topo, size_t i, size_t j) {
    return gwctl_cell_text(topo->gpus.link[i][j]);
}

static gwctl_cell_t pair_cell(const gwctl_topo_t *topo, size_t i, size_t j, double gb_per_s) {
    if (i == j)
        return gwctl_cell_text("-");
    return cell_number(topo->copies.direct[i][j] ? "%.1f" : "%.1f*", gb_per_s);
}

static gwctl_cell_t alone_cell(const gwctl_topo_t *topo, size_t i, size_t j) {
    return pair_cell(topo, i, j, topo->copies.peer[i][j]);
}

static gwctl_cell_t both_cell(const gwctl_topo_t *topo, size_t i, size_t j) {
    return pair_cell(topo, i, j, topo->copies.peer_both[i][j]);
}

static bool has_link(const gwctl_gpus_t *gpus, const char *word) {
    bool numbered = strcmp(word, "NV") == 0;
    for (size_t i = 0; i < gpus->count; i++) {
        for (size_t j = 0; j < gpus->count; j++) {
            const char *link = gpus->link[i][j];
            if (i != j && (numbered ? strncmp(link, word, 2) == 0 : strcmp(link, word) == 0))
                return true;
        }
    }
    return false;
}

/* What the words mean, of those that are there. */
static void print_legend(const gwctl_gpus_t *gpus) {
    static const char *const legend[][2] = {
        {"NV", "NV#   # NVLinks, also through NVSwitch"},
        {"PIX", "PIX   at most one PCIe switch between them"},
        {"PXB", "PXB   several PCIe switches, but not the host bridge"},
        {"PHB", "PHB   a PCIe host bridge, that is the processor"},
        {"NODE", "NODE  host bridges of one NUMA node"},
        {"SYS", "SYS   the interconnect between NUMA nodes"},
        {"X", "X     the same GPU"},
        {"?", "?     neither NVML nor the kernel tells"},
    };
    for (size_t i = 0; i < sizeof(legend) / sizeof(legend[0]); i++) {
        if (has_link(gpus, legend[i][0]))
            printf("  %s\n", legend[i][1]);
    }
}

static bool all_direct(const gwctl_topo_t *topo) {
    bool direct = true;
    for (size_t i = 0; i < topo->gpus.count; i++) {
        for (size_t j = 0; j < topo->gpus.count; j++)
            direct = direct && (i == j || topo->copies.direct[i][j]);
    }
    return direct;
}

static int print_copies(const gwctl_topo_t *topo) {
    static const char *const headers[] = {"", ">TO HOST", ">FROM HOST", ">BOTH WAYS, EACH"};
    const gwctl_gpus_t *gpus = &topo->gpus;
    const gwctl_copies_t *copies = &topo->copies;
    gwctl_table_t table;
    printf("\ncopies of %s between GPU and pinned host memory, GB/s\n", gwctl_cell_bytes((double)copies->bytes).text);
    gwctl_table_init(&table, headers, 4);
    for (size_t i = 0; i < gpus->count; i++) {
        char name[16];
        snprintf(name, sizeof(name), "GPU%d", gpus->gpu[i].index);
        gwctl_table_add(&table, gwctl_cell_text(name));
        gwctl_table_add(&table, cell_number("%.1f", copies->to_host[i]));
        gwctl_table_add(&table, cell_number("%.1f", copies->from_host[i]));
        gwctl_table_add(&table, cell_number("%.1f", copies->both[i]));
    }
    int code = gwctl_table_print(&table, "", "no GPU");
    if (gpus->count < 2 || code != GWCTL_OK)
        return code;
    printf("all %zu GPUs both ways at once: %.1f each way of each, %.1f in all\n", gpus->count, copies->all,
           copies->all * 2 * (double)gpus->count);
    puts("\ncopies from row to column, one at a time, GB/s");
    code = print_matrix(topo, alone_cell);
    if (code != GWCTL_OK)
        return code;
    puts("\ncopies both ways at once, GB/s each way");
    code = print_matrix(topo, both_cell);
    if (code == GWCTL_OK && !all_direct(topo))
        puts("  *     through host memory: the driver allows no direct copies");
    return code;
}

static int print_topo(const gwctl_topo_t *topo) {
    int code = print_gpus(&topo->gpus);
    if (code != GWCTL_OK)
        return code;
    putchar('\n');
    code = print_matrix(topo, link_cell);
    if (code != GWCTL_OK)
        return code;
    print_legend(&topo->gpus);
    if (topo->gpus.nvml[0] != '\0') {
        fputs("NVML cannot be asked, so NVLinks are not seen: ", stdout);
        gwctl_print_text(topo->gpus.nvml);
        putchar('\n');
    }
    return topo->measured ? print_copies(topo) : GWCTL_OK;
}

/* ---- the command -------------------------------------------------------------------------------- */

int gwctl_topo(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments) {
    static gwctl_topo_t topo;
    const gwctl_gpu_api_t *api = NULL;
    (void)arguments;
    (void)n_arguments;
    signal(SIGALRM, on_alarm);
    alarm(STEP_S);
    bool found = gwctl_gpu_find(&api, &topo.gpus, topo.reason) == GWCTL_GPU_FOUND;
    int code = found ? pick(&topo.gpus, options) : GWCTL_OK;
    if (code != GWCTL_OK)
        return code;
    if (found && !options->no_measure)
        measure(api, &topo);
    alarm(0);
    if (options->json)
        code = gwctl_print_json(gwctl_topo_to_json(&topo));
    else if (found)
        code = print_topo(&topo);
    if (topo.reason[0] != '\0' && !options->json)
        fprintf(stderr, "gwctl: no GPU: %s\n", gwctl_cell_text(topo.reason).text);
    if (topo.unmeasured[0] != '\0' && !options->json)
        fprintf(stderr, "gwctl: the copies cannot be measured: %s\n", gwctl_cell_text(topo.unmeasured).text);
    return found && topo.unmeasured[0] == '\0' ? code : GWCTL_FAILED;
}
