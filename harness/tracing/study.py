"""`dlio-bench trace` of results: the study's tables from our runs, for terminal, JSON and page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.recorded import Recorded
    from dlio_bench.reports.traced import Scaling
    from dlio_bench.reports.types import Result


def scalings(cases: "Sequence[tuple[str, Result, Steps, int, Recorded]]") -> "list[Scaling]":
    """The figures of results, by workload and reader: of each its label, itself, the position of a trial, its spans."""
    from msgspec.structs import replace

    from dlio_bench.reports import traced

    made = [
        replace(
            traced.case(label, result, steps, trial, recorded.spans),
            recorded=recorded.is_there,
            problems=recorded.problems,
        )
        for label, result, steps, trial, recorded in cases
    ]
    return traced.scalings(made)


def documents(told: "Sequence[Scaling]", labels: Sequence[str]) -> list[dict[str, Any]]:
    """As JSON, in the order of the labels."""
    from dlio_bench.reports import study, traced, traced_answers

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
    return [by_label[label] for label in labels]


def write(told: "Sequence[Scaling]", path: Path, texts: "Mapping[str, Mapping[str, str]]") -> None:
    """The page; texts: by label and title, for a fold each. EnvironmentFailure where it cannot be written."""
    from dlio_bench.reports import traced_page

    traced_page.write(told, path, texts)
