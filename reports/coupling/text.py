"""A coupled workflow as text: the answer, the table, what was published, why ours differs."""

from collections.abc import Iterator

from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.coupling.document import (
    BESIDE,
    SOLVER,
    SOLVER_ALONE,
    TWINS,
    TWINS_ALONE,
    WORKFLOW,
    Document,
    Published,
    Ratio,
)
from dlio_bench.reports.view.formatting import NOTHING, format_share, format_time, format_times, listed, plural
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped

NAMES = {"files": "files", "bp": "BP files", "sst": "SST stream", BESIDE: "uncoupled"}
STREAM = "stream"  # what a published slow-down calls SST
SHARED_CORES = "SHARED CORES"  # the mark of a result with fewer cores than ranks


def render(document: Document, *, verbose: bool = False) -> str:
    """The text, no line longer than 80 columns. verbose: everything that is known, not one screen with the answer."""
    return "\n".join(map(printable, _lines(document, verbose))) + "\n"


def answers(document: Document) -> list[str]:
    """How much longer the workflow took in each way than its slower side alone, a sentence each; the best first.

    One sentence without a ratio where the times compare nothing.
    """
    if why := couple.incomparable(document):
        ways = listed([name(way) for way in document.ways])
        return [f"every output came through {ways} as the solver computed it; no comparison of speed: {why}"]
    ordered = sorted(document.ways, key=lambda way: couple.slowdown(document, way, WORKFLOW).value)
    return [
        f"coupled through {name(way)} the workflow took {said(couple.slowdown(document, way, WORKFLOW))} times as long "
        f"as its slower side alone ({slower(document)})"
        for way in ordered
    ]


def slower(document: Document) -> str:
    """'the solver' or 'the twins'."""
    solver = couple.median_of(document, SOLVER_ALONE, SOLVER)
    return "the solver" if solver >= couple.median_of(document, TWINS_ALONE, TWINS) else _twins(document)


def said(ratio: Ratio) -> str:
    """'1.23 (1.20-1.25)'."""
    value, *ends = (f"{number:.2f}" for number in (ratio.value, *(ratio.ci or ())))
    return f"{value} ({'-'.join(ends)})" if ends else value


def name(case: str) -> str:
    """A case as people read it."""
    return NAMES.get(case, case)


def subject(document: Document) -> str:
    """'64³ cells, 20 outputs of 4.19 MB; solver of 1 rank (numpy), 1 twin; 5 trials'."""
    trials = len(couple.trials_of(document, BESIDE))
    settings = document.settings
    return (
        f"{settings.size}³ cells, {document.outputs} outputs of {format_bytes(document.output_bytes)} "
        f"({settings.steps} steps, one each {settings.plotgap}); solver of {plural(document.producers, 'rank')} "
        f"({settings.kernel}), {plural(document.consumers, 'twin')} training "
        f"{plural(document.train_steps, 'step')} an output; {plural(trials, 'trial')}"
    )


def alone(document: Document) -> str:
    """What both sides take alone."""
    solver, twins = (
        couple.median_of(document, case, side) for case, side in ((SOLVER_ALONE, SOLVER), (TWINS_ALONE, TWINS))
    )
    return f"solver {format_time(solver)}, {_twins(document, article=False)} {format_time(twins)}"


def rows(document: Document) -> list[tuple[str, list[str]]]:
    """(case, cells) of the table: slow-down of the workflow and each side, then the workflow's over BESIDE."""
    cases = (BESIDE, *document.ways)
    return [
        (
            name(case),
            [
                *(said(couple.slowdown(document, case, side)) for side in (WORKFLOW, SOLVER, TWINS)),
                NOTHING if case == BESIDE else said(couple.over_uncoupled(document, case)),
            ],
        )
        for case in cases
    ]


def times(document: Document) -> list[tuple[str, list[str]]]:
    """(case and side, cells): seconds, their spread over the trials, and shares computed, moved and waited."""
    told = []
    for case in (BESIDE, *document.ways):
        for side in (SOLVER, TWINS):
            parts = couple.shares(document, case, side)
            cells = [
                format_time(couple.median_of(document, case, side)),
                *map(format_share, (couple.spread(document, case, side), parts.computed, parts.moved, parts.waited)),
            ]
            told.append((f"{name(case)}, {side}", cells))
    return told


def congestion(document: Document) -> list[tuple[str, list[str]]]:
    """(way, cells): what the emulated file system carried in a trial, the seconds of calls, how busy its link was."""
    told = []
    for way in document.ways:
        carried, busy = couple.traffic(document, way), couple.busy(document, way)
        if carried is not None:
            cells = [
                format_bytes(carried.written_bytes),
                format_time(carried.write_seconds),
                format_bytes(carried.read_bytes),
                format_time(carried.read_seconds),
                NOTHING if busy is None else format_share(busy),
                f"{format_bytes(couple.throughput(document, way))}/s",
            ]
            told.append((name(way), cells))
    return told


def published(document: Document) -> list[tuple[str, str, str]]:
    """(what was published, ours beside it, its source)."""
    return [(row.words, _beside(document, row), row.source) for row in document.published]


def _unmeasured(document: Document, row: Published) -> str | None:
    """Why ours does not stand beside a published slow-down; None where it does."""
    way = _way(row)
    if way not in document.ways:
        return f"not measured here: {name(way)} was not run"
    if row.consumers != document.consumers:
        verb = "was" if document.consumers == 1 else "were"
        return f"not measured here: {plural(document.consumers, 'consumer')} {verb} run"
    why = couple.incomparable(document)
    return f"not measured here: {why}" if why else None


def _beside(document: Document, row: Published) -> str:
    """Our slow-down beside a published one, or why there is none."""
    if why := _unmeasured(document, row):
        return why
    shared = "; its ranks shared cores" if SHARED_CORES in document.marks else ""
    ratio = said(couple.slowdown(document, _way(row), WORKFLOW))
    return f"here {ratio} through {name(_way(row))}, {plural(document.consumers, 'twin')}{shared}"


def _way(row: Published) -> str:
    return "sst" if row.coupling == STREAM else row.coupling


def _published_in_short(document: Document) -> str:
    """'1.5 through files, 1 model (see the table); below 1.05 through a stream, 3 models (not measured here: ...)'."""
    shared = "; here the ranks shared cores" if SHARED_CORES in document.marks else ""
    told: dict[str, list[str]] = {}
    for row in document.published:
        through = "a stream" if row.coupling == STREAM else name(row.coupling)
        words = f"{'below ' if row.bound else ''}{row.ratio:g} through {through}, {plural(row.consumers, 'model')}"
        told.setdefault(_unmeasured(document, row) or f"see the table{shared}", []).append(words)
    return "; ".join(f"{'; '.join(rows)} ({ending})" for ending, rows in told.items())


def reason(document: Document) -> str:
    """Why ours may differ from what was published: the share of the file system's bandwidth that is asked of it."""
    if why := couple.incomparable(document):
        return f"No comparison: {why}."
    asked = couple.demand(document)
    pace = f"At the pace of its slower side the workflow asks {format_bytes(asked)}/s of a shared file system"
    unknown = (
        "The deck gives neither the sizes of its outputs nor the rate of its file system or network, so that its share "
        "is not known."
    )
    uncoupled = couple.slowdown(document, BESIDE, WORKFLOW).value
    fill = (
        f"To fill and empty the pipeline takes {format_share(couple.filling(document))} in any way of coupling: more "
        f"outputs make it less. Without any coupling both sides at once take {uncoupled:.2f} times as long: here they "
        "share a machine."
    )
    rate = couple.bandwidth(document)
    if rate is None:
        where = (
            "this machine's own, whose pages stay in memory: give --emulate-pfs to see congestion"
            if document.emulated_pfs is None
            else "one without a limit"
        )
        return f"{pace}; here that is {where}. {fill} {unknown}"
    share = asked / rate
    limit = (
        f", so that no coupling through it can be less than {format_times(share)[0]} times as long" if share > 1 else ""
    )
    return (
        f"{pace} ({plural(1 + document.consumers, 'time')} {format_bytes(document.output_bytes)} an output): "
        f"{format_share(share)} of the {format_bytes(rate)}/s that all nodes share here{limit}. {fill} {unknown}"
    )


def _twins(document: Document, *, article: bool = True) -> str:
    noun = "twin" if document.consumers == 1 else "twins"
    return f"the {noun}" if article else noun


def _lines(document: Document, verbose: bool) -> Iterator[str]:
    why = couple.incomparable(document)
    first, *others = answers(document)
    yield from wrapped(f"{first}{f'; {_others(document)}' if others else ''}.", f"{document.simulation}: ", 2)
    yield from wrapped(subject(document), "  ")
    if document.emulated_pfs is not None:
        yield from wrapped(f"file system: {document.emulated_pfs.says}", "  ")
    if document.marks:
        yield from wrapped("  ".join(f"[{mark}]" for mark in document.marks), "  ")
    yield ""
    yield f"  alone: {alone(document)}{'; no interval' if why else ''}"
    for case, cells in [("times", [WORKFLOW, SOLVER, TWINS, "over uncoupled"]), *rows(document)]:
        yield f"  {case:<10}" + "".join(f"{cell:>17}" for cell in cells)
    yield ""
    if verbose:
        yield from _details(document)
        return
    if document.published and not why:
        yield from wrapped(_published_in_short(document), "  published: ", 4)
    yield from wrapped("where the time went, what was published and checked: show --verbose, report.html", "  more: ")


def _details(document: Document) -> Iterator[str]:
    heads = ["seconds", "spread", "computes", "moves", "waits"]
    for case, cells in [("side", heads), *times(document)[2:]]:  # without those of BESIDE, which only compute
        yield f"  {case:<22}" + "".join(f"{cell:>10}" for cell in cells)
    if carried := congestion(document):
        yield ""
        heads = ["written", "in calls", "read", "in calls", "busy", "to twins"]
        for way, cells in [("file system", heads), *carried]:
            widths = (10, 10, 10, 10, 7, 12)
            yield f"  {way:<12}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    yield ""
    for words, ours, _ in published(document):
        yield from wrapped(f"{words}; {ours}", "  published: ", 13)
    if document.published:
        sources = listed([*dict.fromkeys(row.source for row in document.published)])
        yield from wrapped(f"({sources})", "  ", 13)
    yield from wrapped(reason(document), "  why: ")
    yield from wrapped("; ".join(check.found for check in document.checks), "  checked: ")


def _others(document: Document) -> str:
    """The ways but the first, in short."""
    ordered = sorted(document.ways, key=lambda way: couple.slowdown(document, way, WORKFLOW).value)[1:]
    return ", ".join(f"through {name(way)} {said(couple.slowdown(document, way, WORKFLOW))}" for way in ordered)
