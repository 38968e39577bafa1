/* memory.c - see memory.h */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 32, MS = 1000000, INSTANT_MS = 1000 };

static bool is_device, is_auto;
static unsigned which;
static devmem_kind_t kind = DEVMEM_MALLOC;
static _Thread_local void *in, *out; /* streams: inputs and submitting, waiting and results */

bool memory_setup(const char *words) {
    char word[WORD_BYTES];
    const char *end;

    if (strcmp(words, "host") == 0)
        return true;
    if (strncmp(words, "device", 6) != 0 || (words[6] != 0 && words[6] != ':'))
        return false;
    is_device = true;
    if (words[6] == 0)
        return true;
    words += 7;
    end = strchr(words, ':');
    is_auto = strncmp(words, "auto", 4) == 0;
    which = is_auto ? 0 : (unsigned)strtoul(words, NULL, 10);
    if (!end)
        return true;
    strncpy(word, end + 1, sizeof(word) - 1);
    word[sizeof(word) - 1] = 0;
    kind = devmem_kind(word);
    return kind != DEVMEM_KINDS;
}

bool memory_is_device(void) {
    return is_device;
}

static void make_streams(void) {
    in = devmem_stream_new();
    out = devmem_stream_new();
}

void memory_open(unsigned rank) {
    if (!is_device)
        return;
    devmem_open(is_auto ? rank : which);
    make_streams();
}

void memory_enter(void) {
    if (!is_device || in)
        return;
    devmem_enter();
    make_streams();
}

gw_status_t memory_alloc(gw_context_t *context, uint64_t bytes, uint64_t odd, memory_t *memory_out) {
    memory_t memory = {0};
    void *at;
    gw_status_t status;

    if (is_device) {
        memory.device = devmem_alloc(kind, bytes + odd);
        at = (char *)memory.device.at + odd;
    } else {
        memory.host = calloc(1, bytes + odd);
        if (!memory.host)
            return GW_ERR_NO_MEMORY;
        at = (char *)memory.host + odd;
    }
    status = gw_buffer_register(context, at, bytes, &memory.buffer);
    if (status == GW_OK)
        *memory_out = memory;
    else
        memory_free(&memory);
    return status;
}

gw_status_t memory_share(gw_context_t *context, uint64_t bytes, memory_t *memory_out) {
    if (is_device && bytes > 0)
        return memory_alloc(context, bytes, 0, memory_out);
    *memory_out = (memory_t){0};
    return gw_buffer_alloc(context, bytes, &memory_out->buffer);
}

void memory_free(memory_t *memory) {
    if (is_device)
        devmem_free(&memory->device);
    free(memory->host);
    memory->host = NULL;
}

void memory_write(void *to, const void *from, uint64_t bytes) {
    if (is_device)
        devmem_upload(to, from, bytes, in);
    else
        memcpy(to, from, bytes);
}

void memory_read(void *to, const void *from, uint64_t bytes) {
    if (is_device)
        devmem_download(to, from, bytes, out);
    else
        memcpy(to, from, bytes);
}

gw_queue_t memory_queue(void) {
    return in;
}

/* A stream cannot tell of an error, so the operation is asked afterwards: then it has ended. One that had ended well
 * before its group failed stays well, although no stream can be made to wait for it any more. */
gw_status_t memory_await(gw_group_t *group, gw_op_t op, int64_t ms) {
    int64_t ns = ms < 0 ? GW_NO_TIMEOUT : ms * MS;
    gw_status_t streamed, status;

    if (!is_device || (ms >= 0 && ms < INSTANT_MS))
        return gw_wait(group, op, ns);
    streamed = gw_stream_wait(group, op, out);
    if (streamed == GW_OK && !devmem_stream_wait(out, ms))
        return gw_wait(group, op, 0);
    status = gw_wait(group, op, ns);
    return status == GW_OK && gw_group_check(group, NULL) == GW_OK ? streamed : status;
}

gw_status_t memory_settle(gw_group_t *group) {
    if (!is_device)
        return GW_OK;
    devmem_stream_sync(in);
    return gw_group_check(group, NULL);
}
