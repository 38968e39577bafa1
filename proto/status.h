/* status.h - the two halves of a status: what happened, and what to do
 *
 * gw_status_string joins them. Whoever has details to put between them takes them apart.
 */
#ifndef GW_STATUS_H
#define GW_STATUS_H

#include <stdint.h>

#include "gradwire.h"

/* Static memory, never NULL; the remedy of GW_OK is "". */
const char *gw_status_text(gw_status_t status);
const char *gw_status_remedy(gw_status_t status);

/* The error that a number from elsewhere says; `otherwise` if it is none, or none that this version knows. */
gw_status_t gw_status_failure(uint32_t number, gw_status_t otherwise);

#endif
