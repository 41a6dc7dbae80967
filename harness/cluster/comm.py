"""How the ranks of a job communicate: the methods that MPI and a single rank both offer, and the cores of a rank."""

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dlio_bench.errors import BenchError
from dlio_bench.harness.cluster.environment import usable_cores

Cpus = frozenset[int]


class Cores(NamedTuple):
    """What a rank can compute with, in processors as the kernel counts them.

    rank: its part, fractions included. host: the processors that ranks of its host may run on. bound: how many
    processors the rank may run on; None if those are all that the machine has.
    """

    rank: float
    host: Cpus
    bound: int | None


def cores_of(cpus: Cpus, of_ranks: Sequence[Cpus], usable: int, machine: int) -> Cores:
    """The cores of the rank that may run on `cpus`.

    of_ranks: the processors of each rank of its host, itself included. A processor counts for a rank as 1 / ranks that
    may run there. usable: of all these processors; less than there are where a control group has a quota, which then
    cuts all parts alike. machine: how many processors the machine has.
    """
    ranks_on = Counter(cpu for each in of_ranks for cpu in each)
    whole = math.lcm(*ranks_on.values())  # in integers, so that two halves are a core
    part = sum(whole // ranks_on[cpu] for cpu in cpus)
    bound = len(cpus) if len(cpus) < machine else None
    return Cores(part * usable / (whole * len(ranks_on)), frozenset(ranks_on), bound)


def allowed_cpus() -> Cpus:
    """The processors that this process may run on (sched_getaffinity(2))."""
    return frozenset(os.sched_getaffinity(0))


def cores_here(of_ranks: Sequence[Cpus]) -> Cores:
    """The cores of this process, which is a rank beside others of its host; of_ranks: as for cores_of."""
    usable = usable_cores(frozenset().union(*of_ranks))
    return cores_of(allowed_cpus(), of_ranks, usable, os.cpu_count() or 1)


# Bytes, and the ranks that each gets a copy of them.
Outgoing = tuple[memoryview, Sequence[int]]
Floats = npt.NDArray[np.floating[Any]]
Result = TypeVar("Result")

BLOCK_BYTES = 32 << 20  # what rank 0 holds of the others at once (see Comm.blocks)


class Comm(Protocol):
    """The ranks of one job. `host_rank` of `host_size` counts the ranks that share this rank's machine."""

    rank: int
    size: int
    host_rank: int
    host_size: int

    @property
    def launched(self) -> Sequence[int]:
        """The number of each of these ranks among all that were launched together."""
        ...

    @property
    def cores(self) -> Cores:
        """What this rank computes with."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called it. Waiting ranks leave the CPU to others."""
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

    def greatest(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Elementwise maximum over the ranks, on every rank."""
        ...

    def blocks(self, values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """On rank 0 everybody's `values`, by rank: [some ranks, ...] at a time, as many as BLOCK_BYTES hold, or one.

        Nothing on other ranks. All ranks iterate to the end together, over contiguous values of one shape and kind,
        below 2 GiB. A block is overwritten by the next one.
        """
        ...

    def exchange(
        self, outgoing: Iterator[Outgoing], inbox: memoryview, expected: int, arrived: Callable[[int, memoryview], None]
    ) -> None:
        """Send all of `outgoing`, and call arrived(source, bytes) for each of the `expected` messages to this rank.

        All ranks call it together. Messages of one source arrive in the order in which it sent them. A message is at
        most 2 GiB - 1 and fits into `inbox`, which is used again after `arrived`, as may be the bytes of `outgoing`
        when the next are asked for. Neither iterator nor `arrived` may fail: another rank would wait for ever.
        """
        ...

    def swap(
        self, outgoing: npt.NDArray[Any], receiver: int, incoming: npt.NDArray[Any], source: int, seconds: float
    ) -> None:
        """Send a contiguous array to one rank while another fills `incoming`, contiguous and as large as its message.

        Both may be this rank. Messages of one rank to another arrive in the order in which it sent them.
        TimeoutError after `seconds`: a rank died or does not call it. The job can only end then.
        """
        ...

    def split(self, color: int | None) -> "Comm | None":
        """The ranks that gave the same color, in their order, as a communicator of its own; None where `color` is.

        All ranks call it together. What one communicator does is never mixed up with what another does, so two
        threads of a rank may each use their own (where `several_threads` says so).
        """
        ...

    def several_threads(self) -> bool:
        """Whether several threads of a rank may talk at the same time."""
        ...

    def all_sum(self, values: Floats, sums: Floats, seconds: float) -> None:
        """Fill `sums` on every rank with the elementwise sums of all ranks' `values`, the same bits on each.

        float16, float32 or float64, contiguous, of one length everywhere and below 2^31. float16 is added in float16,
        as over the wire of the published runs. TimeoutError after `seconds`: a rank died or has not called it. The job
        can only end then.
        """
        ...

    def sum_to_first(self, values: Floats, sums: Floats, seconds: float, first: int = 0) -> None:
        """As all_sum, but rank `first` alone gets the sums; `sums` of the others are left as they are."""
        ...

    def from_first(self, content: npt.NDArray[Any], seconds: float, first: int = 0) -> None:
        """Overwrite every rank's `content`, contiguous and at most 2 GiB - 1, with that of `first`. TimeoutError."""
        ...

    def send_number(self, rank: int, number: int) -> None:
        """Send a number to another rank, which takes it by `receive_number`. Returns at once."""
        ...

    def receive_number(self) -> tuple[int, int] | None:
        """The rank that sent a number to this one, and the number, the earliest of that rank first; None: none came."""
        ...

    def abort(self, status: int) -> None:
        """End every rank at once."""
        ...


def run_on_all_ranks(comm: Comm, work: Callable[[], Result]) -> list[Result]:
    """Do `work` on every rank; its results by rank. Raises the BenchError of one rank on every rank.

    Ranks that are done leave the CPU to the others while they wait.
    """
    result: Result | None = None
    failure: BenchError | None = None
    try:
        result = work()
    except BenchError as error:
        failure = error
    comm.barrier()
    done: list[tuple[Any, BenchError | None]] = comm.allgather((result, failure))
    for _, failed in done:
        if failed is not None:
            raise failed
    return [made for made, _ in done]


class Solo:
    """One rank, no MPI."""

    rank, size, host_rank, host_size = 0, 1, 0, 1
    launched = (0,)

    @functools.cached_property
    def cores(self) -> Cores:
        """See Comm."""
        return cores_here([allowed_cpus()])

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
        """See Comm. There is one rank."""
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

    def send_number(self, rank: int, number: int) -> None:
        """See Comm. There is one rank."""
        raise ValueError(f"there is no rank {rank} to tell {number}")

    def receive_number(self) -> tuple[int, int] | None:
        """See Comm."""
        return None

    def abort(self, status: int) -> None:
        """See Comm."""
        os._exit(status)
