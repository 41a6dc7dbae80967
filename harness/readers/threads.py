"""How many threads read: pure functions of the cost of their reads, and of what the kernel knows of a thread."""

import os
import threading
from typing import NamedTuple

from dlio_bench.harness.cluster.environment import usable_cores

# The part of the time of reads in which their thread computes: from memory nearly all of it, except waits for the CPU
# and the interpreter; from a disk or a file system less than a tenth.
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
# While a step takes less than this from one batch to the next, with reading, the trainer reads for itself and the
# threads sleep: handing a batch to another thread would cost more than reading it.
QUICK_SECONDS = 200e-6
POOL_THREADS = 4  # a rank, as in CDB's published pipeline


class Spent(NamedTuple):
    """The cost of some reads: seconds from begin to end, and seconds in which their threads computed. Neither includes
    time in which a thread was ready to run but had no core.
    """

    seconds: float = 0.0
    computed: float = 0.0

    @property
    def from_memory(self) -> bool:
        """Whether reading kept the CPU busy, so that the data came from memory."""
        return self.computed > FROM_MEMORY * self.seconds

    def and_(self, other: "Spent") -> "Spent":
        """Both together."""
        return Spent(self.seconds + other.seconds, self.computed + other.computed)

    def and_half_of(self, before: "Spent") -> "Spent":
        """The sum with earlier reads, which count half."""
        return Spent(self.seconds + before.seconds / 2, self.computed + before.computed / 2)


class Readers(NamedTuple):
    """Who reads: threads beside the trainer, and whether the trainer reads ahead with them."""

    threads: int
    trainer: bool


def readers(spent: Spent, a_step: float, step_seconds: float, *, most: int, spare_cores: int) -> Readers:
    """Who is to read, after reads that took `spent`.

    a_step: seconds that the reads of a step take. step_seconds: how long the trainer computes in a step. most: the
    largest number of threads. spare_cores: of this rank, without the trainer's.

    If threads wait for storage, as many read as keep the cores busy: cores x (1 + waiting / computing), from B. Goetz
    et al., Java Concurrency in Practice, 2006, section 8.2. An open of 5 ms before a read of 0.1 ms needs `most`
    threads, data from memory one thread for each core.
    """
    if spent.from_memory:
        hidden = step_seconds >= max(HIDDEN * a_step, HIDDEN_SECONDS)
        return Readers(min(most, max(0, spare_cores) + hidden), not hidden)
    waiting = spent.seconds / max(spent.computed, 1e-6)
    return Readers(min(most, max(1, spare_cores) * round(waiting)), trainer=False)


def awake(reading: Readers, before: int, seconds: float) -> int:
    """Threads that read from now on, after `before` threads have read for a step of `seconds`."""
    return 0 if not before and seconds < QUICK_SECONDS else reading.threads


def reading_threads(ranks_on_host: int) -> int:
    """Threads of a rank's pools of fixed size, which copy to node-local storage, fill tiers and run tf.data.

    Two for each core that the rank has: one waits while the other computes. More would delay the trainers.
    """
    return max(1, min(POOL_THREADS, 2 * usable_cores() // ranks_on_host))


def spare_cores(cores: float) -> int:
    """Cores of a rank without its trainer's; below 0 if ranks share cores."""
    return int(cores) - 1


class _OwnStatistics(threading.local):
    """The scheduler statistics of a thread, kept open: opening the file costs more than the reads that are timed."""

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
        """Nanoseconds that the thread has waited in the queue of a core."""
        return int(os.pread(self._handle, 96, 0).split()[1])


_own = _OwnStatistics()


def queued_seconds() -> float:
    """Seconds that this thread was ready to run and waited for a core; 0 if the kernel does not tell.

    Source: the second number of /proc/PID/task/TID/schedstat, in nanoseconds (Linux, scheduler/sched-stats.rst).
    """
    try:
        return _own.open.queued() / 1e9
    except OSError:  # it could not be opened, or this process was forked since
        return 0.0
