/* allreduce.c - averages a vector: rm -f id; for r in 0 1 2 3; do build/examples/allreduce $r 4 id & done; wait */
#include <gradwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(gw_status_t status, const char *call) {
    if (status == GW_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, gw_last_error());
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return fprintf(stderr, "usage: allreduce RANK NRANKS ID_FILE\n"), 2;
    const int rank = atoi(argv[1]), nranks = atoi(argv[2]), count = 1 << 20;
    gw_context_t *context;
    gw_unique_id_t id;
    gw_group_t *group;
    gw_buffer_t *buffer;
    check(gw_connect(NULL, &context), "gw_connect");
    if (rank == 0)
        check(gw_get_unique_id(context, &id), "gw_get_unique_id");
    for (size_t passed = 0; passed != 1; usleep(1000)) { /* the id may go by any way: here through a file */
        FILE *file = fopen(argv[3], rank == 0 ? "wx" : "rb");
        if (file)
            passed = rank == 0 ? fwrite(&id, sizeof id, 1, file) : fread(&id, sizeof id, 1, file);
        if (file ? fclose(file) : rank == 0)
            return fprintf(stderr, "%s: %m%s\n", argv[3], access(argv[3], F_OK) ? "" : "; remove it first"), 1;
    }
    check(gw_group_init(context, &id, nranks, rank, &group), "gw_group_init");
    check(gw_buffer_alloc(context, (uint64_t)count * sizeof(float), &buffer), "gw_buffer_alloc");
    float *data = (float *)gw_buffer_data(buffer);
    for (int i = 0; i < count; i++)
        data[i] = (float)rank;
    check(gw_all_reduce(data, data, (uint64_t)count, GW_F32, GW_AVG, group, NULL), "gw_all_reduce");
    printf("rank %d of %d: the average is %g\n", rank, nranks, (double)data[count - 1]);
    gw_disconnect(context); /* ends the group and the buffer, too */
}
