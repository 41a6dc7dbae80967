"""How files were accessed: sizes, order, opens, metadata, how far ranks differ; as figures, JSON and text.

Definitions are Darshan's where it has them: `darshan-runtime/lib/darshan-posix.c` and `darshan-common.h` of its
repository (github.com/darshan-hpc/darshan).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.traces.tables import as_text
from dlio_bench.reports.view.formatting import NOTHING, format_share, format_time, plural
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrap

# Sizes of accesses, the largest of each bin; 1K is 1,024 bytes. Source: DARSHAN_BUCKET_INC.
BIN_ENDS = (100, 2**10, 10 * 2**10, 100 * 2**10, 2**20, 4 * 2**20, 10 * 2**20, 100 * 2**20, 2**30)
BINS = ("0-100", "100-1K", "1K-10K", "10K-100K", "100K-1M", "1M-4M", "4M-10M", "10M-100M", "100M-1G", "1G+")

# What an access is.
READ, WRITE, OPEN, CLOSE, STAT, OTHER = range(6)  # other: metadata too

# Reads and writes are balanced unless one moves more bytes than the other by over this share of both. Source:
# 'imbalance_operations' of Drishti (github.com/hpc-io/drishti-io), which calls the others 'size intensive'. Its first
# author is that of the study of Summit's logs, which gives no limits.
IMBALANCE = 0.10
# Share of the I/O time from which on an application is metadata-intensive. No source gives one: it is ours.
METADATA_SHARE = 0.50

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]


class Accesses(Struct, frozen=True):
    """Columns of one length. file: a number, -1: nobody knows which; kind: READ to OTHER; offset, size: bytes; start,
    end: seconds of one clock for each rank.

    offset: -1: a library did it, by calls that nobody has seen: its size is no size of an access.
    """

    rank: Ints
    file: Ints
    kind: Ints
    offset: Ints
    size: Ints
    start: Floats
    end: Floats


class Direction(Struct, frozen=True):
    """All reads, or all writes. Times are summed over threads and ranks.

    placed: those whose sizes and offsets are known; sizes: how many of them are in each of BINS. As Darshan counts
    them: consecutive begin at the byte behind the last one of that rank and file; sequential begin there or further
    on. An open puts the last byte to 0, so that the first access at the start of a file is neither; `first` counts
    these; None: not told apart from the rest.
    """

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    placed: int = 0
    sizes: tuple[int, ...] = (0,) * len(BINS)
    consecutive: int = 0
    sequential: int = 0
    first: int | None = 0

    @property
    def random(self) -> int:
        """Backwards, or to the same place again; the first ones of files too where these are not told apart."""
        return self.placed - self.sequential - (self.first or 0)


class Pattern(Struct, frozen=True):
    """What an application did with files. metadata: calls, opens included; bytes_variation, seconds_variation:
    standard deviation over ranks / mean, None where nobody knows; notes: what is not known, a sentence each.
    """

    ranks: int
    files: int
    reads: Direction
    writes: Direction
    opens: int
    metadata: int
    metadata_seconds: float
    bytes_variation: float | None = None
    seconds_variation: float | None = None
    notes: tuple[str, ...] = ()


def pattern(accesses: Accesses, ranks: int | None = None) -> Pattern:
    """The pattern of accesses, in time O(n log n). ranks: that took part (default: those that have accesses).

    Accesses of a rank and file count in the order of their starts, as listed where these are equal.
    """
    order = np.lexsort((accesses.start, accesses.file, accesses.rank))
    rank, file, kind, offset, size = (
        np.asarray(getattr(accesses, name))[order] for name in ("rank", "file", "kind", "offset", "size")
    )
    seconds = np.maximum(0.0, accesses.end - accesses.start)[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (rank[1:] != rank[:-1]) | (file[1:] != file[:-1])
    opening = np.cumsum(is_new | (kind == OPEN))  # a number for each open of each rank and file
    reads, writes = (
        _direction(opening[here], offset[here], size[here], seconds[here]) for here in (kind == READ, kind == WRITE)
    )
    count = max(ranks or 0, len(np.unique(rank)))
    moved = np.where(kind <= WRITE, size, 0)
    return Pattern(
        ranks=count,
        files=len(np.unique(file[file >= 0])),
        reads=reads,
        writes=writes,
        opens=int(np.count_nonzero(kind == OPEN)),
        metadata=int(np.count_nonzero(kind > WRITE)),
        metadata_seconds=float(seconds[kind > WRITE].sum()),
        bytes_variation=variation(rank, moved, count),
        seconds_variation=variation(rank, seconds, count),
    )


def _direction(opening: Ints, offset: Ints, size: Ints, seconds: Floats) -> Direction:
    """Of accesses in order; opening: equal for those of one rank and file that no open parts."""
    known = offset >= 0
    sizes = np.bincount(np.searchsorted(BIN_ENDS, size[known]), minlength=len(BINS))
    opening, begin, end = opening[known], offset[known], (offset + size)[known]
    is_first = np.ones(len(opening), dtype=bool)
    is_first[1:] = opening[1:] != opening[:-1]
    last = np.zeros(len(opening), dtype=np.int64)  # the last byte of the one before
    last[1:] = np.where(is_first[1:], 0, end[:-1] - 1)
    is_sequential = begin > last
    return Direction(
        count=len(size),
        bytes=int(size.sum()),
        seconds=float(seconds.sum()),
        placed=len(opening),
        sizes=tuple(sizes.tolist()),
        consecutive=int(np.count_nonzero(begin == last + 1)),
        sequential=int(np.count_nonzero(is_sequential)),
        first=int(np.count_nonzero(is_first & ~is_sequential)),
    )


def variation(rank: Ints, amount: npt.NDArray[Any], ranks: int) -> float | None:
    """Standard deviation over all ranks / mean of what they did; None: nobody did anything.

    Ranks that are not named did nothing. Of a population, as Darshan's variances over ranks are.
    """
    if amount.sum() <= 0:
        return None
    active, numbers = np.unique(rank, return_inverse=True)
    of_ranks = np.bincount(numbers.reshape(-1), amount)
    mean = of_ranks.sum() / ranks
    variance = (((of_ranks - mean) ** 2).sum() + (ranks - len(active)) * mean**2) / ranks
    return float(np.sqrt(variance) / mean)


def traffic(read: int, written: int) -> str:
    """'read-intensive', 'write-intensive', 'balanced' or 'no data seen', from bytes. See IMBALANCE."""
    if not read + written:
        return "no data seen"
    if abs(read - written) <= IMBALANCE * (read + written):
        return "balanced"
    return "read-intensive" if read > written else "write-intensive"


def metadata_share(of: Pattern) -> float | None:
    """The share of metadata in the time of all calls on files; None where they took no time, where nobody saw a call on
    metadata, as where libraries read, and where nobody knows how long reads took.
    """
    if of.reads.placed < of.reads.count and not (of.metadata and of.reads.seconds):
        return None
    total = of.reads.seconds + of.writes.seconds + of.metadata_seconds
    return of.metadata_seconds / total if total > 0 else None


def is_metadata_intensive(of: Pattern) -> bool | None:
    """By METADATA_SHARE; None where no time is known."""
    share = metadata_share(of)
    return None if share is None else share >= METADATA_SHARE


def opens_per_read(of: Pattern) -> float | None:
    """None: no reads, or none of them and no open was seen."""
    return of.opens / of.reads.count if of.reads.count and (of.opens or of.reads.placed) else None


def main_bin(of: Direction) -> int | None:
    """The bin with the most accesses; None: nobody knows the size of any."""
    return int(np.argmax(of.sizes)) if any(of.sizes) else None


def with_notes(of: Pattern, *notes: str) -> Pattern:
    """With more notes."""
    return replace(of, notes=(*of.notes, *notes))


def document(of: Pattern) -> dict[str, Any]:
    """As JSON, with what follows from it."""
    parts = {
        name: to_json(direction) | {"random": direction.random, "sizes": dict(zip(BINS, direction.sizes, strict=True))}
        for name, direction in (("reads", of.reads), ("writes", of.writes))
    }
    return {
        "traffic": traffic(of.reads.bytes, of.writes.bytes),
        "metadata_intensive": is_metadata_intensive(of),
        **to_json(of),
        **parts,
        "metadata_share": metadata_share(of),
        "opens_per_read": opens_per_read(of),
        "limits": {
            "imbalance": {"value": IMBALANCE, "source": "Drishti"},
            "metadata_share": {"value": METADATA_SHARE, "source": "dlio-bench"},
        },
    }


def render(of: Pattern, title: str = "I/O pattern", *, with_limits: bool = True) -> str:
    """At most 80 columns. with_limits: say what the classes mean."""
    return as_text(_lines(of, title, with_limits=with_limits))


def limits(*, metadata: bool = True) -> list[str]:
    """What the classes mean, and where their limits come from."""
    words = (
        f"read- or write-intensive: one moves more bytes than the other, by over {format_share(IMBALANCE)} of both "
        "(the limit of Drishti)"
    )
    if metadata:
        words += (
            f"; metadata-intensive: metadata takes {format_share(METADATA_SHARE)} of the I/O time or more (thresholds "
            "of dlio-bench)"
        )
    return wrap(words, "  ")


def _lines(of: Pattern, title: str, *, with_limits: bool) -> Iterator[str]:
    is_heavy = is_metadata_intensive(of)
    metadata = "" if is_heavy is None else f", {'' if is_heavy else 'not '}metadata-intensive"
    yield f"{title}: {traffic(of.reads.bytes, of.writes.bytes)}{metadata}"
    directions = {noun: each for noun, each in (("reads", of.reads), ("writes", of.writes)) if each.count}
    for noun, each in directions.items():
        yield from wrap(_most_accesses(noun, each), "  ")
    if directions or of.metadata:
        yield from _table(directions)
        yield ""
        if of.metadata or any(each.placed for each in directions.values()):
            yield from _metadata(of)
        if of.ranks > 1:
            moved, took = (
                "not known" if value is None else format_share(value)
                for value in (of.bytes_variation, of.seconds_variation)
            )
            differ = f"{of.ranks} ranks differ (standard deviation / mean): bytes {moved}, I/O time {took}"
            yield from wrap(differ, "  ")
        if with_limits:
            yield from limits(metadata=is_heavy is not None)
    for note in of.notes:
        yield from wrap(printable(note), "  ")


def _table(directions: dict[str, Direction]) -> Iterator[str]:
    """What was never done, reading or writing, has no column."""
    shown = directions.values()
    rows: dict[str, list[str]] = {}
    if directions:
        rows["calls"] = [f"{each.count:,}" for each in shown]
        rows["bytes"] = [format_bytes(each.bytes) for each in shown]
        rows["time"] = [format_time(each.seconds) if each.seconds else NOTHING for each in shown]
    if any(each.placed for each in shown):
        rows["consecutive"] = [_share(each.consecutive, each.placed) for each in shown]
        rows["further on"] = [_share(each.sequential - each.consecutive, each.placed) for each in shown]
        random = "random"
        if any(each.first is None for each in shown):
            random = "random, or the first"
        else:
            rows["first, at the start"] = [_share(each.first or 0, each.placed) for each in shown]
        rows[random] = [_share(each.random, each.placed) for each in shown]
    for at, name in enumerate(BINS):
        if any(each.sizes[at] for each in shown):
            rows[f"size {name}"] = [f"{each.sizes[at]:,}" if each.sizes[at] else NOTHING for each in shown]
    if directions:
        yield ""
        yield from table_lines(["", *directions], [(name, *cells) for name, cells in rows.items()])


def _metadata(of: Pattern) -> list[str]:
    per_read, share = opens_per_read(of), metadata_share(of)
    words = f"{plural(of.files, 'file')}, {plural(of.opens, 'open')}"
    words += "" if per_read is None else f", {per_read:.3g} a read"
    words += f"; metadata: {plural(of.metadata, 'call')}, {format_time(of.metadata_seconds)}"
    return wrap(words + ("" if share is None else f", {format_share(share)} of the I/O time"), "  ")


def _most_accesses(noun: str, of: Direction) -> str:
    """What most reads, or writes, are."""
    if (at := main_bin(of)) is None:
        return f"{noun}: {of.count:,}, whose sizes and offsets are not known"
    common = f"{BINS[at]} bytes most often ({_share(of.sizes[at], of.placed)} of {of.placed:,})"
    return f"{noun}: {common}; {_share(of.consecutive, of.placed)} consecutive"


def _share(part: int, whole: int) -> str:
    return format_share(part / whole) if whole else NOTHING
