/* nvtx.h - ranges that a profiler shows beside the GPU's work, as Nsight Systems does
 *
 * For the plugins of daemon and library, which are built where CUDA's headers are; a toolkit without NVTX 3 leaves the
 * ranges out. NVTX 3 is headers alone: a profiler that is there names its library in the environment. Without one a
 * range costs a comparison.
 */
#ifndef GW_NVTX_H
#define GW_NVTX_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define GW_HAS_NVTX 1
#endif
#endif

#ifdef GW_HAS_NVTX

#include <pthread.h>
#include <stdio.h>

#include <nvtx3/nvToolsExt.h>

static nvtxDomainHandle_t gw_nvtx_domain; /* NULL: no profiler */

static void gw_nvtx_make_domain(void) {
    gw_nvtx_domain = nvtxDomainCreateA("gradwire");
}

/* Begins a range of this thread, within those that it has begun. `bytes` is shown as its payload. */
static inline void gw_nvtx_begin(const char *what, const char *name, uint64_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char text[192];

    (void)pthread_once(&once, gw_nvtx_make_domain); /* cannot fail */
    if (gw_nvtx_domain == NULL)
        return;
    snprintf(text, sizeof(text), "gradwire %s %s", what, name);
    nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                        .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
                                        .payload = {.ullValue = bytes},
                                        .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                        .message = {.ascii = text}};
    (void)nvtxDomainRangePushEx(gw_nvtx_domain, &attributes); /* the depth, of no use here */
}

static inline void gw_nvtx_end(void) {
    if (gw_nvtx_domain != NULL)
        (void)nvtxDomainRangePop(gw_nvtx_domain);
}

#else

static inline void gw_nvtx_begin(const char *what, const char *name, uint64_t bytes) {
    (void)what;
    (void)name;
    (void)bytes;
}

static inline void gw_nvtx_end(void) {}

#endif

#endif
