"""Progress on stderr: one line that changes on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from dlio_bench.units import format_bytes, format_seconds

QUIET_SECONDS = 10.0  # between two lines where output is not a terminal
# A rate is told once this much is behind the first piece, which has the start of workers in it.
LEAST_SECONDS, LEAST_REPORTS = 1.0, 4


class Progress:
    """Shows what a run is doing on stderr."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._last = -QUIET_SECONDS
        self._what: dict[str, Any] = {}
        self._heading = ""
        self._trials = 0
        self._amount = _Amount("", 0)
        self._epochs: _Epochs | None = None
        self._foretold = False  # whether the line at hand has had an ETA

    def begin(self, heading: str, *, trials: int, epochs: int, epoch_seconds: float = 0.0) -> None:
        """A job starts: of so many trials a reader, and epochs in all. `epoch_seconds`: least that an epoch takes."""
        self._heading = heading
        self._trials = trials
        self._epochs = _Epochs(epochs, epoch_seconds)
        self._foretold = False
        self.show(f"{self._heading}  starting")

    def bytes_written(self, done: int, total: int) -> None:
        """Generation: `done` of `total` bytes are on disk."""
        self.amount("making the dataset", done, total)

    def amount(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes are through; rate and remaining time count from the first piece that was finished."""
        now = self._clock()
        if what != self._amount.what or done < self._amount.done:
            self._amount, self._foretold = _Amount(what, done), False
        rate = self._amount.rate(done, now)
        told = f"  {format_bytes(rate)}/s  eta {format_seconds((total - done) / rate)}" if rate else ""
        self.show(f"{what}  {format_bytes(done)} of {format_bytes(total)}{told}", foretells=bool(told))

    def event(self, event: dict[str, Any]) -> None:
        """What rank 0 says of a running job (see run.measured.rank)."""
        kind = event["event"]
        self._what |= event
        if kind == "ready":
            self.show(f"{self._heading}  ranks are up")
        elif kind == "compile":
            self.show(f"{self._heading}  compiling the network")
        elif kind == "verify":
            self.show(f"{self._heading}  {event['reader']}  verifying content")
        elif "reader" in self._what and self._epochs is not None:
            trial = self._what["trial"] + 1
            epoch = f"  epoch {event['epoch'] + 1}" if kind == "epoch" else ""
            left = self._epochs.left(self._clock(), begins=kind == "epoch")
            eta = f"  eta {format_seconds(left)}" if left else ""
            line = f"{self._heading}  {self._what['reader']}  trial {trial}/{self._trials}{epoch}{eta}"
            self.show(line, foretells=bool(eta))

    def done(self) -> None:
        """Take the line away."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def show(self, line: str, *, foretells: bool = False) -> None:
        """Show a line, in place of the last one on a terminal; the first that foretells the end waits for nothing."""
        now = self._clock()
        first = foretells and not self._foretold
        self._foretold = self._foretold or foretells
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line}")
        elif first or now - self._last >= QUIET_SECONDS:
            self._stream.write(line + "\n")
        else:
            return
        self._last = now
        self._stream.flush()


class _Amount:
    """How fast bytes get through."""

    def __init__(self, what: str, done: int) -> None:
        self.what, self.done = what, done
        self._first: tuple[int, float] | None = None  # bytes and time of the first piece that was finished
        self._reports = 0

    def rate(self, done: int, now: float) -> float:
        """Bytes a second since the first piece; 0 while it cannot be told."""
        if done > self.done:
            self.done = done
            self._reports += 1
            if self._first is None:
                self._first = done, now
        if self._first is None or self._reports < LEAST_REPORTS or now - self._first[1] < LEAST_SECONDS:
            return 0.0
        return (done - self._first[0]) / (now - self._first[1])


class _Epochs:
    """How long the trials of a job will take, by the epochs that are over, or by what an epoch takes at least."""

    def __init__(self, total: int, seconds: float) -> None:
        self._total, self._seconds = total, seconds
        self._started: float | None = None
        self._begun = 0

    def left(self, now: float, *, begins: bool) -> float:
        """Seconds left when a trial or, `begins`, an epoch begins; 0 while nobody can tell."""
        self._started = now if self._started is None else self._started
        over, self._begun = self._begun, self._begun + begins
        if not begins:  # a trial: all epochs that have begun are over
            over = self._begun
        each = (now - self._started) / over if over else self._seconds
        return each * (self._total - over)
