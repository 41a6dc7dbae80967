"""What one rank does with its parts of a checkpoint: it writes them, reads those of another rank, compares them.

The bytes are pseudo-random, made chunk by chunk beside the writes, and made again to compare. Every chunk is one block
of random words plus a number of its own, modulo 2^64: one pass over memory, and no two chunks have a word in common at
the same place, so that no storage can compress them or keep one for another.
"""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.atomic_files import read_at, write_at
from dlio_bench.datagen.random_bytes import source, words
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.commands.checkpoints.parts import FilePart
from dlio_bench.harness.commands.checkpoints.sets import Syncs, explain_failures

Words = npt.NDArray[np.uint64]
Placed = Sequence[tuple[int, FilePart]]  # parts with their places in the whole list
CHUNK = 8 << 20  # bytes of a write, and of a read
WORD = 8
_MASK = (1 << 64) - 1
SHOWN = 16  # bytes of what was written and what was read, where they differ
SAMPLED = 64  # bytes of each chunk that are compared inside the clock


class Content:
    """The bytes of all checkpoints of a command with this seed; the same on every rank."""

    def __init__(self, seed: int) -> None:
        self._block = words(source(seed, 0, 0), CHUNK // WORD)

    def fill(self, out: Words, key: int, size: int) -> memoryview:
        """Make the `size` bytes of the chunk with a key in `out`, uint64 [CHUNK / 8], and return them."""
        count = -(-size // WORD)
        np.add(self._block[:count], np.uint64(key), out=out[:count])
        return memoryview(out[:count]).cast("B")[:size]

    def rate(self, chunks: int = 16) -> float:
        """Bytes a second that this process makes."""
        out = empty()
        self.fill(out, 0, CHUNK)  # its pages are there now
        began = time.perf_counter()
        for key in range(chunks):
            self.fill(out, key, CHUNK)
        return chunks * CHUNK / (time.perf_counter() - began)


def empty() -> Words:
    """Room for a chunk."""
    return np.empty(CHUNK // WORD, np.uint64)


def chunks(part: FilePart, number: int, place: int) -> Iterator[tuple[int, int, int]]:
    """(key, offset in the file, bytes) of each chunk of a part. number: of the checkpoint; place: of the part in it."""
    for chunk, start in enumerate(range(0, part.bytes, CHUNK)):
        yield key(number, place, chunk), part.offset + start, min(CHUNK, part.bytes - start)


def key(number: int, place: int, chunk: int) -> int:
    """A number of 64 bits for a chunk, another one for each: SplitMix64's mixing of (checkpoint, part, chunk).

    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA'14. The mixing is one to one.
    """
    value = (number << 44 | place << 22 | chunk) + 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


class WrittenParts(Struct, frozen=True):
    """What a rank wrote, and its seconds: it waited for bytes that were still being made, and for fsync (synced).

    made: seconds of the thread that made bytes.
    """

    waited: float
    made: float
    synced: float
    fsyncs: int
    bytes: int


def parts_of_rank(parts: Sequence[FilePart], rank: int) -> list[tuple[int, FilePart]]:
    """The parts of one rank, with their places in the list."""
    return [(place, part) for place, part in enumerate(parts) if part.rank == rank]


class Hands:
    """One rank at work: its buffers, and the thread that makes bytes while others are written."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._buffers = [empty(), empty()]
        self._maker = ThreadPoolExecutor(1, "bytes of checkpoints")

    def close(self) -> None:
        """End the thread."""
        self._maker.shutdown()

    def write(self, folder: Path, mine: Placed, number: int, *, fsync: bool) -> WrittenParts:
        """Write this rank's parts of checkpoint `number`. EnvironmentFailure that names the file and what is free."""
        syncs = Syncs(wanted=fsync)
        waited, made, done = 0.0, 0.0, 0
        made_chunks = self._make_chunks(mine, number)
        for file, parts in groupby(mine, key=lambda entry: entry[1].file):
            path = folder / file
            with explain_failures(path, "written"), _open_file(path, os.O_WRONLY | os.O_CREAT) as handle:
                for _, part in parts:
                    left = part.bytes
                    while left:
                        asked = time.perf_counter()
                        content, offset, seconds = next(made_chunks)
                        waited, made = waited + time.perf_counter() - asked, made + seconds
                        write_at(handle, content, offset)
                        left -= len(content)
                        done += len(content)
                        life.moves += 1
                syncs.sync(handle)
        return WrittenParts(waited, made, syncs.seconds, syncs.calls, done)

    def _make_chunks(self, mine: Placed, number: int) -> Iterator[tuple[memoryview, int, float]]:
        """(bytes, offset, seconds that making took) of each chunk; the next one is made while this one is used."""

        def make(buffer: int, key: int, size: int) -> tuple[memoryview, float]:
            began = time.perf_counter()
            content = self._content.fill(self._buffers[buffer], key, size)
            return content, time.perf_counter() - began

        order = [chunk for place, part in mine for chunk in chunks(part, number, place)]
        if not order:
            return
        future = self._maker.submit(make, 0, order[0][0], order[0][2])
        for turn, (_, offset, _) in enumerate(order):
            content, seconds = future.result()
            if turn + 1 < len(order):
                key, _, size = order[turn + 1]
                future = self._maker.submit(make, (turn + 1) % 2, key, size)
            yield content, offset, seconds

    def read(self, folder: Path, theirs: Placed, number: int) -> None:
        """Read parts that another rank wrote. Compares some bytes of each chunk. DataError, OSErrors told."""
        self._read_parts(folder, theirs, number, SAMPLED)

    def compare(self, folder: Path, theirs: Placed, number: int) -> int:
        """Read parts again and compare every byte with what was to be written: how many. DataError."""
        return self._read_parts(folder, theirs, number, None)

    def _read_parts(self, folder: Path, theirs: Placed, number: int, most: int | None) -> int:
        """Read parts; compare the first `most` bytes of each chunk, None: all. How many bytes were compared."""
        read, expected = self._buffers
        compared = 0
        for file, parts in groupby(theirs, key=lambda entry: entry[1].file):
            path = folder / file
            with explain_failures(path, "read"), _open_file(path, os.O_RDONLY) as handle:
                for place, part in parts:
                    for key, offset, size in chunks(part, number, place):
                        content = memoryview(read).cast("B")[:size]
                        read_at(handle, content, offset)
                        life.moves += 1
                        count = size if most is None else min(size, most)
                        wanted = self._content.fill(expected, key, count)
                        _require_equal(path, content[:count], wanted, offset)
                        compared += count
        return compared


def _require_equal(path: Path, content: memoryview, wanted: memoryview, offset: int) -> None:
    """DataError where bytes differ."""
    here, there = np.frombuffer(content, np.uint8), np.frombuffer(wanted, np.uint8)
    if not np.array_equal(here, there):
        differing = np.flatnonzero(here != there)
        first = int(differing[0])
        shown = slice(first, first + SHOWN)
        raise DataError(
            f"{path} was read back with another content than was written: byte {offset + first} differs, and "
            f"{len(differing)} of the {len(here)} bytes compared from byte {offset} on. From byte {offset + first} on "
            f"0x{there[shown].tobytes().hex()} was written, and 0x{here[shown].tobytes().hex()} was read by "
            f"{host_name()}. The storage, or somebody else, altered it: look at the logs of the file system, then run "
            "again."
        )


@contextmanager
def _open_file(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)
