"""Published values of a workload beside those of a run; each with its source, as the result itself names them."""

from collections.abc import Sequence

from msgspec import Struct

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import tables
from dlio_bench.reports.view.formatting import NOTHING, format_time

PUBLISHED = "published"  # in the kind of a step time: 'published', 'derived from published figures'


class Value(Struct, frozen=True):
    """One published value, in words, what the results have in its place, by their names, and where it is from."""

    title: str
    published: str
    here: str
    source: str


def values(results: Sequence[Result]) -> list[Value]:
    """The published values that the results know: batch, step time, parameters of the network."""
    labels = tables.labels(results)
    told: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for label, result in zip(labels, results, strict=True):
        for title, published, here, source in _published_rows(result):
            told.setdefault((title, published, source), {}).setdefault(here, []).append(label)
    return [
        Value(title, known, "; ".join(_shared(here, names, len(labels)) for here, names in by_value.items()), source)
        for (title, known, source), by_value in told.items()
    ]


def _shared(here: str, names: Sequence[str], everyone: int) -> str:
    return here if len(names) == everyone else f"{here} ({', '.join(names)})"


def _published_rows(result: Result) -> list[tuple[str, str, str, str]]:
    """(title, published, here, source) of one result."""
    plan, compute = result.plan, result.compute
    rows = []
    if plan.published_batch is not None:
        rows.append(
            ("batch of a rank", str(plan.published_batch), str(plan.batch), plan.published_batch_source or NOTHING)
        )
    step = compute.asked_step_seconds
    if step and compute.kind is not None and PUBLISHED in compute.kind and compute.source:
        asked, actual = (
            sum(getattr(trial, f"compute_{which}_seconds") for trial in result.measured_trials)
            for which in ("asked", "actual")
        )
        title = f"step time, batch {plan.batch}, {compute.device or 'device not named'} ({compute.kind})"
        here = format_time(step * actual / asked) if asked else NOTHING
        rows.append((title, format_time(step), here, compute.source))
    if compute.is_network and compute.published_parameters:
        rows.append((
            f"parameters of {compute.title}", f"{compute.published_parameters:,}", f"{compute.parameters:,}",
            compute.source or NOTHING,
        ))  # fmt: skip
    return rows
