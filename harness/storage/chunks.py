"""From samples to reads, for a whole plan at once: which calls fill which part of which batch.

Pure arrays. A chunk is what a thread takes at a time: neighbouring samples of one batch, or a part of a large one.
"""

from collections.abc import Container, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.batches import Ids
from dlio_bench.datagen.layout import Checksums
from dlio_bench.harness.storage.direct import Piece

ALONE = 1 << 62  # is taken from the key of a file that one chunk alone reads
MOST_PIECES = 1024  # buffers of one preadv: IOV_MAX of Linux, limits.h
CHUNK_OPENS = 2  # files that a chunk opens at most, where each is opened anew: one thread opens them one by one


class PlannedSamples(Struct, frozen=True):
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


class Reads(Struct, frozen=True):
    """Calls of preadv in the order they are made; tables, so that a chunk's part of them is one slice.

    calls: int64 [calls, 5] = key, file, offset, bytes, number of pieces. A key below 0 is of a file that only one chunk
    reads, by calls that follow each other. pieces: int64 [pieces, 2] = first byte of a batch to be filled and the one
    behind the last. chunks: int64 [chunks + 1, 2] = first call and first piece of each.
    """

    calls: Ids
    pieces: Ids
    chunks: Ids


class ChunkedReads(Struct, frozen=True):
    """The reads of some batches, cut into chunks. batches: the batch of each chunk, ascending.

    reads: None where samples are to be decoded or checked, which is done one by one: then chunk c is the samples from
    rows[c] to rows[c + 1]. checksums: None unless they are to be compared.
    """

    batches: Ids
    samples: PlannedSamples
    rows: Ids
    reads: Reads | None
    checksums: Checksums | None

    def at_bases(self, bases: Ids) -> "ChunkedReads":
        """The same, where batch b begins at byte bases[b] of the memory that it is read into."""
        samples = replace(self.samples, starts=self.samples.starts + bases[self.samples.batches])
        reads = self.reads
        if reads is not None:
            moved = np.repeat(bases[self.batches], np.diff(reads.chunks[:, 1]))
            reads = replace(reads, pieces=reads.pieces + moved[:, None])
        return replace(self, samples=samples, reads=reads)


def chunk_of(batches: Ids, starts: Ids, chunk_bytes: int, opened: Ids | None = None) -> tuple[Ids, Ids]:
    """Number the chunks of rows that are sorted by (batch, start): (first row of each and the end, batch of each).

    Rows whose starts are in the same `chunk_bytes` of their batch are one chunk. opened: of each row, the number of its
    file in the order in which files are opened; a chunk opens CHUNK_OPENS of them.
    """
    part = starts // chunk_bytes
    new = np.ones(len(starts), dtype=bool)
    new[1:] = (batches[1:] != batches[:-1]) | (part[1:] != part[:-1])
    if opened is not None:
        first = np.maximum.accumulate(np.where(np.diff(batches, prepend=-1) != 0, opened, 0))  # of the batch
        new[1:] |= np.diff((opened - first) // CHUNK_OPENS) != 0
    firsts = np.flatnonzero(new)
    return np.append(firsts, len(starts)), batches[firsts]


def reads(samples: PlannedSamples, chunk_bytes: int, *, of_one: bool = False) -> tuple[Reads, Ids]:
    """The calls that bring the samples in as they are stored, and the batch of each chunk.

    of_one: whether each sample is a file, whose key is its number in the order in which files are opened.

    Bytes that are neighbours in file and batch are one piece; pieces that are neighbours in the file alone are read by
    one call. A piece is at most `chunk_bytes` long.
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
        & (samples.keys[row[1:]] == samples.keys[row[:-1]])
        & (samples.batches[row[1:]] == samples.batches[row[:-1]])
    )
    at = np.flatnonzero(~joined)
    if len(at):
        lengths = np.add.reduceat(lengths, at)
    row, offsets, starts = row[at], offsets[at], starts[at]

    parts = -(-lengths // chunk_bytes)
    skipped = (np.arange(parts.sum()) - np.repeat(parts.cumsum() - parts, parts)) * chunk_bytes
    row, lengths = np.repeat(row, parts), np.minimum(np.repeat(lengths, parts) - skipped, chunk_bytes)
    offsets, starts = np.repeat(offsets, parts) + skipped, np.repeat(starts, parts) + skipped

    keys = samples.keys[row]
    firsts, of_chunk = chunk_of(samples.batches[row], starts, chunk_bytes, keys if of_one else None)
    chunk = np.repeat(np.arange(len(of_chunk)), np.diff(firsts))
    if of_one:
        several = np.zeros(rows, dtype=bool)
        several[row[1:][(row[1:] == row[:-1]) & (chunk[1:] != chunk[:-1])]] = True
        keys = np.where(several[row], keys, keys - ALONE)
    order = np.lexsort((offsets, keys, chunk))
    chunk, keys, row = chunk[order], keys[order], row[order]
    offsets, starts, lengths = offsets[order], starts[order], lengths[order]
    alone = np.ones(len(row), dtype=bool)
    alone[1:] = (chunk[1:] != chunk[:-1]) | (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1] + lengths[:-1])
    alone[::MOST_PIECES] = True
    first = np.flatnonzero(alone)
    sizes = np.add.reduceat(lengths, first) if len(first) else lengths
    counts = np.diff(first, append=len(row))
    calls = np.stack([keys[first], samples.files[row[first]], offsets[first], sizes, counts], axis=1)
    every = np.arange(len(of_chunk) + 1)
    bounds = np.stack([np.searchsorted(chunk[first], every), np.searchsorted(chunk, every)], axis=1)
    return Reads(calls, np.stack([starts, starts + lengths], axis=1), bounds), of_chunk


def join_ids(plan: Sequence[Ids]) -> tuple[Ids, Ids]:
    """(all ids, number of the batch of each)."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *plan])
    return ids, np.repeat(np.arange(len(plan)), np.array([len(batch) for batch in plan], dtype=np.int64))


def rejoin_calls(rows: list[list[int]], bounds: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Calls and pieces as of Reads, where calls of one piece that follow each other in file and memory are one."""
    calls: list[list[int]] = []
    pieces: list[list[int]] = []
    at = 0
    for key, file, offset, size, count in rows:
        start, stop = bounds[at]
        before = calls[-1] if calls else None
        follows = before and (before[0], before[2] + before[3], pieces[-1][1]) == (key, offset, start)
        if before and follows and count == before[4] == 1:
            before[3] += size
            pieces[-1][1] = stop
        else:
            calls.append([key, file, offset, size, count])
            pieces += bounds[at : at + count]
        at += count
    return calls, pieces


def split_staged(
    calls: list[list[int]], bounds: list[list[int]], staged: Container[int]
) -> tuple[list[Piece], list[list[int]], list[list[int]]]:
    """Calls and pieces (as of Reads), parted: pieces of files that are not `staged`; calls and pieces of the rest."""
    wanted: list[Piece] = []
    left, left_bounds, first = [], [], 0
    for call in calls:
        key, file, offset, _, count = call
        of_call = bounds[first : first + count]
        first += count
        if file in staged:
            left.append(call)
            left_bounds += of_call
            continue
        for start, stop in of_call:
            wanted.append(Piece(key, file, offset, stop - start, start))
            offset += stop - start
    return wanted, left, left_bounds
