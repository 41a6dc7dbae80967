"""Progress on stderr: one line that changes on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from typing import Any, TextIO

from dlio_bench.harness.run.job import Job
from dlio_bench.units import format_bytes, format_seconds

QUIET_SECONDS = 10.0  # between two lines where output is not a terminal


class Progress:
    """Shows what a run is doing on stderr."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._last = -QUIET_SECONDS
        self._what: dict[str, Any] = {}
        self._heading = ""
        self._trials = 0
        self._done_before: int | None = None  # bytes that were there when the first report came

    def begin(self, job: Job) -> None:
        """A job starts."""
        self._heading = f"{job.workload}  {job.nodes}x{job.ranks_per_node} ranks"
        self._trials = job.trials + job.warmup_trials
        self.show(f"{self._heading}  starting")

    def bytes_written(self, done: int, total: int) -> None:
        """Generation: `done` of `total` bytes are on disk."""
        self.amount("making the dataset", done, total)

    def amount(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes are through; rate and remaining time count from the first such report."""
        if self._done_before is None:
            self._done_before, self._started = done, time.monotonic()
        seconds, now_done = time.monotonic() - self._started, done - self._done_before
        rate = now_done / seconds if seconds > 0 else 0.0
        left = f"  eta {format_seconds((total - done) / rate)}" if rate else ""
        speed = f"  {format_bytes(rate)}/s" if rate else ""
        self.show(f"{what}  {format_bytes(done)} of {format_bytes(total)}{speed}{left}")

    def event(self, event: dict[str, Any]) -> None:
        """What rank 0 says of a running job (see run.rank)."""
        kind = event["event"]
        self._what |= event
        if kind == "ready":
            self.show(f"{self._heading}  ranks are up")
        elif kind == "compile":
            self.show(f"{self._heading}  compiling the network")
        elif kind == "verify":
            self.show(f"{self._heading}  {event['reader']}  verifying content")
        elif "reader" in self._what:
            trial = self._what["trial"] + 1
            epoch = f"  epoch {event['epoch'] + 1}" if kind == "epoch" else ""
            self.show(f"{self._heading}  {self._what['reader']}  trial {trial}/{self._trials}{epoch}")

    def done(self) -> None:
        """Take the line away."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def show(self, line: str) -> None:
        """Show a line, in place of the last one on a terminal."""
        now = time.monotonic()
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line}")
        elif now - self._last >= QUIET_SECONDS:
            self._stream.write(line + "\n")
        else:
            return
        self._last = now
        self._stream.flush()
