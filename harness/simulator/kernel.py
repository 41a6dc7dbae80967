"""Processes on a virtual clock: generators that say until when they wait, or for what."""

import heapq
from collections.abc import Generator
from typing import TypeAlias


class Signal:
    """What processes wait for until somebody wakes them."""

    def __init__(self) -> None:
        self.waiting: list[Process] = []


Wait: TypeAlias = "float | Signal"  # until this moment, or until the signal is given
Process: TypeAlias = Generator[Wait, None, None]


class Clock:
    """Virtual seconds. Of processes due at the same moment the one that asked first goes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._turn = 0
        self._due: list[tuple[float, int, Process]] = []

    def start(self, process: Process) -> None:
        """Let a process begin now."""
        self._push(self.now, process)

    def wake(self, signal: Signal) -> None:
        """Let everybody who waits for the signal go on now."""
        waiting, signal.waiting = signal.waiting, []
        for process in waiting:
            self._push(self.now, process)

    def run(self, until: float = float("inf")) -> None:
        """Until nobody has anything to do before `until`; who still waits for a signal then waits for ever."""
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
    """Something that passes bytes on one after the other, first come first served, at `rate` bytes a second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = 0.0

    def reserve(self, now: float, size: float) -> tuple[float, float]:
        """Take the next place for `size` bytes: when they begin and when they are through."""
        start = max(now, self._free)
        self._free = start + size / self.rate
        return start, self._free


class Meeting:
    """A barrier of `members` processes, which leave `seconds` after the last one came."""

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
