"""The bytes of checkpoints: pseudo-random, made chunk by chunk beside the writes, and made again to compare.

Every chunk is one block of random words plus a number of its own, modulo 2^64: one pass over memory, and no two chunks
have a word in common at the same place, so that no storage can compress them or keep one for another.
"""

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen.random_bytes import source, words
from dlio_bench.harness.commands.checkpoints.parts import Part

CHUNK = 8 << 20  # bytes of a write, and of a read
WORD = 8
_MASK = (1 << 64) - 1
Words = npt.NDArray[np.uint64]


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


def chunks(part: Part, number: int, place: int) -> Iterator[tuple[int, int, int]]:
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
