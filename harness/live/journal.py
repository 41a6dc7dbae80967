"""What the launching command writes into the status of its run: it alone writes, also what rank 0 tells it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dlio_bench import signals
from dlio_bench.errors import BenchError, EnvironmentFailure
from dlio_bench.harness.live.status import (
    DONE,
    FAILED,
    FIELDS,
    PREPARING,
    TIMED,
    VALIDATION,
    VERIFYING,
    WARM_UP,
    append,
    record,
)

LEAST_SECONDS = 1.0  # between two lines of one phase
MOST_TEXT = 2000  # characters of a message
OF_TRIAL = ("trial", "trials", "epoch", "epochs", "step", "steps")
MEASURED = ("samples_per_second", "stall_share", "loss", "bytes")
AT_WORK = (WARM_UP, TIMED, VALIDATION)
DIVERGED = "the loss is no number"


class Journal:
    """The status of a run in `folder`. Any thread may call it.

    It never fails: a full disk, or a value that no record may have, costs the status alone.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._known: dict[str, Any] = {}
        self._phase, self._task = "", ""
        self._last = 0.0
        self._lock = threading.Lock()
        self._readers: Sequence[str] = ()
        self._warm_ups = 0
        self._before, self._jobs = 0, 1  # jobs that are finished, and all
        self._turns = -1  # trials that are over in this job

    def begin(self, readers: Sequence[str], number: int, jobs: int, warm_ups: int, **about: Any) -> None:
        """A job starts: its results are those of `readers`, number `number` (from 0 on) of so many node counts.

        about: nodes, ranks, epochs, trials.
        """
        with self._lock:
            self._readers, self._before, self._jobs, self._warm_ups = tuple(readers), number, jobs, warm_ups
            self._turns = -1
            self._known = {**about, "results": jobs * len(readers), "progress": number / jobs, "rank": 0}
            self._write(PREPARING, at_once=True)

    def preparing(self, task: str, line: str) -> None:
        """What the command does before and between trials, as on its progress line. task: what stays of the line."""
        with self._lock:
            if self._phase not in AT_WORK:
                changed, self._task = task != self._task and self._phase != VERIFYING, task
                self._known["message"] = line
                self._write(self._phase or PREPARING, at_once=changed)

    def event(self, event: Mapping[str, Any]) -> None:
        """An event of rank 0, see run.measured.rank."""
        kind = event["event"]
        with self._lock:
            if kind == "trial":
                self._begin_trial(event["reader"], event["trial"])
            elif kind == "at work":
                self._look(event)
            elif kind == "verify":
                self._known |= {"reader": event["reader"], "result": self._result(event["reader"]), "message": None}
                self._known["progress"] = (self._before + 1) / self._jobs
                self._write(VERIFYING)

    def end(self, phase: str, status: int, message: str | None = None) -> None:
        """The run has ended with this exit status."""
        with self._lock:
            if phase == DONE:
                self._known["progress"] = 1.0
            self._known["message"] = None if message is None else message[:MOST_TEXT]
            self._write(phase, at_once=True, exit_status=status)

    def _begin_trial(self, reader: str, trial: int) -> None:
        self._turns += 1
        self._known |= dict.fromkeys(MEASURED) | {"message": None}
        self._known |= {"reader": reader, "result": self._result(reader), "trial": trial + 1, "epoch": 1, "step": 0}
        self._known["progress"] = self._progress(0.0)
        self._write(WARM_UP if trial < self._warm_ups else TIMED)

    def _look(self, event: Mapping[str, Any]) -> None:
        """What rank 0 sees of a trial; nothing where it only shows that it lives."""
        if "share" not in event:
            self._write(self._phase)
            return
        seen = {name: event[name] for name in (*OF_TRIAL, *MEASURED) if name in event}
        unknown = {name for name, value in seen.items() if not FIELDS[name](value)}  # as a loss that is no number
        self._known |= seen | dict.fromkeys(unknown) | {"message": DIVERGED if "loss" in unknown else None}
        self._known["progress"] = self._progress(event["share"])
        usual = WARM_UP if self._known["trial"] <= self._warm_ups else TIMED
        self._write(event["phase"] or usual)

    def _result(self, reader: str) -> int:
        return self._before * len(self._readers) + self._readers.index(reader) + 1

    def _progress(self, share: float) -> float:
        turns = int(self._known["trials"]) * len(self._readers)
        return min(1.0, (self._before + (self._turns + share) / turns) / self._jobs)

    def _write(self, phase: str, *, at_once: bool = False, **more: Any) -> None:
        """Append what is known, if the phase is another one or the last line is old enough."""
        now = self._clock()
        if not at_once and phase == self._phase and now - self._last < LEAST_SECONDS:
            return
        self._phase, self._last = phase, now
        with suppress(OSError, ValueError):
            append(self._folder, record(phase, **self._known, **more))


@contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """The status of the run inside, in its folder. A failure is its last line."""
    journal = Journal(folder)
    journal.preparing("", "")
    try:
        yield journal
    except BenchError as error:
        journal.end(FAILED, error.status, str(error))
        raise
    except KeyboardInterrupt:
        journal.end(FAILED, EnvironmentFailure.status, f"{signals.interrupt_reason()}: the ranks have ended.")
        raise
    except Exception as error:
        journal.end(FAILED, EnvironmentFailure.status, f"{type(error).__name__}: {error}")
        raise
