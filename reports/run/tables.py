"""Names of results, and the table of their trials and epochs, which figures and `export` share."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlio_bench.counters import COUNTERS
from dlio_bench.reports.document.trials import Pass
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.view.formatting import plural

if TYPE_CHECKING:
    import pandas as pd


def _workload(result: Result) -> str:
    return result.workload.name


def _producers(result: Result) -> str:
    streams = result.plan.streams
    if streams is None:
        return ""
    return "inline" if streams.inline else plural(streams.producers, "producer")


APART: tuple[Callable[[Result], str], ...] = (
    lambda result: (
        " and ".join(result.environment.hosts)
        if len(result.environment.hosts) < 3
        else f"{next(iter(result.environment.hosts))} and others"
    ),
    lambda result: f"{plural(result.plan.ranks_per_node, 'rank')} a node",
    lambda result: f"{result.plan.io} reads",
    lambda result: f"{plural(result.dataset.samples, 'sample')}",
    lambda result: "" if result.plan.streams is None else result.plan.streams.mode,
    _producers,
)
"""What tells results of one reader and node count apart, best first."""
UNKNOWN = ("bytes_device", "bytes_client_cache")  # at times
VALIDATION = ("validation_seconds", "validation_bytes_requested", "validation_read_seconds")


def labels(results: Sequence[Result]) -> list[str]:
    """A name for each result, unique and short: the reader, its workload and node count where these vary, and what else
    tells those of one name apart, or a number if need be.
    """
    workloads, nodes = ({key(result) for result in results} for key in (_workload, lambda result: result.plan.nodes))
    names = [
        (f"{_workload(result)} " if len(workloads) > 1 else "")
        + (result.policy.alias or result.policy.name)
        + (f", {plural(result.plan.nodes, 'node')}" if len(nodes) > 1 else "")
        for result in results
    ]
    for tell in APART:
        values: dict[str, set[str]] = {}
        for name, result in zip(names, results, strict=True):
            values.setdefault(name, set()).add(tell(result))
        names = [
            f"{name}, {tell(result)}" if len(values[name]) > 1 and tell(result) else name
            for name, result in zip(names, results, strict=True)
        ]
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return unique


def trials(results: Sequence[Result]) -> "pd.DataFrame":
    """One row per result, trial and epoch, warm-up trials included; times in seconds, sizes in bytes."""
    import pandas as pd  # takes half a second, and names need none of it

    rows = [
        {
            "result": label,
            "workload": result.workload.name,
            "reader": result.policy.alias or result.policy.name,
            "order": result.policy.order,
            "placement": result.policy.placement,
            "delivery": result.policy.delivery,
            "nodes": result.plan.nodes,
            "ranks": result.plan.ranks,
            "class": result.class_,
            "marks": "; ".join(result.marks),
            "trial": trial.trial,
            "warmup": trial.warmup,
            "trial_seconds": trial.elapsed_seconds,
            "epoch": epoch.epoch,
            "epoch_seconds": epoch.seconds,
            **{name: getattr(epoch, name) for name in COUNTERS},
            **_validation(epoch.validation),
        }
        for label, result in zip(labels(results), results, strict=True)
        for trial in result.trials
        for epoch in trial.epochs
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys((*UNKNOWN, *VALIDATION), "float64"))  # missing figures are NaN


def _validation(part: Pass | None) -> dict[str, Any]:
    """The validation pass behind an epoch: its bytes are in the epoch's, its seconds are not."""
    return {name: None if part is None else getattr(part, name.removeprefix("validation_")) for name in VALIDATION}


def epochs(results: Sequence[Result]) -> "pd.DataFrame":
    """Medians over the measured trials, one row per (result, epoch): epoch_seconds and the three counts of bytes."""
    table = trials(results)
    columns = ["epoch_seconds", "bytes_useful", "bytes_requested", "bytes_device"]
    return table[~table["warmup"]].groupby(["result", "epoch"], sort=False)[columns].median().reset_index()
