/* processes.h - forks the processes of a phase, and ends all of them when one fails. */
#ifndef FASHION_PROCESSES_H
#define FASHION_PROCESSES_H

#include <stdbool.h>

enum { PROCESSES_MOST = 64 };

struct phase {
    int count; /* of processes, at most PROCESSES_MOST */

    /* What each does, in a process of its own that ends with the first one. Returns the exit code. */
    int (*child)(void *of, int index);

    /* What the first process does ten times a second meanwhile, and once when all have ended well (`last`): it may show
     * progress on one line. Returns 0, or -1 to end them all, after printing why. NULL: nothing. */
    int (*attend)(void *of, double seconds, bool last);
};

/* Returns 0 when all did well. When one fails, the others have some seconds to find out by themselves and say so;
 * then they are ended. */
int processes_run(const struct phase *phase, void *of);

#endif
