/* error.c - the last error message of each thread
 *
 * The only state of a thread outside the handles. A message is made where the failure is first known; callers
 * only pass the status on.
 */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "status.h"

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char last_message[MESSAGE_BYTES];

const char *gw_last_error(void) {
    return last_message;
}

/* Details are written aside first: they may come from the last message. */
gw_status_t gw_fail(gw_status_t status, const char *format, ...) {
    char details[MESSAGE_BYTES / 2]; /* leaves room for text and remedy */
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(details, sizeof(details), format, arguments);
    va_end(arguments);
    snprintf(last_message, sizeof(last_message), "%s: %s; %s", gw_status_text(status), details,
             gw_status_remedy(status));
    return status;
}

gw_status_t gw_fail_advised(gw_status_t status, const char *format, ...) {
    char details[MESSAGE_BYTES * 3 / 4];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(details, sizeof(details), format, arguments);
    va_end(arguments);
    snprintf(last_message, sizeof(last_message), "%s: %s", gw_status_text(status), details);
    return status;
}

gw_status_t gw_fail_errno(const char *what) {
    switch (errno) {
    case ENOMEM:
    case ENOSPC:
        return gw_fail(GW_ERR_NO_MEMORY, "%s: %m", what);
    case EMFILE:
    case ENFILE:
        return gw_fail(GW_ERR_FD_LIMIT, "%s: %m", what);
    default:
        return gw_fail(GW_ERR_SYSTEM, "%s: %m", what);
    }
}
