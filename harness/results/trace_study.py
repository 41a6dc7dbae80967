"""`dlio-bench trace` of results: the study's tables from our runs, for terminal, JSON and page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.traced import Scaling
    from dlio_bench.reports.types import Result


def scalings(loaded: "Mapping[Path, tuple[Result, Steps]]", trials: Sequence[int]) -> "list[Scaling]":
    """The figures of results, by workload and reader. trials: the position of one in each.

    Spans are read from beside each result, if they were recorded. What `timeline.load` raises of a damaged file.
    """
    from dlio_bench.reports import tables, timeline, traced

    labels = tables.labels([result for result, _ in loaded.values()])
    cases = []
    for label, (file, (result, steps)), trial in zip(labels, loaded.items(), trials, strict=True):
        recorded = file.with_name(timeline.SPANS_NAME).exists()
        cases.append(traced.case(label, result, steps, trial, timeline.load(file.parent) if recorded else None))
    return traced.scalings(cases)


def documents(told: "Sequence[Scaling]", results: "Sequence[Result]") -> list[dict[str, Any]]:
    """As JSON, in the order of the results."""
    from dlio_bench.reports import study, tables, traced, traced_answers

    by_label = {
        case.label: {"result": case.label}
        | traced.document(case, scaling)
        | {
            "answer": traced_answers.answers(scaling),
            "notes": traced_answers.missing(scaling),
            "published": study.document(scaling.workload),
        }
        for scaling in told
        for case in scaling.cases
    }
    return [by_label[label] for label in tables.labels(results)]


def write(told: "Sequence[Scaling]", path: Path) -> None:
    """The page. EnvironmentFailure where it cannot be written."""
    from dlio_bench.reports import traced_page

    traced_page.write(told, path)
