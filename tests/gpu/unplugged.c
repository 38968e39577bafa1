/* unplugged.c - a process that has a driver loaded, but finds no plugin for it (GRADWIRE_PLUGIN_DIR names nothing)
 *
 * Host memory can be used all the same; what the CPU cannot read is refused, and not copied from.
 */
#include "pair.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void refused(void *data, uint64_t bytes) {
    gw_buffer_t *buffer = NULL;

    CU_ASSERT_EQUAL(gw_buffer_register(context, data, bytes, &buffer), GW_ERR_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(gw_last_error(), "libgradwire-cuda.so"));
    CU_ASSERT_PTR_NOT_NULL(strstr(gw_last_error(), "GRADWIRE_PLUGIN_DIR"));
}

static void host_memory_is_registered(void) {
    float *memory = calloc(1, 4096);
    gw_buffer_t *buffer;

    MUST_GOOD(gw_buffer_register(context, memory, 4096, &buffer));
    CU_ASSERT_STRING_EQUAL(gw_buffer_path(buffer), "copied");
    GOOD(gw_buffer_release(buffer));
    free(memory);
}

static void memory_that_the_CPU_cannot_read_is_refused(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CU_ASSERT_PTR_NOT_EQUAL_FATAL(pages, MAP_FAILED);
    CU_ASSERT_EQUAL_FATAL(mprotect(pages, page, PROT_READ | PROT_WRITE), 0);
    refused(pages + page, page);
    refused(pages, 2 * page); /* only the last byte shows it */
    munmap(pages, 2 * page);
}

/* The simulated driver's memory is the CPU's as well. */
static void device_memory_is_refused(void) {
    devmem_t memory = devmem_alloc(DEVMEM_MALLOC, 4096);
    char name[64];

    MUST(cuDeviceGetName(name, sizeof(name), 0));
    if (strcmp(name, "Simulated GPU") != 0)
        refused(memory.at, 4096);
    devmem_free(&memory);
}

static void no_plugin(void) {
    MUST_GOOD(gw_connect(NULL, &context));
    host_memory_is_registered();
    memory_that_the_CPU_cannot_read_is_refused();
    device_memory_is_refused();
    gw_disconnect(context);
}

int main(int argc, char **argv) {
    CU_TestInfo tests[] = {{"no plugin", no_plugin}, CU_TEST_INFO_NULL};

    return pair_run(argc, argv, "unplugged", tests);
}
