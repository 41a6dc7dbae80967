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


class FileLock:
    """A lock of all threads of all processes that open the same file. The kernel releases that of a killed process.

    It is flock(2) and no record lock: where one thread of a process holds a record lock and another thread waits for a
    second one, two such processes look like a deadlock to the kernel, which refuses one of them (EDEADLK).
    """

    def __init__(self, handle: int) -> None:
        """handle: a descriptor that this process has opened itself; one that it inherited would share the lock."""
        self._handle = handle
        self._threads = threading.Lock()  # the threads of a process share the descriptor, and so the file's lock

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_UN)
        self._threads.release()


class SharedBucket:
    """A link of all processes that open the same file (made by `create`). Its times are of CLOCK_MONOTONIC, which all
    processes of a machine share.

    Eight aligned bytes are written at once, so that a killed writer leaves either the old or the new time.
    """

    def __init__(self, path: Path, rate: float | None) -> None:
        self._rate = rate
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
        self._lock = FileLock(self._fd)
        self._next_free = memoryview(self._map).cast("d")

    @staticmethod
    def create(path: Path) -> None:
        """Write the file of a link that is free now."""
        path.write_bytes(bytes(_SIZE))  # 0.0 on the monotonic clock is when the machine started

    def reserve(self, count: int, now: float, credit: float = 0.0) -> Span:
        """Take the link for `count` bytes."""
        if self._rate is None:
            return place(0.0, now, credit, count, None)
        with self._lock:
            span = place(self._next_free[0], now, credit, count, self._rate)
            self._next_free[0] = span.end
        return span

    def close(self) -> None:
        """Give the file back."""
        self._next_free.release()
        self._map.close()
        os.close(self._fd)
