"""Where the ranks of one host meet: a page of memory that they share, and futex(2) to sleep on it.

A blocking MPI_Barrier spins, and takes the cores that reader threads need; one that is polled with sleeps wakes late.
Here who comes last wakes all others with one system call. They look out for it for a short while first, giving way to
whoever wants the core, because a core that sleeps takes long to wake: 100 us for four processes on two cores of a
virtual machine, where nothing but the system call is timed (tests/perf/barrier_cost.py measures ours and MPI's).
"""

import ctypes
import math
import mmap
import os
import platform
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

# How long a rank looks out for the last one, yielding its core to whoever wants it, before it sleeps, and again around
# the moment when the last one came in the latest of some meetings. Ranks that compute for the same time come within it.
LOOK_OUT = 1e-3  # seconds
REMEMBERED = 4  # meetings
# A sleeper looks up that often, so that what MPI has still to send goes out meanwhile.
FIRST_LOOK_UP, LONGEST_LOOK_UP = 1e-3, 50e-3  # seconds

SHARED_MEMORY = Path("/dev/shm")  # tmpfs(5): files in memory, for all processes of a machine
# The number of futex in the table of system calls, by machine (asm/unistd.h); elsewhere ranks meet by MPI alone.
_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1  # futex(2), of memory shared by processes
# Words of 32 bits, each in a cache line of its own; the semaphore comes first (sem_init(3), at most 32 bytes).
_FULL, _GO = 16, 32
_LAST = 24  # of 64 bits: when the last one came, in nanoseconds of CLOCK_MONOTONIC, which is one for the host

# Calls that may wait release the interpreter's lock; the others are shorter than giving it away.
_waiting, _short = ctypes.CDLL(None), ctypes.PyDLL(None)
_sched_yield = _waiting.sched_yield


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Meeting:
    """One place to meet for `size` processes of a host, which map the same `page`; the one with `first` prepares it.

    Each of them calls `come`; True tells the one that came last. It, or whoever it tells by `call`, ends the meeting
    for all by `go`; the others `wait`. One meeting after another may take place, since nobody comes to the next one
    before it has left this one.
    """

    def __init__(self, page: mmap.mmap, size: int, *, first: bool) -> None:
        self._size = size
        self._words, self._stamps = memoryview(page).cast("I"), memoryview(page).cast("Q")
        self.beyond = 0.0  # seconds that meetings have taken from this process after the last one came
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self._semaphore = ctypes.c_void_p(address)
        self._address = {word: ctypes.c_void_p(address + 4 * word) for word in (_FULL, _GO)}
        self._waited = deque([0.0], REMEMBERED)  # seconds, the last times
        self._number = ctypes.c_long(_FUTEX[platform.machine()])
        if first:
            _short.sem_init(self._semaphore, 1, size - 1)

    def come(self) -> bool:
        """Take part; whether all have come with it. A semaphore has a place for each but the last."""
        return bool(_short.sem_trywait(self._semaphore))

    def call(self) -> None:
        """All are here: tell who waits for that."""
        self._raise(_FULL)

    def go(self) -> None:
        """Everybody leaves. Places are made for the next meeting first."""
        self._stamps[_LAST] = time.monotonic_ns()
        for _ in range(self._size - 1):
            _short.sem_post(self._semaphore)
        self._raise(_GO)
        self._left()

    def counts(self) -> tuple[int, int]:
        """What `wait` and `wait_for_all` are to be given: taken before `come`."""
        return self._words[_GO], self._words[_FULL]

    def wait(self, count: int, look_up: Callable[[], Any]) -> None:
        """Until `go`. `look_up` is called now and then."""
        self._until_raised(_GO, count, look_up)
        self._left()

    def wait_for_all(self, count: int, look_up: Callable[[], Any]) -> None:
        """Until `call`."""
        self._until_raised(_FULL, count, look_up)

    def _left(self) -> None:
        """Nobody can come to the next meeting's end before this is read."""
        self.beyond += (time.monotonic_ns() - self._stamps[_LAST]) * 1e-9

    def _raise(self, word: int) -> None:
        self._words[word] = (self._words[word] + 1) & 0xFFFFFFFF
        _short.syscall(self._number, self._address[word], _WAKE, _ALL, None)

    def _until_raised(self, word: int, count: int, look_up: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        again = begun + max(LOOK_OUT, max(self._waited) - LOOK_OUT / 2)
        if not (
            self._looked_out(word, count, begun + LOOK_OUT)
            or self._slept(word, count, again, look_up)
            or self._looked_out(word, count, again + LOOK_OUT)
        ):
            self._slept(word, count, math.inf, look_up)
        self._waited.append(time.perf_counter() - begun)

    def _looked_out(self, word: int, count: int, end: float) -> bool:
        """Whether the word was raised until `end`, in seconds of time.perf_counter."""
        words, clock = self._words, time.perf_counter
        while words[word] == count:
            if clock() > end:
                return False
            _sched_yield()
        return True

    def _slept(self, word: int, count: int, end: float, look_up: Callable[[], Any]) -> bool:
        """The same, asleep."""
        pause = FIRST_LOOK_UP
        while self._words[word] == count:
            rest = end - time.perf_counter()
            if rest <= 0:
                return False
            look_up()
            limit = ctypes.byref(_Timespec(0, int(min(pause, rest) * 1e9)))
            # it does not fall asleep where the word has changed in between
            _waiting.syscall(self._number, self._address[word], _WAIT, ctypes.c_uint(count), limit)
            pause = min(2 * pause, LONGEST_LOOK_UP)
        return True


def make_page() -> Path | None:
    """A file to be mapped by all, to be removed when they have; None where none can be made or slept on."""
    if platform.machine() not in _FUTEX:
        return None
    with suppress(OSError):
        descriptor, name = tempfile.mkstemp(prefix="dlio-bench-meeting-", dir=SHARED_MEMORY)
        with suppress(OSError):
            try:
                os.ftruncate(descriptor, mmap.PAGESIZE)
            finally:
                os.close(descriptor)
            return Path(name)
        Path(name).unlink()
    return None


def map_page(path: Path) -> mmap.mmap | None:
    """The page; None where this process cannot have it (another container, another user)."""
    with suppress(OSError), path.open("r+b") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE)
    return None
