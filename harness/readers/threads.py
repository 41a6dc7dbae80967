"""How many threads read: pure functions of what their reads have cost, and what the kernel knows of a thread."""

import os
import threading
from typing import NamedTuple

from dlio_bench.harness.cluster.environment import usable_cores

# Of the time that reads take, the part in which their thread computes: from memory it is all of it, less what it waits
# for the processor and the interpreter; from a disk or a file system below a tenth.
FROM_MEMORY = 0.25
# Reading from memory keeps a core busy. More threads than cores then only compete with each other and with the trainer.
# A thread may also have the trainer's core if the trainer computes for long enough: this part of the time that the
# reads of a step take, and this many seconds. Otherwise nothing hides the reading (other ranks read at the same time),
# and the trainer reads too; without a spare core it reads alone.
#
# Measured on two cores, bytes from memory; time relative to the trainer that reads alone:
#   ranks  read a step  computed a step  threads of a rank        time
#   1      any          0                4                        1 to 2 until all slots are full
#   1      any          0                1 and the trainer        0.5 to 0.9
#   2      0.5 ms       0.3 ms           1                        1.2
#   2      0.5 ms       0.5 ms           1                        0.95
#   2      0.5 ms       0.8 ms           1                        0.75
#   2      8 ms         2 ms             1                        1.1
#   2      8 ms         3 ms             1                        0.95
HIDDEN, HIDDEN_SECONDS = 1 / 3, 500e-6
# While a step takes less than this from one batch to the next, reading included, the trainer reads for itself and the
# threads sleep: handing so little from thread to thread costs more than reading it.
QUICK_SECONDS = 200e-6


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


def awake(reading: Readers, before: int, seconds: float) -> int:
    """Threads that read from now on, after `before` threads read for a step of so many seconds."""
    return 0 if not before and seconds < QUICK_SECONDS else reading.threads


def spare_cores(ranks_on_host: int) -> int:
    """Cores of a rank beside its trainer's; below 0 where ranks share cores."""
    return usable_cores() // ranks_on_host - 1


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
