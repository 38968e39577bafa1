/* child.c - see child.h */
#include "child.h"

#include <stdio.h>
#include <unistd.h>

_Noreturn void be_child(gw_context_t *context, gw_group_t *group, gw_bucket_t *bucket, int out) {
    gw_unique_id_t id;
    gw_buffer_t *buffer;
    gw_context_t *own;
    gw_op_t op;
    char text[512];
    int used =
        snprintf(text, sizeof(text), "%d %s %s %s %s", (int)getpid(), gw_status_name(gw_group_check(group, NULL)),
                 gw_status_name(gw_submit(bucket, NULL, &op)), gw_status_name(gw_get_unique_id(context, &id)),
                 gw_status_name(gw_buffer_alloc(context, 4096, &buffer)));

    used += snprintf(text + used, sizeof(text) - (size_t)used, " %s", gw_status_name(gw_connect(NULL, &own)));
    if (write(out, text, (size_t)used) != used)
        _exit(1);
    close(out);
    for (;;)
        pause();
}
