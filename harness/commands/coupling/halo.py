"""Planes that neighbouring slabs of a field exchange, through the communicator of the solver's ranks."""

from dlio_bench.benchmarks.grayscott.solver import Field, Halo, alone
from dlio_bench.harness.cluster.comm import Comm


def halo(comm: Comm, seconds: float) -> Halo:
    """The Halo of this rank's slab, where rank r + 1 has the planes that follow those of rank r, periodically.

    TimeoutError after `seconds`: see Comm.swap.
    """
    if comm.size == 1:
        return alone
    above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def exchange(field: Field) -> None:
        comm.swap(field[-2], above, field[0], below, seconds)
        comm.swap(field[1], below, field[-1], above, seconds)

    return exchange
