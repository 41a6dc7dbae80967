"""A bandwidth cap as a virtual clock: each transfer takes its place on the link, and its caller waits until it is over.

A transfer that finds the link free begins at max(now - credit, the time until which the link was used). `credit` gives
back time that the emulation itself lost, such as a late wake-up, and is at most SLACK: over any window of t seconds no
more than rate * (t + SLACK) bytes begin and end.

Users of a link stand in queues. Within a queue the first to come is served first; queues with bytes waiting share the
rate evenly. The state of a link is what waits in each queue at a given time. From it follows when the bytes of a
transfer are through if no other transfer comes. Others only delay it: the caller asks again when that time has come.
"""

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dlio_bench.errors import EnvironmentFailure

# Seconds. Wake-ups on a busy machine with 2 cores come up to some 4 ms late; more would let a burst through.
SLACK = 0.005
_SIZE = 8  # one double


class LinkSpan(NamedTuple):
    """When a transfer has the link, in seconds of the clock that `now` came from."""

    start: float
    end: float


def transfer_span(next_free: float, now: float, credit: float, count: int, rate: float | None) -> LinkSpan:
    """The span of `count` bytes asked for at `now` on a link of `rate` bytes/s (None = unlimited), free from
    `next_free` on. The link is free again at the span's end. Pure.
    """
    if rate is None:
        return LinkSpan(now, now)
    start = max(now - min(max(credit, 0.0), SLACK), next_free)
    return LinkSpan(start, start + count / rate)


class LocalBucket:
    """A link whose users hold a lock of their own. next_free: one double, of shared memory if processes share it."""

    def __init__(self, rate: float | None, next_free: "memoryview[float] | None" = None) -> None:
        self._rate = rate
        self._next_free = memoryview(bytearray(_SIZE)).cast("d") if next_free is None else next_free

    def reserve(self, count: int, now: float, credit: float = 0.0) -> LinkSpan:
        """Take the link for `count` bytes."""
        span = transfer_span(self._next_free[0], now, credit, count, self._rate)
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


class Transfer(NamedTuple):
    """Bytes on their way: their queue, and the bytes that it has been asked for up to their last one.

    end: when they are through if no other transfer comes.
    """

    queue: int
    mark: float
    end: float


def bytes_until_served(waiting: Sequence[float], count: float) -> float:
    """Bytes that a link carries until a queue has had `count` of its own, all queues the same. Pure."""
    return sum(min(one, count) for one in waiting)


def remaining_queues(waiting: Sequence[float], carried: float) -> list[float]:
    """What waits in each queue when the link has carried so many bytes, of each queue the same. Pure."""
    level, busy = 0.0, sorted(filter(None, waiting))
    for gone, most in enumerate(busy):
        each = carried / (len(busy) - gone)
        if level + each < most:
            level += each
            break
        carried -= (most - level) * (len(busy) - gone)
        level = most
    return [max(one - level, 0.0) for one in waiting]


class SharedLink:
    """A link of all processes that open the same file (made by `create`). Its times are of CLOCK_MONOTONIC, which all
    processes of a machine share.
    """

    def __init__(self, path: Path, rate: float | None) -> None:
        self._rate = rate
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(self._fd, 0)
            except BaseException:
                os.close(self._fd)
                raise
        except (OSError, ValueError) as error:
            raise EnvironmentFailure(
                f"'{path}', which holds the emulated file system's shared rate, cannot be opened ({error}). "
                "Start the emulation again."
            ) from None
        self._lock = FileLock(self._fd)
        # of all queues the bytes waiting, then of all the bytes they have been asked for; then the time of that
        self._state = memoryview(self._map).cast("d")
        self._queues = len(self._state) // 2

    @staticmethod
    def create(path: Path, queues: int = 1) -> None:
        """Write the file of a link that is free now."""
        path.write_bytes(bytes(_SIZE * (2 * queues + 1)))  # 0.0 on the monotonic clock is when the machine started

    def reserve(self, count: int, now: float, credit: float = 0.0, queue: int = 0) -> Transfer:
        """Put `count` bytes into a queue."""
        if self._rate is None:
            return Transfer(queue, 0.0, now)
        with self._lock:
            state, many = self._state, self._queues
            moment = max(now - min(max(credit, 0.0), SLACK), state[-1])
            waiting = remaining_queues(state[:many].tolist(), (moment - state[-1]) * self._rate)
            waiting[queue] += count
            mark = state[many + queue] = state[many + queue] + count
            state[-1] = moment
            for number, one in enumerate(waiting):
                state[number] = one
        return Transfer(queue, mark, moment + bytes_until_served(waiting, waiting[queue]) / self._rate)

    def wait(self, transfer: Transfer, until: Callable[[float], None]) -> float:
        """Return when a transfer is through, and the time of that. until: sleeps to a moment."""
        end = transfer.end
        until(end)
        while (later := self._end(transfer)) > end:
            until(end := later)
        return end

    def _end(self, transfer: Transfer) -> float:
        """When a transfer is through if no other transfer comes, as it is known now."""
        if self._rate is None or self._queues == 1:
            return transfer.end
        with self._lock:
            waiting, moment = self._state[: self._queues].tolist(), self._state[-1]
            ahead = waiting[transfer.queue] - (self._state[self._queues + transfer.queue] - transfer.mark)
        return transfer.end if ahead <= 0 else moment + bytes_until_served(waiting, ahead) / self._rate

    def close(self) -> None:
        """Give the file back."""
        self._state.release()
        self._map.close()
        os.close(self._fd)
