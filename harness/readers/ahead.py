"""Delivery ahead: threads read the plan into a bounded staging buffer while the trainer computes."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Block
from dlio_bench.errors import UsageError
from dlio_bench.harness.readers.form import Form, stored_by_epoch
from dlio_bench.harness.readers.session import OpenSource, Planned, Source, Tally, touched
from dlio_bench.units import format_bytes

FEWEST_SLOTS = 2  # one being read while the other is consumed
MOST_SLOTS = 16  # batches ahead of the trainer at most, as in CDB's published prefetch(16)
# Threads that found all slots full are woken when this part of them is free: small batches cost less when several are
# read in a row, and the rest of the slots is what the trainer lives on meanwhile.
WAKE_AT = 1 / 4
# While a step takes less than this from one batch to the next, reading included, the trainer reads for itself and the
# threads sleep: handing so little from thread to thread costs more than reading it.
QUICK_SECONDS = 200e-6
# Where the processor is busy all the while that is read, the bytes come from memory, and more threads than cores would
# only keep each other and the trainer from one. While the trainer computes they may have its core, too, if it computes
# for long enough: this part of the time that reading takes, and this many seconds. Else there is nothing to read behind
# (it may wait for other ranks, but these read, too), and it reads with them; without a core to spare, alone.
# Measured on two cores: with one rank and no compute, four threads read at the pace of the trainer alone and took up to
# twice its time until all slots were full, one thread and the trainer 0.5 to 0.9 of it. With two ranks, one thread each
# took 1.2 times the time where it read 0.5 ms behind 0.3 ms, 0.95 behind 0.5 ms, 0.75 behind 0.8 ms; 1.1 times where it
# read 8 ms behind 2 ms, 0.95 behind 3 ms.
HIDDEN, HIDDEN_SECONDS = 1 / 3, 500e-6
# Of the time that threads read, the part in which they compute: from memory it is all, less what they wait for the
# processor and the interpreter; from a disk or a file system below a tenth.
FROM_MEMORY = 0.25

Spent = tuple[float, float]  # seconds, and those of them that the thread computed


class Ahead:
    """A staging buffer of slots, one batch each. Threads fill them in plan order; the trainer empties them so."""

    def __init__(
        self,
        form: Form,
        open_extents: OpenSource,
        *,
        threads: int,
        staging_bytes: int,
        batch_bytes: int,
        step_seconds: float = 0.0,
        spare_cores: int,
    ) -> None:
        """Make slots for batches of at most `batch_bytes`. UsageError when the staging buffer cannot hold two.

        step_seconds: how long the trainer computes in a step. spare_cores: threads that can compute beside trainers.
        """
        self.form = form
        self.processes: tuple[int, ...] = ()
        self._open_extents = open_extents
        self._threads, self._step_seconds, self._spare_cores = threads, step_seconds, spare_cores
        slots = min(MOST_SLOTS, staging_bytes // max(batch_bytes, 1))
        if slots < FEWEST_SLOTS:
            raise UsageError(
                f"A staging buffer of {format_bytes(staging_bytes)} cannot hold two batches of "
                f"{format_bytes(batch_bytes)}. Ask for --staging {FEWEST_SLOTS * batch_bytes // 1_000_000 + 1}MB or a "
                "smaller --batch."
            )
        self._slots = [touched(batch_bytes) for _ in range(slots)]

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        return {"threads": self._threads, "slots": len(self._slots), "staging_bytes": sum(map(len, self._slots))}

    def asks(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.asks."""
        return stored_by_epoch(self.form, [(batch.epoch, batch.ids) for batch in plan])

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        extents = self._open_extents()
        work = _Work(plan, self._slots, extents, self._threads, self._spare_cores, self._step_seconds)
        tallies = [Tally() for _ in range(self._threads)]
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
        extents: Source,
        threads: int,
        spare_cores: int,
        step_seconds: float,
    ) -> None:
        self._plan, self._slots, self._extents = plan, slots, extents
        self._threads, self._spare = threads, max(0, spare_cores)
        self._step_seconds = step_seconds
        self._views = [memoryview(slot) for slot in slots]
        self._chunks = extents.prepare([batch.ids for batch in plan])
        self._steps: list[int] = self._chunks.batches.tolist()  # of each chunk
        # chunks of each step not yet in memory
        self._missing: list[int] = np.bincount(self._chunks.batches, minlength=len(plan)).tolist()
        self._errors: dict[int, Exception] = {}
        self._next = 0  # the next chunk to be taken
        self._taken: dict[int, int] = {}  # step -> its slot
        self._free = list(reversed(range(len(slots))))
        self._wake_at = max(1, int(WAKE_AT * len(slots)))
        self._awaited = -1  # the step that the trainer waits for
        # Threads that may read; the others wait. While none may, the trainer reads for itself, as it does until its
        # first chunk has told where the bytes come from.
        self._awake = 0
        self._busy = self._computed = 0.0  # seconds of the chunks read since the last step, and of computing in them
        self._wanted = threads  # to be awake, as far as the reads of the last steps tell
        self._shared = False  # whether the trainer reads ahead, too, as it has nothing to hide reading behind
        self._stopped = False
        self._workers: Sequence[threading.Thread] = ()
        self._lock = threading.Lock()
        # each thread waits for a free slot, or to be awake
        self._room = [threading.Condition(self._lock) for _ in range(threads)]
        self._ready = threading.Condition(self._lock)  # the trainer waits for its batch

    def batches(self, workers: Sequence[threading.Thread], tally: Tally) -> Iterator[Batch]:
        """The trainer's side. An error of a thread is raised in the step whose bytes it spoiled."""
        began = time.perf_counter()
        self._workers = workers
        for step, batch in enumerate(self._plan):
            slot = self._await(step, tally)
            data = self._slots[0][:0] if slot is None else self._slots[slot][: batch.bytes]
            yield Batch(batch.ids, (Block(data, batch.starts),))
            last, began = began, time.perf_counter()
            with self._lock:
                if slot is not None:
                    self._free.append(slot)
                self._awake = self._needed(began - last)
                if len(self._free) >= self._wake_at:
                    self._rouse()

    def _rouse(self) -> None:
        """Have the threads that may read do so; those that were not needed yet begin."""
        for worker, room in zip(self._workers[: self._awake], self._room, strict=False):
            if worker.ident is None:
                worker.start()
            room.notify()

    def _needed(self, seconds: float) -> int:
        """The threads that read from now on, after a step that took so many seconds."""
        if self._busy:
            from_memory = self._from_memory()
            hidden = self._step_seconds >= max(HIDDEN * self._busy, HIDDEN_SECONDS)
            self._shared = from_memory and not hidden
            self._wanted = min(self._threads, self._spare + hidden) if from_memory else self._threads
            self._busy = self._computed = 0.0
        return 0 if not self._awake and seconds < QUICK_SECONDS else self._wanted

    def _from_memory(self) -> bool:
        """Whether what was read since the last step came from memory."""
        return self._computed > FROM_MEMORY * self._busy

    def _await(self, step: int, tally: Tally) -> int | None:
        """The slot of a step, when all its chunks are in; None for a batch of no bytes.

        The trainer reads those that no thread has taken yet, and ahead where it has nothing to hide reading behind.
        """
        while True:
            with self._lock:
                while self._missing[step] and not self._mine(step):
                    if self._shared and self._next < len(self._steps) and self._may_take(self._steps[self._next]):
                        break
                    self._awaited = step
                    self._ready.wait()
                if not self._missing[step]:
                    if error := self._errors.get(step):
                        raise error
                    return self._taken.pop(step, None)
                chunks = range(chunk := self._pick(), chunk + 1) if self._awake or not step else self._pick_all(step)
            spent, error = self._fetch(chunks, tally)
            with self._lock:
                self._finish(self._steps[chunks.start], spent, error, len(chunks))
                if step == 0 and not self._awake and not self._from_memory():
                    self._awake = self._threads
                    self._rouse()

    def _mine(self, step: int) -> bool:
        """Whether the next chunk belongs to this step."""
        return self._next < len(self._steps) and self._steps[self._next] == step

    def run(self, number: int, tally: Tally) -> None:
        """A thread's side: take the next chunk whose slot is free, read it, say so."""
        chunk = self._take(number)
        while chunk >= 0:
            spent, error = self._fetch(range(chunk, chunk + 1), tally)
            chunk = self._take(number, self._steps[chunk], spent, error)

    def _fetch(self, chunks: range, tally: Tally) -> tuple[Spent, Exception | None]:
        """Read chunks of one step into its slot: the time it took, and what went wrong."""
        step = self._steps[chunks.start]
        slot, cost = self._views[self._taken[step]], tally.of(self._plan[step].epoch)
        started, computing = time.perf_counter(), time.thread_time()
        try:
            for chunk in chunks:
                self._extents.fetch(self._chunks, chunk, slot, cost)
        except Exception as failure:  # noqa: BLE001 - every failure is carried to the trainer's step
            return (0.0, 0.0), failure
        return (time.perf_counter() - started, time.thread_time() - computing), None

    def stop(self) -> None:
        """Let the threads end after the chunk they are at."""
        with self._lock:
            self._stopped = True
            for room in self._room:
                room.notify()

    def _take(self, number: int, done: int = -1, spent: Spent = (0.0, 0.0), error: Exception | None = None) -> int:
        """Give account of a chunk of step `done`, and get the next chunk for a thread to read, or -1 to end."""
        with self._lock:
            if done >= 0:
                self._finish(done, spent, error)
            while not self._stopped and self._next < len(self._steps):
                if number < self._awake and self._may_take(self._steps[self._next]):
                    return self._pick()
                self._room[number].wait()
            return -1

    def _may_take(self, step: int) -> bool:
        """Whether a thread may begin with the next chunk, which belongs to `step`."""
        first = self._steps[0]
        return step in self._taken or bool(self._free and (step == first or not self._missing[first]))

    def _finish(self, step: int, spent: Spent, error: Exception | None, chunks: int = 1) -> None:
        """Some chunks of a step are in memory, or failed."""
        if error is not None:
            self._errors.setdefault(step, error)
        self._busy, self._computed = self._busy + spent[0], self._computed + spent[1]
        self._missing[step] -= chunks
        if not self._missing[step]:
            if step == self._awaited:
                self._ready.notify()
            if step == self._steps[0]:
                self._rouse()

    def _pick_all(self, step: int) -> range:
        """All chunks of a step that nobody has taken yet; there is one. See _pick."""
        first = self._pick()
        while self._mine(step):
            self._next += 1
        return range(first, self._next)

    def _pick(self) -> int:
        """The next chunk, whose batch gets a slot with its first one. There is a free one for it."""
        chunk = self._next
        self._next += 1
        if self._steps[chunk] not in self._taken:
            self._taken[self._steps[chunk]] = self._free.pop()
        return chunk
