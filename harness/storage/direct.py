"""Direct reads (O_DIRECT): whole blocks from the device into aligned memory, past the page cache.

A read begins and ends on blocks of the file, so that it brings some bytes that nobody wants. Which blocks it takes is
decided by `spans`, and the memory that they go to by `layout`.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Bytes
from dlio_bench.datagen.dataset import DAMAGED, Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.manifest import NAME
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy
from dlio_bench.harness.machine import mounts

COLD_SAYS = "cold (O_DIRECT)"  # a cache that reads pass need not be dropped

MOST_BYTES = 4 << 20  # of a read, and so of the memory that a thread keeps for bytes that have to be moved
# linux/stat.h, struct statx: the fields that STATX_DIOALIGN fills in (Linux 6.1)
_AT_FDCWD, _STATX_DIOALIGN, _STATX_BYTES = -100, 0x2000, 256
_MASK, _MEMORY_ALIGN, _OFFSET_ALIGN = 0, 0x98, 0x9C
NEAR = 16 << 10  # bytes: a device brings so many in less time than it needs for one more request
LARGE = 4 << 20  # bytes of memory: from there on it is asked for in huge pages, as NumPy does
_libc = ctypes.CDLL(None, use_errno=True)


class Alignment(Struct, frozen=True):
    """What direct reads of a file need, in bytes: memory that begins on multiples of `memory`, offsets and lengths
    that are multiples of `block`.
    """

    memory: int
    block: int

    def down(self, offset: int) -> int:
        """The start of the block that holds `offset`."""
        return offset - offset % self.block

    def round_up(self, offset: int) -> int:
        """The end of the last block before `offset`, or of the one that holds it."""
        return -(-offset // self.block) * self.block


# Where the kernel does not tell: devices have blocks of 512 or 4096 bytes, and Lustre asks for pages.
USUAL = Alignment(max(4096, mmap.PAGESIZE), max(4096, mmap.PAGESIZE))


class Piece(NamedTuple):
    """Bytes of a file that are wanted: `length` from `offset` on, to be put at byte `at` of a memory.

    key: of the open file; file: its number in the dataset.
    """

    key: int
    file: int
    offset: int
    length: int
    at: int


class BlockSpan:
    """One read: the whole blocks of a file from `start` to `end`, and the pieces that lie in them."""

    __slots__ = ("end", "needed", "pieces", "start", "useful")

    def __init__(self, start: int, end: int, piece: Piece) -> None:
        self.start, self.end, self.pieces = start, end, [piece]
        self.useful = piece.length  # bytes that are wanted
        # bytes from `start` to the end of the last piece: what the file must have of this read
        self.needed = piece.offset + piece.length - start

    def add(self, end: int, piece: Piece) -> None:
        """One more piece, for which the read goes on to `end`."""
        self.pieces.append(piece)
        self.end = max(self.end, end)
        self.useful += piece.length
        self.needed = max(self.needed, piece.offset + piece.length - self.start)


def spans(pieces: Iterable[Piece], alignment: Alignment, most: int = MOST_BYTES) -> list[BlockSpan]:
    """The reads that bring all pieces, each of at most `most` bytes (whole blocks).

    Pieces in order of their offsets share a read where their blocks meet, so that no block of them is read twice, and
    short ones (labels) where they lie near each other too: one request costs more than the bytes between them.
    """
    made: list[BlockSpan] = []
    block, open_file, short = alignment.block, -1, False
    for wanted in pieces:
        key, file, offset, length, at = wanted
        whole_end, near = offset + length, NEAR if short and length <= NEAR else 0
        while offset < whole_end:
            low = offset - offset % block
            last = made[-1] if key == open_file else None
            joins = last is not None and last.start <= low <= last.end + near and low < last.start + most
            start = last.start if last is not None and joins else low
            part = min(whole_end, start + most) - offset
            piece, end = Piece(key, file, offset, part, at), alignment.round_up(offset + part)
            if last is not None and joins:
                last.add(end, piece)
            else:
                made.append(BlockSpan(low, end, piece))
                open_file = key
            offset, at, near = offset + part, at + part, 0
        short = length <= NEAR
    return made


class Bounce:
    """Aligned memory of each thread, for blocks that cannot be read to where they are wanted."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def take(self, size: int) -> Bytes:
        """`size` bytes of this thread's own, used again and again."""
        memory: Bytes | None = getattr(self._of_thread, "memory", None)
        if memory is None or len(memory) < size:
            known = 0 if memory is None else len(memory)
            memory = self._of_thread.memory = np.frombuffer(aligned_memory(max(size, 2 * known)), np.uint8)
        return memory[:size]


def aligned_memory(size: int) -> memoryview:
    """New memory that begins on a page; its pages exist."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= LARGE:
        with suppress(OSError):  # it is advice
            memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
    return memoryview(memory)[:size]


def address_of(memory: Bytes) -> int:
    """Where a memory begins."""
    address: int = memory.__array_interface__["data"][0]
    return address


class MemoryLayout(NamedTuple):
    """The memory of a read, part behind part, and those of its parts that are to be moved: (memory, offset in file)."""

    parts: list[Bytes]
    moved: list[tuple[Bytes, int]]

    def scatter(self, span: BlockSpan, out: Bytes) -> None:
        """Copy what is wanted of the parts that are to be moved to where it is wanted. The GIL is released meanwhile:
        memoryviews would keep it.
        """
        for memory, begin in self.moved:
            behind = begin + len(memory)
            for _, _, offset, length, at in span.pieces:
                low, high = max(offset, begin), min(offset + length, behind)
                if low < high:
                    out[at + low - offset : at + high - offset] = memory[low - begin : high - begin]


def layout(span: BlockSpan, alignment: Alignment, out: Bytes, address: int, bounce: Bounce) -> MemoryLayout:
    """Where a read puts its blocks.

    The blocks that a piece fills alone go straight into `out` (which begins at `address`) if they are aligned there;
    the rest, and all blocks of a read for several pieces, into a memory from which they are spread.
    """
    _, _, offset, length, at = span.pieces[0]
    low, high = alignment.round_up(offset), alignment.down(offset + length)
    if len(span.pieces) > 1 or low >= high or (address + at + low - offset) % alignment.memory:
        memory = bounce.take(span.end - span.start)
        return MemoryLayout([memory], [(memory, span.start)])
    straight, head, tail = out[at + low - offset : at + high - offset], low - span.start, span.end - high
    if not head and not tail:
        return MemoryLayout([straight], [])
    behind_head = -(-head // alignment.memory) * alignment.memory
    memory = bounce.take(behind_head + tail)
    first, last = memory[:head], memory[behind_head:]
    parts = [part for part in (first, straight, last) if len(part)]
    return MemoryLayout(parts, [(first, span.start), (last, high)])


def remaining(parts: Sequence[Bytes], done: int) -> Sequence[Bytes]:
    """What is left of some memory behind its first `done` bytes."""
    if not done:
        return parts
    left = []
    for part in parts:
        if done < len(part):
            left.append(part[done:])
        done = max(0, done - len(part))
    return left


def alignment_of(dataset: Dataset) -> Alignment:
    """What direct reads of a dataset's files need, by the manifest beside them: no file is read where there is one.

    UsageError for samples that only a library can read; as `require` for a file system.
    """
    container = dataset.manifest.container
    if CONTAINERS[container].library is not None:
        raise UsageError(
            f"--io direct: the samples in {dataset.folder} are {container}, which its library reads, through the page "
            "cache. Use --io buffered, or a dataset without filters."
        )
    manifest = dataset.folder / NAME
    return require(manifest if manifest.exists() else dataset.path(0))


def require(path: Path) -> Alignment:
    """What direct reads of a file need. One block of it is read, to see that it can be.

    DataError where it is missing. EnvironmentFailure that names a file system which refuses direct reads, or which
    keeps files in memory.
    """
    _require_device(path)
    told = _query_alignment(path)
    if told is None:
        raise _refusal(path, "the kernel tells that its files cannot be read so")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            os.preadv(handle, [aligned_memory(told.block)], 0)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing from its dataset. {DAMAGED}") from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise EnvironmentFailure(f"{path} cannot be read: {error.strerror}. {remedy(error)}.") from error
        raise _refusal(path, str(error.strerror)) from error
    return told


def require_folder(folder: Path) -> None:
    """EnvironmentFailure, as `require`, where files that will be made in a folder could not be read directly.

    It leaves no file. Where this user may not write, the files themselves will tell.
    """
    place = mounts.existing(folder)
    _require_device(place)
    try:
        os.close(os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise _refusal(place, str(error.strerror)) from error


def _require_device(path: Path) -> None:
    if path.exists() and mounts.memory_backed(path):
        raise _refusal(path, "its files lie in memory, so that there is no device to read them from")


def _refusal(path: Path, reason: str) -> EnvironmentFailure:
    mount = mounts.mount_of(path)
    where = "a file system" if mount is None else f"{mount.type} (mounted at {mount.point})"
    return EnvironmentFailure(
        f"--io direct: {path} lies on {where}, which cannot be read directly (O_DIRECT): {reason}. Choose a folder on "
        "a disk, or use --io buffered."
    )


def _query_alignment(path: Path) -> Alignment | None:
    """What statx(2) tells of direct reads of a file: None where they are impossible, USUAL where it tells nothing."""
    status = ctypes.create_string_buffer(_STATX_BYTES)
    statx = getattr(_libc, "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, status):
        return USUAL
    mask, memory, block = (
        int.from_bytes(status.raw[at : at + 4], "little") for at in (_MASK, _MEMORY_ALIGN, _OFFSET_ALIGN)
    )
    if not mask & _STATX_DIOALIGN:
        return USUAL
    return Alignment(memory, block) if memory and block else None
