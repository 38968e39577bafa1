/* pci.c - where a GPU sits, as the kernel tells it
 *
 * The path of a device in /sys/devices names every bridge above it: /sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0 is
 * behind root port 17:01.0 of root complex 0000:17. Where two paths part tells what lies between the devices.
 */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"
#include "gpu.h"

static const char bus_folder[] = "/sys/bus/pci/devices";

/* The number of parts of a path that come after its first `skip` bytes. */
static size_t count_parts(const char *path, size_t skip) {
    size_t parts = 0;
    for (const char *place = path + skip; *place != '\0'; place++)
        parts += *place != '/' && (place == path || place[-1] == '/');
    return parts;
}

/* The length of what both begin with, in whole parts. */
static size_t common_length(const char *left, const char *right) {
    size_t length = 0;
    size_t i = 0;
    for (; left[i] != '\0' && left[i] == right[i]; i++) {
        if (left[i] == '/')
            length = i + 1;
    }
    return length;
}

/* The length of a path up to its root complex, with the '/' behind it; 0 when there is none. */
static size_t root_length(const char *path) {
    const char *root = strstr(path, "/pci");
    const char *end = root != NULL ? strchr(root + 1, '/') : NULL;
    return end != NULL ? (size_t)(end - path) + 1 : 0;
}

const char *gwctl_pci_relation(const char *left, const char *right, int left_node, int right_node) {
    size_t common = common_length(left, right);
    size_t root = root_length(left);
    if (strcmp(left, right) == 0)
        return "X";
    if (root == 0 || common < root) {
        if (left_node < 0 || right_node < 0)
            return "?";
        return left_node == right_node ? "NODE" : "SYS";
    }
    if (common == root)
        return "PHB";
    return count_parts(left, common) <= 2 && count_parts(right, common) <= 2 ? "PIX" : "PXB";
}

static int read_node(const char *bus_id) {
    char path[sizeof(bus_folder) + GWCTL_BUS_BYTES + 16];
    char line[32];
    snprintf(path, sizeof(path), "%s/%s/numa_node", bus_folder, bus_id);
    return gwctl_read_line(path, line, sizeof(line)) ? atoi(line) : -1;
}

/* Without several nodes the firmware names none: then all devices are on the one there is. */
static bool has_one_node(void) {
    char line[32];
    return gwctl_read_line("/sys/devices/system/node/online", line, sizeof(line)) && strcmp(line, "0") == 0;
}

void gwctl_pci_complete(gwctl_gpus_t *gpus) {
    char(*paths)[PATH_MAX] = calloc(gpus->count, sizeof(*paths));
    bool one_node = has_one_node();
    for (size_t i = 0; i < gpus->count; i++) {
        char path[sizeof(bus_folder) + GWCTL_BUS_BYTES];
        gwctl_gpu_t *gpu = &gpus->gpu[i];
        for (char *letter = gpu->bus_id; *letter != '\0'; letter++)
            *letter = (char)tolower((unsigned char)*letter);
        gpu->numa_node = gpu->bus_id[0] != '\0' ? read_node(gpu->bus_id) : -1;
        if (one_node && gpu->bus_id[0] != '\0')
            gpu->numa_node = 0;
        snprintf(path, sizeof(path), "%s/%s", bus_folder, gpu->bus_id);
        if (paths != NULL && (gpu->bus_id[0] == '\0' || realpath(path, paths[i]) == NULL))
            paths[i][0] = '\0';
    }
    for (size_t i = 0; i < gpus->count; i++) {
        for (size_t j = 0; j < gpus->count; j++) {
            const char *word = "?";
            if (gpus->link[i][j][0] != '\0')
                continue;
            if (i == j)
                word = "X";
            else if (paths != NULL && paths[i][0] != '\0' && paths[j][0] != '\0')
                word = gwctl_pci_relation(paths[i], paths[j], gpus->gpu[i].numa_node, gpus->gpu[j].numa_node);
            snprintf(gpus->link[i][j], GWCTL_LINK_BYTES, "%s", word);
        }
    }
    free(paths);
}
