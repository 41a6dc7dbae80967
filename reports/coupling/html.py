"""A coupled workflow as one self-contained HTML page, like the pages of results."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.coupling import text as couple_text
from dlio_bench.reports.coupling.document import BESIDE, SOLVER, TWINS, WORKFLOW, Document
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.marks import TINY, gravest_first
from dlio_bench.reports.run.result_drawing import error_bars
from dlio_bench.reports.view.drawing import Figure, axis, compact, layout, not_a_measurement, plain
from dlio_bench.reports.view.page import render

NAME = "report.html"
COLOURS = {WORKFLOW: "#7f2a1d", SOLVER: "#3f6c9b", TWINS: "#8fb8a3"}


def write(document: Document, path: Path) -> None:
    """Write the page to `path`, whole or not at all. EnvironmentFailure."""
    write_whole(path, page(document).encode())


def page(document: Document) -> str:
    """The page's HTML. Every text of the document is escaped; the figures' data are JSON in a script element."""
    compared = couple.incomparable(document) is None
    return render(
        "couple.html.j2",
        ({"slowdowns": _slowdowns(document)} if compared else {}) | {"trials": _trials(document)},
        document=document,
        marks=gravest_first(document.marks),
        compared=compared,
        answers=couple_text.answers(document),
        subject=couple_text.subject(document),
        alone=couple_text.alone(document),
        rows=couple_text.rows(document),
        times=couple_text.times(document),
        congestion=couple_text.congestion(document),
        published=couple_text.published(document),
        reason=couple_text.reason(document),
        losses=[(couple_text.name(way), _numbers(couple.losses(document, way))) for way in (BESIDE, *document.ways)],
        ranges=_ranges(document),
        command=shlex.join(document.command),
    )


def _slowdowns(document: Document) -> Figure:
    """Bars: times as long as alone, by way and side, with the 95 % intervals, beside what was published."""
    cases = [BESIDE, *document.ways]
    names = [plain(couple_text.name(case)) for case in cases]
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
    return {"data": compact(bars), "layout": drawn}


def _trials(document: Document) -> Figure:
    """Dots: seconds of the workflow in each trial, by way."""
    dots = [
        {
            "type": "scatter", "mode": "lines+markers", "name": plain(couple_text.name(case)),
            "x": list(range(1, len(seconds) + 1)), "y": seconds,
        }
        for case in (BESIDE, *document.ways)
        for seconds in [couple.elapsed(document, case, WORKFLOW).tolist()]
    ]  # fmt: skip
    span = [0.5, len(couple.trials_of(document, BESIDE)) + 0.5]
    drawn = layout(300) | {"xaxis": axis("trial", dtick=1, range=span), "yaxis": axis("seconds", rangemode="tozero")}
    if TINY in document.marks:
        drawn["annotations"] = [not_a_measurement(TINY, drawn["height"])]
    return {"data": compact(dots), "layout": drawn}


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _ranges(document: Document) -> list[tuple[str, str, str]]:
    """(field, its range here, the published one)."""
    known = document.published_range or [[], []]
    return [
        (field, " … ".join(f"{value:.4f}" for value in here), " … ".join(f"{value:.4g}" for value in there) or "-")
        for field, here, there in zip("UV", document.range, known, strict=True)
    ]
