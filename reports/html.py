"""Results as one self-contained HTML page: nothing is fetched, plotly.js and the data are inside."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from dlio_bench.reports import facts, figures, formatting, judge, predictions, sentences, tables, transfers
from dlio_bench.reports.advice import advice, slowest_rank
from dlio_bench.reports.comparison import comparisons, refusals
from dlio_bench.reports.drawing import Figure
from dlio_bench.reports.files import write_whole
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.metrics import METRICS, SHARES
from dlio_bench.reports.page import render
from dlio_bench.reports.statistics import median_trial
from dlio_bench.reports.types import Result

RESULTS_A_TABLE = 4  # more columns would not fit the page
MOST_MAPS = 12  # heat maps of more results than this would bury the rest of the page


def write(results: Sequence[tuple[Result, Steps]], path: Path) -> None:
    """Write the page of one or several results with their steps to `path`, whole or not at all.

    Raises EnvironmentFailure when it cannot be written.
    """
    write_whole(path, page(results).encode())


def page(pairs: Sequence[tuple[Result, Steps]]) -> str:
    """The page's HTML. Every text of a result is escaped; the figures' data are JSON in a script element."""
    pairs = sorted(pairs, key=lambda pair: pair[0].plan.nodes)
    results = [result for result, _ in pairs]
    labels = tables.labels(results)
    drawn = _figures(pairs)
    return render(
        "report.html.j2",
        drawn,
        title=_title(results),
        subject=_subject(results, len({host for result in results for host in result.environment.hosts})),
        shared_evidence=_shared_evidence(results),
        failing=any(judge.failed(result) for result in results),
        headline=judge.gravest_headline(results),
        marks=list(dict.fromkeys(mark for result in results for mark in result.marks)),
        cards=_cards(*pairs[0]) if len(pairs) == 1 else [],
        cases=[_case(label, *pair) for label, pair in zip(labels, pairs, strict=True)],
        metric_groups=_metric_groups(results),
        metric_titles=_metric_titles(results),
        comparisons=comparisons(results),
        refusals=refusals(results),
        maps=[name for name in drawn if name.startswith("map")],
        maps_left_out=max(0, len(pairs) - MOST_MAPS),
        checks=_checks(results),
        advice=_advice(pairs),
        notes=sentences.shared(labels, [result.plan.notes for result in results]),
        sections={
            "Training": sentences.each(labels, results, sentences.training),
            "Inference": sentences.each(labels, results, sentences.inference),
            "Who reads what": sentences.each(labels, results, sentences.sharing),
            "Validation passes": sentences.each(labels, results, sentences.validation),
        },
        harness=sentences.harness(results),
        predictions=predictions.lines(results),
        prediction_notes=predictions.notes(results),
        transfers=transfers.rows(results),
        sources=transfers.titles(results),
        storage=sentences.storage(results),
        pfs=next(iter(sentences.emulated(results)), None),
        environment=facts.environment(results),
        plans=facts.plans(results),
        commands=list(dict.fromkeys(shlex.join(result.command) for result in results)),
        certainty=sentences.certainty(results[0]),
        device_known=all(trial.bytes_device is not None for result in results for trial in result.measured),
        formatting=formatting,
    )


def _figures(pairs: Sequence[tuple[Result, Steps]]) -> dict[str, Figure]:
    """Figures by the id of their place on the page; comparing ones are left out where comparing is refused."""
    results = [result for result, _ in pairs]
    side_by_side = not refusals(results)
    drawn: dict[str, Figure] = {}
    if side_by_side:
        drawn["times"] = figures.times(results)
    drawn["phases"] = figures.phases(results)
    ceiling = figures.stall_ceiling(pairs)
    for position, (result, steps) in enumerate(pairs[:MOST_MAPS]):
        drawn[f"map{position}"] = figures.stall_map(result, steps, ceiling)
    drawn["steps"] = figures.step_times(pairs)
    if side_by_side and len({result.plan.nodes for result in results}) > 1:
        drawn["scaling"] = figures.scaling(results)
    drawn["bytes"] = figures.bytes_by_epoch(results)
    return drawn


def _title(results: Sequence[Result]) -> str:
    return " + ".join(dict.fromkeys(result.workload.title for result in results))


def _subject(results: Sequence[Result], hosts: int) -> str:
    """'naive, prefetch · 8 nodes × 1 rank · 4 trials each'."""
    readers = ", ".join(dict.fromkeys(sentences.reader(result) for result in results))
    nodes = list(dict.fromkeys(str(result.plan.nodes) for result in results))
    scale = sentences.scale(results[0]) if len(nodes) == 1 else f"{formatting.listed(nodes)} nodes"
    trials = formatting.plural(len(results[0].measured), "trial")
    return f"{readers} · {scale} on {formatting.plural(hosts, 'host')} · {trials}" + (
        " each" if len(results) > 1 else ""
    )


def _cards(result: Result, steps: Steps) -> list[dict[str, str]]:
    """The numbers that one reader's page opens with."""
    metrics = result.metrics
    rank, host, worst, _ = slowest_rank(result, steps)

    def steady(name: str, remark: str) -> str:
        return "; ".join(part for part in (sentences.steady(metrics, name), remark) if part)

    beside = {
        "elapsed_seconds": sentences.certainty(result),
        "delivered_bandwidth": f"from the file system {formatting.number(metrics['pfs_bandwidth'])}",
        "samples_per_second": f"{formatting.number(metrics['epoch_seconds'])} an epoch",
        "stall_share": steady("stall_share", f"own, slowest: rank {rank} ({host}) {formatting.format_share(worst)}"),
        "au": steady("au", "compute / wall time"),
        "over_bound": f"no-I/O bound {formatting.number(metrics['no_io_seconds'])}",
    }
    if metrics["elapsed_seconds"].ci:
        beside["elapsed_seconds"] = f"95 % CI {formatting.interval(metrics['elapsed_seconds'])}"
    return [
        {"name": METRICS[name].title, "value": formatting.number(metrics[name]), "beside": remark}
        for name, remark in beside.items()
        if metrics[name].value is not None
    ]


def _case(label: str, result: Result, steps: Steps) -> dict[str, Any]:
    """What the template shows of one result on its own."""
    rank, host, worst, _ = slowest_rank(result, steps)
    launcher = result.environment.launcher
    return {
        "label": label,
        "scale": sentences.scale(result),
        "headline": judge.headline(result),
        "reason": judge.reason(result),
        "failed": judge.failed(result),
        "bound": result.bound,
        "ceiling": sentences.ceiling(result),
        "slowest": f"rank {rank} ({host}), {formatting.format_share(worst)}",
        "median_trial": result.trials[median_trial(result)].trial,
        "policy": result.policy,
        "delivers": sentences.delivers(result) or "the fields as stored",
        "options": ", ".join(f"{name} {value}" for name, value in facts.flat(result.policy.options).items()),
        "launcher": shlex.join(launcher.argv) if launcher else "",
        "created": datetime.fromisoformat(result.created).isoformat(timespec="seconds"),
        "version": result.version,
        "digest": result.digest,
    }


def _shared_evidence(results: Sequence[Result]) -> list[str]:
    """Sentences of evidence that hold of every result; none for a single one."""
    first, *others = (result.bound.evidence for result in results)
    return [sentence for sentence in first if others and all(sentence in other for other in others)]


def _metric_groups(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every metric but the shares (they are a figure), a row each, in tables of one node count and a few results."""
    labels = tables.labels(results)
    names = [name for name in METRICS if name not in SHARES]
    groups = []
    for _, same in groupby(range(len(results)), key=lambda position: results[position].plan.nodes):
        positions = list(same)
        for start in range(0, len(positions), RESULTS_A_TABLE):
            chosen = positions[start : start + RESULTS_A_TABLE]
            rows = {name: [results[position].metrics[name] for position in chosen] for name in names}
            groups.append({"labels": [labels[position] for position in chosen], "rows": rows})
    return groups


def _metric_titles(results: Sequence[Result]) -> dict[str, str]:
    """What each metric means; what delivered the bytes that no cache did is called by its name."""
    storage = f"bytes that the {sentences.storage(results)} delivered"
    return {name: quantity.meaning for name, quantity in METRICS.items()} | {"bytes_device": storage}


def _checks(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Checks of all results, failed ones first; equal ones are one row that names whom it speaks of."""
    rows: dict[tuple[Any, ...], list[str]] = {}
    for label, result in zip(tables.labels(results), results, strict=True):
        for check in result.checks:
            rows.setdefault((check.ok, check.name, check.expected, check.found), []).append(label)
    everyone = len(results)
    return [
        {"ok": ok, "name": name, "expected": expected, "found": actual,
         "who": "all" if len(names) == everyone > 1 else ", ".join(names)}
        for (ok, name, expected, actual), names in sorted(rows.items(), key=lambda row: bool(row[0][0]))
    ]  # fmt: skip


def _advice(pairs: Sequence[tuple[Result, Steps]]) -> list[str]:
    results = [result for result, _ in pairs]
    suggestions = [advice(result, steps) for result, steps in pairs]
    return sentences.shared(tables.labels(results), suggestions)
