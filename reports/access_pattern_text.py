"""How files were accessed, for a terminal: what the application is, what most of its reads are, then the table."""

from collections.abc import Iterator, Sequence

from dlio_bench.reports.access_pattern import (
    BINS,
    IMBALANCE,
    METADATA_SHARE,
    Direction,
    Pattern,
    is_metadata_intensive,
    main_bin,
    metadata_share,
    opens_per_read,
    traffic,
)
from dlio_bench.reports.formatting import NOTHING, format_share, format_time, plural
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped


def render(of: Pattern, title: str = "I/O pattern", *, with_limits: bool = True) -> str:
    """At most 80 columns. with_limits: say what the classes mean."""
    return "\n".join(_lines(of, title, with_limits=with_limits)) + "\n"


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
    return wrapped(words, "  ")


def _lines(of: Pattern, title: str, *, with_limits: bool) -> Iterator[str]:
    is_heavy = is_metadata_intensive(of)
    metadata = "" if is_heavy is None else f", {'' if is_heavy else 'not '}metadata-intensive"
    yield f"{title}: {traffic(of.reads.bytes, of.writes.bytes)}{metadata}"
    for noun, direction in (("reads", of.reads), ("writes", of.writes)):
        if (told := _most(noun, direction)) is not None:
            yield from wrapped(told, "  ")
    if of.reads.count or of.writes.count or of.metadata:
        yield from _table(of)
        if with_limits:
            yield from limits(metadata=is_heavy is not None)
    for note in of.notes:
        yield from wrapped(printable(note), "  ")


def _table(of: Pattern) -> Iterator[str]:
    """What was never done, reading or writing, has no column."""
    shown = {noun: each for noun, each in (("reads", of.reads), ("writes", of.writes)) if each.count}
    directions = list(shown.values())
    if directions:
        yield ""
        yield _row("", *shown)
        yield _row("calls", *(f"{each.count:,}" for each in directions))
        yield _row("bytes", *(format_bytes(each.bytes) for each in directions))
        yield _row("time", *(format_time(each.seconds) if each.seconds else NOTHING for each in directions))
    if any(each.placed for each in directions):
        yield from _order(directions)
    for at, name in enumerate(BINS):
        counts = [each.sizes[at] for each in directions]
        if any(counts):
            yield _row(f"size {name}", *(f"{count:,}" if count else NOTHING for count in counts))
    yield ""
    if of.metadata or of.reads.placed or of.writes.placed:
        yield from _metadata(of)
    if of.ranks > 1:
        bytes_, seconds = (
            "not known" if value is None else format_share(value)
            for value in (of.bytes_variation, of.seconds_variation)
        )
        yield from wrapped(
            f"{of.ranks} ranks differ (standard deviation / mean): bytes {bytes_}, I/O time {seconds}", "  "
        )


def _order(directions: Sequence[Direction]) -> Iterator[str]:
    yield _row("consecutive", *(_share(each.consecutive, each.placed) for each in directions))
    yield _row("further on", *(_share(each.sequential - each.consecutive, each.placed) for each in directions))
    if any(each.first is None for each in directions):
        yield _row("random, or the first", *(_share(each.random, each.placed) for each in directions))
    else:
        yield _row("first, at the start", *(_share(each.first or 0, each.placed) for each in directions))
        yield _row("random", *(_share(each.random, each.placed) for each in directions))


def _metadata(of: Pattern) -> Iterator[str]:
    per_read = opens_per_read(of)
    yield from wrapped(
        f"{plural(of.files, 'file')}, {plural(of.opens, 'open')}"
        f"{'' if per_read is None else f', {per_read:.3g} a read'}; metadata: {plural(of.metadata, 'call')}, "
        f"{format_time(of.metadata_seconds)}"
        f"{'' if (share := metadata_share(of)) is None else f', {format_share(share)} of the I/O time'}",
        "  ",
    )


def _most(noun: str, of: Direction) -> str | None:
    """What most reads, or writes, are; None: there are none."""
    if not of.count:
        return None
    if (at := main_bin(of)) is None:
        return f"{noun}: {of.count:,}, whose sizes and offsets are not known"
    common = f"{BINS[at]} bytes most often ({_share(of.sizes[at], of.placed)} of {of.placed:,})"
    return f"{noun}: {common}; {_share(of.consecutive, of.placed)} consecutive"


def _row(name: str, *cells: str) -> str:
    return f"  {name:<22}" + "".join(f" {cell:>14}" for cell in cells)


def _share(part: int, whole: int) -> str:
    return format_share(part / whole) if whole else NOTHING
