/* state_file.h - states of groups in files, for tests; the process ends when a file cannot be used */
#ifndef STATE_FILE_H
#define STATE_FILE_H

#include <stddef.h>

#include "gradwire.h"

gw_status_t state_to_file(gw_group_t *group, const char *path, size_t *bytes_out);
gw_status_t state_from_file(gw_group_t *group, const char *path);

#endif
