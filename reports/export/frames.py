"""Results as tables, and these as CSV and as the JSON that pandas reads back with its types."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dlio_bench.reports.checkpoint.metrics import per_trial
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.export.measures import Exported, covers, of_checkpoints, of_runs, statistic
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.run import tables
from dlio_bench.wrapping import cell, printable

Pairs = Sequence[tuple[Result, Steps]]
DIGITS = 15  # behind the decimal point, the most that pandas writes


def trials(pairs: Pairs) -> pd.DataFrame:
    """A row for each result, trial and epoch: see `tables.trials`."""
    return tables.trials([result for result, _ in pairs])


def trials_of_checkpoints(documents: Sequence[Document]) -> pd.DataFrame:
    """A row for each result and trial, with every metric."""
    rows = [
        _head(each) | {"trial": trial.trial} | {name: per_trial([trial], name)[0] for name in each.metrics}
        for each, document in zip(of_checkpoints(documents), documents, strict=True)
        for trial in document.trials
    ]
    return pd.DataFrame(rows)


def metrics(results: Sequence[Exported]) -> pd.DataFrame:
    """A row for each result and metric: value, interval and how much that covers; what is not known is NaN."""
    rows = [
        _head(each)
        | {
            "metric": name,
            "unit": metric.unit,
            "statistic": statistic(name),
            "trials": len(each.result.seconds),
            "value": metric.value,
            "ci_low": None if metric.ci is None else metric.ci[0],
            "ci_high": None if metric.ci is None else metric.ci[1],
            "coverage": None if metric.ci is None else covers(name, len(each.result.seconds)),
        }
        for each in results
        for name, metric in each.metrics.items()
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys(("value", "ci_low", "ci_high", "coverage"), "float64"))


def _head(exported: Exported) -> dict[str, Any]:
    """What tells a result from others, and what it is worth."""
    result = exported.result
    return {
        "result": exported.label,
        "workload": result.workload,
        result.what: result.name,
        "nodes": result.nodes,
        "ranks": result.nodes * result.ranks_per_node,
        "class": result.class_,
        "verdict": result.verdict,
        "marks": "; ".join(result.marks),
        "digest": result.digest,
    }


def steps(pairs: Pairs) -> pd.DataFrame:
    """A row for each result, trial, rank and step: its epoch, and the seconds of each phase, as in steps.npz."""
    labels = tables.labels([result for result, _ in pairs])
    return pd.concat(
        [_steps(label, result, arrays) for label, (result, arrays) in zip(labels, pairs, strict=True)],
        ignore_index=True,
    )


def _steps(label: str, result: Result, arrays: Steps) -> pd.DataFrame:
    row, rank, step = (index.ravel() for index in np.indices(arrays["stall"].shape))
    known = [name for name in ("start", *PHASES) if name in arrays]
    columns: dict[str, Any] = {
        "result": label,
        "trial": np.array([trial.trial for trial in result.trials])[row],
        "warmup": np.array([trial.warmup for trial in result.trials])[row],
        "rank": rank,
        "step": step,
        "epoch": arrays["epoch"][step],
    }
    columns |= {f"{name}_seconds": arrays[name].ravel() for name in known}
    return pd.DataFrame(columns | ({"loss": arrays["loss"].ravel()} if "loss" in arrays else {}))


TABLES: dict[str, Callable[[Pairs], pd.DataFrame]] = {
    "trials": trials,
    "metrics": lambda pairs: metrics(of_runs([result for result, _ in pairs])),
    "steps": steps,
}  # of runs
CHECKPOINT_TABLES: dict[str, Callable[[Sequence[Document]], pd.DataFrame]] = {
    "trials": trials_of_checkpoints,
    "metrics": lambda documents: metrics(of_checkpoints(documents)),
}


def csv(table: pd.DataFrame) -> str:
    """A table as CSV (RFC 4180, a header line).

    Texts are `wrapping.cell`s, as those of an edited result may be formulas. Numbers stay as they are.
    """
    return _texts(table, cell).to_csv(index=False, lineterminator="\n")


def json_table(table: pd.DataFrame) -> str:
    """A table as JSON Table Schema: `pandas.read_json(path, orient="table")` reads it with the types of its columns."""
    text = _texts(table, printable).to_json(orient="table", index=False, double_precision=DIGITS)
    assert text is not None  # it is without a path
    return text + "\n"


def _texts(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """The table with its texts changed."""
    for column in table.select_dtypes(include=["object", "string"]):
        distinct = {text: change(text) for text in table[column].unique()}
        table[column] = table[column].map(distinct)
    return table
