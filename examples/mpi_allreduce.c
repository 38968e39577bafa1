/* mpi_allreduce.c - as allreduce.c, but started by MPI, which also passes the group's id around:
 *   mpirun -n 4 build/examples/mpi_allreduce
 * All ranks must run on the host of one daemon. MPI moves 128 bytes here; the vectors go through gradwired. */
#include <gradwire.h>
#include <mpi.h>
#include <stdio.h>

static void check(gw_status_t status, const char *call) {
    if (status == GW_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, gw_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    const int count = 1 << 20;
    int rank, nranks;
    gw_context_t *context;
    gw_unique_id_t id;
    gw_group_t *group;
    gw_buffer_t *buffer;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    check(gw_connect(NULL, &context), "gw_connect");
    if (rank == 0)
        check(gw_get_unique_id(context, &id), "gw_get_unique_id");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    check(gw_group_init(context, &id, nranks, rank, &group), "gw_group_init");
    check(gw_buffer_alloc(context, (uint64_t)count * sizeof(float), &buffer), "gw_buffer_alloc");
    float *data = gw_buffer_data(buffer);
    for (int i = 0; i < count; i++)
        data[i] = (float)rank;
    check(gw_all_reduce(data, data, (uint64_t)count, GW_F32, GW_AVG, group, NULL), "gw_all_reduce");
    printf("rank %d of %d: the average is %g\n", rank, nranks, (double)data[count - 1]);
    gw_group_free(group);
    gw_buffer_release(buffer);
    gw_disconnect(context);
    MPI_Finalize();
}
