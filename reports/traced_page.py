"""Where the time of several results went, as one HTML page: the tables of the terminal, and the study's figures."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlio_bench.reports import sentences, study
from dlio_bench.reports.drawing import Figure
from dlio_bench.reports.files import write_whole
from dlio_bench.reports.formatting import NOTHING, format_share, format_time, plural
from dlio_bench.reports.page import render
from dlio_bench.reports.study_tables import Table
from dlio_bench.reports.traced import Case, Scaling
from dlio_bench.reports.traced_answers import answers, missing, problems
from dlio_bench.reports.traced_figures import figures
from dlio_bench.reports.traced_tables import tables
from dlio_bench.reports.trainer_spans import OTHER
from dlio_bench.units import format_bytes

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
            "readers": [_tables(scaling, told, texts) for scaling, told in tables(chosen)],
        })  # fmt: skip
    return render(
        "traced.html.j2",
        drawn,
        title=" + ".join(part["title"] for part in parts),
        subject=f"{', '.join(dict.fromkeys(scaling.reader for scaling in scalings))} · {sentences.scales(results)}",
        version=results[0].version,
        marks=list(dict.fromkeys(mark for result in results for mark in result.marks)),
        parts=parts,
        commands=list(dict.fromkeys(shlex.join(result.command) for result in results)),
        digests=[(case.label, case.result.created, case.result.digest) for case in cases],
    )


def _tables(scaling: Scaling, told: Sequence[Table], texts: Texts) -> dict[str, Any]:
    """What the template shows of one reader: tables, and what to fold away: tables and texts."""
    return {
        "name": scaling.reader,
        "tables": told,
        "folded": [
            *map(_phases, scaling.cases),
            *(_components(case) for case in scaling.cases if case.components),
        ],
        "texts": [
            (f"{title}, {case.label}", text)
            for case in scaling.cases
            for title, text in texts.get(case.label, {}).items()
            if text
        ],
    }


def _phases(case: Case) -> Table:
    """The phases of the trainers, as the terminal has them."""
    rows = [
        (
            row.phase,
            [
                "" if row.phase == OTHER else format_time(row.first_epoch),
                "" if row.later_epoch is None else format_time(row.later_epoch),
                format_time(row.loop), format_share(row.share), f"{format_time(row.worst)} (rank {row.worst_rank})",
            ],
        )
        for row in case.phases
    ]  # fmt: skip
    number, count = case.result.trials[case.trial].trial + 1, len(case.result.trials)
    return Table(
        name="phases",
        title=f"Phases of a rank's trainer, {case.label}",
        heads=["first epoch", "later epoch", "loop", "share", "worst rank"],
        rows=rows,
        notes=[f"Trial {number} of {plural(count, 'trial')}; mean of ranks. Later epoch: mean of all after the first."],
    )


def _components(case: Case) -> Table:
    """What each component took, as the terminal has it."""
    rows = [
        (
            row.component,
            [
                str(row.spans), format_time(row.trainer_seconds), format_time(row.seconds),
                f"{format_time(row.least)} - {format_time(row.most)}",
                format_bytes(row.bytes) if row.bytes else NOTHING,
            ],
        )
        for row in case.components
    ]  # fmt: skip
    return Table(
        name="components",
        title=f"Time by component, {case.label}",
        heads=["spans", "trainer", "threads", "of ranks", "bytes"],
        rows=rows,
        notes=["Mean of ranks; trainer: on its thread, without spans inside; threads: all of a rank, added up."],
    )
