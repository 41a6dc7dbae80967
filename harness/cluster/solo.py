"""The communicator of a job of one rank."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.cluster import cores
from dlio_bench.harness.cluster.comm import Comm, Floats, Outgoing


class Solo:
    """One rank, no MPI."""

    rank, size, host_rank, host_size = 0, 1, 0, 1
    launched = (0,)

    @functools.cached_property
    def cores(self) -> cores.Cores:
        """See Comm."""
        return cores.here([cores.allowed()])

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

    def greatest(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See Comm."""
        return values

    def blocks(self, values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """See Comm."""
        yield values[np.newaxis]

    def exchange(
        self, outgoing: Iterator[Outgoing], inbox: memoryview, expected: int, arrived: Callable[[int, memoryview], None]
    ) -> None:
        """See Comm. One rank can only write to itself."""
        del expected
        for content, receivers in outgoing:
            for _ in receivers:
                inbox[: len(content)] = content
                arrived(0, inbox[: len(content)])

    def swap(
        self, outgoing: npt.NDArray[Any], receiver: int, incoming: npt.NDArray[Any], source: int, seconds: float
    ) -> None:
        """See Comm."""
        del receiver, source, seconds
        incoming[...] = outgoing

    def split(self, color: int | None) -> Comm | None:
        """See Comm."""
        return None if color is None else self

    def several_threads(self) -> bool:
        """See Comm. There is nobody to talk to."""
        return True

    def all_sum(self, values: Floats, sums: Floats, seconds: float) -> None:
        """See Comm."""
        del seconds
        sums[:] = values

    def sum_to_first(self, values: Floats, sums: Floats, seconds: float, first: int = 0) -> None:
        """See Comm."""
        del first
        self.all_sum(values, sums, seconds)

    def from_first(self, content: npt.NDArray[Any], seconds: float, first: int = 0) -> None:
        """See Comm."""

    def tell(self, rank: int, number: int) -> None:
        """See Comm. There is nobody else."""
        raise ValueError(f"there is no rank {rank} to tell {number}")

    def told(self) -> tuple[int, int] | None:
        """See Comm."""
        return None

    def abort(self, status: int) -> None:
        """See Comm."""
        os._exit(status)
