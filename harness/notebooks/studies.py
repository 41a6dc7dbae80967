"""A study of readers in a notebook: results as tables, by the export to pandas, and figures of them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlio_bench.harness.notebooks.figures import Figure, layout
from dlio_bench.reports.run.result_drawing import error_bars
from dlio_bench.reports.view.drawing import escape_markup

if TYPE_CHECKING:
    import pandas as pd


def tables(folder: Path) -> "dict[str, pd.DataFrame]":
    """The tables of `dlio-bench export --to pandas`, by name: trials, metrics, steps. DataError, UsageError."""
    from dlio_bench.reports.document.collection import load_all
    from dlio_bench.reports.export.frames import TABLES

    pairs = load_all([folder])
    return {name: table(pairs) for name, table in TABLES.items()}


def metric(metrics: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """A row for each result that has the metric: reader, nodes, value, ci_low, ci_high, unit."""
    rows = metrics[metrics["metric"] == name]
    return rows[["result", "reader", "nodes", "value", "ci_low", "ci_high", "unit", "marks"]].reset_index(drop=True)


def bars(metrics: "pd.DataFrame", name: str, title: str) -> Figure:
    """A bar for each reader and node count, with its interval where the result has one."""
    rows = metric(metrics, name)
    unit = escape_markup(str(rows["unit"].iloc[0])) if len(rows) else ""
    ends = [None if math.isnan(low) else (low, high) for low, high in zip(rows["ci_low"], rows["ci_high"], strict=True)]
    bar = {
        "type": "bar",
        "x": [
            f"{escape_markup(reader)}, {nodes} nodes"
            for reader, nodes in zip(rows["reader"], rows["nodes"], strict=True)
        ],
        "y": rows["value"].tolist(),
        "error_y": error_bars([*zip(rows["value"].tolist(), ends, strict=True)]) | {"color": "#33373d"},
    }
    return {"data": [bar], "layout": layout(f"{title} ({unit})", "", _marks(rows["marks"].tolist()))}


def stall_by_step(steps: "pd.DataFrame") -> Figure:
    """Seconds that the slowest rank waited for data in each step, median over the measured trials: a line a result."""
    measured = steps[~steps["warmup"]]
    slowest = measured.groupby(["result", "trial", "step"])["stall_seconds"].max()
    medians = slowest.groupby(level=["result", "step"]).median()
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape_markup(str(result)),
            "x": part.index.get_level_values("step").tolist(),
            "y": part.tolist(),
        }
        for result, part in medians.groupby(level="result")
    ]
    return {"data": lines, "layout": layout("stall of the slowest rank (s)", "step")}


def _marks(marks: Sequence[str]) -> str:
    """All marks of some results: what does not measure says so in its figure too."""
    return ", ".join(sorted({mark for each in marks for mark in str(each).split("; ") if mark}))
