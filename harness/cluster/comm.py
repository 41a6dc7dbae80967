"""What ranks say to each other: a few methods, with MPI behind them or nobody. mpi4py is imported here alone."""

import os
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dlio_bench.errors import EnvironmentFailure

if TYPE_CHECKING:
    from mpi4py import MPI

# A blocking MPI call spins, and a spinning rank takes the core that a reader thread of its neighbour needs. Waiting
# is therefore polled, at intervals that grow to half a millisecond.
FIRST_POLL, LONGEST_POLL = 20e-6, 500e-6


class Comm(Protocol):
    """The ranks of one job. `host_rank` of `host_size` counts the ranks that share this rank's machine."""

    rank: int
    size: int
    host_rank: int
    host_size: int

    def barrier(self) -> None:
        """Return when every rank has called it; the CPU is left to others meanwhile."""
        ...

    def gather(self, value: Any) -> list[Any] | None:
        """Everybody's value, by rank, on rank 0; None elsewhere."""
        ...

    def allgather(self, value: Any) -> list[Any]:
        """Everybody's value, by rank."""
        ...

    def total(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Elementwise sum over the ranks."""
        ...

    def abort(self, status: int) -> None:
        """End every rank at once."""
        ...


class Solo:
    """One rank, no MPI."""

    rank, size, host_rank, host_size = 0, 1, 0, 1

    def barrier(self) -> None:
        """See Comm."""

    def gather(self, value: Any) -> list[Any] | None:
        """See Comm."""
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        """See Comm."""
        return [value]

    def total(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """See Comm."""
        return values

    def abort(self, status: int) -> None:
        """See Comm."""
        os._exit(status)


class Mpi:
    """Ranks of MPI_COMM_WORLD."""

    def __init__(self, world: "MPI.Intracomm", host: "MPI.Comm") -> None:
        self._world = world
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self.host_rank, self.host_size = host.Get_rank(), host.Get_size()

    def barrier(self) -> None:
        """See Comm."""
        request = self._world.Ibarrier()
        pause = FIRST_POLL
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL)

    def gather(self, value: Any) -> list[Any] | None:
        """See Comm."""
        return self._world.gather(value)

    def allgather(self, value: Any) -> list[Any]:
        """See Comm."""
        return self._world.allgather(value)

    def total(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """See Comm."""
        from mpi4py import MPI

        result = np.empty_like(values)
        self._world.Allreduce(values, result, op=MPI.SUM)
        return result

    def abort(self, status: int) -> None:
        """See Comm."""
        self._world.Abort(status)


def connect(asked: int) -> Comm:
    """The communicator of a job of `asked` ranks. EnvironmentFailure when MPI cannot give it."""
    if asked == 1:
        return Solo()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentFailure(
            f"MPI cannot be loaded for a job of {asked} ranks: {error}. Install one with "
            "pip install 'dlio-bench[mpi]', or load the site's MPI module; `dlio-bench doctor` shows what is found."
        ) from error
    world = MPI.COMM_WORLD
    if world.Get_size() != asked:
        raise EnvironmentFailure(
            f"{asked} ranks were asked for, but this rank sees a world of {world.Get_size()}: the launcher and the MPI "
            "library do not belong together (under Slurm: srun --mpi=pmix with an MPI that speaks PMIx). "
            "`dlio-bench doctor` shows both; choose another with --launcher."
        )
    return Mpi(world, world.Split_type(MPI.COMM_TYPE_SHARED))


def mpi_version() -> str | None:
    """Name and version of the loaded MPI library; None where no MPI is in use."""
    import sys

    module = sys.modules.get("mpi4py.MPI")
    return None if module is None else str(module.Get_library_version()).splitlines()[0].split(",")[0]
