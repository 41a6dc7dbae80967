"""Results as one HTML page that answers first. Nothing is fetched: plotly.js and the data are inside."""

import hashlib
import shlex
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from dlio_bench.reports import acceptance
from dlio_bench.reports.acceptance import Campaign
from dlio_bench.reports.comparing import repetition
from dlio_bench.reports.comparing.comparable import by_group, comparable, refusals
from dlio_bench.reports.comparing.comparison import answer, axis_sentences, comparisons, rows_of
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.marks import ALTERED
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.judging.judgement import Judgement, as_json
from dlio_bench.reports.judging.page import Judged, colour_class, page_groups
from dlio_bench.reports.judging.text import headline
from dlio_bench.reports.numbers import models
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import METRICS, SHARES
from dlio_bench.reports.numbers.statistics import median_trial
from dlio_bench.reports.run import (
    byte_figures,
    facts,
    figures,
    generated,
    predictions,
    published,
    sentences,
    step_figures,
    tables,
    transfers,
)
from dlio_bench.reports.run.advice import advice, shared_advice, slowest_rank
from dlio_bench.reports.view import formatting
from dlio_bench.reports.view.drawing import Figure
from dlio_bench.reports.view.page import render
from dlio_bench.reports.view.sections import Head

RESULTS_A_TABLE = 4  # more columns would not fit the page
MOST_MAPS = 12  # heat maps of more results than this would bury the rest of the page
MAPS_OPEN = 4  # further ones are folded
ADVICE_OPEN = 4  # more are said once for all results, and folded
MOST_ANSWERS = 3  # of node counts: more would push the chart below the fold
CARDS = 5


def write(
    results: Sequence[tuple[Result, Steps]],
    path: Path,
    judgement: Judgement | None = None,
    campaign: Campaign | None = None,
) -> None:
    """Write the page of one or several results with their steps to `path`, whole or not at all.

    judgement: of these results; campaign: the acceptance that they are of. EnvironmentFailure when it cannot be
    written.
    """
    write_whole(path, page(results, judgement, campaign).encode())


def page(
    pairs: Sequence[tuple[Result, Steps]], judgement: Judgement | None = None, campaign: Campaign | None = None
) -> str:
    """The page's HTML. Every text of a result is escaped; the figures' data are JSON in a script element."""
    results = by_group([result for result, _ in pairs])
    steps_of = {id(result): steps for result, steps in pairs}
    pairs = [(result, steps_of[id(result)]) for result in results]
    compared, labels, maps = comparable(results), tables.labels(results), _heat_map_positions(results)
    drawn = drawings(pairs)
    shown_advice, all_advice = _advice(pairs)
    said = answer(results)
    shown = None if judgement is None else page_groups(judgement)
    return render(
        "report.html.j2",
        _head(results, shown, campaign),
        drawn,
        judged=shown,
        tone=colour_class,
        campaign=campaign,
        accepted=None if campaign is None else acceptance.campaign_facts(campaign, results),
        ceilings=acceptance.ceilings(results),
        judgement_digest="" if judgement is None else hashlib.sha256(as_json(judgement).encode()).hexdigest(),
        cards=_cards(results[0]) if len(pairs) == 1 else [],
        cases=[_case(label, *pair) for label, pair in zip(labels, pairs, strict=True)],
        metric_groups=_metric_groups(results),
        metric_titles=_metric_titles(results),
        answer=said if len(said) <= MOST_ANSWERS else said[-1:],
        other_answers=said[:-1] if len(said) > MOST_ANSWERS else [],
        altered=ALTERED in {mark for result in results for mark in result.marks},
        compared=_comparison_rows(results, judgement),
        credits=axis_sentences(results),
        comparisons=comparisons(results),
        refusals=refusals(results),
        maps=[(name, labels[position], _map_caption(*pairs[position])) for name, position in maps.items()],
        maps_open=MAPS_OPEN,
        scale_end=step_figures.scale_end(pairs),
        kinds=step_figures.kinds(results),
        maps_left_out=len(pairs) - len(maps),
        checks=_checks(results),
        advice=shown_advice,
        all_advice=all_advice,
        notes=sentences.shared(labels, [result.plan.notes for result in results]),
        several_models=[
            (label, models.titles(result), models.rows(result), models.models_together(result))
            for label, result in zip(labels, results, strict=True)
            if result.models
        ],
        made=[
            (label, *shown)
            for label, result in zip(labels, results, strict=True)
            for shown in generated.generated_sections(result)
        ],
        sections={
            "Training": sentences.sentences_of(labels, results, sentences.training),
            "Checkpoints": sentences.sentences_of(labels, results, sentences.checkpoint_load),
            "Inference": sentences.sentences_of(labels, results, sentences.inference),
            "Streams": sentences.sentences_of(labels, results, sentences.streams),
            "Who reads what": sentences.sentences_of(labels, results, sentences.sharing),
            "Validation passes": sentences.sentences_of(labels, results, sentences.validation),
        },
        harness=sentences.harness(results),
        predictions=predictions.lines(results),
        prediction_notes=predictions.notes(results),
        published=published.values(results),
        transfers=transfers.rows(results),
        sources=transfers.titles(results),
        storage=sentences.storage(results),
        pfs=next(iter(sentences.emulation_sentences(results)), None),
        environment=(environment := facts.environment(results)),
        hosts_differ=facts.hosts_differ(environment),
        plans=facts.plans(results),
        repeats=repetition.lines(results),
        commands=list(dict.fromkeys(shlex.join(result.command) for result in results)),
        certainty=sentences.describe_certainty(*(compared or results)),
        device_known=all(trial.bytes_device is not None for result in results for trial in result.measured_trials),
        formatting=formatting,
    )


def _heat_map_positions(results: Sequence[Result]) -> dict[str, int]:
    """Positions of the results that get a heat map: those of the most nodes first, as they have the most ranks."""
    chosen = sorted(range(len(results)), key=lambda position: -results[position].plan.nodes)[:MOST_MAPS]
    return {f"map{position}": position for position in chosen}


def drawings(pairs: Sequence[tuple[Result, Steps]]) -> dict[str, Figure]:
    """Figures of results in their order, by the id of their place on the page.

    Those that compare are left out where results may not be compared, but for a single one.
    """
    results = [result for result, _ in pairs]
    beside = results if len(results) == 1 else comparable(results)
    scales = {(result.workload.name, result.plan.nodes) for result in beside}
    grown = len({workload for workload, _ in scales}) < len(scales)
    ceiling = step_figures.stall_ceiling(pairs)
    drawn: dict[str, Figure | None] = {
        "times": figures.times(beside) if beside else None,
        "credits": figures.credit_figure(beside) if beside else None,
        "phases": figures.phases(results),
        "epochs": figures.epochs(beside) if beside else None,
        "scaling": figures.scaling(beside) if grown else None,
        "steps": step_figures.step_times(pairs),
        **{
            name: step_figures.stall_map(*pairs[position], ceiling)
            for name, position in _heat_map_positions(results).items()
        },
        "bytes": byte_figures.bytes_by_epoch(results),
        "predicted": figures.prediction_figure(results),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _head(results: Sequence[Result], shown: Judged | None, campaign: Campaign | None) -> Head:
    """Workloads and readers, or the system that is accepted; the verdict; the marks of all results."""
    title = " + ".join(dict.fromkeys(result.workload.title for result in results))
    subjects = [_subject(results)]
    if campaign is not None:
        title, subjects = campaign.system.name, [campaign.system.contact] if campaign.system.contact else []
    headline = judge.gravest_headline(results) if shown is None else shown.headline
    made = f"{_to_seconds(results[0].created)} · version {results[0].version}"
    return Head(
        title=f"{headline} · {title}",
        overline=f"{'report' if campaign is None else 'acceptance'} · {made}",
        heading=title,
        subjects=subjects,
        aside="" if campaign is None else campaign.system.description,
        badge=headline,
        tone=colour_class(headline),
        marks=list(dict.fromkeys(mark for result in results for mark in result.marks)),
    )


def _subject(results: Sequence[Result]) -> str:
    """'naive, prefetch · 8 nodes × 1 rank · 4 trials each'."""
    hosts = len({host for result in results for host in result.environment.hosts})
    readers = ", ".join(dict.fromkeys(sentences.reader(result) for result in results))
    scale, trials = sentences.scales(results), sentences.trials(results)
    return f"{readers} · {scale} on {formatting.plural(hosts, 'host')} · {trials}" + (
        " each" if len(results) > 1 else ""
    )


def _cards(result: Result) -> list[dict[str, str]]:
    """The five numbers that one reader's page opens with."""
    metrics = result.metrics
    beside = {
        "elapsed_seconds": sentences.describe_certainty(result),
        "delivered_bandwidth": f"{sentences.source(result)} {formatting.number(metrics['pfs_bandwidth'])}",
        "stall_share": sentences.steady(metrics, "stall_share"),
        "au": "; ".join(part for part in (sentences.steady(metrics, "au"), "compute / wall time") if part),
        "over_bound": sentences.no_io_bound(result),
        "samples_per_second": f"{formatting.number(metrics['epoch_seconds'])} an epoch",
        "step_p99": "",
    }
    if metrics["elapsed_seconds"].ci:
        beside["elapsed_seconds"] = f"{sentences.coverage(result)} CI {formatting.interval(metrics['elapsed_seconds'])}"
    known = [(name, remark) for name, remark in beside.items() if metrics[name].value is not None]
    return [
        {"name": METRICS[name].title, "value": formatting.number(metrics[name]), "beside": remark}
        for name, remark in known[:CARDS]
    ]


def _comparison_rows(results: Sequence[Result], judgement: Judgement | None) -> list[dict[str, str]]:
    """The rows of the table that compares results: one a result."""
    rows = rows_of(results)
    verdicts = {} if judgement is None else {entry.digest: headline(entry) for entry in judgement.results}
    common = set.intersection(*(set(result.marks) for result in results))
    told = []
    for label, result in zip(tables.labels(results), results, strict=True):
        metrics, row = result.metrics, rows.get(id(result))
        ratio, *ends = formatting.format_times(row.ratio, *(row.interval or ())) if row else ["-"]
        told.append({
            "label": label, "headline": verdicts.get(result.digest, judge.headline(result)),
            "marks": ", ".join(mark for mark in result.marks if mark not in common),
            "time": formatting.number(metrics["elapsed_seconds"]),
            "certain": formatting.interval(metrics["elapsed_seconds"]),
            "ratio": ratio, "interval": "-".join(ends) or formatting.NOTHING,
            "stall": formatting.number(metrics["stall_share"]),
            "requested": formatting.number(metrics["bytes_requested"]), "bound": result.bound.by,
        })  # fmt: skip
    return told


def _map_caption(result: Result, steps: Steps) -> str:
    rank, host, worst, _ = slowest_rank(result, steps)
    trial = result.trials[median_trial(result)].trial
    slowest = f"rank {rank} ({host}), {formatting.format_share(worst)}"
    return f"Trial {trial + 1} of {len(result.trials)}, the median one. Slowest over all trials: {slowest}."


def _to_seconds(moment: str) -> str:
    """A time without parts of a second; as it stands in the file where that is no time."""
    try:
        return datetime.fromisoformat(moment).isoformat(timespec="seconds")
    except ValueError:
        return moment


def _case(label: str, result: Result, steps: Steps) -> dict[str, Any]:
    """What the template shows of one result on its own."""
    rank, host, worst, _ = slowest_rank(result, steps)
    launcher = result.environment.launcher
    machines = ", ".join(result.environment.hosts)
    return {
        "label": label,
        "scale": sentences.scale(result),
        "headline": judge.headline(result),
        "reason": judge.reason(result),
        "bound": result.bound,
        "ceiling": sentences.ceiling(result),
        "slowest": f"rank {rank} ({host}), {formatting.format_share(worst)}",
        "hosts": machines,
        "policy": result.policy,
        "delivers": sentences.delivers(result) or "the fields as stored",
        "options": ", ".join(f"{name} {value}" for name, value in facts.flatten(result.policy.options).items()),
        "launcher": shlex.join(launcher.argv) if launcher else "",
        "created": _to_seconds(result.created),
        "version": result.version,
        "digest": result.digest,
    }


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


def _advice(pairs: Sequence[tuple[Result, Steps]]) -> tuple[list[str], list[str]]:
    """The advice to show, and, where that says it once for several results, all of it to fold away."""
    results = [result for result, _ in pairs]
    labels = tables.labels(results)
    everything = sentences.shared(labels, [advice(result, steps) for result, steps in pairs])
    return (everything, []) if len(everything) <= ADVICE_OPEN else (shared_advice(labels, results), everything)
