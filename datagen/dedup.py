"""What storage that removes duplicates would find: the share of equal chunks, cut where the content says so.

Chunks are cut by a gear hash (Xia et al., FastCDC, USENIX ATC 2016): a cut follows the bytes before it, so that equal
content is found at whatever offset it lies. The gear hash of the last 32 bytes is the sum of table[byte] << age in 32
bits; here it is built for all positions at once by doubling the window five times.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

LEAST_CHUNK, MOST_CHUNK = 4096, 8192  # bytes
MOST_BYTES = 1_000_000_000  # of a dataset that are looked at
_PIECE = 16 << 20  # bytes at a time; cuts start anew in each
_CUT = np.uint32(0xFFE00000)  # a cut where these 11 bits are 0: every 2 KiB behind the least chunk, on average
_GEAR = np.random.SFC64(20260101).random_raw(256).astype(np.uint32)

Piece = tuple[Path, int, int]  # file, offset, length
Map = Callable[[Callable[[Piece], "Chunks"], Iterable[Piece]], Iterable["Chunks"]]
Chunks = tuple[list[bytes], list[int]]  # digests and lengths


class Duplicates(Struct, frozen=True):
    """Bytes looked at, and those in chunks that had been seen before."""

    bytes: int
    duplicate_bytes: int

    @property
    def share(self) -> float:
        """Duplicate bytes over all."""
        return self.duplicate_bytes / self.bytes if self.bytes else 0.0


def duplicates(files: Sequence[Path], *, most_bytes: int = MOST_BYTES, each: Map = map) -> Duplicates:
    """Chunk up to `most_bytes` of the files, evenly spread; `each` may be the map of a pool. OSError."""
    seen: set[bytes] = set()
    total = repeated = 0
    for digests, lengths in each(chunks, _pieces(files, most_bytes)):
        for digest, length in zip(digests, lengths, strict=True):
            total += length
            if digest in seen:
                repeated += length
            seen.add(digest)
    return Duplicates(total, repeated)


def chunks(piece: Piece) -> Chunks:
    """Digest and length of each chunk of a piece of a file. OSError."""
    path, offset, length = piece
    with path.open("rb") as file:
        file.seek(offset)
        content = memoryview(file.read(length))
    bounds = list(chain([0], cuts(np.frombuffer(content, dtype=np.uint8))))
    parts = [content[start:end] for start, end in pairwise(bounds)]
    return [hashlib.blake2b(part, digest_size=16).digest() for part in parts], [len(part) for part in parts]


def cuts(content: npt.NDArray[np.uint8]) -> Iterator[int]:
    """Ends of the chunks of `content`, the last one its length."""
    marks = (np.flatnonzero((_gear(content) & _CUT) == 0) + 1).tolist()
    start, mark = 0, 0
    while start < len(content):
        while mark < len(marks) and marks[mark] < start + LEAST_CHUNK:
            mark += 1
        end = min(start + MOST_CHUNK, len(content))
        if mark < len(marks):
            end = min(end, marks[mark])
        yield end
        start = end


def _gear(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Gear hash of the 32 bytes up to each position, uint32 [bytes]."""
    hashes = _GEAR[content]
    for window in (1, 2, 4, 8, 16):
        older = hashes[:-window] << np.uint32(window)
        hashes[window:] += older
    return hashes


def _pieces(files: Sequence[Path], most_bytes: int) -> Iterator[Piece]:
    """Whole files, evenly spread over all, until the bytes are used up."""
    sizes = [path.stat().st_size for path in files]
    step = max(1, -(-sum(sizes) // most_bytes))
    left = most_bytes
    for path, size in list(zip(files, sizes, strict=True))[::step]:
        for offset in range(0, min(size, left), _PIECE):
            yield path, offset, min(_PIECE, size - offset, left - offset)
        left -= min(size, left)
