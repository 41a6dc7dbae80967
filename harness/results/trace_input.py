"""What `dlio-bench trace` tells of TensorFlow's operations in results of `run --trace tf`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio_bench.reports.input_table import InputTable
    from dlio_bench.reports.types import Result


def text(file: Path, result: "Result") -> str:
    """The table of a result, by its file, for a terminal; empty where TensorFlow was not traced. BenchError."""
    from dlio_bench.reports.input_table import render

    shown = _table(file, result)
    return "" if shown is None else "\n" + render(shown)


def document(file: Path, result: "Result") -> dict[str, Any]:
    """The table as a part of a result's JSON; empty where TensorFlow was not traced. BenchError."""
    from dlio_bench.reports import input_table

    shown = _table(file, result)
    return {} if shown is None else {"tensorflow": input_table.document(shown)}


def _table(file: Path, result: "Result") -> "InputTable | None":
    from dlio_bench.reports import input_table, timeline
    from dlio_bench.reports.marks import EMULATED_PFS, TENSORFLOW_TRACE

    if TENSORFLOW_TRACE not in result.marks:
        return None
    return input_table.table(timeline.load(file.parent), emulated=EMULATED_PFS in result.marks)
