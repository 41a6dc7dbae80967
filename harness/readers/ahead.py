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
from dlio_bench.units import format_bytes

# A thread takes at least this much of a batch at a time, so that small samples do not cost a lock each.
CHUNK_BYTES = 1 << 20
FEWEST_SLOTS = 2  # one being read while the other is consumed
MOST_SLOTS = 16  # batches ahead of the trainer at most, as in CDB's published prefetch(16)


class Ahead:
    """A ring of slots, one batch each. Threads fill slots in plan order; the trainer empties them in the same order."""

    def __init__(
        self, form: Form, open_extents: OpenExtents, *, threads: int, staging_bytes: int, batch_bytes: int
    ) -> None:
        """Make a ring for batches of at most `batch_bytes`. UsageError when the staging buffer cannot hold two."""
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
        self._ring = [touched(batch_bytes) for _ in range(slots)]

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        return {"threads": self._threads, "slots": len(self._ring), "staging_bytes": sum(map(len, self._ring))}

    def asks(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.asks."""
        return stored_by_epoch(self.form, [(batch.epoch, batch.ids) for batch in plan])

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        work = _Work(plan, self._ring)
        tallies = [Tally() for _ in range(self._threads)]
        workers = [
            threading.Thread(target=work.run, args=(self._open_extents, own), name=f"reader-{i}", daemon=True)
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


class _Work:
    """The plan cut into chunks, and the state that threads and trainer share under one lock."""

    def __init__(self, plan: Sequence[Planned], ring: Sequence[npt.NDArray[np.uint8]]) -> None:
        self._plan = plan
        self._ring = ring
        self._chunks = [(step, first, last) for step, batch in enumerate(plan) for first, last in _cut(batch)]
        self._missing = [0] * len(plan)  # chunks of each step not yet in memory
        for step, _, _ in self._chunks:
            self._missing[step] += 1
        self._errors: dict[int, BaseException] = {}
        self._next = 0  # the next chunk to be taken
        self._freed = 0  # steps whose slot the trainer has given back
        self._stopped = False
        self._changed = threading.Condition()

    def batches(self, workers: Sequence[threading.Thread]) -> Iterator[Batch]:
        """The trainer's side. An error of a thread is raised in the step whose bytes it spoiled."""
        for worker in workers:
            worker.start()
        for step, batch in enumerate(self._plan):
            with self._changed:
                self._freed = step
                self._changed.notify_all()
                self._changed.wait_for(lambda step=step: not self._missing[step])  # type: ignore[misc]  # mypy cannot type a lambda's default
                error = self._errors.get(step)
            if error is not None:
                raise error
            block = Block(self._ring[step % len(self._ring)][: batch.bytes], batch.starts)
            yield Batch(batch.ids, (block,))

    def run(self, open_extents: OpenExtents, tally: Tally) -> None:
        """A thread's side: take the next chunk whose slot is free, read it, say so."""
        extents = open_extents()
        try:
            while (chunk := self._take()) is not None:
                step, first, last = chunk
                batch = self._plan[step]
                slot = memoryview(self._ring[step % len(self._ring)])
                error: BaseException | None = None
                try:
                    out = slot[batch.starts[first] : batch.starts[last]]
                    extents.read(batch.ids[first:last], out, tally.of(batch.epoch))
                except Exception as failure:  # noqa: BLE001 - every failure is carried to the trainer's step
                    error = failure
                self._done(step, error)
        finally:
            extents.close()

    def stop(self) -> None:
        """Let the threads end after the chunk they are at."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _take(self) -> tuple[int, int, int] | None:
        with self._changed:
            while not self._stopped and self._next < len(self._chunks):
                chunk = self._chunks[self._next]
                if chunk[0] < self._freed + len(self._ring):
                    self._next += 1
                    return chunk
                self._changed.wait()
            return None

    def _done(self, step: int, error: BaseException | None) -> None:
        with self._changed:
            self._missing[step] -= 1
            if error is not None:
                self._errors.setdefault(step, error)
            if not self._missing[step]:
                self._changed.notify_all()


def _cut(batch: Planned) -> list[tuple[int, int]]:
    """Sample ranges [first, last) of at least CHUNK_BYTES each (the last may be smaller)."""
    ranges, first = [], 0
    for i in range(1, len(batch.ids) + 1):
        if batch.starts[i] - batch.starts[first] >= CHUNK_BYTES or i == len(batch.ids):
            ranges.append((first, i))
            first = i
    return ranges
