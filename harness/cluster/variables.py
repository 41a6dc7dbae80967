"""Environment variables through which a command tells launchers, and the commands that it starts, about the hosts."""

LAUNCHER_ARGS = "DLIO_BENCH_LAUNCHER_ARGS"  # more options for the launcher, quoted as for a shell
HOSTFILE = "DLIO_BENCH_HOSTFILE"  # a file that names the hosts on which mpirun starts ranks, outside of a scheduler
INTERFACE = "DLIO_BENCH_INTERFACE"  # the network interface on which ranks serve samples to ranks of other hosts
MPI_PLUGINS = "DLIO_BENCH_MPI_PLUGINS"  # for ranks: what srun could connect them with, for people
STARTED = "DLIO_BENCH_STARTED"  # of ranks that are there: nodes, ranks on each, address of rank 0, folder of its door
