"""What every reader has in common: it takes a plan, and hands out its batches one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.storage.extents import Cost, ExtentReader

Ids = npt.NDArray[np.int64]
OpenExtents = Callable[[], ExtentReader]


@dataclass(frozen=True)
class Batch:
    """Samples in memory: sample i is data[starts[i]:starts[i + 1]], its fields in view order.

    `data` is uint8 and lies in the reader's own buffer: it is valid until the next batch is asked for.
    """

    ids: Ids
    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Planned:
    """One batch to be: the epoch it belongs to, its ids, and where each sample will start in the buffer."""

    epoch: int
    ids: Ids
    starts: npt.NDArray[np.int64]

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
            mine = self.of(epoch)
            mine.requested += cost.requested
            mine.read_seconds += cost.read_seconds
            mine.decode_seconds += cost.decode_seconds


class Reader(Protocol):
    """Executes plans. Entering a session reads no byte of the dataset; the first batch asked for starts the reads.

    Leaving a session, early or not, stops every thread and closes every file. Its cost is then in `tally`.
    """

    @property
    def options(self) -> dict[str, int]:
        """Settings in force (threads, slots, staging bytes), for the result."""
        ...

    def session(self, plan: Sequence[Planned], tally: Tally) -> AbstractContextManager[Iterator[Batch]]:
        """Hand out the batches of the plan in order. No batch may be larger than the reader was made for."""
        ...


def largest(plan: Sequence[Planned]) -> int:
    """Bytes of the largest batch, what a reader's buffers must hold; 0 for no plan."""
    return max((batch.bytes for batch in plan), default=0)


def planned(dataset: Dataset, view: Sequence[str], epochs: Sequence[tuple[int, Sequence[Ids]]]) -> list[Planned]:
    """The batches of (epoch, [ids of each batch]) with their place in memory."""
    batches = []
    for epoch, steps in epochs:
        for ids in steps:
            delivered = dataset.locate(ids, view)[3].sum(axis=1)
            batches.append(Planned(epoch, ids, np.concatenate(([0], np.cumsum(delivered)))))
    return batches


def touched(size: int) -> npt.NDArray[np.uint8]:
    """A buffer whose pages exist: first touch of memory is slower than most storage, and not what is measured."""
    buffer = np.empty(size, dtype=np.uint8)
    buffer[::4096] = 0
    return buffer
