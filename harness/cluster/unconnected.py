"""Ranks that a launcher has started, but did not connect: each is in a world of its own."""

import os

from dlio_bench.harness.cluster.variables import MPI_PLUGINS


def why(ranks: int, size: int, library: str | None) -> str:
    """The message where `ranks` were asked for and came up in worlds of `size`, as under srun without its plug-in.

    library: name and version of the MPI library.
    """
    wrong = f"{ranks} ranks were asked for, but they came up in worlds of {size}"
    if "SLURM_STEP_ID" not in os.environ:
        return (
            f"{wrong}: the launcher and the MPI library do not belong together. `dlio-bench doctor` shows both; choose "
            "another with --launcher."
        )
    known = os.environ.get(MPI_PLUGINS)
    return (
        f"{wrong}: srun did not connect them, as its --mpi does not fit the MPI library ({library}). Take "
        "SLURM_MPI_TYPE and --mpi out of the way, or name there what the library speaks: pmix for Open MPI, pmi2 for "
        f"MPICH and Intel MPI.{f' `srun --mpi=list` has {known}.' if known else ''} Or use --launcher mpirun."
    )
