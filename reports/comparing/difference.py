"""How far a metric lies apart before and after, and whether the trials show a difference at all.

One rule for two runs and for two readers of one run. A difference is shown when the 95 % interval of the change leaves
out "no change" and a rank test agrees, where there are enough trials for that test to reach 5 %. Calls of a difference
between equals, in 4000 seeded A/A comparisons each, with 2 % of noise: of 5, 6, 7 and 10 unpaired trials 3.0, 2.9, 2.6
and 2.6 %; of as many pairs 6.0, 3.2, 2.9 and 1.5 %. Five pairs have the interval alone.
"""

from math import comb

from msgspec import Struct

from dlio_bench.reports.numbers import intervals
from dlio_bench.reports.numbers.meetings import Floats

LEVEL = 0.05  # of the rank test


class Change(Struct, frozen=True, kw_only=True):
    """A metric before and after, in its own unit: medians over the trials, or means.

    change: after / before - 1; in points, after - before. None where the ratio has no meaning, as before is 0.
    interval: the 95 % interval of `change`; None with fewer than 5 trials on a side.
    p: of the rank test; None where so few trials cannot reach 5 %, however they come out.
    shown: whether the trials show a difference; None without an interval.
    """

    before: float
    after: float
    in_points: bool
    change: float | None
    interval: tuple[float, float] | None
    p: float | None
    shown: bool | None
    trials: tuple[int, int]
    paired: bool


def change(
    before: Floats, after: Floats, *, paired: bool = False, mean: bool = False, in_points: bool = False
) -> Change:
    """The change between values of trials, float64 [trials] each.

    paired: trial k of both was measured in the same round of one run. mean: compare means, not medians, of shares.
    in_points: the values are shares, so the change is their difference. Raises ValueError for pairs of unequal numbers
    of trials.
    """
    if paired and len(before) != len(after):
        raise ValueError(f"{len(before)} trials cannot be paired with {len(after)}")
    centre_before, centre_after = (intervals.centre(values, mean=mean) for values in (before, after))
    moved: float | None
    if in_points or not (before.any() or after.any()):
        moved = centre_after - centre_before
        interval = intervals.difference_interval(before, after, paired=paired, mean=mean)
    elif centre_before == 0:
        moved = interval = None
    else:
        moved = centre_after / centre_before - 1
        ratio = intervals.ratio_interval(before, after, paired=paired)
        interval = None if ratio is None else (ratio[0] - 1, ratio[1] - 1)
    p = rank_test(before, after, paired=paired)
    left_out = None if interval is None else not interval[0] <= 0 <= interval[1]
    return Change(
        before=centre_before,
        after=centre_after,
        in_points=in_points,
        change=moved,
        interval=interval,
        p=p,
        shown=left_out and (p is None or p < LEVEL),
        trials=(len(before), len(after)),
        paired=paired,
    )


def rank_test(before: Floats, after: Floats, *, paired: bool) -> float | None:
    """The two-sided p of a rank test: Mann-Whitney's, of pairs Wilcoxon's; None where it cannot fall below `LEVEL`.

    The least p of n and m trials is 2 / C(n + m, n), of n pairs 2 / 2^n: it takes 4 trials a side, or 6 pairs.
    asv too leaves the test out where it cannot reach its level (asv/_stats.py).
    """
    n, m = len(before), len(after)
    if (2 / 2**n if paired else 2 / comb(n + m, n)) >= LEVEL:
        return None
    if (before == after).all() if paired else len({*before.tolist(), *after.tolist()}) == 1:
        return 1.0  # nothing to rank
    from scipy.stats import mannwhitneyu, wilcoxon

    test = wilcoxon if paired else mannwhitneyu
    return float(test(before, after).pvalue)


def kolmogorov_smirnov(some: Floats, others: Floats) -> tuple[float, float]:
    """(largest difference of the two distribution functions, the p of it in large groups), of float64 [n] and [m]."""
    from scipy.stats import ks_2samp

    test = ks_2samp(some, others, method="asymp")
    return float(test.statistic), float(test.pvalue)
