"""Readers side by side: when they may be compared, how far apart they are, and which axis of the policy made it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dlio_bench.reports import intervals
from dlio_bench.reports.formatting import format_ratio, listed
from dlio_bench.reports.meetings import Floats
from dlio_bench.reports.sentences import reader, shortness
from dlio_bench.reports.types import Plan, PlannedPasses, Result

AXES = ("order", "placement", "delivery")


def elapsed_ratio(before: Result, after: Result) -> tuple[float, float] | None:
    """The 95 % interval of after's elapsed time over before's; None with fewer than 5 trials."""
    return intervals.ratio_interval(_elapsed(before), _elapsed(after), paired=paired(before, after))


def paired(before: Result, after: Result) -> bool:
    """Whether trial k of both was measured in the same round: one run takes turns between its readers."""
    rounds = [(result.command, [trial.trial for trial in result.measured]) for result in (before, after)]
    return rounds[0] == rounds[1] and before.plan.nodes == after.plan.nodes


def _elapsed(result: Result) -> Floats:
    return np.array([trial.elapsed_seconds for trial in result.measured])


def _passes(plan: PlannedPasses | None) -> str:
    """What validation passes a trial has; readers may go through them in different orders."""
    return f"{plan.passes} over {plan.samples} samples" if plan else "none"


def _steps(plan: Plan) -> int | str:
    """Steps of a trial; where no sample is left out, readers may need different numbers of them for the same."""
    if plan.last == "keep":
        return f"as many as {plan.epochs} x {plan.samples_per_epoch} samples need"
    return plan.steps


SAME: dict[str, Callable[[Result], Any]] = {
    "workload": lambda result: result.workload.name,
    "dataset": lambda result: result.dataset.digest,
    "view": lambda result: tuple(result.dataset.view),
    "nodes": lambda result: result.plan.nodes,
    "ranks per node": lambda result: result.plan.ranks_per_node,
    "batch": lambda result: result.plan.batch,
    "steps": lambda result: _steps(result.plan),
    "ranks that each sample goes to": lambda result: result.plan.copies,
    "validation passes": lambda result: _passes(result.plan.validation),
    "synchronisation": lambda result: result.plan.sync,
    "cache regime": lambda result: result.plan.cache,
    "compute": lambda result: tuple(
        getattr(result.compute, key)
        for key in ("mode", "device", "asked_step_seconds", "model", "exchange", "fp16", "lag", "hierarchical")
    ),
}
"""What must be equal before two readers' times may be put side by side."""


@dataclass(frozen=True)
class Row:
    """One reader: elapsed and epoch in seconds, delivered bandwidth in B/s.

    ratio: its median elapsed time over that of the first reader. interval: the 95 % interval of that ratio, paired by
    trial; None with fewer than 5 trials, and for the first reader itself.
    """

    reader: str
    elapsed: float
    epoch: float
    bandwidth: float
    stall: float
    ratio: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Comparison:
    """Readers of one node count. `refused` says why they are not compared; then there are no rows."""

    nodes: int
    refused: str | None
    rows: tuple[Row, ...]
    sentences: tuple[str, ...]


def comparisons(results: Sequence[Result]) -> list[Comparison]:
    """One comparison for each node count at which several results were measured, in rising node count."""
    by_nodes: dict[int, list[Result]] = {}
    for result in results:
        by_nodes.setdefault(result.plan.nodes, []).append(result)
    return [compare(by_nodes[nodes]) for nodes in sorted(by_nodes) if len(by_nodes[nodes]) > 1]


def compare(results: Sequence[Result]) -> Comparison:
    """Compare results of one node count, in the order given; the first is the reference of the ratios."""
    nodes = results[0].plan.nodes
    if why := refusal(results):
        return Comparison(nodes, why, (), ())
    first = results[0].value("elapsed_seconds")
    rows = tuple(
        Row(
            reader(result),
            result.value("elapsed_seconds"),
            result.value("epoch_seconds"),
            result.value("delivered_bandwidth"),
            result.value("stall_share"),
            result.value("elapsed_seconds") / first,
            None if result is results[0] else elapsed_ratio(results[0], result),
        )
        for result in results
    )
    return Comparison(nodes, None, rows, tuple(_sentence(*pair) for pair in _pairs(results)))


def refusals(results: Sequence[Result]) -> list[str]:
    """Every reason why results of one report may not stand side by side; empty when they may."""
    reasons = [unfit(results) if len(results) > 1 else None, *(group.refused for group in comparisons(results))]
    return list(dict.fromkeys(why for why in reasons if why))


def refusal(results: Sequence[Result]) -> str | None:
    """Why these results, of one node count, may not be compared, or None."""
    if len(results) < 2:
        return "one reader was measured, so there is nothing to compare it with"
    if why := unfit(results):
        return why
    for quantity, key in SAME.items():
        values = list(dict.fromkeys(key(result) for result in results))
        if len(values) > 1:
            return f"no comparison: the results differ in {quantity} ({' and '.join(map(_shown, values))})"
    return None


def unfit(results: Sequence[Result]) -> str | None:
    """Why one of these results may not stand beside any other, or None."""
    invalid = [reader(result) for result in results if result.class_ == "INVALID"]
    if invalid:
        names = list(dict.fromkeys(invalid))
        return f"no comparison: {listed(names)} {'is' if len(names) == 1 else 'are'} INVALID"
    if any("TINY" in result.marks for result in results):
        return "no comparison: TINY shrinks the samples, so the times are not those of the workload"
    if short := [result for result in results if not result.plan.comparable]:
        return f"no comparison: {reader(short[0])} is SHORT: {shortness(short[0])}"
    return None


def axes_changed(before: Result, after: Result) -> list[str]:
    """The axes of the policy, of order, placement and delivery, in which two results differ."""
    return [axis for axis in AXES if getattr(before.policy, axis) != getattr(after.policy, axis)]


def _pairs(results: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Each reader with the latest earlier one that differs in a single axis, or else with the one before it."""
    pairs = []
    for position, (before, after) in enumerate(pairwise(results)):
        single = [earlier for earlier in results[: position + 1] if len(axes_changed(earlier, after)) == 1]
        pairs.append((single[-1] if single else before, after))
    return pairs


def _sentence(before: Result, after: Result) -> str:
    ratio = after.value("elapsed_seconds") / before.value("elapsed_seconds")
    step = f"{reader(before)} -> {reader(after)}: {format_ratio(ratio)} the time"
    if min(len(result.measured) for result in (before, after)) == 1:
        step += " (a single trial: it may be chance)"
    elif _overlap(before, after):
        step += " (the trials overlap: no difference shown)"
    changed = axes_changed(before, after)
    if not changed:
        return f"{step}; the same order, placement and delivery"
    if len(changed) == 1:
        axis = changed[0]
        return f"{step}; {axis} alone differs ({getattr(before.policy, axis)} -> {getattr(after.policy, axis)})"
    both = "both" if len(changed) == 2 else "all"
    return f"{step}; {listed(changed)} {both} differ, so no one of them can be credited"


def _overlap(before: Result, after: Result) -> bool:
    """Whether the ranges of the trials' elapsed times share a point: then the data show no difference."""
    ranges = [_elapsed(result).tolist() for result in (before, after)]
    return bool(max(map(min, ranges)) <= min(map(max, ranges)))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(str(part) for part in value)
    return str(value)
