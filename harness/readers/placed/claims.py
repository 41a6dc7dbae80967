"""Which thread fetches a kept sample: at most one at a time, and none once the sample is there."""

import threading
import time
from enum import IntEnum
from mmap import mmap

import numpy as np
import numpy.typing as npt

WAIT_SECONDS = 20.0  # for a sample that another thread is fetching; after that the file system is read, too


class SampleState(IntEnum):
    """The state of a kept sample. Its byte in shared memory is ABSENT, BUSY or PRESENT."""

    ABSENT = 0
    BUSY = 1  # a thread of its keeper is fetching it
    PRESENT = 2  # its bytes are whole
    CLAIMED = 3  # it was absent, and the caller is to fetch it now
    FOREIGN = 4  # not present, and another rank of the node is to fetch it


class Claims:
    """The states of all samples that a node keeps, a byte each, shared by its ranks.

    `mine` [kept]: the samples that this rank fetches. Only this rank writes their states, so that processes need no
    lock. A state becomes PRESENT after the write of the sample has returned, and is read before the sample is read.
    Both are system calls, and no processor moves a load or store of the state across them.
    """

    def __init__(self, flags: mmap | bytearray, mine: npt.NDArray[np.bool_]) -> None:
        self._flags, self._mine = flags, mine.tolist()
        self._changed = threading.Condition()

    def state_of(self, number: int) -> SampleState:
        """The state of a sample, without a claim."""
        return SampleState(self._flags[number])

    def are_begun(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """[numbers] Whether a thread has fetched each sample, or is fetching it."""
        flags: npt.NDArray[np.uint8] = np.frombuffer(self._flags, np.uint8)[numbers]
        return flags > SampleState.ABSENT

    def take(self, number: int) -> SampleState:
        """PRESENT, BUSY or FOREIGN; or CLAIMED: the caller is to fetch it, and must `settle` it whatever happens."""
        if self._flags[number] == SampleState.PRESENT:
            return SampleState.PRESENT
        if not self._mine[number]:
            return SampleState.FOREIGN
        with self._changed:
            if self._flags[number] != SampleState.ABSENT:
                return SampleState(self._flags[number])
            self._flags[number] = SampleState.BUSY
        return SampleState.CLAIMED

    def settle(self, number: int, *, present: bool) -> None:
        """End a claim: the sample is in its tier (`present`), or may be claimed again."""
        with self._changed:
            self._flags[number] = SampleState.PRESENT if present else SampleState.ABSENT
            self._changed.notify_all()

    def wait(self, number: int, seconds: float) -> bool:
        """Whether a BUSY sample becomes PRESENT before its claim ends otherwise or the time is over."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._flags[number] == SampleState.BUSY and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        return self._flags[number] == SampleState.PRESENT
