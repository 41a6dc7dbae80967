"""What `dlio-bench trace` tells of TensorFlow's operations in results of `run --trace tf`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio_bench.reports.input_table import InputTable
    from dlio_bench.reports.timeline import Timeline
    from dlio_bench.reports.types import Result


def text(result: "Result", spans: "Timeline | None") -> str:
    """The table of a result for a terminal; empty where TensorFlow was not traced."""
    from dlio_bench.reports.input_table import render

    shown = _table(result, spans)
    return "" if shown is None else "\n" + render(shown)


def document(result: "Result", spans: "Timeline | None") -> dict[str, Any]:
    """The table as a part of a result's JSON; empty where TensorFlow was not traced."""
    from dlio_bench.reports import input_table

    shown = _table(result, spans)
    return {} if shown is None else {"tensorflow": input_table.document(shown)}


def _table(result: "Result", spans: "Timeline | None") -> "InputTable | None":
    from dlio_bench.reports import input_table
    from dlio_bench.reports.marks import EMULATED_PFS, TENSORFLOW_TRACE

    if spans is None or TENSORFLOW_TRACE not in result.marks:
        return None
    return input_table.table(spans, emulated=EMULATED_PFS in result.marks)
