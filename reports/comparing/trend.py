"""A history: runs of one plan in the order of their creation, where a step is, and how the last one did."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.reports.comparing import changes
from dlio_bench.reports.comparing.change_limits import ChangeLimit
from dlio_bench.reports.comparing.changes import LimitOutcome, MetricChange
from dlio_bench.reports.comparing.differing import Differing, differing
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.numbers import intervals
from dlio_bench.reports.numbers.meetings import Floats
from dlio_bench.reports.numbers.metrics import SHARE, SHARES

FEWEST_RUNS = 3
BAND = 0.05  # least step: asv reports from 5 % (asv/plugins/regressions.py), within which MLPerf Storage replicates
LEAST_NOISE = 0.01  # runs that are closer to each other are not believed to be: Criterion's noise threshold
PENALTY = 2.5  # of a step, in units of noise x ln(runs)
LEAST_LENGTH = 2  # runs of a level, as in asv: a single slow run is no change


class Point(Struct, frozen=True):
    """A metric in one run: its median with the interval; None where it has none."""

    created: str
    value: float
    ci: tuple[float, float] | None


class Step(Struct, frozen=True):
    """A lasting change. position: of the first run after it, from 0; before, after: medians of the levels around it.

    change: after / before - 1, of shares after - before; None where before is 0.
    """

    position: int
    created: str
    before: float
    after: float
    change: float | None


class MetricTrend(Struct, frozen=True, kw_only=True):
    """A metric over the runs. last: the last run against the median one of the earlier."""

    metric: str
    unit: str
    points: list[Point]
    steps: list[Step]
    last: MetricChange


class Run(Struct, frozen=True):
    """One run of a history. differs: in what from the run before it."""

    created: str
    version: str
    trials: int
    digest: str
    altered: bool
    unequal: list[str]
    differs: list[Differing]


class History(Struct, frozen=True):
    """Runs of one workload, reader and scale. no_value: the metrics asked for that one of the runs lacks."""

    of: str
    runs: list[Run]
    metrics: list[MetricTrend]
    no_value: list[str]


class Trend(Struct, frozen=True, kw_only=True):
    """All histories. left_out: results with too few runs for one; repeated: those that were named more than once."""

    schema: Literal["dlio-bench/trend/1"] = "dlio-bench/trend/1"
    histories: list[History]
    left_out: list[str]
    repeated: list[str]
    limits: list[LimitOutcome]

    @property
    def status(self) -> int:
        """1 when a limit is missed, else 0."""
        return int(any(outcome.missed for outcome in self.limits))


def trend(
    results: Sequence[Measured], names: Sequence[str], limits: Sequence[ChangeLimit], *, label_unequal: bool
) -> Trend:
    """The histories of these results, by workload, reader and scale, in the metrics of these names.

    Raises UsageError where there are fewer than 3 runs of each, where one did other work than the first, unless
    `label_unequal`, and for a limit that cannot be judged, of one with too few runs too: a limit must not hold because
    measurements are missing.
    """
    groups: dict[changes.Key, list[Measured]] = {}
    for measured in sorted(results, key=lambda measured: measured.created):
        groups.setdefault(changes.key(measured), []).append(measured)
    long = [group for group in groups.values() if len(group) >= FEWEST_RUNS]
    few = [group for group in groups.values() if len(group) < FEWEST_RUNS]
    counts = "; ".join(f"{changes.describe(group[0])}: {len(group)}{_repeated_note(group)}" for group in few)
    if not long:
        raise UsageError(
            f"a history needs {FEWEST_RUNS} runs of the same workload, reader and scale; there are: {counts}. Name "
            "more runs; or name two results, or two folders, to compare them with each other."
        )
    if limits:
        changes.require_whole(results)
        if few:
            raise UsageError(
                f"--fail-if: a limit needs {FEWEST_RUNS} runs of each result, and must not hold because measurements "
                f"are missing; there are too few of {counts}. Name more runs of it, or leave its results out."
            )
    return Trend(
        histories=[_history(group, names, label_unequal=label_unequal) for group in long],
        left_out=[changes.describe(group[0]) for group in few],
        repeated=changes.repeated_results(results),
        limits=[
            changes.outcome(limit, changes.describe(group[0]), _last_change(limit.metric, _values(limit.metric, group)))
            for limit in limits
            for group in long
        ],
    )


def _repeated_note(group: Sequence[Measured]) -> str:
    copies = sum(measured.copies for measured in group)
    return f" (named {copies} times)" if copies > len(group) else ""


def change_points(values: Sequence[float], *, in_points: bool = False) -> list[int]:
    """Positions at which a level begins that lasts, of one value for each run; in_points: they are shares.

    asv's idea (step_detection.rst): the fewest levels that explain the values, by absolute deviations. Here PELT finds
    them (Killick et al., JASA 2012, in the library ruptures); a level costs PENALTY x noise x ln(runs), where noise is
    the median difference of neighbours. Levels have 2 runs or more, and neighbours closer than 5 % are one. Measured
    rates: docs/methodology.md.
    """
    series = np.asarray(values, dtype=np.float64)
    middle = 1.0 if in_points else float(np.median(np.abs(series)))
    if len(series) < 2 * LEAST_LENGTH or middle == 0:
        return []
    import ruptures

    series = series / middle
    noise = max(float(np.median(np.abs(np.diff(series)))), LEAST_NOISE)
    search = ruptures.Pelt(model="l1", min_size=LEAST_LENGTH, jump=1).fit(series[:, None])
    ends = search.predict(pen=PENALTY * noise * np.log(len(series)))
    kept = [0]
    for begin, end in pairwise(ends):
        level, following = float(np.median(series[kept[-1] : begin])), float(np.median(series[begin:end]))
        if abs(following - level) >= BAND * (1.0 if in_points else abs(level)):
            kept.append(begin)
    return kept[1:]


def _history(group: Sequence[Measured], names: Sequence[str], *, label_unequal: bool) -> History:
    runs = [
        Run(
            result.created,
            result.version,
            len(result.seconds),
            result.digest,
            result.altered,
            changes.require_equal(group[0], result, label=label_unequal),
            differing(group[position - 1], result) if position else [],
        )
        for position, result in enumerate(group)
    ]
    columns = {name: [measured.values.get(name) for measured in group] for name in names}
    known = {name: [values for values in column if values is not None] for name, column in columns.items()}
    created = [result.created for result in group]
    return History(
        changes.describe(group[0]),
        runs,
        [_metric_trend(name, created, column) for name, column in known.items() if len(column) == len(group)],
        [name for name, column in known.items() if len(column) < len(group)],
    )


def _metric_trend(name: str, created: Sequence[str], values: Sequence[Floats]) -> MetricTrend:
    is_mean, last = name in SHARES, _last_change(name, values)
    is_share = last.unit == SHARE
    points = [
        Point(when, intervals.centre(trials, mean=is_mean), intervals.interval(trials, mean=is_mean))
        for when, trials in zip(created, values, strict=True)
    ]
    medians = [point.value for point in points]
    starts = change_points(medians, in_points=is_share)
    bounds = [0, *starts, len(medians)]
    levels = [float(np.median(medians[begin:end])) for begin, end in pairwise(bounds)]
    steps = [
        Step(start, created[start], before, after, _relative_change(before, after, in_points=is_share))
        for start, (before, after) in zip(starts, pairwise(levels), strict=True)
    ]
    return MetricTrend(metric=name, unit=last.unit, points=points, steps=steps, last=last)


def _relative_change(before: float, after: float, *, in_points: bool) -> float | None:
    if in_points:
        return after - before
    return after / before - 1 if before else None


def _last_change(name: str, values: Sequence[Floats]) -> MetricChange:
    """The last run against that of the earlier ones whose value is their median, of two the lower.

    One run's trials stand for the earlier ones, because the trials of several would hide a step among them.
    """
    earlier = sorted(values[:-1], key=lambda trials: intervals.centre(trials, mean=name in SHARES))
    return changes.change_of(name, earlier[(len(earlier) - 1) // 2], values[-1])


def _values(name: str, group: Sequence[Measured]) -> list[Floats]:
    values = [measured.values.get(name) for measured in group]
    if any(column is None for column in values):
        raise UsageError(f"{name} has no value in a run of {changes.describe(group[0])}: leave it out.")
    return [column for column in values if column is not None]
