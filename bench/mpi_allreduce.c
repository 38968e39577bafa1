/* mpi_allreduce.c - the peer of `make bench-host`: MPI_Allreduce, in place, in private memory
 *
 * Started by bench/run-host under mpirun with the settings under test. Ranks that wait for their turn sleep
 * in a read (rank.h), not in MPI, so they do not spin while another peer is measured.
 */
#include <mpi.h>
#include <sys/mman.h>

#include "rank.h"

static const char *mpi_prepare(bench_run_t *run) {
    void *memory = mmap(NULL, run->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return "mmap failed";
    run->memory[0] = memory;
    return NULL;
}

static const char *mpi_operation(bench_run_t *run) {
    int count = (int)(run->bytes / sizeof(float));
    if (MPI_Allreduce(MPI_IN_PLACE, run->memory[0], count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS)
        return "MPI_Allreduce failed";
    return NULL;
}

static void mpi_finish(bench_run_t *run) {
    if (munmap(run->memory[0], run->bytes) != 0)
        perror("munmap");
}

int main(int argc, char **argv) {
    static const bench_peer_t peer = {mpi_prepare, mpi_operation, mpi_finish};
    bench_control_t control;
    int rank = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: mpi_allreduce CONTROL-SOCKET (started by bench/run-host)\n");
        return 2;
    }
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS || MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS)
        return 1;
    int failed = bench_connect(argv[1], &control) != 0 || bench_hello(&control, (unsigned)rank, "mpi") != 0 ||
                 bench_serve(&control, &peer, (unsigned)rank) != 0;
    if (failed)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
