/* fail.c - a call that fails because a test wants it to, and the names of errors */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static struct {
    char call[64];
    unsigned nth; /* 0: none */
    bool sticky;
} wanted;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint seen;

static void read_wanted(void) {
    const char *spec = getenv("FAKE_CUDA_FAIL");
    char kind[8] = "";
    unsigned nth;
    int n_fields;

    if (!spec || !spec[0])
        return;
    n_fields = sscanf(spec, "%63[A-Za-z0-9]:%u:%7s", wanted.call, &nth, kind);
    if (n_fields < 2 || nth == 0 || (n_fields == 3 && strcmp(kind, "sticky") != 0)) {
        fprintf(stderr, "simulated CUDA: FAKE_CUDA_FAIL=%s is not call:n or call:n:sticky\n", spec);
        abort();
    }
    wanted.sticky = n_fields == 3;
    wanted.nth = nth;
}

/* cuda.h renames some calls to their newest version; a test names them without. */
static bool is_wanted(const char *call) {
    size_t length = strlen(wanted.call);

    return strncmp(call, wanted.call, length) == 0 && (call[length] == '\0' || strncmp(call + length, "_v", 2) == 0);
}

CUresult fake_fail(const char *call) {
    CUcontext context;

    pthread_once(&once, read_wanted);
    if (wanted.nth == 0 || !is_wanted(call) || atomic_fetch_add(&seen, 1) + 1 != wanted.nth)
        return CUDA_SUCCESS;
    context = fake_context_current();
    if (!wanted.sticky || !context)
        return CUDA_ERROR_UNKNOWN;
    pthread_mutex_lock(&fake_engine_lock);
    fake_context_break(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    pthread_mutex_unlock(&fake_engine_lock);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
enum { N_ERRORS = sizeof(errors) / sizeof(errors[0]) };

static unsigned error_index(CUresult error) {
    unsigned i = 0;

    while (i < N_ERRORS && errors[i].error != error)
        i++;
    return i;
}

CUresult cuGetErrorName(CUresult error, const char **pStr) {
    unsigned i = error_index(error);

    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = i < N_ERRORS ? errors[i].name : NULL;
    return i < N_ERRORS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr) {
    unsigned i = error_index(error);

    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = i < N_ERRORS ? errors[i].text : NULL;
    return i < N_ERRORS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
