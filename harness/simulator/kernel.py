"""Processes on a virtual clock: generators that yield the moment or the signal for which they wait."""

import heapq
from collections.abc import Generator
from typing import TypeAlias


class Signal:
    """Processes wait for it until another one wakes them."""

    def __init__(self) -> None:
        self.waiting: list[Process] = []


Wait: TypeAlias = "float | Signal"  # until this moment, or until the signal is given
Process: TypeAlias = Generator[Wait, None, None]


class Clock:
    """Virtual seconds. Of processes due at the same moment, the one that was first to wait goes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._turn = 0
        self._due: list[tuple[float, int, Process]] = []

    def start(self, process: Process) -> None:
        """Let a process begin now."""
        self._push(self.now, process)

    def wake(self, signal: Signal) -> None:
        """Let all processes that wait for the signal continue now."""
        waiting, signal.waiting = signal.waiting, []
        for process in waiting:
            self._push(self.now, process)

    def run(self, until: float = float("inf")) -> None:
        """Run until no process is due before `until`. Processes that still wait for a signal stay as they are."""
        while self._due and self._due[0][0] <= until:
            self.now, _, process = heapq.heappop(self._due)
            wait = next(process, None)
            if isinstance(wait, Signal):
                wait.waiting.append(process)
            elif wait is not None:
                self._push(max(wait, self.now), process)

    def _push(self, moment: float, process: Process) -> None:
        self._turn += 1
        heapq.heappush(self._due, (moment, self._turn, process))


class Link:
    """Transfers bytes at `rate` bytes a second, one request after the other, first come first served."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = 0.0

    def reserve(self, now: float, size: float) -> tuple[float, float]:
        """Queue `size` bytes: when their transfer begins and ends."""
        start = max(now, self._free)
        self._free = start + size / self.rate
        return start, self._free


class Barrier:
    """A barrier of `members` processes, which leave `seconds` after the last one has come."""

    def __init__(self, clock: Clock, members: int, seconds: float) -> None:
        self._clock, self._members, self._seconds = clock, members, seconds
        self._come, self._over = 0, Signal()

    def meet(self) -> Process:
        """Wait for all the others."""
        self._come += 1
        if self._come == self._members:
            self._come = 0
            over, self._over = self._over, Signal()
            self._clock.wake(over)
        else:
            yield self._over
        yield self._clock.now + self._seconds
