"""Readers side by side: how far apart they are, and which axis of the policy made it."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise, permutations

import numpy as np
from msgspec import Struct

from dlio_bench.reports.comparing.comparable import comparable, groups, places
from dlio_bench.reports.comparing.difference import Change, change
from dlio_bench.reports.comparing.reasons import why_equal, why_faster
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import tables
from dlio_bench.reports.run.sentences import reader
from dlio_bench.reports.view.formatting import format_times, join_words, plural

AXES = ("order", "placement", "delivery")
BETWEEN = ("shuffled", "double-buffer")  # in these axes, between the plain loop and readers that keep samples


def elapsed_ratio_interval(before: Result, after: Result) -> tuple[float, float] | None:
    """The 95 % interval of after's elapsed time over before's; None with fewer than 5 trials."""
    interval = elapsed_change(before, after).interval
    return None if interval is None else (1 + interval[0], 1 + interval[1])


def elapsed_change(before: Result, after: Result) -> Change:
    """The change of the elapsed time, and whether the trials show it."""
    return _cached_change(tuple(_elapsed_seconds(before)), tuple(_elapsed_seconds(after)), are_paired(before, after))


@lru_cache(maxsize=4096)  # drawing takes milliseconds, and every sentence asks
def _cached_change(before: tuple[float, ...], after: tuple[float, ...], paired: bool) -> Change:
    return change(np.array(before), np.array(after), paired=paired)


def are_paired(before: Result, after: Result) -> bool:
    """Whether trial k of both was measured in the same round: one run takes turns between its readers.

    They then have the same command and the same start of their ranks, to the nanosecond. Two runs of one command did
    not share what slows a round down.
    """
    return turn(before) == turn(after)


def turn(result: Result) -> tuple[object, ...]:
    """What is equal in results that took turns in one run."""
    trials = [trial.trial for trial in result.measured_trials]
    return result.command, result.environment.startup_seconds, trials, result.plan.nodes


def _elapsed_seconds(result: Result) -> list[float]:
    return [trial.elapsed_seconds for trial in result.measured_trials]


class ReaderRow(Struct, frozen=True):
    """One reader: elapsed and epoch in seconds, delivered bandwidth in B/s.

    ratio: its median elapsed time over that of the first reader. interval: the 95 % interval of that ratio, paired by
    trial; None with fewer than 5 trials, and for the first reader itself.
    """

    reader: str
    elapsed: float
    epoch: float
    bandwidth: float
    stall: float
    ratio: float
    interval: tuple[float, float] | None


class Comparison(Struct, frozen=True):
    """Readers of one workload at one node count, which `place` names."""

    place: str
    rows: tuple[ReaderRow, ...]
    sentences: tuple[str, ...]


def comparisons(results: Sequence[Result]) -> list[Comparison]:
    """One comparison for each workload and node count at which several results are comparable, as `groups` has them."""
    several = [group for group in groups(comparable(results)).values() if len(group) > 1]
    return [compare(group, place) for group in several for place in places(results, group[:1])]


def rows_of(results: Sequence[Result]) -> dict[int, ReaderRow]:
    """The row of each result that is compared, by the `id` of the result."""
    compared = groups(comparable(results)).values()
    return {id(result): row for group in compared for result, row in zip(group, compare(group).rows, strict=True)}


def compare(group: Sequence[Result], place: str = "") -> Comparison:
    """Compare results of one workload and node count, in the order given; the first is the reference of the ratios."""
    first = group[0].value("elapsed_seconds")
    rows = tuple(
        ReaderRow(
            reader(result),
            result.value("elapsed_seconds"),
            result.value("epoch_seconds"),
            result.value("delivered_bandwidth"),
            result.value("stall_share"),
            result.value("elapsed_seconds") / first,
            None if result is group[0] else elapsed_ratio_interval(group[0], result),
        )
        for result in group
    )
    return Comparison(place, rows, tuple(_sentence(*pair) for pair in _pairs(group)))


def answer(results: Sequence[Result], *, why: bool = True) -> list[str]:
    """Which reader is fastest, by how much and (unless `why` is false) why: a sentence for each node count, rising.

    The fastest stands against the first; where that is the fastest, against the next one. The ratio is that of their
    median elapsed times. Results that may not be compared are left out (`refusals`). Empty where no two are left of
    one node count.
    """
    return [at + said for at, said in _sentences_by_group(results, lambda group: _group_answer(group, why=why)).items()]


def axis_sentences(results: Sequence[Result]) -> list[str]:
    """What each axis of the policy adds to `answer`: a sentence for each node count with a difference.

    It is one sentence where all node counts have the same. The parts are told apart by readers between the two, which
    differ from one another in a single axis.
    """
    told = _sentences_by_group(results, _credits)
    same = list(dict.fromkeys(told.values()))
    return same if len(same) == 1 < len(told) else [at + said for at, said in told.items()]


def walk(slow: Result, fast: Result, between: Sequence[Result]) -> list[tuple[Result, Result]]:
    """The way from one result to another in as many steps as the results `between` allow: (before, after) of each.

    A step changes one axis, or several where no result lies between. Empty where several axes differ and there is no
    result on the way.
    """
    by_policy = {_policy(result): result for result in (*between, slow, fast)}
    axes, longest = differing_axes(slow, fast), list[Result]()
    for turns in permutations(axes):
        policy, path = dict(zip(AXES, _policy(slow), strict=True)), [slow]
        for axis in turns:
            policy[axis] = getattr(fast.policy, axis)
            path += [by_policy[key]] if (key := tuple(policy.values())) in by_policy else []
        longest = max(longest, path, key=len)
    return list(pairwise(longest)) if len(longest) > 2 or len(axes) == 1 else []


def differ(before: Result, after: Result) -> bool:
    """Whether the trials show a difference in elapsed time (see `difference.change`).

    With fewer than 5 trials: whether their ranges do not overlap.
    """
    shown = elapsed_change(before, after).shown
    return not _overlap(before, after) if shown is None else shown


def extremes(results: Sequence[Result]) -> tuple[Result, Result]:
    """(slow, fast) of one node count: the first and the fastest; if they are the same, the next fastest and it."""
    fast, following = sorted(results, key=lambda result: result.value("elapsed_seconds"))[:2]
    return (following if fast is results[0] else results[0]), fast


def differing_axes(before: Result, after: Result) -> list[str]:
    """The axes of the policy, of order, placement and delivery, in which two results differ."""
    return [axis for axis in AXES if getattr(before.policy, axis) != getattr(after.policy, axis)]


def _policy(result: Result) -> tuple[str, ...]:
    return tuple(getattr(result.policy, axis) for axis in AXES)


def _sentences_by_group(results: Sequence[Result], tell: Callable[[Sequence[Result]], str]) -> dict[str, str]:
    """What is told of each group with several readers, by its head: 'at 4 nodes ', or 'with cdb at 4 nodes '.

    The head is empty where there are results of no other group.
    """
    several = [group for group in groups(comparable(results)).values() if len(group) > 1]
    heads = [""]
    if len(groups(results)) > 1:
        workloads = {result.workload.name for result in results}
        heads = [
            (f"with {result.workload.name} " if len(workloads) > 1 else "") + f"at {plural(result.plan.nodes, 'node')} "
            for result, *_ in several
        ]
    return {head: said for head, group in zip(heads, several, strict=False) if (said := tell(group))}


def _group_answer(group: Sequence[Result], *, why: bool) -> str:
    slow, fast = extremes(group)
    names = _names(group)
    if not differ(slow, fast):
        sentence = f"{names(fast)} and {names(slow)} do not differ measurably: {_times(slow, fast)}"
        return "; ".join(filter(None, (sentence, why_equal(slow, fast) if why else "")))
    versus = names(slow) + (", the next fastest" if fast is group[0] and len(group) > 2 else "")
    sentence = f"{names(fast)} takes {_times(slow, fast, f'the time of {versus} ')}"
    if why and (reason := why_faster(slow, fast)):
        sentence += f": {reason}"
    equal = [names(result) for result in group if result is not fast and not differ(result, fast)]
    return f"{sentence}; it and {join_words(equal)} do not differ measurably" if equal else sentence


def _credits(group: Sequence[Result]) -> str:
    slow, fast = extremes(group)
    changed = differing_axes(slow, fast)
    if not changed or not differ(slow, fast):
        return ""
    names = _names(group)
    if len(changed) == 1:
        return f"{axes_change(slow, fast)} alone differs between {names(slow)} and {names(fast)}"
    steps = walk(slow, fast, group)
    if not steps:
        others = [name for name in BETWEEN if name not in {reader(result) for result in group}]
        hint = f"; add --reader {','.join(others)} to see what each contributes" if others else ""
        return f"{names(slow)} and {names(fast)} differ in {join_words(changed)}{hint}"
    parts = [
        f"{axes_change(before, after)} {_times(before, after, excuse=False)}"
        + ("" if differ(before, after) else ", no measurable difference")
        for before, after in steps
    ]
    return f"from {names(slow)} to {names(fast)}: {'; '.join(parts)}"


def axes_change(before: Result, after: Result) -> str:
    """What a step changes: 'order (sequential -> global-shuffle)'."""
    axes = differing_axes(before, after)
    old, new = (", ".join(getattr(result.policy, axis) for axis in axes) for result in (before, after))
    return f"{join_words(axes)} ({old} -> {new})"


def _names(group: Sequence[Result]) -> Callable[[Result], str]:
    names = {id(result): name for result, name in zip(group, tables.labels(group), strict=True)}
    return lambda result: names[id(result)]


def _times(before: Result, after: Result, of: str = "", *, excuse: bool = True) -> str:
    """'0.61 × (95 % 0.58-0.64)': the ratio of the elapsed times with its interval, or (`excuse`) why it has none."""
    interval = elapsed_ratio_interval(before, after)
    ratio = after.value("elapsed_seconds") / before.value("elapsed_seconds")
    if interval is not None:
        said, low, high = format_times(ratio, *interval)
        return f"{said} × {of}(95 % {low}-{high})"
    if not excuse:
        return f"{format_times(ratio)[0]} ×"
    counts = sorted({len(result.measured_trials) for result in (before, after)})
    chance = ", so it may be chance" if counts[0] == 1 else ""
    trials = plural(counts[-1], "trial") if len(counts) == 1 else f"{counts[0]} and {counts[1]} trials"
    return f"{format_times(ratio)[0]} × {of}(no interval: {trials}{chance})"


def _pairs(results: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Each reader with the latest earlier one that differs in a single axis, or else with the one before it."""
    pairs = []
    for position, (before, after) in enumerate(pairwise(results)):
        single = [earlier for earlier in results[: position + 1] if len(differing_axes(earlier, after)) == 1]
        pairs.append((single[-1] if single else before, after))
    return pairs


def _sentence(before: Result, after: Result) -> str:
    step = f"{reader(before)} -> {reader(after)}: {_times(before, after, 'the time ')}"
    if not differ(before, after):
        step += ", no measurable difference"
    changed = differing_axes(before, after)
    if not changed:
        return f"{step}; the same order, placement and delivery"
    if len(changed) == 1:
        axis = changed[0]
        return f"{step}; {axis} alone differs ({getattr(before.policy, axis)} -> {getattr(after.policy, axis)})"
    both = "both" if len(changed) == 2 else "all"
    return f"{step}; {join_words(changed)} {both} differ, so no one of them can be credited"


def _overlap(before: Result, after: Result) -> bool:
    """Whether the ranges of the trials' elapsed times share a point: then the data show no difference."""
    ranges = [_elapsed_seconds(result) for result in (before, after)]
    return bool(max(map(min, ranges)) <= min(map(max, ranges)))
