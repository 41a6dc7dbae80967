"""What a coupled workflow says: the answer, the table, what was published, why ours differs."""

import shlex

from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.coupling.document import (
    APART,
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
from dlio_bench.reports.document.marks import TINY, gravest_first
from dlio_bench.reports.run.result_drawing import error_bars
from dlio_bench.reports.view.drawing import Figure, axis, escape_markup, layout, not_a_measurement, round_floats
from dlio_bench.reports.view.formatting import NOTHING, format_share, format_time, format_times, join_words, plural
from dlio_bench.reports.view.sections import (
    BRIEF,
    DETAILS,
    FULL,
    PAGE,
    TEXTS,
    Drawing,
    Head,
    Note,
    Part,
    Section,
    Table,
    View,
)
from dlio_bench.units import format_bytes

NAMES = {"files": "files", "bp": "BP files", "sst": "SST stream", BESIDE: "uncoupled"}
STREAM = "stream"  # what a published slow-down calls SST
SHARED_CORES = "SHARED CORES"  # the mark of a result with fewer cores than ranks
COLOURS = {WORKFLOW: "#7f2a1d", SOLVER: "#3f6c9b", TWINS: "#8fb8a3"}


def view(document: Document) -> View:
    """The sections of its text and page."""
    said = answers(document)
    file_system = [f"file system: {document.emulated_pfs.says}"] if document.emulated_pfs else []
    others = [f"through {name(way)} {_ratio(couple.slowdown(document, way, WORKFLOW))}" for way in _by_speed(document)]
    return View(
        head=Head(
            title=f"{document.simulation} coupled",
            overline=f"couple · version {document.version}",
            heading=f"{document.simulation} and its digital twins",
            subjects=[_subject(document), *file_system],
            marks=gravest_first(document.marks),
        ),
        lead=f"{document.simulation}: ",
        answers=said,
        brief=f"{said[0]}; {', '.join(others[1:])}" if len(said) > 1 else said[0],
        sections=[
            Section("answer", "", _slowdown_parts(document)),
            Section("published", "Beside what was published", _published_parts(document)),
            Section("time", "Where the time of each side went", _time_parts(document)),
            Section("congestion", "What the shared file system carried in a trial", _traffic_parts(document)),
            Section("trust", "What was checked", _check_parts(document)),
        ],
        command=shlex.join(document.command),
        made=f"{document.created}. Everything here is in result.json; digest {document.digest}.",
    )


def answers(document: Document) -> list[str]:
    """How much longer the workflow took in each way than its slower side alone, a sentence each; the best first.

    One sentence without a ratio where the times compare nothing.
    """
    if why := couple.incomparable(document):
        ways = join_words([name(way) for way in document.ways])
        return [f"every output came through {ways} as the solver computed it; no comparison of speed: {why}"]
    solver = couple.median_of(document, SOLVER_ALONE, SOLVER)
    slower = (
        "the solver" if solver >= couple.median_of(document, TWINS_ALONE, TWINS) else f"the {_twins_text(document)}"
    )
    return [
        f"coupled through {name(way)} the workflow took {_ratio(couple.slowdown(document, way, WORKFLOW))} times as "
        f"long as its slower side alone ({slower})"
        for way in _by_speed(document)
    ]


def name(case: str) -> str:
    """A case as people read it."""
    return NAMES.get(case, case)


def _by_speed(document: Document) -> list[str]:
    """The ways, the quickest first."""
    return sorted(document.ways, key=lambda way: couple.slowdown(document, way, WORKFLOW).value)


def _ratio(ratio: Ratio) -> str:
    """'1.23 (1.20-1.25)'."""
    value, *ends = (f"{number:.2f}" for number in (ratio.value, *(ratio.ci or ())))
    return f"{value} ({'-'.join(ends)})" if ends else value


def _twins_text(document: Document) -> str:
    return "twin" if document.consumers == 1 else "twins"


def _subject(document: Document) -> str:
    """'64³ cells, 20 outputs of 4.19 MB; solver of 1 rank (numpy), 1 twin; 5 trials'."""
    trials = len(couple.trials_of(document, BESIDE))
    settings = document.settings
    return (
        f"{settings.size}³ cells, {document.outputs} outputs of {format_bytes(document.output_bytes)} "
        f"({settings.steps} steps, one each {settings.plotgap}); solver of {plural(document.producers, 'rank')} "
        f"({settings.kernel}), {plural(document.consumers, 'twin')} training "
        f"{plural(document.train_steps, 'step')} an output; {plural(trials, 'trial')}"
    )


def _slowdown_parts(document: Document) -> list[Part]:
    """How many times as long as alone."""
    compared = couple.incomparable(document) is None
    solver, twins = (
        couple.median_of(document, case, side) for case, side in ((SOLVER_ALONE, SOLVER), (TWINS_ALONE, TWINS))
    )
    alone = f"solver {format_time(solver)}, {_twins_text(document)} {format_time(twins)}"
    meaning = f"1: as long as alone ({alone}); of the workflow: as its slower side alone."
    bars = Drawing(
        name="slowdowns",
        figure=_slowdowns(document),
        label="Bars: times as long as alone, of the workflow, the solver and the twins, by way of coupling; the "
        "numbers are in the table",
        caption=f"{meaning} Lines: 95 % bootstrap interval over trials, paired by trial.",
        on=[PAGE],
    )
    unsure = Note(text=f"{meaning} No interval: these ratios compare nothing.", aside=True, on=[PAGE])
    return [
        bars if compared else unsure,
        Note(text=f"{alone}{'' if compared else '; no interval'}", label="alone", on=TEXTS),
        Table(
            heads=["times", WORKFLOW, SOLVER, TWINS, "over uncoupled"],
            rows=[
                [
                    name(case),
                    *(_ratio(couple.slowdown(document, case, side)) for side in (WORKFLOW, SOLVER, TWINS)),
                    NOTHING if case == BESIDE else _ratio(couple.over_uncoupled(document, case)),
                ]
                for case in (BESIDE, *document.ways)
            ],
            note="Uncoupled: both sides at once, each with its data in memory: what they lose to each other on this "
            "machine without any coupling. Over uncoupled: the workflow's time over that: the coupling's own part.",
        ),
        *_separate_runs_parts(document),
    ]


def _separate_runs_parts(document: Document) -> list[Part]:
    """How many times as long as separate runs that write and read files, too."""
    if not couple.has_apart(document):
        return []
    solver, twins = (format_time(couple.median_of(document, APART, side)) for side in (SOLVER, TWINS))
    ways = (f"{name(way)} {_ratio(couple.over_uncoupled(document, way, APART))}" for way in document.ways)
    return [
        Note(
            text=f"the solver wrote its files in {solver}, then the {_twins_text(document)} read them and trained in "
            f"{twins}; times as long as the slower of these: {', '.join(ways)}",
            label="separate",
            on=FULL,
        )
    ]


def _published_parts(document: Document) -> list[Part]:
    """What was published, and ours beside it."""
    rows = published_rows(document)
    sources = join_words([*dict.fromkeys(source for _, _, source in rows)] or [""])
    more = "times, what was published and checked: show --verbose, report.html"
    compared = couple.incomparable(document) is None
    return [
        *([Note(text=_in_short(document), label="published", on=[BRIEF])] if rows and compared else []),
        Note(text=more, label="more", on=[BRIEF]),
        Table(heads=["published", "here", "source"], rows=rows, words=True, on=[PAGE]),
        *(Note(text=f"{words}; {ours}", label="published", on=[DETAILS]) for words, ours, _ in rows),
        *([Note(text=f"({sources})", on=[DETAILS])] if rows else []),
        Note(text=reason(document), label="why", on=FULL),
    ]


def published_rows(document: Document) -> list[tuple[str, str, str]]:
    """(what was published, ours beside it, its source)."""
    return [(row.words, _compare_published(document, row), row.source) for row in document.published]


def _why_not_comparable(document: Document, row: Published) -> str | None:
    """Why ours does not stand beside a published slow-down; None where it does."""
    way = _way_label(row)
    if way not in document.ways:
        return f"not measured here: {name(way)} was not run"
    if row.consumers != document.consumers:
        verb = "was" if document.consumers == 1 else "were"
        return f"not measured here: {plural(document.consumers, 'consumer')} {verb} run"
    why = couple.incomparable(document)
    return f"not measured here: {why}" if why else None


def _compare_published(document: Document, row: Published) -> str:
    """Our slow-down beside a published one, or why there is none."""
    if why := _why_not_comparable(document, row):
        return why
    shared = "; its ranks shared cores" if SHARED_CORES in document.marks else ""
    ratio = _ratio(couple.slowdown(document, _way_label(row), WORKFLOW))
    return f"here {ratio} through {name(_way_label(row))}, {plural(document.consumers, 'twin')}{shared}"


def _way_label(row: Published) -> str:
    return "sst" if row.coupling == STREAM else row.coupling


def _in_short(document: Document) -> str:
    """'1.5 through files, 1 model (see the table); below 1.05 through a stream, 3 models (not measured here: ...)'."""
    shared = "; here the ranks shared cores" if SHARED_CORES in document.marks else ""
    told: dict[str, list[str]] = {}
    for row in document.published:
        through = "a stream" if row.coupling == STREAM else name(row.coupling)
        words = f"{'below ' if row.bound else ''}{row.ratio:g} through {through}, {plural(row.consumers, 'model')}"
        told.setdefault(_why_not_comparable(document, row) or f"see the table{shared}", []).append(words)
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


def _time_parts(document: Document) -> list[Part]:
    """Where the time of each side went; BESIDE, which only computes, is for the page."""
    rows = []
    for case in (BESIDE, *document.ways):
        for side in (SOLVER, TWINS):
            parts = couple.shares(document, case, side)
            shares = (couple.time_spread(document, case, side), parts.computed, parts.moved, parts.waited)
            seconds = format_time(couple.median_of(document, case, side))
            rows.append([f"{name(case)}, {side}", seconds, *map(format_share, shares)])
    return [
        Table(
            heads=["side", "seconds", "spread", "computes", "moves", "waits"],
            rows=rows,
            note="Spread: (max - min) / median over the trials. Moves: gives or gets outputs, checks included. Waits: "
            "for the other side. A solver that waits for room in the queue of a stream does so while it gives an "
            "output.",
            on=FULL,
        ),
        Drawing(
            name="trials",
            figure=_trials(document),
            label="Lines: seconds of the workflow in each trial, by way of coupling",
            caption="The workflow in each trial; in each all ways took turns.",
            on=[PAGE],
        ),
    ]


def _traffic_parts(document: Document) -> list[Part]:
    """What the emulated file system carried in a trial, the seconds of calls, how busy its link was."""
    rows = []
    for way in document.ways:
        carried, busy = couple.traffic(document, way), couple.busy(document, way)
        if carried is not None:
            rows.append([
                name(way),
                format_bytes(carried.written_bytes), format_time(carried.write_seconds),
                format_bytes(carried.read_bytes), format_time(carried.read_seconds),
                NOTHING if busy is None else format_share(busy),
                f"{format_bytes(couple.throughput(document, way))}/s",
            ])  # fmt: skip
    if not rows:
        said = "The file system was not emulated, and nobody counted its bytes. Give --emulate-pfs."
        return [Note(text=said, on=[PAGE])]
    return [
        Table(
            heads=["file system", "written", "in calls", "read", "in calls", "busy", "to twins"],
            rows=rows,
            note="By the counters of the emulated file system, all nodes together. In calls: seconds of write and read "
            "calls, waits for the links included. Busy: bytes / shared bandwidth / elapsed. To twins: bytes of outputs "
            "that all twins got / elapsed.",
            on=FULL,
        )
    ]


def _check_parts(document: Document) -> list[Part]:
    """What was checked of every output, the ranges of its fields, the solver and the twins."""
    settings = document.settings
    losses = "; ".join(
        f"{name(way)} {', '.join(f'{loss:.3g}' for loss in couple.losses(document, way))}"
        for way in (BESIDE, *document.ways)
    )
    return [
        Note(text="; ".join(check.found for check in document.checks), label="checked", on=[DETAILS]),
        *(Note(text=check.found, label=check.name, on=[PAGE]) for check in document.checks),
        Table(
            heads=["field", "range over all outputs", "published"],
            rows=[
                [
                    field,
                    " … ".join(f"{value:.4f}" for value in here),
                    " … ".join(f"{value:.4g}" for value in there) or NOTHING,
                ]
                for field, here, there in zip("UV", document.range, document.published_range or [[], []], strict=True)
            ],
            on=[PAGE],
        ),
        Note(
            text=f"The solver: {settings.source}. Du {settings.diffusion_u}, Dv {settings.diffusion_v}, "
            f"F {settings.feed}, k {settings.kill}, dt {settings.dt}, noise {settings.noise}, seed {settings.seed}.",
            aside=True,
            on=[PAGE],
        ),
        Note(
            text=f"Each twin: {document.twin}; {document.twin_parameters:,} parameters. Last loss, as a share of what "
            f"predicting no change gets: {losses}.",
            on=[PAGE],
        ),
    ]


def _slowdowns(document: Document) -> Figure:
    """Bars: times as long as alone, by way and side, with the 95 % intervals, beside what was published."""
    cases = [BESIDE, *document.ways]
    names = [escape_markup(name(case)) for case in cases]
    bars = []
    for side in (WORKFLOW, SOLVER, TWINS):
        ratios = [couple.slowdown(document, case, side) for case in cases]
        bars.append({
            "type": "bar", "name": side, "x": names, "y": [ratio.value for ratio in ratios],
            "marker": {"color": COLOURS[side]},
            "error_y": error_bars([(ratio.value, ratio.ci) for ratio in ratios]),
        })  # fmt: skip
    drawn = layout(340) | {"barmode": "group", "xaxis": axis(""), "yaxis": axis("times as long as alone")}
    drawn["shapes"] = [{
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1,
        "line": {"color": "--ink", "width": 1, "dash": "dot"},
    }]  # fmt: skip
    return {"data": round_floats(bars), "layout": drawn}


def _trials(document: Document) -> Figure:
    """Dots: seconds of the workflow in each trial, by way."""
    dots = [
        {
            "type": "scatter", "mode": "lines+markers", "name": escape_markup(name(case)),
            "x": list(range(1, len(seconds) + 1)), "y": seconds,
        }
        for case in (BESIDE, *document.ways)
        for seconds in [couple.side_seconds(document, case, WORKFLOW).tolist()]
    ]  # fmt: skip
    span = [0.5, len(couple.trials_of(document, BESIDE)) + 0.5]
    drawn = layout(300) | {"xaxis": axis("trial", dtick=1, range=span), "yaxis": axis("seconds", rangemode="tozero")}
    if TINY in document.marks:
        drawn["annotations"] = [not_a_measurement(TINY, drawn["height"])]
    return {"data": round_floats(dots), "layout": drawn}
