"""What every reader has in common: it takes a plan, and hands out its batches one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import ALIGNMENT, Batch, Ids
from dlio_bench.counters import Cost
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.storage.extents import ExtentReader


class Fetcher(Protocol):
    """Where a delivery gets samples: `ExtentReader`, from files; or the tiers of a placement. See ExtentReader."""

    def prepare(self, plan: Sequence[Ids]) -> Any:
        """Chunks of the batches `plan`."""
        ...

    def fetch(self, work: Any, chunks: range, out: memoryview, cost: Cost) -> None:
        """Fill the part that some chunks have of their batch `out`."""
        ...

    def close(self) -> None:
        """Nobody fetches any more."""
        ...


OpenExtents = Callable[[], ExtentReader]
OpenFetcher = Callable[[], Fetcher]


@dataclass(frozen=True)
class Planned:
    """One batch to be: the epoch it belongs to, its ids, and where each sample will start in the buffer.

    A validation pass has a number like an epoch's, `batches.validation_after`.
    """

    epoch: int
    ids: Ids
    starts: Ids

    @property
    def bytes(self) -> int:
        """Delivered bytes of the whole batch."""
        return int(self.starts[-1])


@dataclass
class Tally:
    """Cost of the reads by epoch of the plan; one tally a thread, added up when the threads are done."""

    epochs: dict[int, Cost] = field(default_factory=dict)

    def of(self, epoch: int) -> Cost:
        """The cost of one epoch, to be added to."""
        return self.epochs.setdefault(epoch, Cost())

    def add(self, other: "Tally") -> None:
        """Add another thread's tally."""
        for epoch, cost in other.epochs.items():
            self.of(epoch).add(cost)


class Reader(Protocol):
    """Executes plans. Entering a session reads no byte of the dataset; the first batch asked for starts the reads.

    Leaving a session, early or not, stops every thread and closes every file. Its cost is then in `tally`.
    """

    @property
    def sample_view(self) -> SampleView:
        """What it delivers of a sample."""
        ...

    @property
    def options(self) -> dict[str, int]:
        """Settings in force (threads, slots, staging bytes), for the result."""
        ...

    @property
    def processes(self) -> tuple[int, ...]:
        """Its child processes, whose reads count as this rank's."""
        ...

    def asks(self, plan: Sequence[Planned]) -> dict[int, int]:
        """Epoch -> bytes that this reader will ask of the dataset's file system to deliver the plan."""
        ...

    def session(self, plan: Sequence[Planned], tally: Tally) -> AbstractContextManager[Iterator[Batch]]:
        """Hand out the batches of the plan in order. No batch may be larger than the reader was made for."""
        ...


def largest(plan: Sequence[Planned]) -> int:
    """Bytes of the largest batch, what a reader's buffers must hold; 0 for no plan."""
    return max((batch.bytes for batch in plan), default=0)


class Plan(list[Planned]):
    """One rank's plan that knows those of all the others: `of(rank, epoch)` is what a rank reads in an epoch, int64
    ids in order. `epochs`: those that the plan has, alike on all ranks.
    """

    def __init__(self, batches: Iterable[Planned], epochs: Sequence[int], of: Callable[[int, int], Ids]) -> None:
        super().__init__(batches)
        self.epochs, self.of = epochs, of


def planned(
    sample_view: SampleView, epochs: Sequence[tuple[int, Sequence[Ids]]], of: Callable[[int, int], Ids] | None = None
) -> list[Planned]:
    """The batches of (epoch, [ids of each batch]) with their place in memory.

    With `of` (see Plan) readers need no messages to find out what the other ranks read.
    """
    batches = [
        Planned(epoch, ids, np.concatenate(([0], np.cumsum(sample_view.sizes(ids)))))
        for epoch, steps in epochs
        for ids in steps
    ]
    return batches if of is None else Plan(batches, [epoch for epoch, _ in epochs], of)


def touched(size: int) -> npt.NDArray[np.uint8]:
    """A buffer whose pages exist: first touch of memory is slower than most storage, and not what is measured.

    It starts where TensorFlow takes memory as its own without a copy.
    """
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    buffer = raw[start : start + size]
    buffer[::4096] = 0
    return buffer
