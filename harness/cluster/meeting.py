"""Where the ranks of one host meet: a page of memory that they share, and futex(2) to sleep on it.

A blocking MPI_Barrier spins, and takes the cores that reader threads need; one that is polled with sleeps wakes late.
Here each rank has a byte that says how many meetings it has come to, and looks out for the others for a short while,
giving way to whoever wants its core: to look is to search a few bytes, so that who comes last, its caches cold after a
step, has next to nothing to do. Who waits longer sleeps, and is woken by one system call. A core that sleeps takes
long to wake: 100 us for four processes on two cores of a virtual machine, where nothing but the system call is timed
(scripts/measure/barrier_cost.py measures ours and MPI's).
"""

import ctypes
import math
import mmap
import os
import platform
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# How long a rank looks out for the last one, yielding its core to whoever wants it, before it sleeps, and again around
# the moment when the last one came in the latest of some meetings. Ranks that compute for the same time come within it.
LOOK_OUT = 1e-3  # seconds
REMEMBERED = 4  # meetings
# A sleeper looks up that often, so that what MPI has still to send goes out meanwhile.
FIRST_LOOK_UP, LONGEST_LOOK_UP = 1e-3, 50e-3  # seconds

# The number of futex in the table of system calls, by machine (asm/unistd.h); elsewhere ranks meet by MPI alone.
_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1  # futex(2), of memory shared by processes
MOST = 1024  # processes of a host that a page has room for
# The page: a word of 32 bits to sleep on; the meeting that all hosts have come to; a byte a process that says which
# meeting it has come to; a byte a process that says that it sleeps. What different processes write often lies apart.
_WORD, _HOSTS, _CAME, _ASLEEP = 0, 128, 1024, 2048
_BYTES = [bytes((number,)) for number in range(256)]

# Calls that may wait release the interpreter's lock; the others are shorter than giving it away.
_waiting, _short = ctypes.CDLL(None), ctypes.PyDLL(None)
_sched_yield = _waiting.sched_yield


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Meeting:
    """One place to meet for `size` processes of a host, which map the same `page`; this one has the number `place`.

    Each of them calls `meet_next`, and `wait_for_all` unless it came last. Where there are several hosts the one with
    place 0 has these meet, and says so by `wake_all`; the others `wait_for_hosts`. One meeting after another may take
    place. No process is more than one meeting ahead of another, so one byte is enough to number them.
    """

    def __init__(self, page: mmap.mmap, size: int, place: int) -> None:
        self._page, self._came, self._asleep = page, _CAME + place, _ASLEEP + place
        self._all_came, self._all_asleep = _CAME + size, _ASLEEP + size  # where these parts end
        self._word = memoryview(page).cast("I")[_WORD : _WORD + 1]
        self._address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)) + 4 * _WORD)
        self._futex = ctypes.c_long(_FUTEX[platform.machine()])
        self._waited = deque([0.0], REMEMBERED)  # seconds, the last times
        self._number, self._before = 0, _BYTES[0]  # of this meeting, and of the one before; modulo 256

    def meet_next(self) -> bool:
        """Take part in the next meeting; whether all have come. Who comes last wakes those who sleep.

        Its caches are cold after a step, so that each name that is looked up here costs a microsecond.
        """
        page, before = self._page, _BYTES[self._number]
        self._before = before
        self._number = page[self._came] = (self._number + 1) & 0xFF
        if page.find(before, _CAME, self._all_came) >= 0:
            return False
        if page.find(b"\1", _ASLEEP, self._all_asleep) >= 0:
            self._wake()
        return True

    def wait_for_all(self, look_up: Callable[[], Any]) -> None:
        """Until all processes of the host have come. `look_up` is called now and then."""
        self._await_clear(_CAME, self._all_came, look_up)

    def wait_for_hosts(self, look_up: Callable[[], Any]) -> None:
        """Until `wake_all`."""
        self._await_clear(_HOSTS, _HOSTS + 1, look_up)

    def wake_all(self) -> None:
        """All hosts have met."""
        self._page[_HOSTS] = self._number
        self._wake()

    def _wake(self) -> None:
        self._word[0] = (self._word[0] + 1) & 0xFFFFFFFF
        _short.syscall(self._futex, self._address, _WAKE, _ALL, None)

    def _await_clear(self, start: int, end: int, look_up: Callable[[], Any]) -> None:
        """Until the number of the meeting before is nowhere in this part of the page."""
        begun = time.perf_counter()
        again = begun + max(LOOK_OUT, max(self._waited) - LOOK_OUT / 2)
        if not (
            self._poll_until_met(start, end, begun + LOOK_OUT)
            or self._sleep_until_met(start, end, again, look_up)
            or self._poll_until_met(start, end, again + LOOK_OUT)
        ):
            self._sleep_until_met(start, end, math.inf, look_up)
        self._waited.append(time.perf_counter() - begun)

    def _poll_until_met(self, start: int, end: int, until: float) -> bool:
        """Whether the part was free of the meeting before until then, in seconds of time.perf_counter."""
        find, before, clock = self._page.find, self._before, time.perf_counter
        while find(before, start, end) >= 0:
            if clock() > until:
                return False
            _sched_yield()
        return True

    def _sleep_until_met(self, start: int, end: int, until: float, look_up: Callable[[], Any]) -> bool:
        """The same, asleep."""
        find, before, pause = self._page.find, self._before, FIRST_LOOK_UP
        self._page[self._asleep] = 1
        try:
            while find(before, start, end) >= 0:
                count = self._word[0]
                rest = until - time.perf_counter()
                if rest <= 0:
                    return False
                look_up()
                if find(before, start, end) < 0:
                    break
                limit = ctypes.byref(_Timespec(0, int(min(pause, rest) * 1e9)))
                # it does not fall asleep where the word has changed in between
                _waiting.syscall(self._futex, self._address, _WAIT, ctypes.c_uint(count), limit)
                pause = min(2 * pause, LONGEST_LOOK_UP)
            return True
        finally:
            self._page[self._asleep] = 0


def make_page() -> int | None:
    """The handle of a file to be mapped by all; None where none can be made or slept on."""
    if platform.machine() not in _FUTEX:
        return None
    with suppress(OSError):
        handle = os.memfd_create("dlio-bench-meeting")
        os.ftruncate(handle, mmap.PAGESIZE)
        return handle
    return None


def map_page(handle: int) -> mmap.mmap | None:
    """The page of this handle, which is closed; None where there is no memory for it."""
    try:
        with suppress(OSError):
            return mmap.mmap(handle, mmap.PAGESIZE)
    finally:
        os.close(handle)
    return None
