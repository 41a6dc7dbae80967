"""Checkpoints as text: the answer, the rates in every way of counting, and what was checked."""

from collections.abc import Iterator

from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS, per_trial
from dlio_bench.reports.checkpoint.types import AWAITED, NO_FSYNC, Document
from dlio_bench.reports.document.marks import gravest_first
from dlio_bench.reports.view.formatting import format_share, format_time, interval, number, plural
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped

KINDS = ("write", "read")
WAYS = ("seconds", "bandwidth", "mean_rate", "rank0_rate")  # of counting the time of a checkpoint


def render(document: Document, *, verbose: bool = False) -> str:
    """The text, no line longer than 80 columns. verbose: every trial and every checkpoint, and the sources."""
    return "\n".join(map(printable, _lines(document, verbose))) + "\n"


def answer(document: Document) -> str:
    """How fast checkpoints were written and read, in one sentence, whose rates are its bytes over its seconds."""
    written = "written" if document.fsync else "written, as far as the page cache,"
    return (
        f"{document.model.title}: a checkpoint of {format_bytes(document.bytes)} was {written} in "
        f"{_timed(document, 'write')}, and read by {reader(document)} in {_timed(document, 'read')}, slowest rank "
        "behind a barrier"
    )


def _timed(document: Document, kind: str) -> str:
    """'2 s (100 MB/s)'. The median of the trials' rates may be another: of two trials, say."""
    seconds = document.metrics[f"checkpoint_{kind}_seconds"]
    assert seconds.value is not None  # CHECKPOINT_METRICS all have one
    return f"{number(seconds)} ({format_bytes(document.bytes / seconds.value)}/s)"


def reader(document: Document) -> str:
    """Who read what a rank wrote."""
    if document.nodes > 1:
        return "ranks of another node" if "VIRTUAL NODES" not in document.marks else "ranks of another virtual node"
    return "other ranks" if document.shift else "the rank that wrote it"


def subject(document: Document) -> str:
    """What was written, and by whom."""
    cut = "" if document.fraction == 1 else (
        f", {100 * document.fraction:.4g} % of the bytes of {format_bytes(document.model.whole_bytes)}"
    )  # fmt: skip
    shards = "" if document.shards == document.ranks else f", the state of {document.shards} ranks"
    return (
        f"{plural(document.files, 'file')} ({document.layout}){cut}; {plural(document.nodes, 'node')} x "
        f"{plural(document.ranks_per_node, 'rank')}{shards}; {plural(document.checkpoints, 'checkpoint')} in each of "
        f"{plural(len(document.trials), 'trial')}, {'with' if document.fsync else 'without'} fsync"
    )


def rows(document: Document) -> list[tuple[str, list[str]]]:
    """(metric, [value, interval, what it is])."""
    return [
        (quantity.meaning, [number(document.metrics[name]), interval(document.metrics[name])])
        for name, quantity in CHECKPOINT_METRICS.items()
        if name in document.metrics
    ]


def trials(document: Document) -> list[tuple[str, list[str]]]:
    """(trial, cells): rates to write and read, shares of fsync and of waiting, what was left in the cache."""
    names = ("checkpoint_write_bandwidth", "checkpoint_read_bandwidth")
    shares = ("checkpoint_fsync_share", "checkpoint_waited_share")
    columns = [per_trial(document.trials, name) for name in (*names, *shares)]
    return [
        (
            str(trial.trial + 1),
            [
                *(f"{format_bytes(column[trial.trial])}/s" for column in columns[:2]),
                *(format_share(column[trial.trial]) for column in columns[2:]),
                format_share(trial.resident_share),
            ],
        )
        for trial in document.trials
    ]


def making(document: Document) -> str:
    """How fast ranks made bytes, and what of the write time waited for them."""
    waited = document.metrics["checkpoint_waited_share"].value or 0.0
    beyond = "; beyond 10 % the making is measured too" if AWAITED in document.marks else ""
    return (
        f"each rank made at least {format_bytes(min(document.generator))}/s beside the others before the clock; "
        f"{format_share(waited)} of the write time waited for bytes{beyond}"
    )


def _lines(document: Document, verbose: bool) -> Iterator[str]:
    yield from wrapped(f"{answer(document)}.", f"{document.class_}  ", 2)
    yield from wrapped(subject(document), "  ")
    if document.marks:
        yield from wrapped("  ".join(f"[{mark}]" for mark in gravest_first(document.marks)), "  ")
    yield ""
    heads = ("a checkpoint", "bytes / time", "mean of rates", "rank 0 alone")
    yield f"  {'':<6}" + "".join(f"{head:>17}" for head in heads)
    for kind in KINDS:
        cells = [number(document.metrics[f"checkpoint_{kind}_{way}"]) for way in WAYS]
        yield f"  {kind:<6}" + "".join(f"{cell:>17}" for cell in cells)
    yield "  rank 0 alone: without what slower ranks take, and without manifest and name"
    yield ""
    told = document.metrics
    if document.fsync:
        calls = f"{told['checkpoint_fsyncs'].value:.0f} calls of fsync a checkpoint"
        yield from wrapped(f"{calls}, {number(told['checkpoint_fsync_share'])} of the write time", "  fsync    ", 11)
    yield from wrapped(making(document), "  bytes    ", 11)
    for check in document.checks:
        yield from wrapped(f"{check.name}: {check.found}", f"  {'held' if check.ok else 'FAILED':<9}", 11)
    if NO_FSYNC in document.marks:
        yield from wrapped("without fsync a write ends in the page cache, which is dropped after it", "  note     ", 11)
    if verbose:
        yield ""
        yield from _details(document)


def _details(document: Document) -> Iterator[str]:
    heads = ["write", "read", "in fsync", "waited", "cached"]
    for label, cells in [("trial", heads), *trials(document)]:
        yield f"  {label:<6}" + "".join(f"{cell:>14}" for cell in cells)
    yield ""
    for meaning, (value, ends) in rows(document):
        yield from wrapped(f"{value} ({ends})  {meaning}", "  ", 6)
    slowest = max(write.commit_seconds for trial in document.trials for write in trial.writes)
    yield from wrapped(f"manifest and name took at most {format_time(slowest)} of a write", "  ", 4)
    parameters = f"{document.model.parameters:,} parameters; {document.model.source}"
    yield from wrapped(f"{parameters}. {document.model.note}".strip(), "  source   ", 11)
