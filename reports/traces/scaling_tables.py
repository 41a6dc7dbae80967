"""The tables of `dlio-bench trace` over several results. Published values have rows of their own.

The node counts of the study (64 to 1,024) are rarely ours, so that what compares is the trend: `x ideal`.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dlio_bench.reports.traces import study_tables
from dlio_bench.reports.traces.accounting import ADDITIVE, MERGED, NAMES, READ_FILE, READ_IMAGE, TITLES, WAITING
from dlio_bench.reports.traces.bandwidth import times_ideal_bandwidth, times_ideal_seconds
from dlio_bench.reports.traces.scaling import Scaling, answers, missing, name_of
from dlio_bench.reports.traces.study_tables import seconds_text, share_text, times_text
from dlio_bench.reports.traces.tables import TextTable, as_text, study_lines
from dlio_bench.reports.traces.trainers import CriticalPath
from dlio_bench.reports.view.formatting import NOTHING, format_time, plural
from dlio_bench.reports.view.table import INDENT
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrap

ALIKE = 0.02  # of a loop
TWICE = "counted twice"
MOST_EPOCHS = 5  # columns: those of the study; later ones are in the JSON
IDEAL = "× ideal: 1.00× is a time of I/O that halves on twice the nodes of the first row; more is worse."
CAUTIONS = {
    MERGED: (
        "One rank that reads counts as much as a thousand at once. Counted twice: seconds in which reading and "
        "training, or two epochs, overlap; a step that waits for data counts as training. So the share is no part of "
        "the run. Clocks of hosts are not corrected.",
    ),
}
RULES = {
    READ_FILE: "it charges the training files of one epoch, and each other call as a validation file, too low over "
    "several epochs",
    READ_IMAGE: "it charges a sample's delivered bytes for each call, where the whole file is read",
}


def answer_text(scalings: Sequence[Scaling]) -> str:
    """What `trace` says first: marks of all, then by workload and reader its other marks and the answer."""
    marks = [list(dict.fromkeys(mark for case in scaling.cases for mark in case.result.marks)) for scaling in scalings]
    of_all = [mark for mark in marks[0] if all(mark in of_scaling for of_scaling in marks)] if len(marks) > 1 else []
    lines = _wrap_words(f"[{mark}]" for mark in of_all) if of_all else []
    for scaling, of_scaling in zip(scalings, marks, strict=True):
        others = (f"[{mark}]" for mark in of_scaling if mark not in of_all)
        lines += _wrap_words((scaling.workload, scaling.reader, *others))
        for sentence in answers(scaling):
            lines += wrap(f"{printable(sentence)}.", INDENT)
    return as_text(lines)


def _wrap_words(words: Iterable[str]) -> list[str]:
    return wrap(printable(" · ".join(words)))


def render(scalings: Sequence[Scaling]) -> str:
    """The tables, at most 80 columns. Published values alone are left out beside a single result without reading.

    A note that stands below an earlier table already is not repeated.
    """
    lines: list[str] = []
    notes: set[str] = set()
    for scaling, of_scaling in tables(scalings):
        if len(scalings) > 1:
            lines += ["", printable(f"{scaling.workload} · {scaling.reader}")]
        for sentence in missing(scaling):
            lines += wrap(printable(sentence), f"{INDENT}note  ", whole_words=True)
        with_published = len(scaling.cases) > 1 or any(case.readers for case in scaling.cases)
        for table in of_scaling:
            if table.rows or with_published:
                lines += ["", *study_lines(table)]
                for note in table.notes:
                    lines += [] if note in notes else wrap(printable(note), f"{INDENT}  ")
                notes |= {*table.notes}
    return as_text(lines).lstrip("\n")


def tables(scalings: Sequence[Scaling]) -> list[tuple[Scaling, list[TextTable]]]:
    """The tables of each workload and reader.

    Published values stand once a workload: beside the first table of ours that they belong to, else alone, behind the
    tables of its last reader.
    """
    made = [(scaling, _tables(scaling)) for scaling in scalings]
    last = {scaling.workload: at for at, scaling in enumerate(scalings)}
    first: dict[tuple[str, str], int] = {}  # the reader that a table's published values stand with
    for at, (scaling, of_scaling) in enumerate(made):
        for table in of_scaling:
            if table.rows and table.published:
                first.setdefault((scaling.workload, table.name), at)
    shown = []
    for at, (scaling, of_scaling) in enumerate(made):
        kept = []
        for table in of_scaling:
            beside = first.get((scaling.workload, table.name if table.rows else table.instead_of))
            if table.rows:
                kept.append(table if beside in (None, at) else _drop_published(table, scalings[beside].reader))
            elif last[scaling.workload] == at and beside is None:
                kept.append(table)
        shown.append((scaling, kept))
    return shown


def _drop_published(table: TextTable, reader: str) -> TextTable:
    notes = [note for note in table.notes if not note.startswith("Published")]
    return replace(table, published=[], notes=[*notes, f"Published values: in this table of {reader}."])


def _tables(scaling: Scaling) -> list[TextTable]:
    """Ours first."""
    made = [
        *_by_nodes(scaling),
        *_by_epochs(scaling),
        _bandwidth(scaling),
        *study_tables.bandwidth(scaling.workload),
        *study_tables.variants(scaling.workload),
        *_overlap(scaling),
        *_critical(scaling),
    ]
    return sorted((table for table in made if table.rows or table.published), key=lambda table: not table.rows)


def _by_nodes(scaling: Scaling) -> Iterator[TextTable]:
    """Seconds of each part and the share of I/O against nodes, for each accounting that a case has."""
    for how in (ADDITIVE, MERGED, WAITING):
        shown = [(case, account) for case in scaling.cases if (account := case.account(how))]
        if not shown:
            yield from study_tables.totals_alone(scaling.workload, how)
            continue
        parts = list(dict.fromkeys(name for _, account in shown for name in account.totals))
        parts += [TWICE] * (how == MERGED)
        nodes = [case.nodes for case, _ in shown]
        ideal = times_ideal_seconds([account.totals[parts[0]] for _, account in shown], nodes)
        published = study_tables.totals(scaling.workload, how, parts)
        with_ideal = bool(published) or len(set(nodes)) > 1
        rows = []
        for (case, account), times in zip(shown, ideal, strict=True):
            seconds = account.totals | {TWICE: account.counted_twice}
            cells = [*(seconds_text(seconds.get(part)) for part in parts), share_text(account.share)]
            cells += [times_text(times) if scaling.same_work else NOTHING] if with_ideal else []
            rows.append((name_of(case, scaling.cases), cells))
        yield TextTable(
            name=f"nodes-{how}",
            title=f"I/O against nodes. {TITLES[how]}",
            heads=[*parts, "I/O share", *(["× ideal"] if with_ideal else [])],
            rows=rows,
            published=published,
            notes=[
                f"I/O: {parts[0]}.",
                *([IDEAL] if with_ideal else []),
                *study_tables.sources(scaling.workload, how),
                *CAUTIONS.get(how, ()),
            ],
        )


def _by_epochs(scaling: Scaling) -> Iterator[TextTable]:
    """The share of I/O against epochs, by the accounting of the study where there is one, else by waiting."""
    how = scaling.how
    shown = [(case, account) for case in scaling.cases if (account := case.account(how))]
    most = max((len(account.epochs) for _, account in shown), default=0)
    count = min(most, MOST_EPOCHS)
    published = study_tables.epochs(scaling.workload, how, count)
    notes = [f"I/O share by {NAMES[how]}."]
    if most > count:
        notes.append(f"The first {count} of {most} epochs; --json has all.")
    if published:
        notes.append(study_tables.EPOCHS_NOTE)
    else:
        yield from study_tables.epochs_alone(scaling.workload)
        if most <= 1:  # one epoch is all
            return
    rows = [
        (
            name_of(case, scaling.cases),
            [*(share_text(account.shares.get(epoch)) for epoch in range(count)), share_text(account.share)],
        )
        for case, account in shown
    ]
    heads = [*(f"epoch {number + 1}" for number in range(count)), "all"]
    yield TextTable("epochs", "I/O share against epochs", heads, rows, published, notes)


def _bandwidth(scaling: Scaling) -> TextTable:
    """Read bandwidth against nodes: the true ones, and those of the study's formula."""
    cases = scaling.cases
    nodes = [case.nodes for case in cases]
    of = [case.bandwidth for case in cases]
    rates = {
        "in a node's time": [entry.by_node_seconds for entry in of],
        "while any reads": [entry.by_merged_seconds for entry in of],
        "study's rule": [entry.rule for entry in of],
        "published formula": [entry.formula for entry in of],
    }
    shown = {
        name: _rate_texts(values, nodes) for name, values in rates.items() if any(value is not None for value in values)
    }
    notes = [
        "Bytes that the readers requested, over seconds. In a node's time: the seconds of a node's reading threads, "
        "added up, mean of nodes. While any reads: the seconds in which at least one rank reads."
    ]
    notes += [
        f"{name_of(case, cases)}: several threads of a rank read at once: {format_time(case.bandwidth.node_seconds)} "
        f"a node, in a loop of {format_time(case.loop)}. Their seconds include waiting for a core, and for "
        "Python's interpreter, so that the bandwidth in a node's time may be too low."
        for case in cases
        if case.bandwidth.node_seconds and case.bandwidth.node_seconds > case.loop * case.result.plan.ranks_per_node
    ]
    if len(set(nodes)) > 1:
        notes.append("In brackets: × ideal. 1.00× is a bandwidth that doubles on twice the nodes; less is worse.")
    if any(not case.readers for case in cases):
        notes.append("Without spans of reading, a node's time is what the readers counted, if they did.")
    if "study's rule" in shown:
        rules = dict.fromkeys(RULES[case.readers[0]] for case in cases if case.bandwidth.rule is not None)
        notes += [f"The study's rule, with the sizes of this dataset: {rule}." for rule in rules]
        if "published formula" not in shown:
            notes.append(
                "The published formula has the sizes of its dataset as constants: it holds for files of these sizes "
                "alone (of HEPCNNB: 1,024 of them), and is left out here."
            )
    rows = []
    for at, (case, entry) in enumerate(zip(cases, of, strict=True) if shown else ()):
        calls = NOTHING if entry.calls is None else str(entry.calls)
        cells = [calls, format_bytes(entry.read_bytes), *(column[at] for column in shown.values())]
        rows.append((name_of(case, cases), cells))
    return TextTable("bandwidth", "Read bandwidth against nodes", ["calls", "bytes", *shown], rows, notes=notes)


def _rate_texts(values: Sequence[float | None], nodes: Sequence[int]) -> list[str]:
    several = len(set(nodes)) > 1
    return [
        NOTHING if rate is None else f"{format_bytes(rate)}/s" + (f" ({times_text(times)})" if several else "")
        for rate, times in zip(values, times_ideal_bandwidth(values, nodes), strict=True)
    ]


def _overlap(scaling: Scaling) -> Iterator[TextTable]:
    rows = []
    for case in scaling.cases:
        if (both := case.overlap) is not None:
            times = [format_time(seconds) for seconds in (both.first, both.second, both.both)]
            share = share_text(both.both / both.first if both.first else None)
            rows.append((name_of(case, scaling.cases), [*times, share]))
    if rows:
        first = next(case for case in scaling.cases if case.overlap is not None)
        title = "Reading behind compute, each rank on its own clock, mean of ranks"
        notes = [f"Reading: {', '.join(first.readers)}. Compute: {first.compute}."]
        yield TextTable("overlap", title, ["reading", "compute", "both at once", "of reading"], rows, notes=notes)


def _critical(scaling: Scaling) -> Iterator[TextTable]:
    known = [(name_of(case, scaling.cases), case.critical) for case in scaling.cases if case.critical is not None]
    if not known:
        return
    names = list(dict.fromkeys(name for _, path in known for name in path.phases))
    notes = [
        "exchange: the least that a rank spent in each. Lengths of time are on each rank's own clock: clocks are not "
        "compared."
    ]
    for label, path in known:
        who = f"; {came_last(path.last)}" if len(path.last) > 1 else ""
        notes.append(f"{label}: the loop took {format_time(path.loop)}{_rest_note(path)}{who}.")
    rows = [
        (label, [format_time(seconds) for seconds in (*(path.phases.get(name, 0.0) for name in names), path.total)])
        for label, path in known
    ]
    title = "Critical path: what the rank that came last to each meeting did since the one before"
    yield TextTable("critical", title, [*names, "sum"], rows, notes=notes)


def _rest_note(path: CriticalPath) -> str:
    """What the path has not of the loop, where that is more than ALIKE of it."""
    rest = path.loop - path.total
    if abs(rest) <= ALIKE * path.loop:
        return ""
    more = "more" if rest > 0 else "less"
    return f", {format_time(abs(rest))} {more} than the path: ranks may have left meetings at different times"


def came_last(last: Sequence[int], most: int = 4) -> str:
    """'rank 2 came last in 12 of 18 steps, rank 0 in 6'."""
    ordered = sorted((-count, rank) for rank, count in enumerate(last) if count)
    parts = [f"rank {rank} {'came last in' if not at else 'in'} {-count}" for at, (count, rank) in enumerate(ordered)]
    parts[0] += f" of {plural(sum(last), 'step')}"
    more = f", {plural(len(parts) - most, 'other rank')} in the rest" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more
