"""Delivery ahead: threads read the plan into a bounded staging buffer while the trainer computes."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from dlio_bench import recorder
from dlio_bench.batches import Batch, Block, Bytes
from dlio_bench.errors import UsageError
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import (
    Fetcher,
    OpenFetcher,
    PlainReader,
    Planned,
    SampleView,
    Tally,
    pauses_before,
    touch_buffer,
)
from dlio_bench.harness.readers.threads import Concurrency, Readers, ThreadTime, queued_seconds, readers, threads_after
from dlio_bench.harness.storage.extents import CHUNK_BYTES
from dlio_bench.recorder import NO_EPOCH, NOWHERE
from dlio_bench.units import format_bytes

FEWEST_SLOTS = 2  # one being read while the other is consumed
MOST_SLOTS = 16  # batches ahead of the trainer at most, as in CDB's published prefetch(16)
# Threads that found all slots full are woken when this part of them is free: small batches cost less when several are
# read in a row, and the rest of the slots is what the trainer lives on meanwhile.
WAKE_AT = 1 / 4
# While the trainer reads alone, every so-manieth of its steps tells whether that is still best, and so does the step
# behind one that took so many times longer than the last that told. (Behind a copy of megabytes, what the processor has
# to fetch again of Python's own code and data costs 20 us for each step.)
LOOK_AT, SLOWER = 8, 2.0
NOTHING = ThreadTime()
NO_CHUNKS = range(0)
# Chunks from memory are taken for so long together, or to the bytes of a large one: those of small files are as quickly
# read as taken.
TAKEN_SECONDS = 500e-6


def slots_of(staging_bytes: int, batch_bytes: int) -> int:
    """Batches that a staging buffer holds at once."""
    return min(MOST_SLOTS, staging_bytes // max(batch_bytes, 1))


def wake_at(slots: int) -> int:
    """Free slots that wake threads which found none."""
    return max(1, int(WAKE_AT * slots))


def staging_slots(staging_bytes: int, batch_bytes: int) -> list[Bytes]:
    """The slots of a staging buffer, of a batch each. UsageError where it cannot hold two."""
    slots = slots_of(staging_bytes, batch_bytes)
    if slots < FEWEST_SLOTS:
        raise UsageError(
            f"A staging buffer of {format_bytes(staging_bytes)} cannot hold two batches of "
            f"{format_bytes(batch_bytes)}. Ask for --staging {FEWEST_SLOTS * batch_bytes // 1_000_000 + 1}MB or a "
            "smaller --batch."
        )
    return [touch_buffer(batch_bytes) for _ in range(slots)]


class Ahead(PlainReader):
    """A staging buffer of slots, one batch each. Threads fill them in plan order; the trainer empties them so."""

    def __init__(
        self,
        sample_view: SampleView,
        open_extents: OpenFetcher,
        resources: Resources,
        *,
        spare_cores: int,
    ) -> None:
        """Make slots for batches. UsageError when the staging buffer cannot hold two.

        How many threads read follows from what reads take (see threads.readers); all of them read while storage keeps
        them waiting, if their number is given. spare_cores: threads that can compute beside trainers.
        """
        self._fixed = resources.most_threads in (None, resources.threads)
        self.sample_view = sample_view
        self._open_extents = open_extents
        self._threads = resources.most_threads or resources.threads
        self._step_seconds, self._spare_cores = resources.step_seconds, spare_cores
        self._slots = staging_slots(resources.staging_bytes, resources.batch_bytes)

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        return {"threads": self._threads, "slots": len(self._slots), "staging_bytes": sum(map(len, self._slots))}

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        extents = self._open_extents()
        window = Concurrency(self._threads, fixed=self._fixed)
        work = _Work(plan, self._slots, extents, window, self._threads, self._spare_cores, self._step_seconds)
        tallies = [tally.part() for _ in range(work.most)]
        workers = [
            threading.Thread(target=work.run, args=(i, own), name=f"reader-{i}", daemon=True)
            for i, own in enumerate(tallies)
        ]
        try:
            yield work.batches(workers, tally)
        finally:
            work.stop()
            for worker, own in zip(workers, tallies, strict=True):
                if worker.ident is not None:
                    worker.join()
                tally.add(own)
            extents.close()


class _Work:
    """The plan cut into chunks, and the state that threads and trainer share under one lock.

    Chunks are taken in plan order, so that all threads work for the batch that is needed first; until the very first is
    there, they leave the storage to it. Of the free slots the one that was given back last is filled next: while
    storage is the slower side, the same few slots go round, and they stay in the processor's cache.
    """

    def __init__(
        self,
        plan: Sequence[Planned],
        slots: Sequence[npt.NDArray[np.uint8]],
        extents: Fetcher,
        window: Concurrency,
        threads: int,
        spare_cores: int,
        step_seconds: float,
    ) -> None:
        self._plan, self._slots, self._extents = plan, slots, extents
        self._window, self._spare_cores, self._step_seconds = window, spare_cores, step_seconds
        self._views = [memoryview(slot) for slot in slots]
        self._chunks = extents.prepare([batch.ids for batch in plan])
        self._steps: list[int] = self._chunks.batches.tolist()  # of each chunk
        # chunks of each step not yet in memory
        self._missing: list[int] = np.bincount(self._chunks.batches, minlength=len(plan)).tolist()
        # threads that there may be: no more than chunks that all slots hold
        self.most = min(threads, len(slots) * max(self._missing, default=0))
        self._errors: dict[int, Exception] = {}
        self._next = 0  # the next chunk to be taken
        self._taken: dict[int, int] = {}  # step -> its slot
        self._free = list(reversed(range(len(slots))))
        self._wake_at = wake_at(len(slots))
        self._begun: dict[int, int] = {}  # chunk that is being read -> the round in which it began
        self._awaited = -1  # the step that the trainer waits for
        self._pauses = pauses_before(plan)  # of each step
        self._passed = 0  # pauses that are over: nothing behind the next one is read yet
        # Threads that may read; the others wait. While none may, the trainer reads for itself, as it does until its
        # first chunk has told where the bytes come from.
        self._awake = 0
        self._spent, self._before = ThreadTime(), ThreadTime()  # since the last step, and until then
        self._read = 0  # chunks that it was spent on
        self._at_once = 1  # chunks that are taken together
        self._chunk_bytes = sum(batch.bytes for batch in plan) / max(len(self._steps), 1)
        self._of_large = max(1, int(CHUNK_BYTES / max(self._chunk_bytes, 1)))  # chunks with the bytes of a large one
        self._readers = Readers(self.most, trainer=False)
        self._looked_at = True  # whether the trainer's reads of this step are timed
        self._stopped = False
        self._workers: Sequence[threading.Thread] = ()
        self._lock = threading.Lock()
        # each thread waits for a free slot, or to be awake
        self._room = [threading.Condition(self._lock) for _ in range(self.most)]
        self._ready = threading.Condition(self._lock)  # the trainer waits for its batch

    def batches(self, workers: Sequence[threading.Thread], tally: Tally) -> Iterator[Batch]:
        """The trainer's side. An error of a thread is raised in the step whose bytes it spoiled."""
        began, seconds, usual = time.perf_counter(), 0.0, 0.0
        self._workers = workers
        for step, batch in enumerate(self._plan):
            self._looked_at = bool(self._awake) or step % LOOK_AT == 0 or seconds > SLOWER * usual
            slot = self._await(step, tally)
            data = self._slots[0][:0] if slot is None else self._slots[slot][: batch.bytes]
            yield Batch(batch.ids, (Block(data, batch.starts),))
            now = time.perf_counter()
            seconds, began = now - began, now
            if self._looked_at:
                usual = seconds
            with self._lock:
                if slot is not None:
                    self._free.append(slot)
                if self._looked_at:
                    if self._spent.seconds:
                        self._choose()
                    self._awake = threads_after(self._readers, self._awake, seconds)
                    if len(self._free) >= self._wake_at:
                        self._wake_threads()

    def _wake_threads(self) -> None:
        """Have the threads that may read do so; those that were not needed yet begin."""
        for worker, room in zip(self._workers[: self._awake], self._room, strict=False):
            if worker.ident is None:
                worker.start()
            room.notify()

    def _choose(self) -> None:
        """See who is to read, by what the reads since the last step have taken."""
        a_step, self._before, self._spent = self._spent.seconds, self._spent.and_half_of(self._before), ThreadTime()
        each = a_step / max(self._read, 1)
        self._at_once, self._read = 1, 0
        if self._before.from_memory:
            self._at_once = max(self._of_large, int(TAKEN_SECONDS / each))
        self._readers = readers(
            self._before,
            a_step,
            self._step_seconds,
            most=self.most,
            waiting=min(self.most, self._window.threads),
            spare_cores=self._spare_cores,
            chunk_bytes=self._chunk_bytes,
        )

    def _await(self, step: int, tally: Tally) -> int | None:
        """The slot of a step, when all its chunks are in; None for a batch of no bytes.

        The trainer reads those that no thread has taken yet, and ahead where it has nothing to hide reading behind.
        """
        while True:
            with self._lock:
                if self._pauses[step] > self._passed:
                    self._passed = self._pauses[step]
                    self._wake_threads()
                while self._missing[step] and step not in self._errors and not self._mine(step):
                    if self._readers.trainer and self._may_take_next():
                        break
                    self._awaited = step
                    self._ready.wait()
                if error := self._errors.get(step):
                    raise error
                if not self._missing[step]:
                    return self._taken.pop(step, None)
                alone = step > 0 and not self._awake
                chunks = self._pick_some(step, len(self._steps) if alone else self._at_once)
            spent, error = self._fetch(chunks, tally, timed=self._looked_at)
            if track := recorder.current_track():
                track.epoch, track.step = NO_EPOCH, NOWHERE  # what the trainer does besides belongs elsewhere
            with self._lock:
                self._finish(chunks, spent, error)
                if step == 0 and not error and not self._awake and not self._spent.from_memory:
                    self._window.note_first_chunk(time.perf_counter(), spent.seconds, self._missing[0])
                    self._choose()
                    self._awake = self._readers.threads
                    self._wake_threads()

    def _mine(self, step: int) -> bool:
        """Whether the next chunk belongs to this step."""
        return self._next < len(self._steps) and self._steps[self._next] == step

    def run(self, number: int, tally: Tally) -> None:
        """A thread's side: take the next chunks whose slot is free, read them, say so."""
        chunks = self._next_chunks(number)
        while chunks:
            spent, error = self._fetch(chunks, tally)
            chunks = self._next_chunks(number, chunks, spent, error)

    def _fetch(self, chunks: range, tally: Tally, *, timed: bool = True) -> tuple[ThreadTime, Exception | None]:
        """Read chunks of one step into its slot: the time it took (nothing unless `timed`), and what went wrong."""
        step = self._steps[chunks.start]
        batch = self._plan[step]
        epoch = batch.epoch
        slot, cost = self._views[self._taken[step]], tally.of(epoch)
        if track := recorder.current_track():
            track.epoch, track.step = epoch, batch.step
        if timed:
            started, computing, queued = time.perf_counter(), time.thread_time(), queued_seconds()
            files = cost.bytes_requested + cost.bytes_local
        try:
            self._extents.fetch(self._chunks, chunks, slot, cost)
        except Exception as failure:  # noqa: BLE001 - every failure is carried to the trainer's step
            return NOTHING, failure
        if not timed:
            return NOTHING, None
        queued = queued_seconds() - queued
        computing = time.thread_time() - computing
        seconds = max(time.perf_counter() - started - queued, 0.0)
        return ThreadTime(seconds, computing, files != cost.bytes_requested + cost.bytes_local), None

    def stop(self) -> None:
        """Let the threads end after the chunk they are at."""
        with self._lock:
            self._stopped = True
            for room in self._room:
                room.notify()

    def _next_chunks(
        self, number: int, done: range = NO_CHUNKS, spent: ThreadTime = NOTHING, error: Exception | None = None
    ) -> range:
        """Give account of the chunks `done`, and get the next ones for a thread to read; none to end."""
        with self._lock:
            if done:
                self._finish(done, spent, error)
            while not self._stopped and self._next < len(self._steps):
                if number < self._awake and self._may_take_next():
                    return self._pick_some(self._steps[self._next], self._at_once)
                self._room[number].wait()
            return NO_CHUNKS

    def _may_take_next(self) -> bool:
        """Whether there is a next chunk, and it may be begun with."""
        if self._next == len(self._steps):
            return False
        step, first = self._steps[self._next], self._steps[0]
        if self._pauses[step] > self._passed:
            return False
        return step in self._taken or bool(self._free and (step == first or not self._missing[first]))

    def _finish(self, chunks: range, spent: ThreadTime, error: Exception | None) -> None:
        """Some chunks of a step are in memory, or failed."""
        step = self._steps[chunks.start]
        if error is not None:
            self._errors.setdefault(step, error)
        self._spent = self._spent.plus(spent)
        seconds = spent.seconds if spent.files else 0.0
        over = self._window.end(time.perf_counter(), seconds, self._begun.pop(chunks.start))
        if over and self._awake and self._readers.waits:
            self._awake = min(self.most, self._window.threads)
            self._wake_threads()
        self._read += len(chunks)
        self._missing[step] -= len(chunks)
        if step == self._awaited and (error or not self._missing[step]):
            self._ready.notify()
        if step == self._steps[0] and not self._missing[step]:
            self._wake_threads()

    def _pick_some(self, step: int, most: int) -> range:
        """The next chunks of a step, up to so many; there is one. See _pick."""
        first = self._next_chunk()
        while self._next < first + most and self._mine(step):
            self._next += 1
        return range(first, self._next)

    def _next_chunk(self) -> int:
        """The next chunk, whose batch gets a slot with its first one. There is a free one for it."""
        chunk = self._next
        self._next += 1
        self._begun[chunk] = self._window.begin(time.perf_counter())
        if self._steps[chunk] not in self._taken:
            self._taken[self._steps[chunk]] = self._free.pop()
        return chunk
