/* dataset.h - the images of Fashion-MNIST, and the order in which training sees them.
 *
 * The files are those of the distribution's package dataset-fashion-mnist (IDX format, gzip). Pixels stay bytes;
 * they become floats when a batch is gathered, so four trainers share one copy of the images.
 */
#ifndef FASHION_DATASET_H
#define FASHION_DATASET_H

#include <stdint.h>

enum { PIXELS = 28 * 28, CLASSES = 10 };

#define PIXEL_MEAN 0.286 /* of the training images, where white is 1 */

struct dataset {
    uint32_t count;
    unsigned char *pixels; /* count * PIXELS */
    unsigned char *labels; /* count */
};

/* Reads `prefix`-images-idx3-ubyte.gz and `prefix`-labels-idx1-ubyte.gz in `folder`; prefix is "train" or "t10k".
 * Returns 0, or -1 after printing what is wrong. Ownership: end it with dataset_free. */
int dataset_load(const char *folder, const char *prefix, struct dataset *set_out);
void dataset_free(struct dataset *set);

/* Copies the images `index[0..n-1]` and their labels; pixels are scaled to 0..1, and centred. */
void dataset_gather(const struct dataset *set, const uint32_t *index, int n, float *pixels_out,
                    unsigned char *labels_out);

/* The shard of a rank is every nranks-th image, so shards are disjoint. Writes the images of that shard (in number
 * shard_count) in the order of this epoch: the same seed, epoch and rank always give the same order. */
uint32_t shard_count(uint32_t count, int nranks);
void shard_order(uint64_t seed, int epoch, int rank, int nranks, uint32_t count, uint32_t *index_out);

/* The orders of all shards, one after the other: nranks * shard_count numbers. */
void all_orders(uint64_t seed, int epoch, int nranks, uint32_t count, uint32_t *orders_out);

/* What all ranks together read at a step of that epoch: nranks * batch images, rank after rank. */
void global_batch(const uint32_t *orders, uint32_t shard, int nranks, int batch, int64_t epoch_step,
                  uint32_t *index_out);

/* A small generator of random numbers (splitmix64), good enough to shuffle and to start weights. */
uint64_t random_next(uint64_t *state);

#endif
