"""Results of checkpoints in the formats of other tools: tables, benchmarks, metrics."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from dlio_bench.errors import UsageError
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS, per_trial
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.export.openmetrics import PREFIX, UNITS, as_prometheus, sample
from dlio_bench.reports.export.pytest_benchmark import stats
from dlio_bench.reports.numbers.intervals import coverage
from dlio_bench.wrapping import printable

Documents = Sequence[Document]


def _head(document: Document) -> dict[str, Any]:
    return {
        "workload": document.workload,
        "layout": document.layout,
        "nodes": document.nodes,
        "ranks": document.ranks,
        "class": document.class_,
        "marks": "; ".join(document.marks),
        "digest": document.digest,
    }


def trials(documents: Documents) -> pd.DataFrame:
    """A row for each result and trial, with every metric."""
    return pd.DataFrame(
        [
            {**_head(document), "trial": trial.trial}
            | {name: per_trial([trial], name)[0] for name in CHECKPOINT_METRICS}
            for document in documents
            for trial in document.trials
        ]
    )


def metrics(documents: Documents) -> pd.DataFrame:
    """A row for each result and metric: value, interval and how much that covers; what is not known is NaN."""
    rows = [
        _head(document)
        | {
            "metric": name,
            "unit": metric.unit,
            "trials": len(document.trials),
            "value": metric.value,
            "ci_low": None if metric.ci is None else metric.ci[0],
            "ci_high": None if metric.ci is None else metric.ci[1],
            "coverage": None if metric.ci is None else coverage(len(document.trials)),
        }
        for document in documents
        for name, metric in document.metrics.items()
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys(("value", "ci_low", "ci_high", "coverage"), "float64"))


def pytest_benchmark(documents: Documents) -> str:
    """A benchmark for each result, whose rounds are the seconds of its trials."""
    benchmarks = []
    for document in documents:
        name = printable(f"{document.workload}[{document.layout}-{document.scale}]")
        benchmarks.append({
            "group": printable(f"{document.workload} {document.scale}"), "name": name, "fullname": name,
            "params": {"layout": printable(document.layout), "nodes": document.nodes,
                       "ranks_per_node": document.ranks_per_node},
            "param": printable(f"{document.layout}-{document.scale}"),
            "extra_info": {"class": document.class_, "marks": document.marks, "digest": document.digest,
                           "metrics": {key: metric.value for key, metric in document.metrics.items()}},
            "options": {"warmup": False},
            "stats": stats([trial.seconds for trial in document.trials]),
        })  # fmt: skip
    return json.dumps({
        "machine_info": {"node": printable(next(iter(documents[0].hosts), "")), "cpu": {}},
        "commit_info": {"id": documents[0].code_digest, "dirty": False, "project": "dlio-bench"},
        "benchmarks": benchmarks,
        "datetime": max(document.created for document in documents),
        "version": "5.0.0",  # of the format
    }, indent=1, allow_nan=False) + "\n"  # fmt: skip


def openmetrics(documents: Documents) -> str:
    """A gauge family for each metric. UsageError for two results of one workload, layout and scale."""
    labels = [
        {
            "workload": document.workload,
            "layout": document.layout,
            "nodes": str(document.nodes),
            "ranks_per_node": str(document.ranks_per_node),
        }
        for document in documents
    ]
    if any(label in labels[:position] for position, label in enumerate(labels)):
        raise UsageError("Two of the results are of one model, layout and scale. Export them one at a time.")
    lines = [line for name in CHECKPOINT_METRICS for line in _family(name, documents, labels)]
    return "\n".join((*lines, "# EOF")) + "\n"


def prometheus(documents: Documents) -> str:
    """As `openmetrics`, in Prometheus' own text format."""
    return as_prometheus(openmetrics(documents))


def _family(name: str, documents: Documents, labels: Sequence[dict[str, str]]) -> Iterator[str]:
    quantity = CHECKPOINT_METRICS[name]
    unit = {**UNITS, "calls": "calls"}[quantity.unit]
    family = f"{PREFIX}_{name.removesuffix('_share').removesuffix(f'_{unit}')}_{unit}"
    yield f"# TYPE {family} gauge"
    yield f"# UNIT {family} {unit}"
    yield f"# HELP {family} {quantity.meaning}"
    for document, label in zip(documents, labels, strict=True):
        metric = document.metrics[name]
        if metric.value is not None:
            yield sample(family, label | {"statistic": "median"}, metric.value)
        for statistic, bound in zip(("ci_low", "ci_high"), metric.ci or (), strict=False):
            yield sample(family, label | {"statistic": statistic}, bound)
