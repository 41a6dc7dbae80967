"""From samples to reads, worked out for a whole plan at once: which calls fill which part of which batch.

Pure arrays. A chunk is what a thread takes at a time: neighbouring samples of one batch, or a part of a large one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Ids

MOST_PIECES = 1024  # buffers of one preadv: IOV_MAX of Linux, limits.h

Small = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Samples:
    """All samples of a plan, one behind the other, and where they lie; [n] or [n, fields].

    keys: of the open file that a sample is read from. batches: number of the batch. starts: first byte in the batch.
    """

    ids: Ids
    keys: Ids
    files: Ids
    offsets: Ids
    stored: Ids
    delivered: Ids
    batches: Ids
    starts: Ids


@dataclass(frozen=True)
class Reads:
    """Calls of preadv, in the order they are made: call r fills the pieces from first[r] to first[r + 1].

    Piece p is the `lengths[p]` bytes of a batch from `starts[p]` on. sizes: bytes of each call. chunks: first call of
    each chunk, and the end.
    """

    keys: Ids
    files: Small
    offsets: Ids
    first: Ids
    starts: Ids
    lengths: Ids
    sizes: Ids
    chunks: Ids


def chunk_of(batches: Ids, starts: Ids, chunk_bytes: int) -> tuple[Ids, Ids]:
    """Number the chunks of rows that are sorted by (batch, start): (first row of each and the end, batch of each).

    Rows whose starts are in the same `chunk_bytes` of their batch are one chunk.
    """
    part = starts // chunk_bytes
    new = np.ones(len(starts), dtype=bool)
    new[1:] = (batches[1:] != batches[:-1]) | (part[1:] != part[:-1])
    firsts = np.flatnonzero(new)
    return np.append(firsts, len(starts)), batches[firsts]


def reads(samples: Samples, chunk_bytes: int, *, whole: bool) -> tuple[Reads, Ids]:
    """The calls that bring the samples in as they are stored, and the batch of each chunk.

    Bytes that are neighbours in file and batch are one piece; pieces that are neighbours in the file alone are read by
    one call. Pieces are at most `chunk_bytes` long, unless chunks are to hold `whole` samples.
    """
    rows, fields = samples.offsets.shape
    lengths = samples.stored.ravel()
    ends = samples.stored.cumsum(axis=1)
    starts = (samples.starts[:, None] + ends - samples.stored).ravel()
    offsets = samples.offsets.ravel()
    row = np.repeat(np.arange(rows), fields)

    some = np.flatnonzero(lengths)  # a field may be empty
    row, offsets, starts, lengths = row[some], offsets[some], starts[some], lengths[some]
    joined = np.zeros(len(row), dtype=bool)
    joined[1:] = (
        (offsets[1:] == offsets[:-1] + lengths[:-1])
        & (starts[1:] == starts[:-1] + lengths[:-1])
        & ((row[1:] == row[:-1]) if whole else (samples.keys[row[1:]] == samples.keys[row[:-1]]))
        & (samples.batches[row[1:]] == samples.batches[row[:-1]])
    )
    at = np.flatnonzero(~joined)
    if len(at):
        lengths = np.add.reduceat(lengths, at)
    row, offsets, starts = row[at], offsets[at], starts[at]

    if not whole:
        parts = -(-lengths // chunk_bytes)
        number = np.arange(parts.sum()) - np.repeat(parts.cumsum() - parts, parts)
        row, skipped = np.repeat(row, parts), number * chunk_bytes
        lengths = np.minimum(np.repeat(lengths, parts) - skipped, chunk_bytes)
        offsets, starts = np.repeat(offsets, parts) + skipped, np.repeat(starts, parts) + skipped

    batches = samples.batches[row]
    firsts, of_chunk = chunk_of(batches, samples.starts[row] if whole else starts, chunk_bytes)
    chunk = np.repeat(np.arange(len(of_chunk)), np.diff(firsts))
    keys = samples.keys[row]
    order = np.lexsort((offsets, keys, chunk))
    chunk, keys, row = chunk[order], keys[order], row[order]
    offsets, starts, lengths = offsets[order], starts[order], lengths[order]
    alone = np.ones(len(row), dtype=bool)
    alone[1:] = (chunk[1:] != chunk[:-1]) | (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1] + lengths[:-1])
    alone[::MOST_PIECES] = True
    first = np.flatnonzero(alone)
    made = Reads(
        keys=keys[first],
        files=samples.files[row[first]].astype(np.int32),
        offsets=offsets[first],
        first=np.append(first, len(row)),
        starts=starts,
        lengths=lengths,
        sizes=np.add.reduceat(lengths, first) if len(first) else lengths,
        chunks=np.searchsorted(chunk[first], np.arange(len(of_chunk) + 1)),
    )
    return made, of_chunk


def joined_ids(plan: Sequence[Ids]) -> tuple[Ids, Ids]:
    """(all ids, number of the batch of each)."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *plan])
    return ids, np.repeat(np.arange(len(plan)), np.array([len(one) for one in plan], dtype=np.int64))
