"""What `dlio-bench trace` tells of how a run accessed its files, from the spans of `run --trace spans`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio_bench.reports.access_pattern import Pattern
    from dlio_bench.reports.timeline import Timeline
    from dlio_bench.reports.types import Result


def text(result: "Result", trial: int, spans: "Timeline | None", *, with_limits: bool) -> str:
    """The patterns of a trial, by its position, for a terminal; empty where no spans were recorded.

    with_limits: say once what the classes mean.
    """
    from dlio_bench.reports.access_pattern_text import render

    titles = {"io_pattern": "I/O pattern, dataset", "node_io_pattern": "I/O pattern, copies and tiers on nodes"}
    return "".join(
        f"\n{render(of, titles[name], with_limits=with_limits and not at)}"
        for at, (name, of) in enumerate(_patterns(result, trial, spans).items())
    )


def document(result: "Result", trial: int, spans: "Timeline | None") -> dict[str, Any]:
    """The same as parts of a result's JSON."""
    from dlio_bench.reports import access_pattern

    return {name: access_pattern.document(of) for name, of in _patterns(result, trial, spans).items()}


def _patterns(result: "Result", trial: int, spans: "Timeline | None") -> "dict[str, Pattern]":
    from dlio_bench.reports import access_pattern, span_pattern

    if spans is None:
        return {}
    measured = result.trials[trial]
    dataset, node = span_pattern.of(spans, measured.trial)
    counters = span_pattern.counted(measured.bytes_requested, measured.bytes_device)
    told = {"io_pattern": access_pattern.noted(dataset, counters)}
    return told if node is None else told | {"node_io_pattern": node}
