/* state_file.c - see state_file.h */
#include "state_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "words.h"

gw_status_t state_to_file(gw_group_t *group, const char *path, size_t *bytes_out) {
    void *state;
    gw_status_t status = gw_group_state_save(group, &state, bytes_out);
    FILE *file;

    if (status != GW_OK)
        return status;
    file = fopen(path, "we");
    if (!file || fwrite(state, 1, *bytes_out, file) != *bytes_out || fclose(file) != 0)
        die("cannot write", path);
    gw_group_state_free(state);
    return GW_OK;
}

gw_status_t state_from_file(gw_group_t *group, const char *path) {
    FILE *file = fopen(path, "re");
    long bytes = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    void *state = bytes > 0 ? malloc((size_t)bytes) : NULL;
    gw_status_t status;

    if (!state)
        die("cannot read", path);
    rewind(file);
    if (fread(state, 1, (size_t)bytes, file) != (size_t)bytes)
        die("cannot read", path);
    fclose(file);
    status = gw_group_state_load(group, state, (size_t)bytes);
    free(state);
    return status;
}
