"""Where the time of a log went, for a terminal: the study's accountings, and what is so besides."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from dlio_bench.reports import accounting
from dlio_bench.reports.accounting import (
    CDB_IMAGE_BYTES,
    HEP_TRAIN_BYTES,
    HEP_TRAIN_FILES,
    HEP_VALID_BYTES,
    ITERATION,
    Additive,
    Overlap,
)
from dlio_bench.reports.formatting import format_share, format_time, plural
from dlio_bench.reports.interval_lists import length, merged
from dlio_bench.reports.io_accounts import reading
from dlio_bench.reports.spans import Span
from dlio_bench.reports.timelogger import MOST_NAMED, RESOLUTION, Log
from dlio_bench.reports.typed import to_json
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped

YEAR = 365 * 86400.0  # seconds: no run begins that early in 1970, and none lasts that long


class Component(Struct, frozen=True):
    """One component over all ranks and epochs. Seconds: the sum of its spans, their union, and what it took itself."""

    name: str
    calls: int
    ranks: int
    summed_seconds: float
    merged_seconds: float
    exclusive_seconds: float


class Account(Struct, frozen=True):
    """What the tables show. None: the log has no such components."""

    ranks: int
    nodes: int
    spans: int
    wall_seconds: float  # from the first start to the last end of any rank
    since_1970: bool  # its times, so that Python 2 cut them
    components: Sequence[Component]
    hep: dict[int, Additive] | None
    hep_left_out: int  # epochs that HEPCNNB's accounting leaves out
    hep_bandwidth: float | None
    cdb_read: dict[int, float] | None
    cdb_training: dict[int, float] | None
    cdb_counted_twice: float  # seconds of both, all epochs
    cdb_bandwidth: float | None
    overlap: Overlap | None
    problems: Sequence[str]


def account(log: Log, nodes: int | None) -> Account:
    """The figures of a log; nodes: as many as ranks, if not given, as in the study."""
    spans = log.spans
    ranks = {span.rank for span in spans}
    count = nodes or len(ranks)
    names = {span.component for span in spans}
    hep = accounting.additive(spans, count) if accounting.READ_FILE in names else None
    reads = sum(span.component == accounting.READ_FILE and span.epoch < accounting.HEP_EPOCHS for span in spans)
    readers = reading("cdb", names - {accounting.READ_FILE})
    read = training = None
    if readers:
        read, training = accounting.merged_latency(spans, *readers), accounting.merged_latency(spans, ITERATION)
    images = sum(span.component == accounting.READ_IMAGE for span in spans)
    overlapping = readers or [accounting.READ_FILE]
    known = not names.isdisjoint(overlapping) and ITERATION in names
    return Account(
        ranks=len(ranks),
        nodes=count,
        spans=len(spans),
        since_1970=min(span.start for span in spans) > YEAR,
        wall_seconds=max(span.end for span in spans) - min(span.start for span in spans),
        components=_components(spans),
        hep=hep,
        hep_left_out=max(0, 1 + _last_epoch(spans) - accounting.HEP_EPOCHS),
        hep_bandwidth=None if hep is None else accounting.hep_bandwidth(reads, accounting.summed(hep.values()).read),
        cdb_read=read,
        cdb_training=training,
        cdb_counted_twice=accounting.counted_twice(spans, readers, [ITERATION]),
        cdb_bandwidth=None if read is None else accounting.cdb_bandwidth(images, sum(read.values())),
        overlap=accounting.overlap(spans, overlapping, ITERATION) if known else None,
        problems=log.problems,
    )


def document(shown: Account) -> dict[str, Any]:
    """As JSON."""
    return to_json(shown)


def render(shown: Account) -> str:
    """At most 80 columns."""
    return "\n".join(_lines(shown)) + "\n"


def _lines(shown: Account) -> Iterator[str]:
    exact = f"; times to {format_time(RESOLUTION)}" if shown.since_1970 else ""
    yield f"{plural(shown.spans, 'span')} of {plural(shown.ranks, 'rank')} in {format_time(shown.wall_seconds)}{exact}"
    if shown.hep is not None:
        yield from _hep(shown, shown.hep)
    if shown.cdb_read is not None and shown.cdb_training is not None:
        yield from _cdb(shown, shown.cdb_read, shown.cdb_training)
    if shown.overlap is not None:
        both = shown.overlap
        yield ""
        yield from wrapped(
            f"Beside it, mean of ranks on their own clocks: reading {format_time(both.first)}, training "
            f"{format_time(both.second)}, both at once {format_time(both.both)}"
            f"{f', {format_share(both.both / both.first)} of reading' if both.first else ''}.",
            "  ",
        )
    yield ""
    yield f"  {'component':<32} {'calls':>7} {'ranks':>6} {'alone':>9} {'merged':>9} {'sum':>9}"
    for row in shown.components:
        times = (row.exclusive_seconds, row.merged_seconds, row.summed_seconds)
        yield (
            f"  {_cut(printable(row.name), 32):<32} {row.calls:>7} {row.ranks:>6} "
            + " ".join(f"{format_time(seconds):>9}" for seconds in times)
        )
    yield "  alone: without spans inside it; merged: while any rank was in it"
    if shown.problems:
        yield ""
        for problem in shown.problems[:MOST_NAMED]:
            yield from wrapped(printable(problem), "  problem  ", whole_words=True)
        if len(shown.problems) > MOST_NAMED:
            yield f"  problem  and {len(shown.problems) - MOST_NAMED} more"


def _hep(shown: Account, epochs: dict[int, Additive]) -> Iterator[str]:
    yield ""
    yield f"  HEPCNNB's accounting, seconds a node ({plural(shown.nodes, 'node')}), share of the epoch"
    yield f"  {'epoch':<6} {'read':>16} {'load':>16} {'training':>16} {'checkpoint':>16}"
    for name, row in [*((str(epoch + 1), row) for epoch, row in epochs.items()), _total(epochs)]:
        cells = (row.read, row.load, row.training, row.checkpoint)
        shares = (f"{seconds:.2f} ({_share(seconds, row.total)})" for seconds in cells)
        yield f"  {name:<6} " + " ".join(f"{cell:>16}" for cell in shares)
    if shown.hep_left_out:
        yield from wrapped(
            f"The log has {plural(shown.hep_left_out, 'more epoch')}, which the study's script leaves out, except for "
            "checkpoints.",
            "  ",
        )
    if any(row.training < 0 for row in epochs.values()):
        yield from wrapped(
            f"Training is negative where 'Load File' and 'Checkpoint Listener' take longer than the '{ITERATION}' that "
            "the study's rule has them in: the log has them outside of its steps, or lacks steps. Shares of such an "
            "epoch, and of all, mean nothing.",
            "  ",
        )
    if shown.hep_bandwidth is not None:
        yield from wrapped(
            f"read bandwidth by the study's formula {format_bytes(shown.hep_bandwidth)}/s: it charges "
            f"{HEP_TRAIN_FILES:,} calls with {HEP_TRAIN_BYTES:,} bytes, a published training file, and the rest with "
            f"{HEP_VALID_BYTES:,}, a validation file, whatever the log's calls read: too low over several epochs",
            "  ",
        )


def _cdb(shown: Account, read: dict[int, float], training: dict[int, float]) -> Iterator[str]:
    yield ""
    yield "  CDB's accounting: seconds in which any rank reads or trains (merged intervals)"
    yield f"  {'epoch':<6} {'read':>12} {'training':>12} {'read share':>12}"
    rows = [(str(epoch + 1), read.get(epoch, 0.0), training.get(epoch, 0.0)) for epoch in sorted({*read, *training})]
    for name, reads, trains in [*rows, ("all", sum(read.values()), sum(training.values()))]:
        yield f"  {name:<6} {reads:>12.2f} {trains:>12.2f} {_share(reads, reads + trains):>12}"
    bandwidth = (
        ""
        if shown.cdb_bandwidth is None
        else f"; {format_bytes(shown.cdb_bandwidth)}/s by the study's formula, which charges each call with "
        f"{CDB_IMAGE_BYTES:,} bytes, an image of the published size, whatever it reads"
    )
    twice = f" ({format_time(shown.cdb_counted_twice)} are counted twice)" if shown.cdb_counted_twice > 0 else ""
    yield from wrapped(f"reading and training overlap{twice}, so the share is no part of the run{bandwidth}", "  ")


def _last_epoch(spans: Sequence[Span]) -> int:
    """Of what the accountings take by epoch; a checkpoint of the study has its step for an epoch."""
    known = (accounting.READ_FILE, accounting.LOAD_FILE, ITERATION)
    return max((span.epoch for span in spans if span.component in known), default=-1)


def _total(epochs: dict[int, Additive]) -> tuple[str, Additive]:
    return "all", accounting.summed(epochs.values())


def _components(spans: Sequence[Span]) -> list[Component]:
    alone: dict[str, float] = {}
    for of_rank in accounting.exclusive(spans).values():
        for name, seconds in of_rank.items():
            alone[name] = alone.get(name, 0.0) + seconds
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.component, []).append(span)
    rows = [
        Component(
            name=name,
            calls=len(of_name),
            ranks=len({span.rank for span in of_name}),
            summed_seconds=sum(max(0.0, span.seconds) for span in of_name),
            merged_seconds=length(merged((span.start, span.end) for span in of_name)),
            exclusive_seconds=alone.get(name, 0.0),
        )
        for name, of_name in by_name.items()
    ]
    return sorted(rows, key=lambda row: -row.exclusive_seconds)


def _share(part: float, whole: float) -> str:
    return format_share(part / whole) if whole > 0 else "-"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
