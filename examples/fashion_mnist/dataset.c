/* dataset.c - reads IDX files and deals out the images. See dataset.h. */
#include "dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* An IDX file: a magic number whose last byte is the number of dimensions, the dimensions, then the bytes. All
 * numbers are big-endian. */
static int read_be32(gzFile file, uint32_t *value_out) {
    unsigned char b[4];
    if (gzread(file, b, sizeof b) != (int)sizeof b)
        return -1;
    *value_out = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return 0;
}

static int read_header(gzFile file, uint32_t dimensions, uint32_t *count_out, uint32_t *item_bytes_out) {
    uint32_t magic = 0, count = 0, item_bytes = 1;
    if (read_be32(file, &magic) || magic != (0x0800 | dimensions) || read_be32(file, &count))
        return -1;
    for (uint32_t d = 1; d < dimensions; d++) {
        uint32_t extent = 0;
        if (read_be32(file, &extent) || extent == 0 || extent > 1024)
            return -1;
        item_bytes *= extent;
    }
    if (count == 0 || count > 1000000)
        return -1;
    *count_out = count;
    *item_bytes_out = item_bytes;
    return 0;
}

/* Returns the bytes of the file (the caller frees them), or NULL after printing what is wrong. */
static unsigned char *read_idx(const char *folder, const char *prefix, const char *suffix, uint32_t dimensions,
                               uint32_t item_bytes, uint32_t *count_out) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s-%s-ubyte.gz", folder, prefix, suffix);
    unsigned char *bytes = NULL;
    uint32_t count = 0, found_bytes = 0;
    gzFile file = gzopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s: install the package dataset-fashion-mnist, or name the folder with --data\n",
                path);
        return NULL;
    }
    if (read_header(file, dimensions, &count, &found_bytes) || found_bytes != item_bytes)
        goto err_format;
    uint32_t total_bytes = count * item_bytes;
    bytes = malloc(total_bytes);
    if (!bytes) {
        fprintf(stderr, "out of memory while reading %s\n", path);
        goto err_close;
    }
    if (gzread(file, bytes, total_bytes) != (int)total_bytes)
        goto err_format;
    gzclose_r(file);
    *count_out = count;
    return bytes;

err_format:
    fprintf(stderr, "%s is damaged, or no file of Fashion-MNIST: reinstall the package dataset-fashion-mnist\n", path);
    free(bytes);
err_close:
    gzclose_r(file);
    return NULL;
}

int dataset_load(const char *folder, const char *prefix, struct dataset *set_out) {
    struct dataset set = {0};
    uint32_t label_count = 0;
    set.pixels = read_idx(folder, prefix, "images-idx3", 3, PIXELS, &set.count);
    set.labels = set.pixels ? read_idx(folder, prefix, "labels-idx1", 1, 1, &label_count) : NULL;
    if (!set.labels)
        goto err_free;
    if (label_count != set.count) {
        fprintf(stderr, "%s/%s: %u images but %u labels\n", folder, prefix, set.count, label_count);
        goto err_free;
    }
    for (uint32_t i = 0; i < set.count; i++) {
        if (set.labels[i] >= CLASSES) {
            fprintf(stderr, "%s/%s: image %u has label %u\n", folder, prefix, i, set.labels[i]);
            goto err_free;
        }
    }
    *set_out = set;
    return 0;

err_free:
    dataset_free(&set);
    return -1;
}

void dataset_free(struct dataset *set) {
    free(set->pixels);
    free(set->labels);
    memset(set, 0, sizeof *set);
}

void dataset_gather(const struct dataset *set, const uint32_t *index, int n, float *pixels_out,
                    unsigned char *labels_out) {
    for (int i = 0; i < n; i++) {
        const unsigned char *image = set->pixels + (size_t)index[i] * PIXELS;
        float *row = pixels_out + (size_t)i * PIXELS;
        for (int p = 0; p < PIXELS; p++)
            row[p] = (float)image[p] * (1.0f / 255.0f) - (float)PIXEL_MEAN;
        labels_out[i] = set->labels[index[i]];
    }
}

uint32_t shard_count(uint32_t count, int nranks) {
    return count / (uint32_t)nranks;
}

void shard_order(uint64_t seed, int epoch, int rank, int nranks, uint32_t count, uint32_t *index_out) {
    uint32_t n = shard_count(count, nranks);
    uint64_t state = seed ^ (uint64_t)(epoch + 1) << 32 ^ (uint64_t)(rank + 1) << 16;
    for (uint32_t i = 0; i < n; i++)
        index_out[i] = i * (uint32_t)nranks + (uint32_t)rank;
    for (uint32_t i = n - 1; i > 0; i--) { /* Fisher and Yates */
        uint32_t j = (uint32_t)(random_next(&state) % (i + 1));
        uint32_t swapped = index_out[i];
        index_out[i] = index_out[j];
        index_out[j] = swapped;
    }
}

void all_orders(uint64_t seed, int epoch, int nranks, uint32_t count, uint32_t *orders_out) {
    for (int r = 0; r < nranks; r++)
        shard_order(seed, epoch, r, nranks, count, orders_out + (size_t)r * shard_count(count, nranks));
}

void global_batch(const uint32_t *orders, uint32_t shard, int nranks, int batch, int64_t epoch_step,
                  uint32_t *index_out) {
    for (int r = 0; r < nranks; r++)
        memcpy(index_out + r * batch, orders + (size_t)r * shard + epoch_step * batch, (size_t)batch * sizeof *orders);
}

uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
