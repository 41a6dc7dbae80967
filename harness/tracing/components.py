"""`dlio-bench trace` of a result: what its components took, on whose clocks, and what is wrong with its spans."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlio_bench.reports.recorded import Recorded
    from dlio_bench.reports.types import Result


def document(result: "Result", trial: int, recorded: "Recorded") -> dict[str, Any]:
    """As JSON. trial: a position."""
    from msgspec import structs
    from msgspec.structs import asdict

    from dlio_bench.reports.component_table import component_rows

    spans = recorded.spans
    rows = [] if spans is None else component_rows(spans, result.trials[trial].trial)
    return {
        "spans": {
            "recorded": recorded.is_there,
            "usable": spans is not None,
            "components": [asdict(row) | {"mean_bytes": row.mean_bytes} for row in rows],
            "clocks": {} if spans is None else {host: structs.asdict(clock) for host, clock in spans.clocks.items()},
            "lost": {} if spans is None else {str(rank): lost for rank, lost in spans.lost.items()},
            "problems": list(recorded.problems),
        },
    }


def text(result: "Result", trial: int, recorded: "Recorded") -> str:
    """The table, at most 80 columns, and the clocks of several hosts; empty where no spans were recorded."""
    from dlio_bench.reports import component_table, timeline_text
    from dlio_bench.wrapping import printable, wrapped

    spans = recorded.spans
    if spans is None:
        return ""
    clocks = spans.clocks.items() if len(spans.clocks) > 1 else ()
    told = [line for host, clock in clocks for line in wrapped(printable(timeline_text.clock_line(host, clock)), "  ")]
    return component_table.render(spans, result.trials[trial].trial) + _lines(told)


def problems(recorded: "Recorded") -> str:
    """What is wrong with the file of spans, for a terminal."""
    from dlio_bench.reports.timelogger import MOST_NAMED
    from dlio_bench.wrapping import printable, wrapped

    lines = []
    for problem in recorded.problems[:MOST_NAMED]:
        lines += wrapped(printable(problem), "  problem  ", whole_words=True)
    if len(recorded.problems) > MOST_NAMED:
        lines.append(f"  problem  and {len(recorded.problems) - MOST_NAMED} more")
    return _lines(lines)


def _lines(lines: "Sequence[str]") -> str:
    return "".join(f"{line}\n" for line in (["", *lines] if lines else []))
