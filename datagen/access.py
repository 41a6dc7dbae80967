"""How the bytes of a dataset's files are had: by the kernel's own calls, or by what stands in for them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dlio_bench.batches import Bytes


class Access(Protocol):
    """Calls that take the place of open(2), preadv(2) and close(2), with their results and errors.

    emulated: whether they take the time of another file system.
    """

    @property
    def emulated(self) -> bool:
        """Whether a slower file system is imitated."""

    def open(self, path: str | Path, flags: int, /) -> int:
        """A descriptor, which is closed with `close` alone."""

    def read(self, handle: int, into: Sequence[memoryview | Bytes], offset: int, /) -> int:
        """Fill buffers with the bytes from `offset` on; how many there were."""

    def close(self, handle: int, /) -> None:
        """Give the descriptor back."""


class Kernel:
    """The kernel's calls themselves, so that a read costs no call of Python's more."""

    emulated = False
    open = property(lambda _: os.open)
    read = property(lambda _: os.preadv)
    close = property(lambda _: os.close)


KERNEL: Access = Kernel()
