"""Where the time of several results went, as one HTML page: the tables of the terminal, and the study's figures."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.run import sentences
from dlio_bench.reports.traces import components, study, trainers
from dlio_bench.reports.traces.scaling import Scaling, ScalingCase, answers, missing, problems
from dlio_bench.reports.traces.scaling_figures import figures
from dlio_bench.reports.traces.scaling_tables import tables
from dlio_bench.reports.traces.tables import TextTable
from dlio_bench.reports.view.drawing import Figure
from dlio_bench.reports.view.formatting import plural
from dlio_bench.reports.view.page import render
from dlio_bench.reports.view.sections import Head

Texts = Mapping[str, Mapping[str, str]]  # of a result, by its label and a title, as the terminal has them


def write(scalings: Sequence[Scaling], path: Path, texts: Texts = MappingProxyType({})) -> None:
    """Write the page to `path`, whole or not at all. EnvironmentFailure."""
    write_whole(path, page(scalings, texts).encode())


def page(scalings: Sequence[Scaling], texts: Texts = MappingProxyType({})) -> str:
    """The page's HTML. Every text of a result is escaped; the figures' data are JSON in a script element."""
    cases = [case for scaling in scalings for case in scaling.cases]
    results = [case.result for case in cases]
    parts: list[dict[str, Any]] = []
    drawn: dict[str, Figure] = {}
    for workload in dict.fromkeys(scaling.workload for scaling in scalings):
        chosen = [scaling for scaling in scalings if scaling.workload == workload]
        drawn |= {f"{name}{len(parts)}": figure for name, figure in figures(chosen).items()}
        parts.append({
            "title": chosen[0].title,
            "number": len(parts),
            "published": bool(study.tables(workload)),
            "published_epochs": bool(study.epochs(workload)),
            "answers": [
                (scaling.reader, answers(scaling), [*missing(scaling), *problems(scaling)]) for scaling in chosen
            ],
            "readers": [_reader(scaling, shown, texts) for scaling, shown in tables(chosen)],
        })  # fmt: skip
    title = " + ".join(part["title"] for part in parts)
    return render(
        "traces.html.j2",
        Head(
            title=f"Where the time went · {title}",
            overline=f"trace · version {results[0].version}",
            heading=f"Where the time went: {title}",
            subjects=[
                f"{', '.join(dict.fromkeys(scaling.reader for scaling in scalings))} · {sentences.scales(results)}"
            ],
            marks=list(dict.fromkeys(mark for result in results for mark in result.marks)),
        ),
        drawn,
        parts=parts,
        commands=list(dict.fromkeys(shlex.join(result.command) for result in results)),
        digests=[(case.label, case.result.created, case.result.digest) for case in cases],
    )


def _reader(scaling: Scaling, shown: Sequence[TextTable], texts: Texts) -> dict[str, Any]:
    """What the template shows of one reader: tables, and what to fold away: tables and texts."""
    return {
        "name": scaling.reader,
        "tables": shown,
        "folded": [*map(_phases, scaling.cases), *(_components(case) for case in scaling.cases if case.components)],
        "texts": [
            (f"{title}, {case.label}", text)
            for case in scaling.cases
            for title, text in texts.get(case.label, {}).items()
            if text
        ],
    }


def _phases(case: ScalingCase) -> TextTable:
    """The phases of the trainers, as the terminal has them."""
    number, count = case.result.trials[case.trial].trial + 1, len(case.result.trials)
    note = f"Trial {number} of {plural(count, 'trial')}; mean of ranks. Later epoch: mean of all after the first."
    rows = [(row.phase, row.cells) for row in case.phases]
    return TextTable("phases", f"Phases of a rank's trainer, {case.label}", trainers.HEADS, rows, notes=[note])


def _components(case: ScalingCase) -> TextTable:
    """What each component took, as the terminal has it."""
    note = "Mean of ranks; trainer: on its thread, without spans inside; threads: all of a rank, added up."
    rows = [(row.component, row.cells(" - ")) for row in case.components]
    return TextTable("components", f"Time by component, {case.label}", components.HEADS, rows, notes=[note])
