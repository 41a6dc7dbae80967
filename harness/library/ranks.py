"""The ranks that share a loader's samples: those of a given communicator, of a launcher's world, or this process."""

from dlio_bench.harness.cluster import mpi
from dlio_bench.harness.cluster.borrowed import Borrowed
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.solo import Solo


def ranks(given: object | None, patience: float) -> Comm:
    """The ranks of an mpi4py communicator; for None all that a launcher has started, else this process alone.

    All ranks call it together. UsageError for what is no communicator, EnvironmentFailure where MPI cannot be loaded.
    """
    world = mpi.world_here() if given is None else mpi.communicator(given)
    return Solo() if world is None or world.Get_size() == 1 else Borrowed(world, patience)


def ranks_per_node(comm: Comm) -> int:
    """Ranks of each host where they fill hosts alike, one host after the other; else 1: each rank is then a node."""
    seats = comm.allgather((comm.host_rank, comm.host_size))
    size = comm.host_size
    return size if all(seat == (rank % size, size) for rank, seat in enumerate(seats)) else 1
