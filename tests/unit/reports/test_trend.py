"""A history of runs: its steps, and what the last run is held against."""

import numpy as np
import pytest

from dlio_bench.errors import UsageError
from dlio_bench.reports.comparing.change_limits import parse
from dlio_bench.reports.comparing.changes_text import render_trend, spark
from dlio_bench.reports.comparing.trend import change_points, trend
from tests.goldens import require_golden
from tests.unit.reports.noisy import Made, noisy


def test_a_step_is_found_where_it_is() -> None:
    draws = np.random.default_rng(0)
    noise = np.exp(draws.normal(0, 0.02, 12))
    assert change_points(10 * noise * np.where(np.arange(12) < 7, 1, 1.15)) == [7]
    assert change_points((10 * noise * np.where((np.arange(12) < 4) | (np.arange(12) >= 8), 1, 1.3)).tolist()) == [4, 8]
    assert change_points([0.1, 0.1, 0.1, 0.3, 0.3], in_points=True) == [3]


def test_what_is_no_step() -> None:
    draws = np.random.default_rng(0)
    calls = sum(bool(change_points(10 * np.exp(draws.normal(0, 0.02, 8)))) for _ in range(50))
    assert calls <= 2
    assert change_points([1.0, 1.0, 1.0, 1.04, 1.04, 1.04]) == []  # below 5 %
    assert change_points([0.01, 0.01, 0.01, 0.05, 0.05], in_points=True) == []  # below 5 points
    assert change_points([1.0, 1.0, 1.0, 1.0, 2.0]) == []  # a single run
    assert change_points([1.0, 2.0, 2.0]) == []
    assert change_points([0.0] * 6) == []


def test_a_history(draft_and_steps: Made) -> None:
    factors = (0.9, 1, 1, 1.2, 1.2, 1.2)
    runs = [
        noisy(
            draft_and_steps, factor, seed, noise=0.005, created=f"2026-11-{11 + seed}T00:00:00+00:00", version=version
        )
        for seed, (factor, version) in enumerate(zip(factors, ("1", "1", "1", "2", "2", "2"), strict=True))
    ]
    few = noisy(draft_and_steps, 1, 9, reader="naive")
    limits = [parse("elapsed_seconds>+10%")]
    names = ["elapsed_seconds", "bytes_requested", "allreduce_seconds"]
    with pytest.raises(
        UsageError, match=r"--fail-if: .* too few of cdb · naive · 4 nodes × 1 rank: 1\. Name more runs"
    ):
        trend([*runs, few], names, limits, label_unequal=False)
    document = trend(list(reversed(runs)), names, limits, label_unequal=False)
    [history] = document.histories
    elapsed, requested = history.metrics
    [step] = elapsed.steps
    assert (step.position, step.created[:10]) == (3, "2026-11-14")
    assert step.change == pytest.approx(0.2, abs=0.02)
    assert [each.what for each in history.runs[3].differs] == ["version"]
    assert requested.steps == []
    # of the 5 earlier runs, the median one takes 1 x
    assert elapsed.last.change == pytest.approx(0.2, abs=0.02)
    assert document.status == 1
    shorter = trend([*runs, few], names, [], label_unequal=False)
    unequal = trend([*runs, noisy(draft_and_steps, 1, 3, cache="warm")], names, [], label_unequal=True)
    require_golden("histories", {
        "a limit is missed": render_trend(document, ["elapsed_seconds"], verbose=False),
        "too few runs, and no value": render_trend(shorter, ["allreduce_seconds"], verbose=False),
        "unequal work": render_trend(unequal, [], verbose=False),
    })  # fmt: skip


def test_a_history_needs_three_runs_of_the_same_work(draft_and_steps: Made) -> None:
    runs = [noisy(draft_and_steps, 1, seed) for seed in range(3)]
    with pytest.raises(UsageError, match=r"a history needs 3 runs .* cdb · prefetch · 4 nodes × 1 rank: 2"):
        trend(runs[:2], ["elapsed_seconds"], [], label_unequal=False)
    warm = noisy(draft_and_steps, 1, 3, cache="warm")
    with pytest.raises(UsageError, match=r"cache regime \(cold-epochs and warm\)"):
        trend([*runs, warm], ["elapsed_seconds"], [], label_unequal=False)


def test_bars_show_the_course() -> None:
    assert spark([1.0, 2.0, 3.0]) == "▁▅█"
    assert spark([2.0, 2.0]) == "▁▁"
