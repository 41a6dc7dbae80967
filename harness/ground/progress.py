"""Progress on stderr: one line that changes on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from dlio_bench.units import format_bytes, format_seconds

QUIET_SECONDS = 10.0  # between two lines if the output is not a terminal
# A rate is shown this long after the first piece, which includes the start of workers.
LEAST_SECONDS, LEAST_REPORTS = 1.0, 4


class Progress:
    """Shows what a run is doing on stderr.

    heard: also gets every line, after what stays the same of it while a task goes on.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.heard: Callable[[str, str], None] = _ignore
        self._stream = stream or sys.stderr
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._last = -QUIET_SECONDS
        self._state: dict[str, Any] = {}  # all that events have said
        self._heading = ""
        self._trials = 0
        self._amount = _Amount("", 0)
        self._epochs: _Epochs | None = None
        self._had_eta = False  # whether the current task has shown an ETA

    def begin(self, heading: str, *, trials: int, epochs: int, epoch_seconds: float = 0.0) -> None:
        """A job starts. trials: of each reader; epochs: of all; epoch_seconds: the least that an epoch takes."""
        self._heading = heading
        self._trials = trials
        self._epochs = _Epochs(epochs, epoch_seconds)
        self._had_eta = False
        self.show(f"{self._heading}  starting")

    def bytes_written(self, done: int, total: int) -> None:
        """Generation: `done` of `total` bytes are on disk."""
        self.amount("making the dataset", done, total)

    def amount(self, task: str, done: int, total: int) -> None:
        """`done` of `total` bytes are done. Rate and remaining time count from the first finished piece."""
        now = self._clock()
        if task != self._amount.task or done < self._amount.done:
            self._amount, self._had_eta = _Amount(task, done), False
        rate = self._amount.rate(done, now)
        eta = f"  {format_bytes(rate)}/s  eta {format_seconds((total - done) / rate)}" if rate else ""
        self.show(f"{task}  {format_bytes(done)} of {format_bytes(total)}{eta}", has_eta=bool(eta), task=task)

    def event(self, event: dict[str, Any]) -> None:
        """An event of rank 0 in a running job (see run.measured.rank)."""
        kind = event["event"]
        self._state |= event
        if kind == "ready":
            self.show(f"{self._heading}  ranks are up")
        elif kind == "compile":
            self.show(f"{self._heading}  compiling the network")
        elif kind == "verify":
            self.show(f"{self._heading}  {event['reader']}  verifying content")
        elif "reader" in self._state and self._epochs is not None:
            trial = self._state["trial"] + 1
            epoch = f"  epoch {event['epoch'] + 1}" if kind == "epoch" else ""
            left = self._epochs.seconds_left(self._clock(), begins=kind == "epoch")
            eta = f"  eta {format_seconds(left)}" if left else ""
            line = f"{self._heading}  {self._state['reader']}  trial {trial}/{self._trials}{epoch}{eta}"
            self.show(line, has_eta=bool(eta))

    def clear(self) -> None:
        """Remove the line."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def lines_under(self, heading: str) -> Callable[[str], None]:
        """Shows lines behind a heading."""
        return lambda line: self.show(f"{heading}  {line}")

    def show(self, line: str, *, has_eta: bool = False, task: str | None = None) -> None:
        """Show a line, on a terminal in place of the last one. The first line with an ETA is shown at once.

        task: what stays the same of the line, if it is not all of it.
        """
        self.heard(line if task is None else task, line)
        now = self._clock()
        first = has_eta and not self._had_eta
        self._had_eta = self._had_eta or has_eta
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line}")
        elif first or now - self._last >= QUIET_SECONDS:
            self._stream.write(line + "\n")
        else:
            return
        self._last = now
        self._stream.flush()


def _ignore(task: str, line: str) -> None:
    """Nobody hears."""


class _Amount:
    """How fast a task processes bytes."""

    def __init__(self, task: str, done: int) -> None:
        self.task, self.done = task, done
        self._first: tuple[int, float] | None = None  # bytes and time of the first finished piece
        self._reports = 0

    def rate(self, done: int, now: float) -> float:
        """Bytes a second since the first piece; 0 while it is not known."""
        if done > self.done:
            self.done = done
            self._reports += 1
            if self._first is None:
                self._first = done, now
        if self._first is None or self._reports < LEAST_REPORTS or now - self._first[1] < LEAST_SECONDS:
            return 0.0
        return (done - self._first[0]) / (now - self._first[1])


class _Epochs:
    """How long the trials of a job take, estimated from the epochs so far, or from the least time of an epoch."""

    def __init__(self, total: int, seconds: float) -> None:
        self._total, self._seconds = total, seconds
        self._started: float | None = None
        self._begun = 0

    def seconds_left(self, now: float, *, begins: bool) -> float:
        """Seconds left when a trial or (`begins`) an epoch begins; 0 while they are not known."""
        self._started = now if self._started is None else self._started
        over = self._begun  # all epochs that have begun
        self._begun += begins
        each = (now - self._started) / over if over else self._seconds
        return each * (self._total - over)
