"""The tables of `dlio-bench trace`, as texts: the same for terminal and page. Published values have rows of their own.

The node counts of the study (64 to 1,024) are rarely ours, so that what compares is the trend: `x ideal`.
"""

from collections.abc import Iterator, Sequence

from dlio_bench.reports import study_tables
from dlio_bench.reports.formatting import NOTHING, format_share, format_time, listed, plural
from dlio_bench.reports.io_accounts import (
    ADDITIVE,
    MERGED,
    TITLES,
    WAITING,
    times_ideal_bandwidth,
    times_ideal_seconds,
)
from dlio_bench.reports.study_tables import Table, seconds_text, share_text, times_text
from dlio_bench.reports.traced import Case, Scaling
from dlio_bench.units import format_bytes

MOST_EPOCHS = 5  # columns: those of the study; later ones are in the JSON


def tables(scaling: Scaling) -> list[Table]:
    """All tables of one workload and reader, those of the study first."""
    made = [
        *_by_nodes(scaling),
        *_by_epochs(scaling),
        _bandwidth(scaling),
        *study_tables.bandwidth(scaling.workload),
        *study_tables.variants(scaling.workload),
        *_overlap(scaling),
        *_critical(scaling),
        *(_components(case) for case in scaling.cases),
    ]
    told = [table for table in made if table.rows or table.published]
    return sorted(told, key=lambda table: not table.rows)  # published values alone come last


def answers(scaling: Scaling) -> list[str]:
    """The answer: what waiting for data and reading took, on the most nodes first."""
    cases = scaling.cases[::-1]
    told = []
    for how, said in ((WAITING, "trainers waited for data"), (ADDITIVE, "reading took"), (MERGED, "reading took")):
        shares = [(case, account.share) for case in cases if (account := case.account(how))]
        known = [(case, share) for case, share in shares if share is not None]
        if known:
            what = _WHOLE[how]
            (case, share), *others = known
            first = f"{format_share(share)} of {what} on {_of(case, cases)}"
            rest = [f"{format_share(share)} on {_of(case, cases)}" for case, share in others]
            told.append(f"{said} {listed([first, *rest]) if len(rest) < 2 else ', '.join([first, *rest])}")
    return told


_WHOLE = {
    WAITING: "their steps",
    ADDITIVE: "a node's time by HEPCNNB's accounting",
    MERGED: "reading and training by CDB's accounting, which overlap,",
}


def _of(case: Case, cases: Sequence[Case]) -> str:
    """'4 nodes'; the result's own name where several have as many."""
    alike = [other for other in cases if other.name == case.name]
    return case.name if len(alike) == 1 else case.label


def missing(scaling: Scaling) -> list[str]:
    """What cannot be told of these results, and why."""
    without = [_of(case, scaling.cases) for case in scaling.cases if not case.recorded]
    told = []
    if without:
        who = "" if len(without) == len(scaling.cases) else f" of {listed(without)}"
        told.append(
            f"No spans of readers{who} were recorded: read and load seconds, the study's accountings and bandwidths, "
            "merged seconds and overlap need a run with --trace spans."
        )
    told += list(dict.fromkeys(f"No critical path: {case.no_critical}." for case in scaling.cases if case.no_critical))
    if not scaling.same_work:
        told.append(
            "The node counts took unequal numbers of samples, so that their seconds have no common ideal; shares and "
            "bandwidths compare."
        )
    return told


def _by_nodes(scaling: Scaling) -> Iterator[Table]:
    """Seconds of each part and the share of I/O against nodes, for each accounting that a case has."""
    for how in (ADDITIVE, MERGED, WAITING):
        rows = [(case, account) for case in scaling.cases if (account := case.account(how))]
        if not rows:
            yield from study_tables.totals_alone(scaling.workload, how)
            continue
        parts = list(dict.fromkeys(name for _, account in rows for name in account.totals))
        nodes = [case.nodes for case, _ in rows]
        ideal = times_ideal_seconds([account.totals[parts[0]] for _, account in rows], nodes)
        published = study_tables.totals(scaling.workload, how, parts)
        yield Table(
            name=f"nodes-{how}",
            title=f"I/O against nodes. {TITLES[how]}",
            heads=[*parts, "I/O share", "× ideal"],
            rows=[
                (
                    _of(case, scaling.cases),
                    [
                        *(seconds_text(account.totals.get(part)) for part in parts),
                        share_text(account.share),
                        times_text(times) if scaling.same_work else NOTHING,
                    ],
                )
                for (case, account), times in zip(rows, ideal, strict=True)
            ],
            published=published,
            notes=[
                f"I/O: {parts[0]}. × ideal: its seconds over those of the first node count divided among all nodes.",
                *study_tables.sources(scaling.workload, how),
                *_CAUTIONS.get(how, ()),
            ],
        )


_CAUTIONS = {
    MERGED: (
        "One rank that reads counts as much as a thousand at once, epochs may overlap, and so do reading and "
        "training: the share is no part of the run. Clocks of hosts are not corrected.",
    ),
}


def _by_epochs(scaling: Scaling) -> Iterator[Table]:
    """The share of I/O against epochs, by the accounting of the study where there is one, else by waiting."""
    how = scaling.how
    shown = [(case, account) for case in scaling.cases if (account := case.account(how))]
    most = max((len(account.epochs) for _, account in shown), default=0)
    count = min(most, MOST_EPOCHS)
    published = study_tables.epochs(scaling.workload, how, count)
    notes = [f"I/O share by {_ACCOUNTING[how]}."]
    if most > count:
        notes.append(f"The first {count} of {most} epochs; --json has all.")
    if published:
        notes.append(study_tables.EPOCHS_NOTE)
    else:
        yield from study_tables.epochs_alone(scaling.workload)
    yield Table(
        name="epochs",
        title="I/O share against epochs",
        heads=[*(f"epoch {number + 1}" for number in range(count)), "all"],
        rows=[
            (
                _of(case, scaling.cases),
                [*(share_text(account.shares.get(epoch)) for epoch in range(count)), share_text(account.share)],
            )
            for case, account in shown
        ],
        published=published,
        notes=notes,
    )


_ACCOUNTING = {ADDITIVE: "HEPCNNB's accounting", MERGED: "CDB's accounting", WAITING: "waiting for data"}


def _bandwidth(scaling: Scaling) -> Table:
    """Read bandwidth against nodes: the true ones, and those of the study's formula."""
    cases = scaling.cases
    nodes = [case.nodes for case in cases]
    of = [case.bandwidth for case in cases]
    rates = {
        "by node s": [entry.by_node_seconds for entry in of],
        "by merged s": [entry.by_merged_seconds for entry in of],
        "study's rule": [entry.rule for entry in of],
        "published formula": [entry.formula for entry in of],
    }
    shown = {name: values for name, values in rates.items() if any(value is not None for value in values)}
    cells = [_rates(values, nodes) for values in shown.values()]
    notes = [
        "True bandwidth: bytes that the readers requested, over the mean node's seconds of reading threads (node s), "
        "and over the seconds in which any rank reads (merged s). In brackets: × ideal."
    ]
    if any(not case.recorded for case in cases):
        notes.append("Without spans, node seconds are those that the readers counted.")
    if "study's rule" in shown:
        notes.append(
            "The study's rule, with the sizes of this dataset: HEPCNNB charges the training files of one epoch, and "
            "each other call as a validation file, too low over several epochs; CDB charges an image's delivered bytes "
            "for each call."
        )
        if "published formula" not in shown:
            notes.append(
                "The published formula has its dataset's sizes as constants: it holds for files of the published size "
                "alone (of HEPCNNB: 1,024 of them), and is left out here."
            )
    return Table(
        name="bandwidth",
        title="Read bandwidth against nodes",
        heads=["calls", "bytes", *shown],
        rows=[
            (
                _of(case, cases),
                [
                    NOTHING if entry.calls is None else str(entry.calls),
                    format_bytes(entry.read_bytes),
                    *(column[position] for column in cells),
                ],
            )
            for position, (case, entry) in enumerate(zip(cases, of, strict=True))
        ],
        notes=notes,
    )


def _rates(values: Sequence[float | None], nodes: Sequence[int]) -> list[str]:
    several = len(set(nodes)) > 1
    return [
        NOTHING if rate is None else f"{format_bytes(rate)}/s" + (f" ({times_text(times)})" if several else "")
        for rate, times in zip(values, times_ideal_bandwidth(values, nodes), strict=True)
    ]


def _overlap(scaling: Scaling) -> Iterator[Table]:
    known = [(case, case.overlap) for case in scaling.cases if case.overlap is not None]
    if known:
        case, _ = known[0]
        yield Table(
            name="overlap",
            title="Reading behind compute, each rank on its own clock, mean of ranks",
            heads=["reading", "compute", "both at once", "of reading"],
            rows=[
                (
                    _of(case, scaling.cases),
                    [
                        format_time(both.first), format_time(both.second), format_time(both.both),
                        share_text(both.both / both.first if both.first else None),
                    ],
                )
                for case, both in known
            ],
            notes=[f"Reading: {', '.join(case.readers)}. Compute: {case.compute}."],
        )  # fmt: skip


def _critical(scaling: Scaling) -> Iterator[Table]:
    known = [(case, case.critical) for case in scaling.cases if case.critical is not None]
    if not known:
        return
    names = list(dict.fromkeys(name for _, path in known for name in path.phases))
    several = [(case, path) for case, path in known if len(path.last) > 1]
    yield Table(
        name="critical",
        title="Critical path: what the rank that came last to each meeting did since the one before",
        heads=[*names, "sum", "loop"],
        rows=[
            (
                _of(case, scaling.cases),
                [
                    *(format_time(path.phases.get(name, 0.0)) for name in names),
                    format_time(path.total), format_time(path.loop),
                ],
            )
            for case, path in known
        ],
        notes=[
            "exchange: the least that a rank spent in each. Lengths of time on each rank's own clock: clocks are not "
            "compared.",
            *(f"{_of(case, scaling.cases)}: {came_last(path.last)}." for case, path in several),
        ],
    )  # fmt: skip


def came_last(last: Sequence[int], most: int = 4) -> str:
    """'rank 2 came last in 12 of 18 steps, rank 0 in 6'."""
    ordered = sorted((-count, rank) for rank, count in enumerate(last) if count)
    told = [f"rank {rank} {'came last in' if not at else 'in'} {-count}" for at, (count, rank) in enumerate(ordered)]
    told[0] += f" of {plural(sum(last), 'step')}"
    more = f", {plural(len(told) - most, 'other rank')} in the rest" if len(told) > most else ""
    return ", ".join(told[:most]) + more


def _components(case: Case) -> Table:
    ranks = case.result.plan.ranks
    others = any(row.others_mean for row in case.components)
    heads = ["calls", "trainer", *(["least - most"] if ranks > 1 else []), *(["other threads"] if others else [])]
    rows = []
    for row in case.components:
        cells = [str(row.calls), format_time(row.trainer_mean)]
        if ranks > 1:
            cells.append(f"{format_time(min(row.trainer))} - {format_time(max(row.trainer))}")
        if others:
            cells.append(format_time(row.others_mean))
        rows.append((row.name, [*cells, format_time(row.merged_seconds), format_time(row.summed_seconds)]))
    total = sum(row.trainer_mean for row in case.components)
    return Table(
        name="components",
        title=f"Latency by component, {case.label}",
        heads=[*heads, "merged", "sum"],
        rows=rows,
        notes=[
            "trainer: what a component took itself on the trainer's thread, without spans inside it, mean of ranks: "
            f"together {format_time(total)}. merged: while any rank was in it. sum: of all its spans."
        ],
    )
