"""How many threads read: a pure function of what their reads have cost, and what the kernel knows of a thread."""

import os
import threading
from typing import NamedTuple

# Threads a rank at most. They sleep while storage keeps them waiting, and then cost nothing.
MOST_THREADS = 32
# Of the time that reads take, the part in which their thread computes: from memory it is all of it, less what it waits
# for the processor and the interpreter; from a disk or a file system below a tenth.
FROM_MEMORY = 0.25
# Bytes from memory keep a processor busy, and more threads than cores would only keep each other and the trainer from
# one. While the trainer computes they may have its core, too, if it computes for long enough: this part of the time
# that reading takes, and this many seconds. Else there is nothing to read behind (it may wait for other ranks, but
# these read, too), and it reads with them; without a core to spare, alone.
# Measured on two cores: with one rank and no compute, four threads read at the pace of the trainer alone and took up to
# twice its time until all slots were full, one thread and the trainer 0.5 to 0.9 of it. With two ranks, one thread each
# took 1.2 times the time where it read 0.5 ms behind 0.3 ms, 0.95 behind 0.5 ms, 0.75 behind 0.8 ms; 1.1 times where it
# read 8 ms behind 2 ms, 0.95 behind 3 ms.
HIDDEN, HIDDEN_SECONDS = 1 / 3, 500e-6


class Spent(NamedTuple):
    """What some reads took: seconds from their begin to their end, and those that their threads computed. Times in
    which a thread was ready to run and had no core are in neither.
    """

    seconds: float = 0.0
    computed: float = 0.0

    @property
    def from_memory(self) -> bool:
        """Whether the processor was busy with what was read, so that it came from memory."""
        return self.computed > FROM_MEMORY * self.seconds

    def and_(self, other: "Spent") -> "Spent":
        """Both together."""
        return Spent(self.seconds + other.seconds, self.computed + other.computed)

    def and_half_of(self, before: "Spent") -> "Spent":
        """Together with what was spent before, which counts half."""
        return Spent(self.seconds + before.seconds / 2, self.computed + before.computed / 2)


class Readers(NamedTuple):
    """Who reads: threads beside the trainer, and whether the trainer reads ahead with them."""

    threads: int
    trainer: bool


def readers(spent: Spent, a_step: float, step_seconds: float, *, most: int, spare_cores: int) -> Readers:
    """Who is to read, after reads that took `spent`.

    a_step: seconds that the reads of a step take. step_seconds: how long the trainer computes in one. most: threads
    there may be. spare_cores: of this rank, beside the trainer's.

    Where threads wait for storage, so many as keep one core busy between them: cores x (1 + waiting / computing), of
    B. Goetz et al., Java Concurrency in Practice, 2006, section 8.2. An open of 5 ms before a read of 0.1 ms asks for
    as many as there may be, bytes from memory for one a core.
    """
    if spent.from_memory:
        hidden = step_seconds >= max(HIDDEN * a_step, HIDDEN_SECONDS)
        return Readers(min(most, max(0, spare_cores) + hidden), not hidden)
    waiting = spent.seconds / max(spent.computed, 1e-6)
    return Readers(min(most, max(1, spare_cores) * round(waiting)), trainer=False)


class _OwnStatistics(threading.local):
    """What the kernel's scheduler knows of a thread, kept open: opening it costs more than what is timed with it."""

    def __init__(self) -> None:
        self.open = _Statistics()


class _Statistics:
    def __init__(self) -> None:
        try:
            self._handle = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._handle = -1

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def queued(self) -> int:
        """Nanoseconds in the queue of a core."""
        return int(os.pread(self._handle, 96, 0).split()[1])


_own = _OwnStatistics()


def queued_seconds() -> float:
    """Seconds that this thread has been ready to run and waited for a core; 0 where the kernel does not tell.

    Source: the second number of /proc/PID/task/TID/schedstat, in nanoseconds (Linux, scheduler/sched-stats.rst).
    """
    try:
        return _own.open.queued() / 1e9
    except OSError:  # nothing was opened, or it was for a process that this one was forked from
        return 0.0
