"""Environment variables through which a command tells launchers, and the commands that it starts, about the hosts."""

LAUNCHER_ARGS = "DLIO_BENCH_LAUNCHER_ARGS"  # more options for the launcher, quoted as for a shell
MPI_PLUGINS = "DLIO_BENCH_MPI_PLUGINS"  # for ranks: what srun could connect them with, for people
STARTED = "DLIO_BENCH_STARTED"  # ranks that are there already: nodes, ranks on each, and the folder of their door
