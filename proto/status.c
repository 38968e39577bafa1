/* status.c - names and sentences of the statuses, and the sizes of the element types
 *
 * Everything about statuses is generated from status.def, so that a status is declared once. Two statuses
 * with one code do not compile: the switches would have a case twice.
 */
#include "status.h"

#include "gradwire.h"

#define UNKNOWN_TEXT   "unknown status"
#define UNKNOWN_REMEDY "update the older of client library and daemon"

const char *gw_status_name(gw_status_t status) {
    switch (status) {
#define GW_STATUS(name, code, lost, text, remedy)                                                                      \
    case GW_##name:                                                                                                    \
        return "GW_" #name;
#include <gradwire/status.def>
#undef GW_STATUS
    }
    return "GW_ERR_UNKNOWN";
}

const char *gw_status_string(gw_status_t status) {
    switch (status) {
#define GW_STATUS(name, code, lost, text, remedy)                                                                      \
    case GW_##name:                                                                                                    \
        return sizeof(remedy) > 1 ? text "; " remedy : text;
#include <gradwire/status.def>
#undef GW_STATUS
    }
    return UNKNOWN_TEXT "; " UNKNOWN_REMEDY;
}

const char *gw_status_text(gw_status_t status) {
    switch (status) {
#define GW_STATUS(name, code, lost, text, remedy)                                                                      \
    case GW_##name:                                                                                                    \
        return text;
#include <gradwire/status.def>
#undef GW_STATUS
    }
    return UNKNOWN_TEXT;
}

const char *gw_status_remedy(gw_status_t status) {
    switch (status) {
#define GW_STATUS(name, code, lost, text, remedy)                                                                      \
    case GW_##name:                                                                                                    \
        return remedy;
#include <gradwire/status.def>
#undef GW_STATUS
    }
    return UNKNOWN_REMEDY;
}

gw_status_t gw_status_failure(uint32_t number, gw_status_t otherwise) {
    if (number == GW_OK || number == GW_IN_PROGRESS)
        return otherwise;
    switch ((gw_status_t)number) {
#define GW_STATUS(name, code, lost, text, remedy) case GW_##name:
#include <gradwire/status.def>
#undef GW_STATUS
        return (gw_status_t)number;
    }
    return otherwise;
}

size_t gw_type_bytes(gw_type_t type) {
    switch (type) {
    case GW_I8:
    case GW_U8:
        return 1;
    case GW_F16:
    case GW_BF16:
        return 2;
    case GW_F32:
    case GW_I32:
        return 4;
    case GW_F64:
    case GW_I64:
        return 8;
    }
    return 0;
}

#define TEXT_OF_(number) #number
#define TEXT_OF(number)  TEXT_OF_(number)

const char *gw_version(void) {
    return TEXT_OF(GW_VERSION_MAJOR) "." TEXT_OF(GW_VERSION_MINOR) "." TEXT_OF(GW_VERSION_PATCH);
}
