"""A stored result, worked out again by another route: plain loops, written from docs/reference/metrics.md alone.

Its run: `dlio-bench run cosmoflow --tiny --seed 1 --reader prefetch --nodes 2 --epochs 3 --validation 2 --batch 4
--trials 5 --compute emulate:5ms --tiers ram=60kB`.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import pytest

from dlio_bench.reports.document.result import load
from dlio_bench.reports.numbers import statistics
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import html, text
from dlio_bench.reports.view.formatting import FORMATS
from tests.pages import Page

GOLDEN = Path(__file__).parents[2] / "golden" / "result-3"
DOCUMENT: dict[str, Any] = json.loads((GOLDEN / "result.json").read_text("utf-8"))
CHANGED = {"pfs_bandwidth"}  # whose formula did after this result
LATER = {"mlperf_au", "bytes_rounded", "requests", "retries"}  # metrics that came after this result
Trial = dict[str, Any]
Values = dict[str, float | None]


def by_rank(steps: dict[str, Any], trial: int, *names: str) -> list[list[float]]:
    """Seconds of these phases together, [rank][step], as Python's own numbers."""
    arrays = [steps[name][trial].tolist() for name in names]
    return [[sum(parts) for parts in zip(*ranks, strict=True)] for ranks in zip(*arrays, strict=True)]


def slowest(ranks: Sequence[Sequence[float]], chosen: Sequence[int]) -> float:
    """The largest of the ranks at each step, added up: ranks meet behind every step."""
    return sum(max(seconds[step] for seconds in ranks) for step in chosen)


def percentile(values: Sequence[float], percent: float) -> float:
    """On the straight line between two neighbours."""
    ordered, place = sorted(values), percent / 100 * (len(values) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def stall_and_au(steps: dict[str, Any], trial: int, epochs: Sequence[int]) -> tuple[float, float, float]:
    """(stall of the job in seconds, AU, wall seconds) of some epochs."""
    get, work, compute = (by_rank(steps, trial, *names) for names in (("stall", *BUSY), BUSY, ("compute",)))
    whole, start = by_rank(steps, trial, "stall", *BUSY, "exchange"), by_rank(steps, trial, "start")
    places = {epoch: [step for step, its in enumerate(steps["epoch"].tolist()) if its == epoch] for epoch in epochs}
    every = [step for inner in places.values() for step in inner]
    spans = [
        [start[rank][inner[-1]] + whole[rank][inner[-1]] - start[rank][inner[0]] for inner in places.values()]
        for rank in range(len(whole))
    ]
    wall = slowest(spans, range(len(places)))
    shares = []
    for rank, seconds in enumerate(compute):
        window = wall - sum(whole[rank][inner[0]] for inner in places.values())
        shares.append(sum(seconds[step] for inner in places.values() for step in inner[1:]) / window)
    return slowest(get, every) - slowest(work, every), fmean(shares), wall


BUSY = ("check", "compute")  # nothing was trained


def of_trial(trial: Trial, steps: dict[str, Any], row: int) -> Values:
    """Every metric of one trial."""
    elapsed, epochs = trial["elapsed_seconds"], [epoch["seconds"] for epoch in trial["epochs"]]
    passes = by_rank(steps, row, "validation")
    waits, works = by_rank(steps, row, "validation_stall"), by_rank(steps, row, "validation_busy")
    each_pass = [[rank[number] for rank in passes] for number in range(len(passes[0]))]
    training = elapsed - sum(min(seconds) for seconds in each_pass)
    stall, au, _ = stall_and_au(steps, row, range(len(epochs)))
    steady_stall, steady_au, steady_wall = stall_and_au(steps, row, range(1, len(epochs)))
    get, work = by_rank(steps, row, "stall", *BUSY), by_rank(steps, row, *BUSY)
    every = range(len(work[0]))
    costs = [max(rank[step] for rank in get) for step in every]
    own = [sum(rank) / training for rank in by_rank(steps, row, "stall")]
    no_io = slowest(work, every) + slowest(works, range(len(each_pass)))
    loops = steps["loop"][row].tolist()

    def share(name: str) -> float:
        return fmean(sum(rank) / loop for rank, loop in zip(by_rank(steps, row, name), loops, strict=True))

    shares = {f"share_{name}": share(name) for name in ("stall", "check", "compute", "exchange", "validation")}
    shares |= {"share_convert": 0.0, "share_checkpoint": 0.0}
    shares["share_other"] = 1 - sum(shares.values())
    read = [
        (
            min(epoch["bytes_requested"], epoch["bytes_device"]),
            epoch["seconds"] + (epoch["validation"] or {"seconds": 0})["seconds"],
        )
        for epoch in trial["epochs"]
        if epoch["bytes_device"]
    ]
    barrier = fmean(wait / loop for wait, loop in zip(steps["barrier"][row].tolist(), loops, strict=True))
    ranks = len(loops)
    counted = {name for name in METRICS if name.startswith("bytes_") or name == "remote_misses"} - LATER
    counters = {name: trial[name] for name in counted}
    return counters | shares | {
        "elapsed_seconds": elapsed,
        "epoch_seconds": median(epochs),
        "first_epoch_seconds": epochs[0],
        "later_epochs_seconds": median(epochs[1:]),
        "samples_per_second": trial["samples"] / training,
        "delivered_bandwidth": trial["bytes_useful"] / elapsed,
        "pfs_bandwidth": sum(least for least, _ in read) / sum(seconds for _, seconds in read),
        "stall_share": stall / training,
        "mlperf_au": fmean(stall_and_au(steps, row, [epoch])[1] for epoch in range(len(epochs))),
        "steady_stall_share": steady_stall / steady_wall,
        "own_stall_share": fmean(own),
        "own_stall_share_worst_rank": max(own),
        "au": au,
        "steady_au": steady_au,
        "harness_share": barrier + shares["share_check"] + shares["share_other"],
        "step_p50": percentile(costs, 50),
        "step_p95": percentile(costs, 95),
        "step_p99": percentile(costs, 99),
        "no_io_seconds": no_io,
        "over_bound": elapsed / no_io,
        "read_seconds": trial["read_seconds"] / ranks,
        "decode_seconds": trial["decode_seconds"] / ranks,
        "allreduce_seconds": None,
        "compute_overrun": trial["compute_actual_seconds"] / trial["compute_asked_seconds"] - 1,
        "validation_seconds": median(max(seconds) for seconds in each_pass),
        "validation_stall_share": fmean(sum(wait) / sum(seconds) for wait, seconds in zip(waits, passes, strict=True)),
    }  # fmt: skip


def interval(values: Sequence[float], centre: Callable[[Sequence[float]], float]) -> list[float]:
    """Of five values: of the median their range, of the mean Student's."""
    if centre is median:
        return [min(values), max(values)]
    half = 2.7755822252859668 * stdev(values) / 5**0.5
    return [max(0.0, fmean(values) - half), min(1.0, fmean(values) + half)]


@pytest.fixture(scope="module")
def by_hand() -> dict[str, tuple[float | None, list[float] | None]]:
    """Metric -> (value, interval)."""
    with np.load(GOLDEN / "steps.npz") as arrays:
        steps = dict(arrays)
    rows = [row for row, trial in enumerate(DOCUMENT["trials"]) if not trial["warmup"]]
    trials = [of_trial(DOCUMENT["trials"][row], steps, row) for row in rows]
    assert len(trials) == 5
    found: dict[str, tuple[float | None, list[float] | None]] = {}
    for name in trials[0]:
        values = [value for trial in trials if (value := trial[name]) is not None]
        centre = fmean if name.startswith("share_") else median
        found[name] = (centre(values), interval(values, centre)) if values else (None, None)
    return found


def test_every_metric_is_what_the_documentation_says(by_hand: dict[str, Any]) -> None:
    assert by_hand.keys() - LATER == DOCUMENT["metrics"].keys() == METRICS.keys() - LATER
    now = statistics.metrics(*load(GOLDEN))
    for name, metric in DOCUMENT["metrics"].items():
        value, ends = by_hand[name]
        if value is None:
            assert (metric["value"], metric["ci"], now[name].value) == (None, None, None), name
            continue
        assert name in CHANGED or metric["value"] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        found = now[name]
        assert [found.value, *(found.ci or ())] == pytest.approx([value, *ends], rel=1e-9, abs=1e-12), name
    assert now["mlperf_au"].value == pytest.approx(by_hand["mlperf_au"][0])


UNITS = {"s": r"(?:ns|µs|ms|s|min|h)", "B": r"[kMGT]?B", "B/s": r"[kMGT]?B/s", "share": "%", "ratio": "×"}
NUMBER = r"(?<![\w.])\d+(?:\.\d+)?"
"""Numbers with a unit: what is counted, such as steps and nodes, has none."""


def shown(page: str) -> set[tuple[str, str]]:
    """(unit of the table of metrics, number as shown) of every number with a unit in a text."""
    flat = re.sub(r"9[45] % (CI|confidence|interval)", "", " ".join(page.split()))
    flat = flat.replace(" ".join(DOCUMENT["command"]), "")
    return {
        (unit, number)
        for unit, letters in UNITS.items()
        for number in re.findall(rf"{NUMBER} ?{letters}(?![\w/])", flat)
    }


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of all that stands in JSON; entries of a list have the list's name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, name)
    else:
        yield name, value


def stored(by_hand: dict[str, Any]) -> set[tuple[str, str]]:
    """What may be shown: the metrics by hand, the figures of the trials, and sentences of the result, formatted."""
    known = {
        (METRICS[name].unit, number) for name, (value, ends) in by_hand.items() for number in (value, *(ends or ()))
    }
    for name, value in leaves({key: part for key, part in DOCUMENT.items() if key != "metrics"}):
        if isinstance(value, int | float) and ("seconds" in name or "bytes" in name):
            known.add(("s" if "seconds" in name else "B", value))
    for epoch in range(3):  # what caches of the machine delivered
        parts = [trial["epochs"][epoch] for trial in DOCUMENT["trials"] if not trial["warmup"]]
        medians = [median(part[name] for part in parts) for name in ("bytes_requested", "bytes_device")]
        known |= {("B", value) for value in (*medians, medians[0] - medians[1])}
    found = {(unit, FORMATS[unit](number)) for unit, number in known if unit in UNITS and number is not None}
    sentences = [value for _, value in leaves([DOCUMENT[key] for key in ("checks", "bound")]) if isinstance(value, str)]
    return found | shown(" ; ".join(sentences))


@pytest.mark.parametrize("output", ["text", "page"])
def test_every_number_that_is_shown_is_one_of_them(output: str, by_hand: dict[str, Any]) -> None:
    result, steps = load(GOLDEN)
    told = text.render([result], verbose=True) if output == "text" else Page(html.page([(result, steps)])).text
    numbers = shown(told)
    assert len(numbers) > 40
    assert sorted(numbers - stored(by_hand)) == []
