/* test_pci.c - the words for how two GPUs are connected, from their places in the kernel's tree */
#include "client/ctl/gpu.h"
#include "cunit_main.h"

#include <string.h>

static void check(const char *left, const char *right, int left_node, int right_node, const char *expected) {
    char paths[2][256];
    snprintf(paths[0], sizeof(paths[0]), "/sys/devices/%s", left);
    snprintf(paths[1], sizeof(paths[1]), "/sys/devices/%s", right);
    CU_ASSERT_STRING_EQUAL(gwctl_pci_relation(paths[0], paths[1], left_node, right_node), expected);
    CU_ASSERT_STRING_EQUAL(gwctl_pci_relation(paths[1], paths[0], right_node, left_node), expected);
}

static void the_same_device(void) {
    check("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:17/0000:17:01.0/0000:18:00.0", 0, 0, "X");
}

static void behind_one_switch(void) {
    check("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0",
          "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0", 0, 0, "PIX");
    check("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:17/0000:17:01.0/0000:18:00.1", 0, 0, "PIX");
}

static void behind_several_switches(void) {
    check("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0",
          "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1d:00.0", 0, 0, "PXB");
}

static void behind_two_ports_of_one_root_complex(void) {
    check("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:17/0000:17:02.0/0000:19:00.0", 0, 0, "PHB");
    check("platform/PNP0A08:00/pci0000:17/0000:17:01.0/0000:18:00.0",
          "platform/PNP0A08:00/pci0000:17/0000:17:02.0/0000:19:00.0", 0, 0, "PHB");
    check("pci0000:00/0000:00:05.0", "pci0000:00/0000:00:06.0", 0, 0, "PHB"); /* as virtual machines show them */
}

static void behind_two_root_complexes(void) {
    const char *left = "pci0000:17/0000:17:01.0/0000:18:00.0";
    const char *right = "pci0000:1a/0000:1a:01.0/0000:1b:00.0";
    check(left, right, 1, 1, "NODE");
    check(left, right, 0, 1, "SYS");
    check(left, right, -1, 1, "?");
    check("platform/PNP0A08:00/pci0000:17/0000:17:01.0/0000:18:00.0",
          "platform/PNP0A08:01/pci0001:00/0001:00:01.0/0001:01:00.0", 0, 0, "NODE");
}

/* What cannot be found on this host stays unknown, and what NVML said stays as it is. */
static void gpus_that_the_kernel_does_not_know(void) {
    static gwctl_gpus_t gpus = {.count = 3, .gpu = {{.bus_id = "FFFF:FF:1F.7"}, {.bus_id = "ffff:fe:1f.7"}}};
    strcpy(gpus.link[0][1], "NV4");
    gwctl_pci_complete(&gpus);
    CU_ASSERT_STRING_EQUAL(gpus.gpu[0].bus_id, "ffff:ff:1f.7");
    CU_ASSERT_STRING_EQUAL(gpus.link[0][0], "X");
    CU_ASSERT_STRING_EQUAL(gpus.link[0][1], "NV4");
    CU_ASSERT_STRING_EQUAL(gpus.link[1][0], "?");
    CU_ASSERT_STRING_EQUAL(gpus.link[1][2], "?");
    CU_ASSERT_EQUAL(gpus.gpu[2].numa_node, -1);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"the same device", the_same_device},
        {"behind one switch", behind_one_switch},
        {"behind several switches", behind_several_switches},
        {"behind two ports of one root complex", behind_two_ports_of_one_root_complex},
        {"behind two root complexes", behind_two_root_complexes},
        {"GPUs that the kernel does not know", gpus_that_the_kernel_does_not_know},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("pci", tests);
}
