"""Lists of time intervals (start, end), in seconds: their union and what two of them share. Pure functions."""

from collections.abc import Iterable

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union as a sorted list of intervals that lie apart; those that touch become one, as in the CDB study.

    The study's script is `merge_and_add_common_intervals` in `plot_scaling_climate_data_results.py`. An interval that
    ends before it begins is left out.
    """
    union: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] <= interval[1]):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union


def length(union: Iterable[Interval]) -> float:
    """Seconds of intervals that lie apart."""
    return sum(end - start for start, end in union)


def shared(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """What two unions have in common, as a union."""
    left, right = list(first), list(second)
    common: list[Interval] = []
    at = other = 0
    while at < len(left) and other < len(right):
        start, end = max(left[at][0], right[other][0]), min(left[at][1], right[other][1])
        if start < end:
            common.append((start, end))
        if left[at][1] < right[other][1]:
            at += 1
        else:
            other += 1
    return common
