"""Delivery ahead: threads read the plan into a bounded staging buffer while the trainer computes."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Block
from dlio_bench.errors import UsageError
from dlio_bench.harness.readers.form import Form, stored_by_epoch
from dlio_bench.harness.readers.session import OpenExtents, Planned, Tally, touched
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.units import format_bytes

FEWEST_SLOTS = 2  # one being read while the other is consumed
MOST_SLOTS = 16  # batches ahead of the trainer at most, as in CDB's published prefetch(16)


class Ahead:
    """A staging buffer of slots, one batch each. Threads fill them in plan order; the trainer empties them so."""

    def __init__(
        self, form: Form, open_extents: OpenExtents, *, threads: int, staging_bytes: int, batch_bytes: int
    ) -> None:
        """Make slots for batches of at most `batch_bytes`. UsageError when the staging buffer cannot hold two."""
        self.form = form
        self.processes: tuple[int, ...] = ()
        self._open_extents = open_extents
        self._threads = threads
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
        work = _Work(plan, self._slots, extents)
        tallies = [Tally() for _ in range(self._threads)]
        workers = [
            threading.Thread(target=work.run, args=(own,), name=f"reader-{i}", daemon=True)
            for i, own in enumerate(tallies)
        ]
        try:
            yield work.batches(workers)
        finally:
            work.stop()
            for worker, own in zip(workers, tallies, strict=True):
                if worker.ident is not None:
                    worker.join()
                tally.add(own)
            extents.close()


class _Work:
    """The plan cut into chunks, and the state that threads and trainer share under one lock.

    Chunks are taken in plan order, so that all threads work for the batch that is needed first. Of the free slots the
    one that was given back last is filled next: while storage is the slower side, the same few slots go round, and
    they stay in the processor's cache.
    """

    def __init__(self, plan: Sequence[Planned], slots: Sequence[npt.NDArray[np.uint8]], extents: ExtentReader) -> None:
        self._plan, self._slots, self._extents = plan, slots, extents
        self._chunks = extents.prepare([batch.ids for batch in plan])
        self._steps: list[int] = self._chunks.batches.tolist()  # of each chunk
        # chunks of each step not yet in memory
        self._missing: list[int] = np.bincount(self._chunks.batches, minlength=len(plan)).tolist()
        self._errors: dict[int, BaseException] = {}
        self._next = 0  # the next chunk to be taken
        self._taken: dict[int, int] = {}  # step -> its slot
        self._free = list(reversed(range(len(slots))))
        self._awaited = -1  # the step that the trainer waits for
        self._stopped = False
        lock = threading.Lock()
        self._room = threading.Condition(lock)  # threads wait for a free slot
        self._ready = threading.Condition(lock)  # the trainer waits for its batch

    def batches(self, workers: Sequence[threading.Thread]) -> Iterator[Batch]:
        """The trainer's side. An error of a thread is raised in the step whose bytes it spoiled."""
        for worker in workers:
            worker.start()
        for step, batch in enumerate(self._plan):
            with self._ready:
                self._awaited = step
                while self._missing[step]:
                    self._ready.wait()
                self._awaited = -1
                error, slot = self._errors.get(step), self._taken.pop(step, 0)
            if error is not None:
                raise error
            yield Batch(batch.ids, (Block(self._slots[slot][: batch.bytes], batch.starts),))
            with self._room:
                self._free.append(slot)
                self._room.notify_all()

    def run(self, tally: Tally) -> None:
        """A thread's side: take the next chunk whose slot is free, read it, say so."""
        views = [memoryview(slot) for slot in self._slots]
        chunk, step = self._take()
        while chunk >= 0:
            error: BaseException | None = None
            try:
                self._extents.fetch(self._chunks, chunk, views[self._taken[step]], tally.of(self._plan[step].epoch))
            except Exception as failure:  # noqa: BLE001 - every failure is carried to the trainer's step
                error = failure
            chunk, step = self._take(step, error)

    def stop(self) -> None:
        """Let the threads end after the chunk they are at."""
        with self._room:
            self._stopped = True
            self._room.notify_all()

    def _take(self, done: int = -1, error: BaseException | None = None) -> tuple[int, int]:
        """Give account of a chunk of step `done`, and get the next (chunk, its step), or (-1, -1) to end."""
        with self._room:
            if done >= 0:
                self._missing[done] -= 1
                if error is not None:
                    self._errors.setdefault(done, error)
                if not self._missing[done] and done == self._awaited:
                    self._ready.notify()
            while not self._stopped and self._next < len(self._steps):
                step = self._steps[self._next]
                if step not in self._taken:
                    if not self._free:
                        self._room.wait()
                        continue
                    self._taken[step] = self._free.pop()
                self._next += 1
                return self._next - 1, step
            return -1, -1
