/* doctor_mps.c - whether the Multi-Process Service runs, and what that means
 *
 * With MPS the processes of one user share a context on each GPU. Killing one of them in the middle of a kernel can wedge
 * all the others, and processes started later; gradwire does not need it.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

/* The number of a process of MPS: its control daemon or a server. 0: none is seen. */
static long find_process(void) {
    long pid = 0;
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    if (folder == NULL)
        return 0;
    while (pid == 0 && (entry = readdir(folder)) != NULL) {
        char path[300];
        char name[64];
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
        /* The kernel keeps 15 letters of nvidia-cuda-mps-control and nvidia-cuda-mps-server. */
        if (gwctl_read_line(path, name, sizeof(name)) && strcmp(name, "nvidia-cuda-mps") == 0)
            pid = strtol(entry->d_name, NULL, 10);
    }
    closedir(folder);
    return pid;
}

void gwctl_check_mps(gwctl_report_t *report) {
    const char *named = getenv("CUDA_MPS_PIPE_DIRECTORY");
    const char *folder = named != NULL && named[0] != '\0' ? named : "/tmp/nvidia-mps";
    char path[300];
    long pid = find_process();
    snprintf(path, sizeof(path), "%.250s/control", folder);
    bool pipe = access(path, F_OK) == 0;
    gwctl_check_t *check = gwctl_check_add(report, "MPS", pid != 0 || pipe ? GWCTL_CHECK_WARNING : GWCTL_CHECK_OK);
    if (pid != 0)
        snprintf(check->detail, sizeof(check->detail),
                 "on (process %ld): a process that is killed can wedge all others on its GPU", pid);
    else if (pipe)
        snprintf(check->detail, sizeof(check->detail), "%s is there, but none of its processes is seen here", path);
    else
        snprintf(check->detail, sizeof(check->detail), "off, and not needed");
    if (pid != 0)
        snprintf(check->remedy, sizeof(check->remedy),
                 "gradwire does not need it: echo quit | nvidia-cuda-mps-control, unless something else does");
    else if (pipe)
        snprintf(check->remedy, sizeof(check->remedy),
                 "if it was left behind, remove the folder; else MPS runs outside of this container");
}
