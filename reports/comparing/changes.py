"""Results before and after, pair by pair: which belong together, what changed, and whether limits on changes hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from dlio_bench.errors import DataError, UsageError
from dlio_bench.reports import kinds
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS
from dlio_bench.reports.comparing.change_limits import ChangeLimit
from dlio_bench.reports.comparing.difference import Change, change
from dlio_bench.reports.comparing.differing import Differing, differing, unequal
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.numbers.meetings import Floats
from dlio_bench.reports.numbers.metrics import METRICS, SHARE, SHARES
from dlio_bench.reports.view.formatting import join_words, plural
from dlio_bench.wrapping import printable

Key = tuple[str, str, int, int]


class Pair(Struct, frozen=True):
    """Two results that belong together."""

    before: Measured
    after: Measured


class MetricChange(Change, frozen=True, kw_only=True):
    """The change of a metric by name."""

    metric: str
    unit: str


class Side(Struct, frozen=True):
    """One result of a pair."""

    workload: str
    reader: str
    nodes: int
    ranks_per_node: int
    trials: int
    created: str
    digest: str
    altered: bool


class PairChanges(Struct, frozen=True, kw_only=True):
    """What changed between two results. unequal: why their work was not the same; differs: what else is not the same.

    no_value: the metrics asked for that one of the two lacks. paired: both readers took turns in one run, so trial k of
    both is one pair.
    """

    before: Side
    after: Side
    paired: bool
    unequal: list[str]
    differs: list[Differing]
    metrics: list[MetricChange]
    no_value: list[str]


class LimitOutcome(Struct, frozen=True):
    """A limit on a change, judged for one pair or for the last run of a history."""

    limit: str
    of: str
    change: MetricChange
    missed: bool


class Changes(Struct, frozen=True, kw_only=True):
    """All pairs of two sides. only_before, only_after: results that the other side has no partner of.

    repeated: results that one side names more than once, which count once.
    """

    schema: Literal["dlio-bench/changes/1"] = "dlio-bench/changes/1"
    pairs: list[PairChanges]
    only_before: list[str]
    only_after: list[str]
    repeated: list[str]
    limits: list[LimitOutcome]

    @property
    def status(self) -> int:
        """1 when a limit is missed, else 0."""
        return int(any(outcome.missed for outcome in self.limits))


def load(paths: Sequence[Path]) -> list[Measured]:
    """The results of these paths, each once, in their order. Errors as `collection.load_all`."""
    by_digest: dict[tuple[str, bool], Measured] = {}
    for result in (result for path in paths for result in kinds.load(path)):
        known = by_digest.get((result.digest, result.altered)) or replace(result, copies=0)
        by_digest[result.digest, result.altered] = replace(known, copies=known.copies + 1)
    return list(by_digest.values())


def repeated_results(results: Sequence[Measured]) -> list[str]:
    """The results that were named more than once: 'cdb · naive · 4 nodes × 1 rank, named 3 times'."""
    return [f"{describe(each)}, named {each.copies} times" for each in results if each.copies > 1]


def changes(
    before: Sequence[Measured],
    after: Sequence[Measured],
    names: Sequence[str],
    limits: Sequence[ChangeLimit],
    *,
    label_unequal: bool,
) -> Changes:
    """What changed from `before` to `after`, in the metrics of these names.

    Raises UsageError where nothing can be paired, where a pair did unequal work, unless `label_unequal`, and for a
    limit that cannot be judged. With limits every result of `before` needs a partner: a limit must not hold because a
    measurement is missing.
    """
    matched, only_before, only_after = pairs(before, after)
    if limits:
        require_whole([*before, *after])
        _require_partners(matched, only_before)
    compared = [_pair_changes(pair, names, label_unequal=label_unequal) for pair in matched]
    outcomes = [
        outcome(limit, title(each.after), metric_change(limit.metric, pair.before, pair.after, paired=each.paired))
        for limit in limits
        for pair, each in zip(matched, compared, strict=True)
    ]
    return Changes(
        pairs=compared,
        only_before=[describe(measured) for measured in only_before],
        only_after=[describe(measured) for measured in only_after],
        repeated=[*repeated_results(before), *repeated_results(after)],
        limits=outcomes,
    )


def require_whole(measured: Sequence[Measured]) -> None:
    """DataError for a result that was altered: no limit can be held against it."""
    for each in measured:
        if each.altered:
            raise DataError(
                f"--fail-if cannot judge {describe(each)}: it was altered after it was written, as its digest "
                "does not match. Use the original files."
            )


def _require_partners(matched: Sequence[Pair], only_before: Sequence[Measured]) -> None:
    if only_before:
        raise UsageError(
            f"--fail-if: B has no result of {join_words([describe(measured) for measured in only_before])}, and a "
            "limit must not hold because a measurement is missing. Name results that match, or leave it out of A."
        )
    for pair in matched:
        if pair.before.digest == pair.after.digest:
            raise UsageError(
                f"--fail-if: A and B are the same result of {describe(pair.after)}. Name the new run as B."
            )


def pairs(before: Sequence[Measured], after: Sequence[Measured]) -> tuple[list[Pair], list[Measured], list[Measured]]:
    """The pairs of equal workload, reader and scale, then what is left of each side.

    A single result on each side makes a pair whatever it is. Raises UsageError where a side has two results of the same
    workload, reader and scale, or where there is no pair.
    """
    if len(before) == len(after) == 1:
        return [Pair(before[0], after[0])], [], []
    left, right = _by_key(before, "A"), _by_key(after, "B")
    if not left.keys() & right.keys():
        raise UsageError(
            f"A and B have no result of the same workload, reader and scale. A has {_all(before)}; B has "
            f"{_all(after)}. Name one result of each to compare different readers."
        )
    matched = [Pair(left[key], right[key]) for key in left if key in right]
    return (
        matched,
        [left[key] for key in left if key not in right],
        [right[key] for key in right if key not in left],
    )


def metric_change(name: str, before: Measured, after: Measured, *, paired: bool) -> MetricChange:
    """The change of a metric. Raises UsageError where it has no value in one of the results."""
    made = _metric_change(name, before, after, paired=paired)
    if made is None:
        raise UsageError(f"{name} has no value in {describe(before)}, or in {describe(after)}: leave it out.")
    return made


def metric_changes(before: Measured, after: Measured, names: Sequence[str], *, paired: bool) -> list[MetricChange]:
    """The changes of the metrics that both results have."""
    made = [_metric_change(name, before, after, paired=paired) for name in names]
    return [each for each in made if each is not None]


def change_of(name: str, before: Floats, after: Floats, *, paired: bool = False) -> MetricChange:
    """The change of a metric from its values of trials: shares in points, `share_*` by their means."""
    unit = (METRICS | CHECKPOINT_METRICS)[name].unit
    made = change(before, after, paired=paired, mean=name in SHARES, in_points=unit == SHARE)
    return MetricChange(metric=name, unit=unit, **asdict(made))


def outcome(limit: ChangeLimit, of: str, found: MetricChange) -> LimitOutcome:
    """The limit judged. Raises UsageError where the change has no interval."""
    return LimitOutcome(limit.text, of, found, limit.is_missed(found))


def require_equal(before: Measured, after: Measured, *, label: bool) -> list[str]:
    """Why the work of two results is not equal, to label them with. Raises UsageError, unless `label`."""
    reasons = unequal(before, after)
    if reasons and not label:
        names = list(dict.fromkeys((describe(before), describe(after))))
        head = (
            f"{names[0]} is not compared with {names[1]}" if len(names) > 1 else f"two of {names[0]} are not compared"
        )
        raise UsageError(
            f"{head}, because of: {'; '.join(reasons)}. Compare results of the same work, or give --unequal to see the "
            "changes all the same."
        )
    return reasons


def key(result: Measured) -> Key:
    """What pairs results: workload, reader and scale."""
    return result.workload, result.name, result.nodes, result.ranks_per_node


def describe(result: Measured) -> str:
    """'cdb · prefetch · 4 nodes × 1 rank', without control characters."""
    return title(side_of(result))


def title(side: Side) -> str:
    """The same of a side."""
    scale = f"{plural(side.nodes, 'node')} × {plural(side.ranks_per_node, 'rank')}"
    return printable(f"{side.workload} · {side.reader} · {scale}")


def side_of(result: Measured) -> Side:
    """A result as a side of a pair."""
    return Side(*key(result), len(result.seconds), result.created, result.digest, result.altered)


def _pair_changes(pair: Pair, names: Sequence[str], *, label_unequal: bool) -> PairChanges:
    before, after = pair.before, pair.after
    reasons = require_equal(before, after, label=label_unequal)
    paired = before.turn is not None and before.turn == after.turn
    return PairChanges(
        before=side_of(before),
        after=side_of(after),
        paired=paired,
        unequal=reasons,
        differs=differing(before, after),
        metrics=metric_changes(before, after, names, paired=paired),
        no_value=[name for name in names if before.values.get(name) is None or after.values.get(name) is None],
    )


def _metric_change(name: str, before: Measured, after: Measured, *, paired: bool) -> MetricChange | None:
    values = before.values.get(name), after.values.get(name)
    return None if values[0] is None or values[1] is None else change_of(name, values[0], values[1], paired=paired)


def _by_key(results: Sequence[Measured], side: str) -> dict[Key, Measured]:
    by_key: dict[Key, Measured] = {}
    for measured in results:
        if by_key.setdefault(key(measured), measured) is not measured:
            raise UsageError(
                f"{side} has several results of {describe(measured)}. Name the one that is meant; three or more "
                "runs, given as three or more arguments or as one pattern, are shown as a history."
            )
    return by_key


def _all(results: Sequence[Measured]) -> str:
    return ", ".join(dict.fromkeys(describe(measured) for measured in results))
