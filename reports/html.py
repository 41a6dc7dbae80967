"""Results as one self-contained HTML page: nothing is fetched, plotly.js and the data are inside."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dlio_bench.reports import facts, figures, judge, predictions, tables, transfers, words
from dlio_bench.reports.advice import advice, slowest_rank
from dlio_bench.reports.comparison import comparisons, refusals
from dlio_bench.reports.drawing import Figure
from dlio_bench.reports.files import write_whole
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.page import embedded, template
from dlio_bench.reports.statistics import UNITS, median_trial

Result = Mapping[str, Any]

RESULTS_A_TABLE = 4  # more columns would not fit the page
MOST_MAPS = 12  # heat maps of more results than this would bury the rest of the page

TITLES: dict[str, str] = {
    "elapsed_seconds": "elapsed time of a trial",
    "epoch_seconds": "time of an epoch, median of all",
    "first_epoch_seconds": "time of the first epoch",
    "later_epochs_seconds": "time of a later epoch",
    "samples_per_second": "samples per second",
    "delivered_bandwidth": "delivered bandwidth (bytes to the trainer / elapsed)",
    "pfs_bandwidth": "bandwidth of the file system (bytes requested of it / elapsed)",
    "stall_share": "stall: time that the job loses because data are missing / elapsed",
    "steady_stall_share": "stall from the second epoch on",
    "own_stall_share": "a rank's own stall: its time in get / elapsed, mean of ranks",
    "own_stall_share_worst_rank": "own stall of the rank that waits longest",
    "au": "AU = compute / wall time, first step of each epoch left out, mean of ranks",
    "steady_au": "AU from the second epoch on",
    "harness_share": "of the loop, the harness's own: checks, barriers beyond the last arrival, what is in no phase",
    "step_p50": "step cost, 50th percentile",
    "step_p95": "step cost, 95th percentile",
    "step_p99": "step cost, 99th percentile",
    "no_io_seconds": "no-I/O bound: the same steps, data in memory",
    "over_bound": "elapsed / no-I/O bound",
    "read_seconds": "reading, a rank, summed over its threads",
    "decode_seconds": "decoding, a rank, summed over its threads",
    "allreduce_seconds": "all-reduces, a rank, in part behind its compute",
    "requested_bytes": "bytes requested of the file system in a trial",
    "device_bytes": "bytes that the device delivered in a trial",
    "compute_overrun": "compute beyond what was asked",
    "validation_seconds": "time of a validation pass",
    "validation_stall_share": "stall, share of the validation passes",
}


def write(results: Sequence[tuple[Result, Steps]], path: Path) -> None:
    """Write the page of one or several results with their steps to `path`, whole or not at all.

    Raises EnvironmentFailure when it cannot be written.
    """
    write_whole(path, page(results).encode())


def page(pairs: Sequence[tuple[Result, Steps]]) -> str:
    """The page's HTML. Every text of a result is escaped; the figures' data are JSON in a script element."""
    pairs = sorted(pairs, key=lambda pair: int(pair[0]["plan"]["nodes"]))
    results = [result for result, _ in pairs]
    drawn = _figures(pairs)
    return template("report.html.j2").render(
        title=_title(results),
        subject=_subject(results, len({host for result in results for host in result["environment"]["hosts"]})),
        shared_evidence=_shared_evidence(results),
        failing=any(judge.failed(result) for result in results),
        headline=judge.gravest_headline(results),
        plotly=get_plotlyjs(),
        drawn=embedded(drawn),
        heights={name: figure["layout"]["height"] for name, figure in drawn.items()},
        marks=list(dict.fromkeys(mark for result in results for mark in result["marks"])),
        cards=_cards(*pairs[0]) if len(pairs) == 1 else [],
        cases=[_case(label, *pair) for label, pair in zip(tables.labels(results), pairs, strict=True)],
        metric_groups=_metric_groups(results),
        metric_titles=TITLES | {"device_bytes": f"bytes that the {words.storage(results)} delivered in a trial"},
        comparisons=comparisons(results),
        refusals=refusals(results),
        maps=[name for name in drawn if name.startswith("map")],
        maps_left_out=max(0, len(pairs) - MOST_MAPS),
        checks=_checks(results),
        advice=_advice(pairs),
        notes=words.shared(tables.labels(results), [result["plan"]["notes"] for result in results]),
        validation=words.shared(
            tables.labels(results), [[said] if (said := words.validation(result)) else [] for result in results]
        ),
        training=words.shared(
            tables.labels(results), [[said] if (said := words.training(result)) else [] for result in results]
        ),
        inference=words.shared(
            tables.labels(results), [[said] if (said := words.inference(result)) else [] for result in results]
        ),
        harness=words.harness(results),
        sharing=words.shared(
            tables.labels(results), [[said] if (said := words.sharing(result)) else [] for result in results]
        ),
        predictions=predictions.lines(results),
        prediction_notes=predictions.notes(results),
        transfers=transfers.rows(results),
        storage=words.storage(results),
        pfs=next((pfs["says"] for result in results if (pfs := result["environment"].get("emulated_pfs"))), None),
        environment=facts.environment(results),
        plans=facts.plans(results),
        commands=list(dict.fromkeys(shlex.join(result["command"]) for result in results)),
        certainty=words.certainty(results[0]),
        device_known=all(trial["bytes_device"] is not None for result in results for trial in words.trials(result)),
        words=words,
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
    if side_by_side and len({result["plan"]["nodes"] for result in results}) > 1:
        drawn["scaling"] = figures.scaling(results)
    drawn["bytes"] = figures.bytes_by_epoch(results)
    return drawn


def _title(results: Sequence[Result]) -> str:
    return " + ".join(dict.fromkeys(str(result["workload"]["title"]) for result in results))


def _subject(results: Sequence[Result], hosts: int) -> str:
    """'naive, prefetch · 8 nodes × 1 rank · 4 trials each'."""
    readers = ", ".join(dict.fromkeys(words.reader(result) for result in results))
    nodes = list(dict.fromkeys(str(result["plan"]["nodes"]) for result in results))
    scale = words.scale(results[0]) if len(nodes) == 1 else f"{words.listed(nodes)} nodes"
    trials = words.plural(len(words.trials(results[0])), "trial")
    return f"{readers} · {scale} on {words.plural(hosts, 'host')} · {trials}" + (" each" if len(results) > 1 else "")


def _cards(result: Result, steps: Steps) -> list[dict[str, str]]:
    """The numbers that one reader's page opens with."""
    metrics = result["metrics"]
    rank, host, worst, _ = slowest_rank(result, steps)

    def steady(name: str, said: str) -> str:
        return "; ".join(part for part in (words.steady(metrics, name), said) if part)

    beside = {
        "elapsed_seconds": words.certainty(result),
        "delivered_bandwidth": f"from the file system {words.number(metrics['pfs_bandwidth'])}",
        "samples_per_second": f"{words.number(metrics['epoch_seconds'])} an epoch",
        "stall_share": steady("stall_share", f"own, slowest: rank {rank} ({host}) {words.format_share(worst)}"),
        "au": steady("au", "compute / wall time"),
        "over_bound": f"no-I/O bound {words.number(metrics['no_io_seconds'])}",
    }
    if metrics["elapsed_seconds"]["ci"]:
        beside["elapsed_seconds"] = f"95 % CI {words.interval(metrics['elapsed_seconds'])}"
    names = {"elapsed_seconds": "elapsed", "delivered_bandwidth": "delivered", "samples_per_second": "samples/s",
             "stall_share": "stall", "au": "AU", "over_bound": "over the bound"}  # fmt: skip
    return [
        {"name": names[name], "value": words.number(metrics[name]), "beside": said}
        for name, said in beside.items()
        if metrics[name]["value"] is not None
    ]


def _case(label: str, result: Result, steps: Steps) -> dict[str, Any]:
    """What the template shows of one result on its own."""
    rank, host, worst, _ = slowest_rank(result, steps)
    launcher = result["environment"].get("launcher") or {}
    return {
        "label": label,
        "scale": words.scale(result),
        "headline": judge.headline(result),
        "reason": judge.reason(result),
        "failed": judge.failed(result),
        "bound": result["bound"],
        "ceiling": words.ceiling(result),
        "slowest": f"rank {rank} ({host}), {words.format_share(worst)}",
        "median_trial": result["trials"][median_trial(result)]["trial"],
        "policy": result["policy"],
        "delivers": words.delivers(result) or "the fields as stored",
        "options": ", ".join(f"{name} {value}" for name, value in facts.flat(result["policy"]["options"]).items()),
        "launcher": shlex.join(map(str, launcher.get("argv", []))),
        "created": result["created"],
        "version": result["version"],
        "digest": result["digest"],
    }


def _shared_evidence(results: Sequence[Result]) -> list[str]:
    """Sentences of evidence that hold of every result; none for a single one."""
    first, *others = (result["bound"]["evidence"] for result in results)
    return [sentence for sentence in first if others and all(sentence in other for other in others)]


def _metric_groups(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every metric but the shares (they are a figure), a row each, in tables of one node count and a few results."""
    labels = tables.labels(results)
    # results of earlier versions lack what is measured only since
    names = [
        name for name in UNITS if not name.startswith("share_") and all(name in result["metrics"] for result in results)
    ]
    groups = []
    for _, same in groupby(range(len(results)), key=lambda position: results[position]["plan"]["nodes"]):
        positions = list(same)
        for start in range(0, len(positions), RESULTS_A_TABLE):
            chosen = positions[start : start + RESULTS_A_TABLE]
            rows = {name: [results[position]["metrics"][name] for position in chosen] for name in names}
            groups.append({"labels": [labels[position] for position in chosen], "rows": rows})
    return groups


def _checks(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Checks of all results, failed ones first; equal ones are one row that names whom it speaks of."""
    rows: dict[tuple[Any, ...], list[str]] = {}
    for label, result in zip(tables.labels(results), results, strict=True):
        for check in result["checks"]:
            rows.setdefault((check["ok"], check["name"], check["expected"], check["found"]), []).append(label)
    everyone = len(results)
    return [
        {"ok": ok, "name": name, "expected": expected, "found": found,
         "who": "all" if len(who) == everyone > 1 else ", ".join(who)}
        for (ok, name, expected, found), who in sorted(rows.items(), key=lambda row: bool(row[0][0]))
    ]  # fmt: skip


def _advice(pairs: Sequence[tuple[Result, Steps]]) -> list[str]:
    results = [result for result, _ in pairs]
    said = [advice(result, steps) for result, steps in pairs]
    return words.shared(tables.labels(results), said)
