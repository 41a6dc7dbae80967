"""The readers of harness/readers as processes on the virtual clock: what they read in which pieces, who waits for whom.

The scenarios of `simulate` follow the published simulations; this follows our readers. The threads of a rank and its
trainer take chunks in plan order. The staging buffer has slots. Files are opened when they are needed, and stay open
for a while. Whole files are staged before the first step. Ranks meet after each step.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.commands.run.predicted.devices import Device, NodeCores
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.readers.ahead import wake_at
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.readers.threads import Concurrency, Readers
from dlio_bench.harness.simulator.kernel import Barrier, Clock, Process, Signal
from dlio_bench.harness.storage.chunks import ChunkedReads
from dlio_bench.harness.storage.extents import CHECKED_BYTES, OPEN_FILES, OPEN_VISITS, ExtentReader


class Chunk(Struct, frozen=True):
    """What a thread takes at a time: its step, and its reads as (key of the open file, bytes).

    cached: whether a cache on the way has its bytes. samples: its ids, if it matters which node has them.
    """

    step: int
    reads: tuple[tuple[int, int], ...]
    decode_seconds: float = 0.0
    cached: bool = False
    samples: tuple[int, ...] = ()


class Devices(Struct, frozen=True):
    """Where a rank reads, and what decodes. cached: the cache on the way."""

    stored: Device
    cached: Device
    cores: NodeCores


Fetch = Callable[[Chunk], Process]  # reads one chunk, in one thread
Batch = Callable[[int], Process]  # waits until the trainer has the batch of this step


@dataclass
class SimulatedRank:
    """One rank: its node, its chunks in plan order, and when each of its steps began and ended, float64 [steps]."""

    node: int
    chunks: Sequence[Chunk]
    steps: int
    begins: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    ends: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    stall: float = 0.0

    def __post_init__(self) -> None:
        self.begins, self.ends = np.zeros(self.steps), np.zeros(self.steps)


class Handles:
    """The files that a rank has open: the last `keep`. The first thread that needs a file opens it."""

    def __init__(self, keep: int, open_seconds: float) -> None:
        self._keep, self._open_seconds = keep, open_seconds
        self._open: OrderedDict[int, float] = OrderedDict()  # key -> when it is open

    def ready(self, key: int, now: float) -> float:
        """When the file can be read from."""
        if key in self._open:
            self._open.move_to_end(key)
            return max(now, self._open[key])
        self._open[key] = now + self._open_seconds
        if len(self._open) > self._keep:
            self._open.popitem(last=False)
        return now + self._open_seconds


class StepPace(Struct, frozen=True):
    """What the trainer does between two batches: seconds of compute, and when ranks meet.

    per_epoch: steps of an epoch. pauses: readers rest between epochs (see readers.session.RankPlan).
    """

    step_seconds: float
    sync: str
    per_epoch: int
    pauses: bool = False

    def first_behind_pause(self, step: int) -> int | None:
        """The next step that is not read before it is asked for; None where readers never rest."""
        return step - step % self.per_epoch + self.per_epoch if self.pauses else None


def fetch_reads(clock: Clock, rank: SimulatedRank, devices: Devices, handles: Handles, chunk: Chunk) -> Process:
    """Read one chunk by one thread."""
    last, source = -1, devices.cached if chunk.cached else devices.stored
    for key, size in chunk.reads:
        if key != last:
            opened, last = handles.ready(key, clock.now), key
            if opened > clock.now:
                yield opened
        yield from source.read(rank.node, size)
    if chunk.decode_seconds:
        yield from devices.cores.compute(rank.node, chunk.decode_seconds)


def train(clock: Clock, rank: SimulatedRank, meeting: Barrier, pace: StepPace, batch: Batch) -> Process:
    """The trainer: it asks for each batch, computes, and meets the others."""
    for step in range(rank.steps):
        if (pace.sync == "epoch" or pace.pauses) and step % pace.per_epoch == 0:
            yield from meeting.meet()
        rank.begins[step] = clock.now
        yield from batch(step)
        rank.stall += clock.now - rank.begins[step]
        if pace.step_seconds:
            yield clock.now + pace.step_seconds
        if pace.sync == "step":
            yield from meeting.meet()
        rank.ends[step] = clock.now


def on_demand(rank: SimulatedRank, fetch: Fetch) -> Batch:
    """readers/on_demand.py: the trainer reads each batch when it asks for it."""
    of_step = {step: list(chunks) for step, chunks in groupby(rank.chunks, lambda chunk: chunk.step)}

    def batch(step: int) -> Process:
        for chunk in of_step.get(step, ()):
            yield from fetch(chunk)

    return batch


class Ahead:
    """readers/ahead.py: threads fill slots in plan order; the trainer reads what no thread has taken yet."""

    def __init__(
        self, clock: Clock, rank: SimulatedRank, fetch: Fetch, reading: Readers, slots: int, pace: StepPace
    ) -> None:
        self._clock, self._rank, self._fetch, self._pace = clock, rank, fetch, pace
        self._reading, self._free, self._wake_at = reading, slots, wake_at(slots)
        self._missing = np.bincount([chunk.step for chunk in rank.chunks], minlength=rank.steps).tolist()
        self._next = 0
        self._rest: int | None = None  # the step that is not read before the trainer asks for it
        self._taken: set[int] = set()
        self._room, self._ready = Signal(), Signal()
        self._window = Concurrency(reading.threads, fixed=not reading.waits)

    def batch(self, step: int) -> Process:
        """The trainer gets the batch of the next step; asking for it frees the slot of the last one."""
        clock, rank = self._clock, self._rank
        if step:
            self._free += step - 1 in self._taken
            if self._free >= self._wake_at or step == self._rest:
                clock.wake(self._room)
        self._rest = self._pace.first_behind_pause(step)
        while self._missing[step]:
            mine = self._next < len(rank.chunks) and rank.chunks[self._next].step == step
            if not mine and not (self._reading.trainer and self._may_take_next()):
                yield self._ready
                continue
            started, began = self._next > 0, clock.now
            yield from self._read_chunk()
            if not started:  # the first chunk tells the trainer how many threads there should be
                self._window.note_first_chunk(clock.now, clock.now - began, self._missing[step])
                for number in range(min(self._reading.threads, len(rank.chunks))):
                    clock.start(self._thread(number))

    def _thread(self, number: int) -> Process:
        chunks = self._rank.chunks
        while self._next < len(chunks):
            if number < self._window.threads and self._may_take_next():
                yield from self._read_chunk()
            else:
                yield self._room

    def _read_chunk(self) -> Process:
        """The next chunk, by one thread."""
        chunk, began = self._next_chunk(), self._clock.now
        begun = self._window.begin(began)
        yield from self._fetch(chunk)
        if self._window.end(self._clock.now, self._clock.now - began, begun):
            self._clock.wake(self._room)
        self._finish(chunk)

    def _may_take_next(self) -> bool:
        """Whether there is a next chunk and a slot for it."""
        chunks = self._rank.chunks
        if self._next == len(chunks):
            return False
        step, first = chunks[self._next].step, chunks[0].step
        if self._rest is not None and step >= self._rest:
            return False
        return step in self._taken or bool(self._free and (step == first or not self._missing[first]))

    def _next_chunk(self) -> Chunk:
        chunk = self._rank.chunks[self._next]
        self._next += 1
        if chunk.step not in self._taken:
            self._taken.add(chunk.step)
            self._free -= 1
        return chunk

    def _finish(self, chunk: Chunk) -> None:
        self._missing[chunk.step] -= 1
        if not self._missing[chunk.step]:
            self._clock.wake(self._ready)
            if chunk.step == self._rank.chunks[0].step:
                self._clock.wake(self._room)


def staging(
    clock: Clock, node: int, pieces: Sequence[Sequence[int]], source: Device, target: Device, threads: int
) -> Process:
    """readers/staged.py: threads copy the rank's files, each given as its pieces in bytes, until all are copied."""
    waiting = iter(pieces)

    def worker() -> Process:
        for file in waiting:
            yield clock.now + source.open_seconds
            for size in file:
                yield from source.read(node, size)
                yield from target.read(node, size)

    yield from run_together(clock, [worker() for _ in range(threads)])


def run_together(clock: Clock, work: Sequence[Process]) -> Process:
    """Start these processes at once, and wait for all of them."""
    left, done = [len(work)], Signal()

    def count_down(process: Process) -> Process:
        yield from process
        left[0] -= 1
        if not left[0]:
            clock.wake(done)

    for process in work:
        clock.start(count_down(process))
    if work:
        yield done


class Cut(Struct, frozen=True):
    """What decides the reads of a sample: its view, and whether it is checked. preprocess: see Setting."""

    sample_view: SampleView
    check_crc: bool
    preprocess: float


def is_readable(dataset: Dataset) -> bool:
    """Whether readers read samples straight from their extents."""
    return CONTAINERS[dataset.manifest.container].library is None


def is_packed(dataset: Dataset) -> bool:
    """Whether readers unpack what they have read."""
    return CONTAINERS[dataset.manifest.container].decode is not None


def open_files_per_rank(dataset: Dataset) -> int:
    """Files that a rank's reader keeps open."""
    return OPEN_VISITS if dataset.file_per_sample else OPEN_FILES


def chunks(cut: Cut, plan: Sequence[Ids], cached: Sequence[float]) -> list[Chunk]:
    """The chunks of a plan ([step] int64 [batch]) in its order. cached: step -> share of its chunks in a cache."""
    extents = ExtentReader(cut.sample_view.dataset, cut.sample_view.fields, cut.sample_view.decode, check=cut.check_crc)
    try:
        work = extents.prepare(plan)
    finally:
        extents.close()
    batches = work.batches.tolist()
    plan_chunks = []
    for number, (step, (reads, decoded)) in enumerate(zip(batches, _reads(work, cut), strict=True)):
        share = cached[step]
        hit = int((number + 1) * share) > int(number * share)  # spread evenly
        plan_chunks.append(Chunk(step, reads, decoded / (cut.preprocess * MB), hit))
    return plan_chunks


def _reads(work: ChunkedReads, cut: Cut) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """For each chunk its reads (key of the file, bytes) and the bytes to decode."""
    if work.reads is not None:
        calls = work.reads.calls[:, [0, 3]].tolist()
        firsts = work.reads.chunks[:, 0].tolist()
        return [(tuple(map(tuple, calls[first:last])), 0) for first, last in pairwise(firsts)]
    chunk_reads = []
    keys, stored = work.samples.keys.tolist(), work.samples.stored.tolist()
    most = CHECKED_BYTES if cut.check_crc else 1 << 62
    rows = work.rows.tolist()
    decodes = cut.sample_view.decode is not None or is_packed(cut.sample_view.dataset)
    for first, last in pairwise(rows):
        pieces = [
            (keys[row], min(most, length - at))
            for row in range(first, last)
            for length in stored[row]
            for at in range(0, length, most)
        ]
        decoded = sum(sum(stored[row]) for row in range(first, last)) if decodes else 0
        chunk_reads.append((tuple(pieces), decoded))
    return chunk_reads
