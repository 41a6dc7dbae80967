"""Changes and histories as text for a terminal, at most 80 columns: limits first, then the answer, then the numbers."""

from collections.abc import Iterable, Iterator, Sequence

from dlio_bench.reports.comparing.changes import Changes, LimitOutcome, MetricChange, PairChanges, title
from dlio_bench.reports.comparing.difference import Change
from dlio_bench.reports.comparing.differing import Differing
from dlio_bench.reports.comparing.trend import History, MetricTrend, Trend
from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.numbers.intervals import MIN_TRIALS
from dlio_bench.reports.view.formatting import NOTHING, format_times, join_words, number, plural
from dlio_bench.reports.view.formatting import interval as interval_of
from dlio_bench.reports.view.table import table_lines
from dlio_bench.wrapping import printable, wrap

NAME = 21  # columns
HEADS = ("before", "after", "change", "95 %", "difference")
BARS = "▁▂▃▄▅▆▇█"
FEW, MANY_RUNS = 6, 12  # lines of what differs, runs of a table, without --verbose
ELAPSED = "elapsed_seconds"


def render_changes(changes: Changes, asked: Sequence[str], *, verbose: bool) -> str:
    """The text of pairs, ending in a newline. asked: the metrics that are missed if they have no value."""
    lines = [*_limits(changes.limits), *_overview(changes.pairs)]
    for pair in changes.pairs:
        lines += [*([""] if lines else []), *_pair(pair, asked, verbose=verbose)]
    lines += _repeated_lines(changes.repeated)
    for side, left in (("A", changes.only_before), ("B", changes.only_after)):
        lines += wrap(join_words(left), f"only in {side}  ") if left else []
    return _plain(lines)


def render_trend(trend: Trend, asked: Sequence[str], *, verbose: bool) -> str:
    """The text of histories, ending in a newline. asked: the metrics that get a table."""
    lines = [*_limits(trend.limits)]
    for history in trend.histories:
        lines += [*([""] if lines else []), *_history(history, asked, verbose=verbose)]
    if trend.left_out:
        lines += wrap(join_words(trend.left_out), "too few runs for a history  ")
    lines += _repeated_lines(trend.repeated)
    return _plain(lines)


def _repeated_lines(named: Sequence[str]) -> list[str]:
    return wrap("; ".join(named), "counted once  ") if named else []


def _metrics_without_value(no_value: Sequence[str], asked: Sequence[str], which: str) -> list[str]:
    """The metrics that were asked for and have no value."""
    missed = [name for name in asked if name in no_value]
    return (
        wrap(f"{join_words(missed)} {'has' if len(missed) == 1 else 'have'} no value in {which}", "  ")
        if missed
        else []
    )


def _limits(outcomes: Sequence[LimitOutcome]) -> Iterator[str]:
    """What became of the limits; the missed ones first."""
    if outcomes:
        missed = sum(outcome.missed for outcome in outcomes)
        of = f"{len(outcomes)} limit{'s' * (len(outcomes) > 1)} on changes"
        yield f"FAIL  {missed} of {of} missed" if missed else f"PASS  {of} held"
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.missed):
        where = "lies wholly beyond it" if outcome.missed else "does not lie wholly beyond it"
        text = f"{outcome.limit}: {outcome.of}: {_change(outcome.change)}, 95 % {_interval(outcome.change)}, {where}"
        yield from wrap(text, f"  {'missed' if outcome.missed else 'held':<8}")


def _pair(pair: PairChanges, asked: Sequence[str], *, verbose: bool) -> Iterator[str]:
    before, after = pair.before, pair.after
    names = title(before) if title(before) == title(after) else f"{title(before)} -> {title(after)}"
    trials = f"{before.trials} and {after.trials} trials{', paired' if pair.paired else ''}"
    yield from wrap(f"{names} · {trials}")
    yield from _warnings(pair)
    yield from wrap(_answer_sentence(pair), "  ", 2)
    yield ""
    if pair.metrics:
        rows = [_row(metric.metric, metric) for metric in pair.metrics]
        yield from table_lines(["metric", *HEADS], rows, words=HEADS[-1:])
    yield from _metrics_without_value(pair.no_value, asked, "A or in B")
    yield from wrap(_method(pair.metrics), "  ", 2)
    yield from _differs(pair.differs, verbose=verbose)


def _overview(pairs: Sequence[PairChanges]) -> Iterator[str]:
    """The elapsed times of several pairs in one table."""
    rows = [(pair.after, metric) for pair in pairs for metric in pair.metrics if metric.metric == ELAPSED]
    if len(rows) > 1:
        named = [_row(f"{side.reader} {side.nodes}x{side.ranks_per_node}", metric) for side, metric in rows]
        yield from table_lines([ELAPSED, *HEADS], named, words=HEADS[-1:])


def _row(name: str, metric: MetricChange) -> list[str]:
    values = [_value(metric, value) for value in (metric.before, metric.after)]
    return [name, *values, _change(metric), _interval(metric), _verdict_word(metric)]


def _warnings(pair: PairChanges) -> Iterator[str]:
    for name, side in (("A", pair.before), ("B", pair.after)):
        if side.altered:
            yield from wrap(f"{name} was altered after it was written: its digest does not match", "  ALTERED  ")
    yield from _unequal(pair.unequal)


def _unequal(reasons: Sequence[str]) -> Iterator[str]:
    for position, reason in enumerate(reasons):
        yield from wrap(reason, f"  {'' if position else 'UNEQUAL WORK':<14}")


def _answer_sentence(pair: PairChanges) -> str:
    """One sentence on the elapsed time, or on the first metric that was asked for."""
    first = next((metric for metric in pair.metrics if metric.metric == ELAPSED), None)
    if first is None or first.change is None:
        return "The metrics asked for:"
    if first.interval is None:
        return f"B takes {format_times(1 + first.change)[0]} × the time of A; no interval: {_too_few(first)}."
    ratio, low, high = format_times(1 + first.change, 1 + first.interval[0], 1 + first.interval[1])
    if first.shown:
        return f"B takes {ratio} × the time of A (95 % {low}-{high})."
    return f"No difference shown in elapsed time: B takes {ratio} × that of A (95 % {low}-{high})."


def _method(metrics: Sequence[MetricChange]) -> str:
    if not metrics:
        return "The two results have none of these metrics in common."
    first = metrics[0]
    if min(first.trials) < MIN_TRIALS:
        return f"No interval: {_too_few(first)}."
    said = "medians of the trials; bootstrap interval of the change"
    test = "Wilcoxon's test of the pairs" if first.paired else "Mann-Whitney's rank test"
    tested = f"{test} at 5 %" if first.p is not None else f"too few trials for {test} to reach 5 %"
    return f"{said}; {tested}; pts: percentage points"


def _too_few(change: Change) -> str:
    return f"{change.trials[0]} and {change.trials[1]} trials, where {MIN_TRIALS} on each side are needed"


def _differs(differs: Sequence[Differing], *, verbose: bool) -> Iterator[str]:
    shown = differs if verbose else differs[:FEW]
    for position, each in enumerate(shown):
        yield from wrap(f"{each.what}: {each.before} -> {each.after}", f"  {'' if position else 'differs':<9}")
    if len(differs) > len(shown):
        yield f"  {'':<9}and {len(differs) - len(shown)} more with --verbose"


def _history(history: History, asked: Sequence[str], *, verbose: bool) -> Iterator[str]:
    runs = history.runs
    yield from wrap(f"{history.of} · {plural(len(runs), 'run')}")
    yield from _unequal(sorted({reason for run in runs for reason in run.unequal}))
    if changed := [str(position + 1) for position, run in enumerate(runs) if run.altered]:
        text = f"run {join_words(changed)}: altered after it was written: the digest does not match"
        yield from wrap(text, "  ALTERED  ")
    for metric in history.metrics:
        yield from _line(metric, history)
    yield from _metrics_without_value(history.no_value, asked, "one of the runs")
    for metric in (metric for metric in history.metrics if metric.metric in asked):
        yield ""
        yield from _table(metric, history, verbose=verbose)


def _line(trend: MetricTrend, history: History) -> Iterator[str]:
    """A metric in one line: its course, its steps, and the last run against the earlier ones."""
    values = [point.value for point in trend.points]
    steps = [
        f"{_signed(step.change, in_points=trend.last.in_points)} from run {step.position + 1} on ({_day(step.created)})"
        for step in trend.steps
    ]
    said = f"{spark(values)}  {join_words(steps) if steps else 'no step'}; last run {_change(trend.last)}"
    interval = (
        f" (95 % {_interval(trend.last)}; {_evidence_word(trend.last)})" if trend.last.interval else " (no interval)"
    )
    yield from wrap(said + interval, f"  {trend.metric:<{NAME}} ")
    if trend.metric == ELAPSED:
        for step in trend.steps:
            texts = [f"{each.what}: {each.before} -> {each.after}" for each in history.runs[step.position].differs]
            head = f"    run {step.position + 1} differs in "
            yield from wrap("; ".join(texts) or "nothing that the results tell", head, 6)


def _table(trend: MetricTrend, history: History, *, verbose: bool) -> Iterator[str]:
    starts = {step.position for step in trend.steps}
    rows = list(enumerate(zip(trend.points, history.runs, strict=True)))
    table: list[list[str]] = []
    if not verbose and len(rows) > MANY_RUNS:
        table = [[f"... the first {len(rows) - MANY_RUNS} with --verbose"]]
        rows = rows[-MANY_RUNS:]
    for position, (point, run) in rows:
        metric = Metric(point.value, trend.unit, point.ci)
        step = "step" if position in starts else ""
        table.append([str(position + 1), run.created[:19], number(metric), interval_of(metric), step])
    yield from table_lines(["run", "created", trend.metric, "interval", ""], table, words=("created", "interval", ""))


def spark(values: Sequence[float]) -> str:
    """A line of bars from the least to the greatest value; of equal values, flat."""
    low, high = min(values), max(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1)) if high > low else 0] for value in values)


def _verdict_word(change: Change) -> str:
    return NOTHING if change.interval is None else _evidence_word(change)


def _evidence_word(change: Change) -> str:
    return "shown" if change.shown else "not shown"


def _change(change: Change) -> str:
    return _signed(change.change, in_points=change.in_points)


def _signed(change: float | None, *, in_points: bool) -> str:
    """-0.123 -> '-12.3 %', of shares '-12.3 pts'."""
    return NOTHING if change is None else f"{_percent(change)} {'pts' if in_points else '%'}"


def _interval(change: Change) -> str:
    """'-14.1 … -9.8', in the unit of the change."""
    return "no interval" if change.interval is None else " … ".join(map(_percent, change.interval))


def _percent(change: float) -> str:
    percent = round(100 * change, 1) + 0.0  # + 0.0: no minus before a zero
    if abs(percent) < 100:
        return f"{percent:+.1f}"
    if abs(percent) < 9999.5:
        return f"{percent:+.0f}"
    return f"{percent:+.0e}".replace("e+0", "e").replace("e+", "e")  # columns stay apart


def _value(metric: MetricChange, value: float) -> str:
    return number(Metric(value, metric.unit, None))


def _day(created: str) -> str:
    return created[:10]


def _plain(lines: Iterable[str]) -> str:
    """Lines without control characters, which a file may hold."""
    return "".join(f"{printable(line)}\n" for line in lines)
