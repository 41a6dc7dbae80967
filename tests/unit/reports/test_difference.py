"""Whether trials show a difference: equals are seldom told apart, a real change nearly always, and few trials never."""

from math import comb

import numpy as np
import pytest

from dlio_bench.reports.comparing.difference import change
from dlio_bench.reports.numbers.meetings import Floats

NOISE = 0.02


def trials_of(draws: np.random.Generator, count: int, factor: float, shared: Floats | float = 0.0) -> Floats:
    """Elapsed times of about 10 s x factor, with 2 % of noise on top of what the rounds share."""
    return np.asarray(10 * factor * np.exp(draws.normal(0, NOISE, count) + shared))


@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
@pytest.mark.parametrize("count", [5, 7, 10])
def test_equals_are_told_apart_in_at_most_7_of_100_draws(count: int, paired: bool) -> None:
    draws, calls = np.random.default_rng(0), 0
    for _ in range(200):
        shared = draws.normal(0, 0.05, count) if paired else 0.0  # what slows a whole round down
        before, after = (trials_of(draws, count, 1.0, shared) for _ in range(2))
        calls += change(before, after, paired=paired).shown is True
    assert calls <= 14


@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
def test_a_change_of_a_tenth_is_found_with_5_trials(paired: bool) -> None:
    draws, calls = np.random.default_rng(0), 0
    for _ in range(50):
        shared = draws.normal(0, 0.05, 5) if paired else 0.0
        made = change(trials_of(draws, 5, 1.0, shared), trials_of(draws, 5, 1.1, shared), paired=paired)
        calls += made.shown is True
    assert calls >= 48


def test_pairs_find_what_the_rounds_hide() -> None:
    draws = np.random.default_rng(0)
    shared = draws.normal(0, 0.3, 8)
    before, after = (trials_of(draws, 8, factor, shared) for factor in (1.0, 1.1))
    assert change(before, after).shown is False
    assert change(before, after, paired=True).shown is True
    with pytest.raises(ValueError, match="8 trials cannot be paired with 7"):
        change(before, after[1:], paired=True)


def test_the_change_is_worked_out_by_hand() -> None:
    before, after = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([6.0, 6.0, 6.0, 6.0, 6.0, 6.0])
    made = change(before, after)
    assert (made.before, made.after, made.change, made.trials) == (3.0, 6.0, 1.0, (5, 6))
    assert made.interval == (6 / 5 - 1, 6 / 1 - 1)  # medians of 5 drawn values reach both ends in 2.5 % of the draws
    assert made.shown
    points = change(before / 10, after / 10, in_points=True)
    assert points.change == pytest.approx(0.3)
    assert points.interval == pytest.approx((0.1, 0.5))
    assert change(before, np.array([1.0, 1, 1, 1, 10]), mean=True, in_points=True).after == 2.8


def test_the_rank_test_is_left_out_where_it_cannot_reach_its_level() -> None:
    low, high = np.arange(1.0, 5.0), np.arange(11.0, 15.0)
    assert change(low[:3], high[:3]).p is None
    assert change(low[:3], high).p is None  # 2 / C(7, 3) = 0.057
    assert change(low, high).p == pytest.approx(2 / comb(8, 4))
    assert change(low, high).shown is None  # 4 trials have no interval
    five, six = np.arange(1.0, 6.0), np.arange(1.0, 7.0)
    assert change(five, five + 10, paired=True).p is None
    assert change(six, six + 10, paired=True).p == pytest.approx(2 / 2**6)


def test_values_that_do_not_vary() -> None:
    same, other, nothing = np.full(5, 7.0), np.full(5, 8.0), np.zeros(5)
    equal = change(same, same)
    assert (equal.change, equal.interval, equal.p, equal.shown) == (0.0, (0.0, 0.0), 1.0, False)
    assert change(same, other).shown
    assert change(nothing, nothing).shown is False
    grown = change(nothing, other)
    assert (grown.change, grown.interval, grown.shown) == (None, None, None)
    assert change(np.full(6, 7.0), np.full(6, 7.0), paired=True).p == 1.0
    assert change(np.full(6, 7.0), np.full(6, 8.0), paired=True).shown


def test_a_rank_test_can_overrule_the_interval() -> None:
    before = np.array([8.2, 8.3, 8.4, 10.1, 10.2, 10.3, 12.9])
    after = np.array([9.6, 11.0, 11.2, 11.5, 11.6, 11.7, 12.6])
    made = change(before, after)
    assert made.interval is not None
    assert made.interval[0] > 0
    assert made.p == pytest.approx(0.073, abs=0.001)
    assert made.shown is False
