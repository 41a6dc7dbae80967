"""What rank 0 tells of a trial while it is at work: about once a second, from a thread beside the timed loop.

The thread only looks at the clock rows that the loop fills, and asks no other rank. So its numbers are those of rank 0.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.counters import Cost
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.observer import Observer, Rank, Running, Segment, Tell
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.training.trainer import Trainer

SAMPLE = "at work"  # the event
EVERY = 1.0  # seconds between two looks
SIGN = 10.0  # seconds after which it tells the same again: who waits knows that the command lives
WINDOW = 5.0  # seconds of the last steps that the rate is of
MOST_STEPS = 4096  # of them

Rows = npt.NDArray[np.float64]  # of a StepLog, [steps, 7]


class Watched(Struct, frozen=True):
    """A trial at work. samples: int64 [steps + 1], of this rank before each step; None where nobody knows them."""

    times: TrialTimes
    per_epoch: int
    batch: int
    samples: npt.NDArray[np.int64] | None

    @classmethod
    def of(cls, times: TrialTimes, job: Job) -> "Watched":
        """What is known of the samples before the clock starts."""
        per_epoch, steps = len(times.plan[0]), len(times.log.clock)
        if any(row.demanded for row in job.readers.values()):  # the plan is that of all ranks
            return cls(times, per_epoch, job.batch, None)
        counts = [(ids >= 0).sum(axis=1) for ids in times.plan]
        assert sum(map(len, counts)) == steps
        return cls(times, per_epoch, job.batch, np.concatenate([[0], np.cumsum(np.concatenate(counts))]))


def finished_steps(rows: Rows) -> int:
    """How many steps are over: rows are filled one after the other, from zeros."""
    return bisect_left(range(len(rows)), True, key=lambda step: bool(rows[step, -1] <= 0.0))


def rates(rows: Rows, first: int, done: int, now: float) -> tuple[int, float, float]:
    """Of the last steps: the first of them, their seconds, and those of them that passed in waiting for data.

    first: the earliest step that may count; done: steps that are over, more than `first`; now: by the rows' clock. A
    step at work counts once it has taken longer than the others together.
    """
    recent = bisect_right(range(first, done - 1), now - WINDOW, key=lambda step: float(rows[step, -1]))
    first = max(first + recent, done - MOST_STEPS)
    began, ended = float(rows[first, 0]), float(rows[done - 1, -1])
    stalled = float((rows[first:done, 1] - rows[first:done, 0]).sum())
    if done < len(rows) and rows[done, 0] > 0.0 and now - ended > ended - began:
        stalled += (float(rows[done, 1]) or now) - float(rows[done, 0])
        ended = now
    return first, max(ended - began, 0.0), stalled


def snapshot(watched: Watched, now: float) -> dict[str, Any]:
    """What the rows of a trial tell at a moment of their clock; see the fields of a status."""
    times, rows, per_epoch = watched.times, watched.times.log.clock, watched.per_epoch
    done = finished_steps(rows)
    epoch, step = divmod(done, per_epoch)
    if done and not step and (done == len(rows) or rows[done, 0] == 0.0):
        epoch, step = epoch - 1, per_epoch  # the next one has not begun
    clocks = [pass_.log.clock for pass_ in times.passes if pass_.epoch == epoch and len(pass_.log.clock)]
    in_pass = step == per_epoch and any(clock[0, 0] > 0.0 and clock[-1, -1] == 0.0 for clock in clocks)
    told = {
        "phase": "validation" if in_pass else None,
        "epoch": epoch + 1,
        "step": step,
        "steps": per_epoch,
        "share": done / len(rows),
        "samples_per_second": None,
        "stall_share": None,
    }
    if step and not in_pass:
        first, seconds, stalled = rates(rows, epoch * per_epoch, done, now)
        if watched.samples is None:
            taken = watched.batch * int((rows[first:done, -1] > rows[first:done, 0]).sum())
        else:
            taken = int(watched.samples[done] - watched.samples[first])
        if seconds > 0.0:
            share = min(1.0, max(0.0, stalled / seconds))
            told |= {"samples_per_second": float(f"{taken / seconds:.6g}"), "stall_share": round(share, 4)}
    return told


def by_source(cost: Cost) -> dict[str, int]:
    """Bytes by where they came from."""
    return {
        "pfs": cost.bytes_requested,
        "ram": cost.bytes_ram,
        "local": cost.bytes_local,
        "remote": cost.bytes_remote,
    }


class StatusObserver(Observer):
    """Looks at the trial that is at work."""

    def __init__(self, job: Job, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._watched: tuple[Watched, Trainer] | None = None
        self._last: tuple[object, float] = None, 0.0  # what was told last, and when
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="outlook", daemon=True)

    def __enter__(self) -> Self:
        """See Observer: begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """See Observer."""
        self._over.set()
        self._thread.join()

    def before_trial(self, trial: Running) -> None:
        """See Observer."""
        watched = Watched.of(trial.times, self._job)
        with self._lock:
            self._watched = watched, trial.trainer

    def at_epoch(self, segment: Segment, epoch: int) -> None:  # noqa: ARG002 - an Observer's
        """See Observer."""
        self._tell({"event": "epoch", "epoch": epoch})

    def after_trial(self, trial: Running) -> None:  # noqa: ARG002 - an Observer's
        """See Observer: tell its last numbers."""
        with self._lock:
            watched, self._watched = self._watched, None
        if watched is not None:
            self._write_status(*watched)

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            with self._lock:  # so that nothing of a trial is told behind its last numbers
                if self._watched is not None:
                    self._write_status(*self._watched)
                else:
                    self._tell_if_new({"event": SAMPLE}, None)

    def _write_status(self, watched: Watched, trainer: Trainer) -> None:
        with suppress(Exception):  # what cannot be told of a trial must not end it, nor the thread
            told = snapshot(watched, time.perf_counter())
            known = {"loss": trainer.loss, "bytes": by_source(watched.times.tally.so_far())}
            self._tell_if_new({"event": SAMPLE, **told, **known}, (id(watched), told["share"], told["phase"]))

    def _tell_if_new(self, event: dict[str, Any], state: object) -> None:
        """Tell what is new, and a sign of life now and then: what a rank writes must not hide that it stands still."""
        now = time.monotonic()
        if self._last[0] != state or now - self._last[1] >= SIGN:
            self._last = state, now
            with suppress(OSError, ValueError):  # the launching command has ended
                self._tell(event)


def open_outlook(rank: Rank) -> AbstractContextManager[StatusObserver | None]:
    """Tells of trials on rank 0; nothing on the others."""
    return StatusObserver(rank.job, rank.tell) if rank.comm.rank == 0 else nullcontext()
