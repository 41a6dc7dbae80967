"""Where the time of a log of TimeLogger went, for a terminal: the study's accountings, and what overlapped."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from dlio_bench.reports.traces import accounting, bandwidth
from dlio_bench.reports.traces.accounting import ITERATION, READ_FILE, READ_IMAGE, Additive, Overlap, merged_latency
from dlio_bench.reports.traces.tables import as_text, problem_lines, shorten
from dlio_bench.reports.traces.timeline import Span
from dlio_bench.reports.traces.timelogger import RESOLUTION, Log
from dlio_bench.reports.view.formatting import format_share, format_time, plural
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrap

YEAR = 365 * 86400.0  # seconds: no run begins that early in 1970, and none lasts that long


class Component(Struct, frozen=True):
    """One component over all ranks and epochs. Seconds: the sum of its spans, their union, and what it took itself."""

    name: str
    calls: int
    ranks: int
    summed_seconds: float
    merged_seconds: float
    exclusive_seconds: float


class LogAccount(Struct, frozen=True):
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


def account(log: Log, nodes: int | None) -> LogAccount:
    """The figures of a log; nodes: as many as ranks, if not given, as in the study."""
    spans = log.spans
    ranks, names = {span.rank for span in spans}, {span.component for span in spans}
    count = nodes or len(ranks)
    hep = accounting.additive(spans, count) if READ_FILE in names else None
    files = sum(span.component == READ_FILE and span.epoch < accounting.HEP_EPOCHS for span in spans)
    readers = accounting.reading("cdb", names - {READ_FILE})
    read = merged_latency(spans, *readers) if readers else None
    images = sum(span.component == READ_IMAGE for span in spans)
    overlapping = readers or [READ_FILE]
    known = ITERATION in names and not names.isdisjoint(overlapping)
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    # of what the accountings take by epoch; a checkpoint of the study has its step for an epoch
    epochs = [span.epoch for span in spans if span.component in (READ_FILE, accounting.LOAD_FILE, ITERATION)]
    return LogAccount(
        ranks=len(ranks),
        nodes=count,
        spans=len(spans),
        since_1970=start > YEAR,
        wall_seconds=end - start,
        components=_components(spans),
        hep=hep,
        hep_left_out=max(0, 1 + max(epochs, default=-1) - accounting.HEP_EPOCHS),
        hep_bandwidth=None
        if hep is None
        else bandwidth.hep_bandwidth(files, accounting.sum_of_epochs(hep.values()).read),
        cdb_read=read,
        cdb_training=merged_latency(spans, ITERATION) if readers else None,
        cdb_counted_twice=accounting.overlap_seconds(spans, readers, [ITERATION]),
        cdb_bandwidth=None if read is None else bandwidth.cdb_bandwidth(images, sum(read.values())),
        overlap=accounting.overlap(spans, overlapping, ITERATION) if known else None,
        problems=log.problems,
    )


def _components(spans: Sequence[Span]) -> list[Component]:
    """Those that took most themselves first."""
    alone = accounting.exclusive(spans).values()
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.component, []).append(span)
    rows = [
        Component(
            name=name,
            calls=len(of_name),
            ranks=len({span.rank for span in of_name}),
            summed_seconds=sum(max(0.0, span.seconds) for span in of_name),
            merged_seconds=accounting.length(accounting.union_of(of_name, [name])),
            exclusive_seconds=sum((of_rank.get(name, 0.0) for of_rank in alone), 0.0),
        )
        for name, of_name in by_name.items()
    ]
    return sorted(rows, key=lambda row: -row.exclusive_seconds)


def render(shown: LogAccount) -> str:
    """At most 80 columns."""
    return as_text(_lines(shown))


def _lines(shown: LogAccount) -> Iterator[str]:
    exact = f"; times to {format_time(RESOLUTION)}" if shown.since_1970 else ""
    yield f"{plural(shown.spans, 'span')} of {plural(shown.ranks, 'rank')} in {format_time(shown.wall_seconds)}{exact}"
    if shown.hep is not None:
        yield from _hep(shown, shown.hep)
    if shown.cdb_read is not None and shown.cdb_training is not None:
        yield from _cdb(shown, shown.cdb_read, shown.cdb_training)
    if (both := shown.overlap) is not None:
        share = f", {format_share(both.both / both.first)} of reading" if both.first else ""
        yield ""
        yield from wrap(
            f"Beside it, mean of ranks on their own clocks: reading {format_time(both.first)}, training "
            f"{format_time(both.second)}, both at once {format_time(both.both)}{share}.",
            "  ",
        )
    yield ""
    rows = [
        (
            shorten(printable(row.name), 32),
            row.calls,
            row.ranks,
            *map(format_time, (row.exclusive_seconds, row.merged_seconds, row.summed_seconds)),
        )
        for row in shown.components
    ]
    yield from table_lines(["component", "calls", "ranks", "alone", "merged", "sum"], rows)
    yield "  alone: without spans inside it; merged: while any rank was in it"
    yield from problem_lines(shown.problems)


def _hep(shown: LogAccount, epochs: dict[int, Additive]) -> Iterator[str]:
    yield ""
    yield f"  HEPCNNB's accounting, seconds a node ({plural(shown.nodes, 'node')}), share of the epoch"
    parts = Additive.__struct_fields__
    numbered = {str(epoch + 1): row for epoch, row in epochs.items()}
    rows = []
    for name, row in (numbered | {"all": accounting.sum_of_epochs(epochs.values())}).items():
        cells = (getattr(row, part) for part in parts)
        rows.append((name, *(f"{seconds:.2f} ({_share(seconds, row.total)})" for seconds in cells)))
    yield from table_lines(["epoch", *parts], rows)
    if shown.hep_left_out:
        yield from wrap(
            f"The log has {plural(shown.hep_left_out, 'more epoch')}, which the study's script leaves out, except for "
            "checkpoints.",
            "  ",
        )
    if any(row.training < 0 for row in epochs.values()):
        yield from wrap(
            f"Training is negative where 'Load File' and 'Checkpoint Listener' take longer than the '{ITERATION}' that "
            "the study's rule has them in: the log has them outside of its steps, or lacks steps. Shares of such an "
            "epoch, and of all, mean nothing.",
            "  ",
        )
    if shown.hep_bandwidth is not None:
        yield from wrap(
            f"read bandwidth by the study's formula {format_bytes(shown.hep_bandwidth)}/s: {bandwidth.HEP_RULE}", "  "
        )


def _cdb(shown: LogAccount, read: dict[int, float], training: dict[int, float]) -> Iterator[str]:
    yield ""
    yield "  CDB's accounting: seconds in which any rank reads or trains (merged intervals)"
    rows = [(str(epoch + 1), read.get(epoch, 0.0), training.get(epoch, 0.0)) for epoch in sorted({*read, *training})]
    yield from table_lines(
        ["epoch", "read", "training", "read share"],
        [
            (name, f"{reads:.2f}", f"{trains:.2f}", _share(reads, reads + trains))
            for name, reads, trains in [*rows, ("all", sum(read.values()), sum(training.values()))]
        ],
    )
    twice = f" ({format_time(shown.cdb_counted_twice)} are counted twice)" if shown.cdb_counted_twice > 0 else ""
    words = f"reading and training overlap{twice}, so the share is no part of the run"
    if shown.cdb_bandwidth is not None:
        words += f"; {format_bytes(shown.cdb_bandwidth)}/s by the study's formula, {bandwidth.CDB_RULE}"
    yield from wrap(words, "  ")


def _share(part: float, whole: float) -> str:
    return format_share(part / whole) if whole > 0 else "-"
