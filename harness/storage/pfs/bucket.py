"""A bandwidth cap as a virtual clock: each transfer takes its place on the link, and its caller waits until it is over.

The state is one number, the time at which the link is free again. A transfer of n bytes begins at
max(now - credit, next_free) and takes n / rate. `credit` gives back time that the emulation itself lost, such as a late
wake-up, and is at most SLACK: over any window of t seconds no more than rate * (t + SLACK) bytes begin and end.
"""

import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import NamedTuple

from dlio_bench.errors import EnvironmentFailure

# Seconds. Wake-ups on a busy machine with 2 cores come up to some 4 ms late; more would let a burst through.
SLACK = 0.005
_SIZE = 8  # one double


class Span(NamedTuple):
    """When a transfer has the link, in seconds of the clock that `now` came from."""

    start: float
    end: float


def place(next_free: float, now: float, credit: float, count: int, rate: float | None) -> Span:
    """The span of `count` bytes asked for at `now` on a link of `rate` bytes/s (None = unlimited), free from
    `next_free` on. The link is free again at the span's end. Pure.
    """
    if rate is None:
        return Span(now, now)
    start = max(now - min(max(credit, 0.0), SLACK), next_free)
    return Span(start, start + count / rate)


class LocalBucket:
    """A link whose users hold a lock of their own. next_free: one double, of shared memory if processes share it."""

    def __init__(self, rate: float | None, next_free: "memoryview[float] | None" = None) -> None:
        self._rate = rate
        self._next_free = memoryview(bytearray(_SIZE)).cast("d") if next_free is None else next_free

    def reserve(self, count: int, now: float, credit: float = 0.0) -> Span:
        """Take the link for `count` bytes."""
        span = place(self._next_free[0], now, credit, count, self._rate)
        self._next_free[0] = max(self._next_free[0], span.end)
        return span


class SharedBucket:
    """A link of all processes that open the same file (made by `create`). Its times are of CLOCK_MONOTONIC, which all
    processes of a machine share.

    The lock is the kernel's record lock, which a killed holder loses; eight aligned bytes are written at once, so
    that a killed writer leaves either the old or the new time.
    """

    def __init__(self, path: Path, rate: float | None) -> None:
        self._rate = rate
        self._threads = threading.Lock()  # record locks belong to the process: they do not part its threads
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(self._fd, _SIZE)
            except BaseException:
                os.close(self._fd)
                raise
        except (OSError, ValueError) as error:
            raise EnvironmentFailure(
                f"'{path}', which holds the emulated file system's shared rate, cannot be opened ({error}). "
                "Start the emulation again."
            ) from None
        self._next_free = memoryview(self._map).cast("d")

    @staticmethod
    def create(path: Path) -> None:
        """Write the file of a link that is free now."""
        path.write_bytes(bytes(_SIZE))  # 0.0 on the monotonic clock is when the machine started

    def reserve(self, count: int, now: float, credit: float = 0.0) -> Span:
        """Take the link for `count` bytes."""
        if self._rate is None:
            return place(0.0, now, credit, count, None)
        with self._threads:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                span = place(self._next_free[0], now, credit, count, self._rate)
                self._next_free[0] = span.end
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return span

    def close(self) -> None:
        """Give the file back."""
        self._next_free.release()
        self._map.close()
        os.close(self._fd)
