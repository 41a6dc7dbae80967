"""What all readers have in common: they take a plan and deliver its batches one after the other."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from mmap import PAGESIZE
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from dlio_bench.batches import Batch, Ids, is_validation, validation_after
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.storage.extents import ExtentReader


class SampleView(Struct, frozen=True):
    """The fields `view` of a dataset's samples, one after the other; or the result of `decode`."""

    dataset: Dataset
    view: tuple[str, ...]
    decode: Decode | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are read."""
        return self.view if self.decode is None else self.decode.fields

    def sizes(self, ids: Ids) -> Ids:
        """Bytes delivered of each sample, int64 [n]."""
        if self.decode is not None:
            return np.full(len(ids), self.decode.sample_bytes, dtype=np.int64)
        sizes: Ids = self.dataset.locate(ids, self.view)[3].sum(axis=1)
        return sizes

    def stored_size(self, ids: Ids) -> int:
        """Bytes that the samples' fields occupy in their files."""
        return int(self.dataset.locate(ids, self.fields)[2].sum())

    def useful(self, ids: Ids) -> int:
        """Bytes of the view, before decoding."""
        return int(self.dataset.locate(ids, self.view)[3].sum())


def stored_by_epoch(sample_view: SampleView, plan: Sequence[tuple[int, Ids]]) -> dict[int, int]:
    """Epoch -> stored bytes of the plan's samples: what a reader that reads each once asks of the file system."""
    epoch_bytes: dict[int, int] = {}
    for epoch, ids in plan:
        epoch_bytes[epoch] = epoch_bytes.get(epoch, 0) + sample_view.stored_size(ids)
    return epoch_bytes


class Fetcher(Protocol):
    """The source of a delivery's samples: files (`ExtentReader`), or the tiers of a placement. See ExtentReader."""

    def prepare(self, plan: Sequence[Ids]) -> Any:
        """Chunks of the batches `plan`."""
        ...

    def fetch(self, work: Any, chunks: range, out: memoryview, cost: Cost) -> None:
        """Read some chunks into their parts of their batch `out`."""
        ...

    def close(self) -> None:
        """End, after the last fetch."""
        ...


OpenExtents = Callable[[], ExtentReader]
OpenFetcher = Callable[[], Fetcher]


class Planned(Struct, frozen=True):
    """A planned batch: its epoch (or `batches.validation_after`), its ids, and where each sample starts in it.

    step: its number within its epoch.
    """

    epoch: int
    ids: Ids
    starts: Ids
    step: int = 0

    @property
    def bytes(self) -> int:
        """Delivered bytes of the whole batch."""
        return int(self.starts[-1])


class Tally(Struct):
    """Cost of the reads in each epoch of the plan. Every thread has one; they are added up when the threads end.

    parts: those of threads that are still at work.
    """

    epochs: dict[int, Cost] = field(default_factory=dict)
    parts: list["Tally"] = field(default_factory=list)

    def of(self, epoch: int) -> Cost:
        """The cost of one epoch, to be added to."""
        return self.epochs.setdefault(epoch, Cost())

    def part(self) -> "Tally":
        """A tally for another thread, which `add` takes when that has ended."""
        self.parts.append(Tally())
        return self.parts[-1]

    def add(self, other: "Tally") -> None:
        """Add another thread's tally, with its parts."""
        self.parts = [part for part in self.parts if part is not other]
        for part in other.parts:
            self.add(part)
        for epoch, cost in other.epochs.items():
            self.of(epoch).add(cost)

    def so_far(self) -> Cost:
        """The cost of all epochs until now, for a look at threads that go on counting meanwhile."""
        cost = Cost()
        for counted in (*list(self.epochs.values()), *(part.so_far() for part in list(self.parts))):
            cost.add(counted)
        return cost


class Reader(Protocol):
    """Executes plans. Entering a session reads no byte of the dataset: the first request for a batch starts reads.

    Leaving a session, early or not, stops every thread, closes every file, and adds the cost to `tally`.
    """

    @property
    def sample_view(self) -> SampleView:
        """What it delivers of a sample."""
        ...

    @property
    def options(self) -> dict[str, int]:
        """The settings that it uses (threads, slots, staging bytes), for the result."""
        ...

    @property
    def processes(self) -> tuple[int, ...]:
        """Its child processes, whose reads count as this rank's."""
        ...

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """Epoch -> bytes that this reader will ask of the dataset's file system to deliver the plan."""
        ...

    def session(self, plan: Sequence[Planned], tally: Tally) -> AbstractContextManager[Iterator[Batch]]:
        """Deliver the batches of the plan in order. None may be larger than the reader's `batch_bytes`."""
        ...


class PlainReader:
    """What most readers have alike: no child processes, and they ask the file system for every sample of the plan."""

    sample_view: SampleView
    processes: tuple[int, ...] = ()

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes."""
        return stored_by_epoch(self.sample_view, [(batch.epoch, batch.ids) for batch in plan])


def largest(plan: Sequence[Planned]) -> int:
    """Bytes of the largest batch, which a reader's buffers must hold; 0 for an empty plan."""
    return max((batch.bytes for batch in plan), default=0)


class RankPlan(list[Planned]):
    """One rank's plan that knows the plans of all ranks: `of(rank, epoch)` is what a rank reads in an epoch, int64 ids
    in order. `epochs` of the plan, the same on all ranks.

    pauses: own readers keep what they have over the end of an epoch, but read nothing from the file system from the
    delivery of its last batch until the next batch is asked for: caches are dropped in between.
    """

    def __init__(
        self, batches: Iterable[Planned], epochs: Sequence[int], of: Callable[[int, int], Ids], *, pauses: bool = False
    ) -> None:
        super().__init__(batches)
        self.epochs, self.of, self.pauses = epochs, of, pauses


def pauses_before(plan: Sequence[Planned]) -> list[int]:
    """Of each batch, how many pauses come before it. A validation pass belongs to the epoch that it follows."""
    if not (isinstance(plan, RankPlan) and plan.pauses):
        return [0] * len(plan)
    numbers = {epoch: number for number, epoch in enumerate(epoch for epoch in plan.epochs if not is_validation(epoch))}
    return [numbers[max(batch.epoch, validation_after(batch.epoch))] for batch in plan]


def plan_batches(
    sample_view: SampleView,
    epochs: Sequence[tuple[int, Sequence[Ids]]],
    of: Callable[[int, int], Ids] | None = None,
    *,
    pauses: bool = False,
) -> list[Planned]:
    """The batches of (epoch, [ids of each batch]), with the place of each sample in memory.

    With `of` (see Plan) readers need no messages to know what other ranks read.
    """
    batches = [
        Planned(epoch, ids, np.concatenate(([0], np.cumsum(sample_view.sizes(ids)))), step)
        for epoch, steps in epochs
        for step, ids in enumerate(steps)
    ]
    return batches if of is None else RankPlan(batches, [epoch for epoch, _ in epochs], of, pauses=pauses)


def touch_buffer(size: int) -> npt.NDArray[np.uint8]:
    """A buffer whose pages exist: the first touch of a page is slower than most storage, and is not to be measured.

    It begins on a page, so that direct reads may go straight into it, and TensorFlow uses it without a copy.
    """
    raw = np.empty(size + PAGESIZE, dtype=np.uint8)
    start = -raw.ctypes.data % PAGESIZE
    buffer = raw[start : start + size]
    buffer[::4096] = 0
    return buffer


class Scratch(threading.local):
    """Memory of each thread, which it uses again as long as it is large enough."""

    memory = bytearray()

    def of(self, length: int) -> memoryview:
        """This thread's memory, of `length` bytes; what was in it before is lost."""
        if len(self.memory) < length:
            self.memory = bytearray(length)
        return memoryview(self.memory)[:length]
