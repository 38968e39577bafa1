/* fds.h - whether an input has left a file descriptor open
 *
 * The kernel gives the lowest free number. If it is the same before and after, nothing below it was leaked.
 */
#ifndef GW_FUZZ_FDS_H
#define GW_FUZZ_FDS_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline int lowest_free_fd(void) {
    int fd = dup(STDERR_FILENO);

    close(fd);
    return fd;
}

static inline void expect_lowest_free_fd(int expected) {
    int fd = lowest_free_fd();

    if (fd == expected)
        return;
    fprintf(stderr, "descriptor %d is left open: %d is the lowest that is free\n", expected, fd);
    abort();
}

#endif
