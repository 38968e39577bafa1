/* cipher.c - what wire.cipher costs: bytes sealed and opened by one core, beside memcpy of as many
 *
 * usage: cipher [BYTES...]      of a payload: 16384 65536 262144 1048576
 *
 * Kinds are measured in turn, a call each, over and over, so that what else the machine does falls on all of them; the
 * median of the calls counts. A header's stamp is made and checked for each message, whatever its size.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seconds.h"
#include "wire_seal.h"

enum { REPEATS = 201, WINDOW = 8192, HEADER_BYTES = 72, BYTES_MAX = 1 << 28 };

typedef enum kind { COPY, SEAL, OPEN, STAMP, KINDS } kind_t;

typedef struct bench {
    size_t bytes;
    unsigned char *clear, *sealed, *opened;
    gwd_cipher_t *from, *to; /* node 0 and node 1 */
    gwd_sealed_t tag;
    double seconds[KINDS][REPEATS];
} bench_t;

/* False: it did not open. */
static bool call(bench_t *b, kind_t kind) {
    static const unsigned char header[HEADER_BYTES];
    gwd_stamp_t stamp;

    switch (kind) {
    case COPY:
        memcpy(b->opened, b->clear, b->bytes);
        return true;
    case SEAL:
        gwd_cipher_seal(b->from, b->clear, b->bytes, b->sealed, &b->tag);
        return true;
    case OPEN:
        return gwd_cipher_open(b->to, 0, b->sealed, b->bytes, &b->tag, b->opened);
    default:
        gwd_cipher_stamp(b->from, 1, header, sizeof(header), &stamp);
        return gwd_cipher_check(b->to, 0, header, sizeof(header), &stamp) == GWD_STAMP_GOOD;
    }
}

static bool measure(bench_t *b) {
    for (int i = -1; i < REPEATS; i++) /* the first does not count */
        for (kind_t kind = COPY; kind < KINDS; kind++) {
            double start = bench_now();

            if (!call(b, kind))
                return false;
            if (i >= 0)
                b->seconds[kind][i] = bench_now() - start;
        }
    if (memcmp(b->opened, b->clear, b->bytes) != 0)
        return false;
    printf("%10zu", b->bytes);
    for (kind_t kind = COPY; kind <= OPEN; kind++)
        printf(" %8.2f", (double)b->bytes / bench_median(b->seconds[kind], REPEATS) * 1e-9);
    printf(" %11.0f\n", bench_median(b->seconds[STAMP], REPEATS) * 1e9);
    return true;
}

int main(int argc, char **argv) {
    static const char *const usual[] = {"16384", "65536", "262144", "1048576"};
    static const unsigned char key[GWD_CIPHER_KEY_BYTES] = {1};
    static const gwd_cipher_scope_t scope = {.wire_id = 1, .epoch = 1};
    int n = argc > 1 ? argc - 1 : 4, code = 0;

    if (sodium_init() < 0)
        return 1;
    printf("chacha20-poly1305, libsodium %s, one core; GB/s, and the header's stamp in ns\n", sodium_version_string());
    printf("%10s %8s %8s %8s %11s\n", "bytes", "memcpy", "seal", "open", "stamp+check");
    for (int i = 0; i < n && code == 0; i++) {
        bench_t b = {.bytes = strtoull(argc > 1 ? argv[i + 1] : usual[i], NULL, 10)};

        if (b.bytes == 0 || b.bytes > BYTES_MAX) {
            fprintf(stderr, "usage: cipher [BYTES...]\n");
            return 2;
        }
        b.clear = malloc(b.bytes);
        b.sealed = malloc(b.bytes);
        b.opened = malloc(b.bytes);
        b.from = gwd_cipher_new(key, &scope, 2, 0, WINDOW);
        b.to = gwd_cipher_new(key, &scope, 2, 1, WINDOW);
        if (!b.clear || !b.sealed || !b.opened || !b.from || !b.to)
            return 1;
        randombytes_buf(b.clear, b.bytes);
        code = !measure(&b);
        gwd_cipher_free(b.from);
        gwd_cipher_free(b.to);
        free(b.clear);
        free(b.sealed);
        free(b.opened);
    }
    return code;
}
