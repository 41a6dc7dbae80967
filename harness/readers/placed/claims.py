"""Who fetches a kept sample: at most one thread at a time, and nobody once it is there."""

import threading
import time
from enum import IntEnum
from mmap import mmap

import numpy as np
import numpy.typing as npt

WAIT_SECONDS = 20.0  # for a sample that another thread is fetching: then the file system is asked beside it


class State(IntEnum):
    """Of a kept sample. ABSENT, BUSY and PRESENT are what its byte in shared memory says."""

    ABSENT = 0
    BUSY = 1  # a thread of its keeper is fetching it
    PRESENT = 2  # its bytes are whole
    CLAIMED = 3  # it was absent, and is the caller's to fetch now
    FOREIGN = 4  # not present, and another rank of the node is to fetch it


class Claims:
    """The states of all samples that a node keeps, a byte each, shared by its ranks.

    `mine` [kept]: those that this rank brings. It alone writes their bytes, so that there is nothing to lock between
    processes. A byte says PRESENT after the write of its sample has returned, and is looked at before the sample is
    read; both are system calls, which no processor moves a byte across.
    """

    def __init__(self, flags: mmap | bytearray, mine: npt.NDArray[np.bool_]) -> None:
        self._flags, self._mine = flags, mine.tolist()
        self._changed = threading.Condition()

    def look(self, number: int) -> State:
        """What is known of a sample, nothing claimed."""
        return State(self._flags[number])

    def begun(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """[numbers] Whether somebody has fetched a sample, or is at it."""
        flags: npt.NDArray[np.uint8] = np.frombuffer(self._flags, np.uint8)[numbers]
        return flags > State.ABSENT

    def take(self, number: int) -> State:
        """PRESENT, BUSY or FOREIGN; CLAIMED once it is the caller's, who must `settle` it whatever happens."""
        if self._flags[number] == State.PRESENT:
            return State.PRESENT
        if not self._mine[number]:
            return State.FOREIGN
        with self._changed:
            if self._flags[number] != State.ABSENT:
                return State(self._flags[number])
            self._flags[number] = State.BUSY
        return State.CLAIMED

    def settle(self, number: int, *, present: bool) -> None:
        """End a claim: the sample's bytes are in its tier, or it is free to be claimed again."""
        with self._changed:
            self._flags[number] = State.PRESENT if present else State.ABSENT
            self._changed.notify_all()

    def wait(self, number: int, seconds: float) -> bool:
        """Whether a sample that is BUSY becomes PRESENT before its claim is given up or the time is over."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._flags[number] == State.BUSY and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        return self._flags[number] == State.PRESENT
