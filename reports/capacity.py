"""How many emulated accelerators a storage feeds, as a document and as text.

A scale holds if the AU of every measured trial reaches the target: MLPerf Storage asks it of each of its runs (rule
3.3.2). AU is that of the metric `au`. Beside each AU stands that of a null run: the same ranks, batch and steps with
the data in memory. If the null run misses the target, the client is judged and not the storage (mlcommons/storage
issue 354).
"""

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from dlio_bench.errors import DataError
from dlio_bench.reports.document.typed import Count, Share, Some, convert, load_json
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers import statistics
from dlio_bench.reports.numbers.meetings import Steps, meetings, part, utilisation
from dlio_bench.reports.view.formatting import NOTHING, format_share, plural
from dlio_bench.reports.view.sections import Head, Note, Section, Table, View
from dlio_bench.units import format_bytes, format_percent, format_seconds

SCHEMA = "dlio-bench/capacity/1"
NAME = "capacity.json"
FIX = "Name a file written by dlio-bench capacity"
STORAGE: Literal["storage"] = "storage"
CLIENT: Literal["this client's CPU"] = "this client's CPU"
ASKED: Literal["ranks asked"] = "ranks asked"
Limit = Literal["storage", "this client's CPU", "ranks asked"]
FEWEST_STEPS = 4  # of an epoch whose half has a first step, which does not count, and another
OVERRUN = "emulated compute"  # the check that fails where ranks have no core for their compute


class Runs(Struct, frozen=True, kw_only=True):
    """The measured trials of one run at one scale. au: of each trial; folder: of the result.

    settled_au: of each trial, of the later half of every epoch alone; None where epochs have fewer than 4 steps.
    """

    folder: str
    au: list[float]
    settled_au: list[float] | None = None
    delivered_bandwidth: float
    host_cpu_busy_share: float | None
    client_bound: bool  # the cores were used up, or emulated compute overran for want of a core


class Probe(Struct, frozen=True, kw_only=True):
    """A scale: its runs on storage, and its null run. confirmed: with a warm-up trial and several measured ones."""

    nodes: Some
    ranks_per_node: Some
    runs: Runs
    null: Runs
    confirmed: bool = False

    @property
    def accelerators(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node

    def holds(self, target: float) -> bool:
        """Whether every trial reaches the target."""
        return min(self.runs.au) >= target

    def settles(self, target: float) -> bool:
        """Whether it misses the target for what epochs lose while they begin: their later halves reach it."""
        return not self.holds(target) and min(self.runs.settled_au or [0.0]) >= target

    def client_limited(self, target: float) -> bool:
        """Whether this client would miss the target without any storage, or had no core left."""
        return min(self.null.au) < target or self.runs.client_bound


class Capacity(Struct, frozen=True, kw_only=True):
    """The answer, and every scale that was tried, in the order of the measurements."""

    schema: Literal["dlio-bench/capacity/1"] = "dlio-bench/capacity/1"
    kind: Literal["capacity"] = "capacity"
    command: list[str]
    version: str
    workload: str
    accelerator: str
    reader: str
    step_seconds: float
    batch: Some
    steps: Some
    target: Share
    at_least: Count | None
    accelerators: Count
    nodes: Count
    limited_by: Limit
    marks: list[str]
    probes: list[Probe]

    @property
    def enough(self) -> bool:
        """Whether as many accelerators as were asked for are fed."""
        return self.at_least is None or self.accelerators >= self.at_least

    def probe(self, accelerators: int) -> Probe | None:
        """The last probe of a scale, if it was tried: the confirmed one where there is one."""
        return next((probe for probe in reversed(self.probes) if probe.accelerators == accelerators), None)

    @property
    def failing(self) -> Probe | None:
        """The least scale above the answer that was tried and failed."""
        above = [probe for probe in self.probes if probe.accelerators > self.accelerators]
        failed = [probe for probe in above if not probe.holds(self.target)]
        return min(failed, key=lambda probe: probe.accelerators, default=None)


def load(path: Path) -> Capacity:
    """The document in a file. UsageError, EnvironmentFailure; DataError where it is not whole."""
    try:
        return convert(load_json(path, FIX), Capacity)
    except ValueError as error:
        raise DataError(f"'{path}' does not follow {SCHEMA}: {error}. Measure again.") from error


def runs(result: Result, steps: Steps, folder: Path) -> Runs:
    """What a result says of a probe. ValueError if it has no AU."""
    au = statistics.per_trial(result, steps)["au"]
    if au is None:
        raise ValueError(f"the result in {folder} has no AU: its ranks computed nothing")
    busy = [trial.host_cpu_busy_share for trial in result.measured_trials if trial.host_cpu_busy_share is not None]
    overran = any(check.name == OVERRUN and not check.ok for check in result.checks)
    return Runs(
        folder=str(folder),
        au=au.tolist(),
        settled_au=_steady_au(result, steps),
        delivered_bandwidth=result.value("delivered_bandwidth"),
        host_cpu_busy_share=float(np.median(busy)) if busy else None,
        client_bound=overran or result.bound.by == "CPU",
    )


def _steady_au(result: Result, steps: Steps) -> list[float] | None:
    """AU of the later half of every epoch, of each measured trial.

    A reader fills its buffer as an epoch begins, and the second step waits for that. Short epochs show it, and the 500
    steps of MLPerf Storage do not.
    """
    _, first, count = np.unique(steps["epoch"], return_index=True, return_counts=True)
    if count.min() < FEWEST_STEPS:
        return None
    position = np.arange(len(steps["epoch"])) - np.repeat(first, count)
    later = position >= np.repeat(count, count) // 2
    met = meetings(result.plan, steps)[later]
    au = utilisation(part(steps, statistics.measured_positions(result), later), met)
    return None if au is None else au.tolist()


def view(document: Capacity) -> View:
    """The sections of its text."""
    target = format_share(document.target)
    scale = f" on {plural(document.nodes, 'node')}" if document.accelerators else ""
    outcome = f"{'PASS' if document.enough else 'FAIL'}: at least {document.at_least} asked"
    heads = ["ranks", "nodes", "AU", "null AU", "delivered", "CPU busy", ""]
    probes = sorted(document.probes, key=lambda probe: (probe.accelerators, probe.confirmed))
    rows = Table(heads=heads, rows=[*map(_row, probes)])
    return View(
        head=Head(
            title=f"{document.workload} capacity",
            overline=f"capacity · version {document.version}",
            heading=f"Accelerators that this storage feeds with {document.workload}",
            subjects=[] if document.at_least is None else [outcome],
            marks=document.marks,
        ),
        lead=f"{document.workload}: ",
        answers=[
            f"this storage feeds {plural(document.accelerators, 'emulated accelerator')}{scale} at AU >= {target}; "
            f"limited by: {document.limited_by}"
        ],
        sections=[
            Section("limit", "Where it ends", [*_limit(document)]),
            Section(
                "scales",
                "All scales",
                [rows, Note(text="AU: of the worst run; null AU: the same with the data in memory", aside=True)],
            ),
        ],
        command=shlex.join(document.command),
        made="Everything here is in capacity.json, and each scale has a folder beside it.",
    )


def _limit(document: Capacity) -> Iterator[Note]:
    """The scale that holds, the one that fails, and what was asked of each."""
    if best := document.probe(document.accelerators):
        how = f"{plural(len(best.runs.au), 'run')} after a warm-up" if len(best.runs.au) > 1 else "one run"
        yield Note(text=f"{_au(best.runs)} in {how}; {_null(best)}", label="holds")
    if failing := document.failing:
        accelerators = plural(failing.accelerators, "accelerator")
        yield Note(text=f"{accelerators}: {_au(failing.runs)}; {_null(failing)}", label="fails")
        if failing.settles(document.target):
            assert failing.runs.settled_au is not None
            settled = (
                f"in the later half of each epoch {accelerators} reached AU "
                f"{_precise(min(failing.runs.settled_au))}: the rest is lost while epochs begin and readers fill their "
                "buffers. Longer epochs (--steps, with more data) may hold: MLPerf Storage has 500 steps at least"
            )
            yield Note(text=settled, label="note")
    each = (
        f"{document.accelerator}: {format_seconds(document.step_seconds)} a step, batch {document.batch}; "
        f"{document.steps} steps a run, reader {document.reader}"
    )
    yield Note(text=each, label="each")


def _row(probe: Probe) -> list[str]:
    cells = probe.runs
    return [
        str(probe.accelerators),
        str(probe.nodes),
        _precise(min(cells.au)),
        _precise(min(probe.null.au)),
        f"{format_bytes(cells.delivered_bandwidth)}/s",
        NOTHING if cells.host_cpu_busy_share is None else format_share(cells.host_cpu_busy_share),
        "confirmed" if probe.confirmed else "",
    ]


def _au(measured: Runs) -> str:
    low, high = map(_precise, (min(measured.au), max(measured.au)))
    return f"AU {low}" if len(measured.au) == 1 else f"AU {low} to {high}"


def _precise(au: float) -> str:
    """With a decimal, rounded down: what misses a target of whole percents never reads as if it reached it."""
    return format_percent(math.floor(au * 1000 + 1e-9) / 1000, 1)


def _null(probe: Probe) -> str:
    return f"with the data in memory {_au(probe.null)}"
