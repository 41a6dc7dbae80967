"""The client cache of one node, as bookkeeping: which pages of which files it would hold. It holds no bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple, Protocol

PAGE = 4096  # bytes
BLOCK = 1 << 20  # bytes: what is remembered, and forgotten, together


class Taken(NamedTuple):
    """How many of the asked bytes were in the cache, and how many were not; their sum is what was asked."""

    hit: int
    missed: int


class Blocks(Protocol):
    """Bits of the pages held of each block, by file and number of the block, in order of their use.

    pages: how many are held in all; who changes the bits keeps it. The methods are those of an OrderedDict.
    """

    pages: int

    def get(self, key: tuple[Hashable, int], default: int, /) -> int:
        """The bits of a block."""

    def __setitem__(self, key: tuple[Hashable, int], bits: int, /) -> None:
        """Keep the bits of a block; a new one is the newest."""

    def move_to_end(self, key: tuple[Hashable, int], /) -> None:
        """Make a block the newest."""

    def popitem(self, last: bool) -> tuple[object, int]:
        """Forget the newest block, or the oldest: its key, its bits."""

    def clear(self) -> None:
        """Forget all blocks."""


class OwnBlocks(OrderedDict[tuple[Hashable, int], int]):
    """Blocks in the memory of one process."""

    pages = 0


class ClientCache:
    """Blocks of 1 MiB, each with a bit for each of its 256 pages, the least recently used of them forgotten first.

    Holds `capacity` bytes at most; 0 = none. A block is as large as its pages that were read. Time is O(1) for each
    block touched. Not locked.
    """

    def __init__(self, capacity: int, blocks: Blocks | None = None) -> None:
        self._capacity = capacity
        self._blocks = OwnBlocks() if blocks is None else blocks

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages held."""
        return self._blocks.pages * PAGE

    def clear(self) -> None:
        """Hold nothing."""
        self._blocks.clear()
        self._blocks.pages = 0

    def take(self, file: Hashable, offset: int, length: int) -> Taken:
        """Read `length` bytes of `file` at `offset`: count what is held, then hold all of it, while there is room."""
        if self._capacity == 0 or length <= 0:
            return Taken(0, max(length, 0))
        hit, end = 0, offset + length
        for block in range(offset // BLOCK, (end - 1) // BLOCK + 1):
            first = max(offset - block * BLOCK, 0)  # bytes from the block's start
            last = min(end - block * BLOCK, BLOCK)
            hit += self._touch((file, block), first, last)
        return Taken(hit, length - hit)

    def _touch(self, key: tuple[Hashable, int], first: int, last: int) -> int:
        """Bytes first..last of a block that were held; all its touched pages are held from now on."""
        low, high = first // PAGE, (last - 1) // PAGE
        touched = (1 << (high + 1)) - (1 << low)
        held = self._blocks.get(key, 0)
        present = held & touched
        hit = present.bit_count() * PAGE
        if present >> low & 1:  # of the first and the last page only a part may be asked for
            hit -= first - low * PAGE
        if present >> high & 1:
            hit -= (high + 1) * PAGE - last
        self._blocks.pages += touched.bit_count() - present.bit_count()
        self._blocks[key] = held | touched
        self._blocks.move_to_end(key)
        while self.used_bytes > self._capacity:
            self._blocks.pages -= self._blocks.popitem(last=False)[1].bit_count()
        return hit
