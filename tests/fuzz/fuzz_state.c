/* fuzz_state.c - any bytes as the state of a group
 *
 * The first byte chooses the rank that loads it, and whether size and checksum are made right, without which hardly any
 * input gets far. What is accepted must be written again as it was.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum { BYTES_AT = 32, HEAD_BYTES = 48, SUM_BYTES = 32 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

static void mend(uint8_t *state, size_t bytes) {
    const uint64_t whole = bytes;

    if (bytes < HEAD_BYTES + SUM_BYTES)
        return;
    memcpy(state + BYTES_AT, &whole, sizeof(whole));
    crypto_generichash(state + bytes - SUM_BYTES, SUM_BYTES, state, bytes - SUM_BYTES, NULL, 0);
}

static void check_accepted(const uint8_t *state, size_t bytes, const gwd_placement_t *placement, gwd_residual_t *list) {
    uint8_t *again = malloc(bytes);

    if (gwd_state_bytes(placement, list) != bytes)
        fail("its size is another when it is written again");
    if (!again)
        fail("out of memory");
    gwd_state_write(placement, list, again);
    if (memcmp(state, again, bytes) != 0)
        fail("it is written differently");
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint32_t nodes[] = {0, 1, 0};
    gwd_placement_t placement = {3, 2, 0, 1 << 20, nodes};
    gwd_residual_t *list = NULL;
    char text[512] = "";
    uint8_t *state;
    gw_status_t status;

    if (size == 0)
        return 0;
    size--;
    state = malloc(size + 1); /* of its very size, so that reading beyond it is seen */
    if (!state)
        return 0;
    memcpy(state, data + 1, size);
    placement.rank = (data[0] & 3) % 3;
    if (data[0] & 4)
        mend(state, size);
    status = gwd_state_read(state, size, &placement, &list, text, sizeof(text));
    if (status == GW_OK)
        check_accepted(state, size, &placement, list);
    else if (text[0] == 0 || list)
        fail("refused without a word, or with something in hand");
    gwd_residual_free_list(list);
    free(state);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    if (sodium_init() < 0)
        abort();
    return 0;
}
