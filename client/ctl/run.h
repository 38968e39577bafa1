/* run.h - other programs that gwctl runs for an answer, gwctl itself among them */
#ifndef GWCTL_RUN_H
#define GWCTL_RUN_H

#include <stddef.h>

/* The path of this program, for gwctl_run. */
#define GWCTL_SELF "/proc/self/exe"

/* Runs a program (looked for in PATH unless it has a '/'), gives it `input`, less than 32 KiB, and collects what it
 * prints on stdout, with a final 0; what does not fit is dropped. It is killed after `limit_s` seconds.
 * Returns its exit code; -1, with the reason in `why`, when it did not start, was killed, or took too long. */
int gwctl_run(const char *program, const char *const *argv, const char *input, int limit_s, char *output,
              size_t output_bytes, char *why, size_t why_bytes);

#endif
