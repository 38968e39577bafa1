/* recorder.c - a profiler that writes the ranges it is told of to a file, for tests
 *
 * NVTX loads the library that NVTX_INJECTION64_PATH names, into any process that has ranges, and calls its
 * InitializeInjectionNvtx2. Each range becomes a line "domain, depth, payload, message" in $RANGES.PID.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

static char path[256];
static char domain_name[64];
static _Thread_local int depth;

/* Not NULL, which would say that nobody listens. */
static nvtxDomainHandle_t create_domain(const char *name) {
    snprintf(domain_name, sizeof(domain_name), "%s", name);
    return (nvtxDomainHandle_t)(void *)domain_name;
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
    FILE *file = fopen(path, "ae"); /* not kept open: tests count descriptors */

    if (file) {
        fprintf(file, "%s, %d, %llu, %s\n", (const char *)(const void *)domain, depth,
                (unsigned long long)attributes->payload.ullValue, attributes->message.ascii);
        fclose(file);
    }
    return depth++;
}

static int pop(nvtxDomainHandle_t domain) {
    (void)domain;
    return --depth;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    const char *folder = getenv("RANGES");
    NvtxFunctionTable functions = NULL;
    unsigned int n = 0;

    if (!callbacks || !folder || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &n) ||
        n <= NVTX_CBID_CORE2_DomainCreateA)
        return 0;
    snprintf(path, sizeof(path), "%s.%d", folder, (int)getpid());
    *functions[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    *functions[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *functions[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
