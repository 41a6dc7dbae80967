"""How many threads read: pure functions of the cost of their reads, and of what the kernel knows of a thread."""

import math
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

# While storage keeps threads waiting, the number of chunks that are read at once follows their times, as TCP Vegas has
# the number of packets follow theirs (Brakmo and Peterson, 1995): more chunks at once are worth it while each takes as
# long as one alone; what makes them slower is a queue, in which the next batch stands behind later ones.
# FEWEST_QUEUED, MOST_QUEUED: chunks of a rank in that queue; below it reads more at once, above it fewer
FEWEST_QUEUED, MOST_QUEUED = 1, 2
ROUND_CHUNKS = 4  # chunks at least whose mean time is looked at
ROUNDS = 8  # after so many the queue is left to run empty, to see what a chunk takes without one


class ThreadTime(NamedTuple):
    """The cost of some reads: seconds from begin to end, and seconds in which their threads computed. Neither includes
    time in which a thread was ready to run but had no core. files: whether files were read, and not only other ranks.
    """

    seconds: float = 0.0
    computed: float = 0.0
    files: bool = True

    @property
    def from_memory(self) -> bool:
        """Whether reading kept the CPU busy, so that the data came from memory."""
        return self.computed > FROM_MEMORY * self.seconds

    def plus(self, other: "ThreadTime") -> "ThreadTime":
        """Both together."""
        return ThreadTime(self.seconds + other.seconds, self.computed + other.computed)

    def and_half_of(self, before: "ThreadTime") -> "ThreadTime":
        """The sum with earlier reads, which count half."""
        return ThreadTime(self.seconds + before.seconds / 2, self.computed + before.computed / 2)


class Readers(NamedTuple):
    """Who reads: threads beside the trainer, and whether the trainer reads ahead with them.

    waits: storage keeps them waiting, so that their number follows the times of chunks (see Concurrency).
    """

    threads: int
    trainer: bool
    waits: bool = False


# Chunks of fewer bytes cost more of Python than of copying, and its interpreter runs one thread at a time. Raw ImageNet
# from memory, 3.6 kB a file, 1 rank on 2 cores: 28 us a sample by a thread and the trainer, 9 us by the trainer alone.
SMALL_CHUNK = 32_000


def readers(
    spent: ThreadTime,
    a_step: float,
    step_seconds: float,
    *,
    most: int,
    waiting: int,
    spare_cores: int,
    chunk_bytes: float = SMALL_CHUNK,
) -> Readers:
    """Who is to read, after reads that took `spent`.

    a_step: seconds that the reads of a step take. step_seconds: how long the trainer computes in a step. most: the
    largest number of threads. waiting: threads if storage keeps them waiting (see Concurrency). spare_cores: of this
    rank, without the trainer's. chunk_bytes: mean size of what a thread takes at once.
    """
    if spent.from_memory:
        hidden = step_seconds >= max(HIDDEN * a_step, HIDDEN_SECONDS)
        beside = 0 if chunk_bytes < SMALL_CHUNK else max(0, spare_cores)
        return Readers(min(most, beside + hidden), not hidden)
    return Readers(waiting, trainer=False, waits=True)


class Window(NamedTuple):
    """How many chunks are read at once, and the mean time of a chunk in the fastest round of the last `rounds`."""

    threads: int
    fastest: float = math.inf
    rounds: int = 0


def next_window(window: Window, reading: float, seconds: float, most: int) -> Window:
    """The window after a round in which on average `reading` chunks were read at once, each for `seconds`. Pure."""
    fastest = min(window.fastest, seconds)
    busy = reading * fastest / seconds  # chunks at once that would be as fast without a queue
    if window.rounds == ROUNDS:
        return Window(max(1, int(busy)))
    threads = window.threads
    if reading - busy > MOST_QUEUED:
        threads = min(threads, int(busy) + MOST_QUEUED)
    elif reading - busy < FEWEST_QUEUED and reading > 0.75 * threads:  # else they had nothing to read
        threads = min(most, threads + max(1, int(busy if reading - busy < FEWEST_QUEUED / 2 else busy / 2)))
    return Window(threads, fastest, window.rounds + 1)


class Concurrency:
    """The window of a rank, from when its chunks begin and end. The caller has the clock, and a lock.

    Until the first batch is there all read for it: more of its chunks at once delay none that is needed earlier.
    """

    def __init__(self, most: int, *, fixed: bool = False) -> None:
        """most: the largest number of threads. fixed: all read all the time."""
        self._most, self._fixed = most, fixed
        self._window = Window(most if fixed else 1)
        self._round, self._chunks = 0, ROUND_CHUNKS
        self._began = self._last = self._area = self._seconds = 0.0
        self._reading = self._ended = 0

    @property
    def threads(self) -> int:
        """Threads that are to read."""
        return self._window.threads

    def note_first_chunk(self, now: float, seconds: float, left: int) -> None:
        """The first chunk has taken `seconds`, alone; so many of its batch are left."""
        if left and not self._fixed:
            self._window = Window(min(self._most, left), seconds, ROUNDS)
            self._next_round(now, left)

    def begin(self, now: float) -> int:
        """A chunk begins. Returns its round, for `end`."""
        self._pass(now)
        self._reading += 1
        return self._round

    def end(self, now: float, seconds: float, begun: int) -> bool:
        """A chunk of round `begun` has ended. seconds: without waiting for a core; 0 if it tells nothing of storage.

        Returns whether the round has ended with it.
        """
        self._pass(now)
        self._reading -= 1
        if self._fixed or begun != self._round or not seconds:
            return False
        self._seconds += seconds
        self._ended += 1
        over = self._ended == self._chunks
        if over:
            reading = self._area / max(now - self._began, 1e-9)
            self._window = next_window(self._window, reading, self._seconds / self._ended, self._most)
            self._next_round(now, max(ROUND_CHUNKS, self.threads))
        return over

    def _pass(self, now: float) -> None:
        self._area += self._reading * (now - self._last)
        self._last = now

    def _next_round(self, now: float, chunks: int) -> None:
        self._round, self._chunks, self._began, self._last = self._round + 1, chunks, now, now
        self._area, self._seconds, self._ended = 0.0, 0.0, 0


def threads_after(reading: Readers, before: int, seconds: float) -> int:
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

    def queued_nanoseconds(self) -> int:
        """Nanoseconds that the thread has waited in the queue of a core."""
        return int(os.pread(self._handle, 96, 0).split()[1])


_own = _OwnStatistics()


def queued_seconds() -> float:
    """Seconds that this thread was ready to run and waited for a core; 0 if the kernel does not tell.

    Source: the second number of /proc/PID/task/TID/schedstat, in nanoseconds (Linux, scheduler/sched-stats.rst).
    """
    try:
        return _own.open.queued_nanoseconds() / 1e9
    except OSError:  # it could not be opened, or this process was forked since
        return 0.0
