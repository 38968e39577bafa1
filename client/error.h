/* error.h - the message behind gw_last_error */
#ifndef GW_ERROR_H
#define GW_ERROR_H

#include "gradwire.h"

/* Makes the calling thread's message: what the status means, the details, what to do. Returns `status`. */
gw_status_t gw_fail(gw_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same where the details end in a remedy of their own, and that of the status would not fit. */
gw_status_t gw_fail_advised(gw_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a system call that has just failed: errno chooses the status. */
gw_status_t gw_fail_errno(const char *what);

#endif
