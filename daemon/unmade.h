/* unmade.h - why groups did not come together, for ranks that come late
 *
 * The ranks that wait hear it at once. One that joins later must not be told that the id is used up, which helps
 * nobody. Kept by the daemon that made the id, for as long as a group may take to form.
 */
#ifndef GWD_UNMADE_H
#define GWD_UNMADE_H

#include <stdint.h>

#include "bootstrap_proof.h"
#include "lane.h"

enum { GWD_UNMADE_KEPT = 64 }; /* then the oldest gives way */

typedef struct gwd_unmade {
    gw_unique_id_t unique_id;
    uint8_t name[GWD_NAME_BYTES]; /* what other daemons call it */
    uint64_t until_ns;
    gw_status_t status;
    char text[GWD_TEXT_BYTES];
} gwd_unmade_t;

typedef struct gwd_unmade_list {
    uint32_t oldest;
    gwd_unmade_t items[GWD_UNMADE_KEPT];
} gwd_unmade_list_t;

void gwd_unmade_add(gwd_unmade_list_t *list, const gwd_unmade_t *item);

/* NULL: it has formed, or that was too long ago, or it never was. */
const gwd_unmade_t *gwd_unmade_by_id(const gwd_unmade_list_t *list, const gw_unique_id_t *id, uint64_t now_ns);
const gwd_unmade_t *gwd_unmade_by_name(const gwd_unmade_list_t *list, const uint8_t name[GWD_NAME_BYTES],
                                       uint64_t now_ns);

#endif
