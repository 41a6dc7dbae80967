"""A judgement as text for a terminal, at most 80 columns: verdict first, then every limit, then what was not judged."""

from collections.abc import Iterator, Sequence

from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.judging.judgement import Finding, Judged, Judgement
from dlio_bench.reports.judging.limits import Settings
from dlio_bench.reports.view.formatting import NOTHING, number, plural, short_interval
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes, format_percent, format_seconds
from dlio_bench.wrapping import WIDTH, wrap

HEAD = 11  # columns, as of the text of a result
LABEL = 13
UNDECIDED = "undecided"
SIGNS = {"at least": "≥", "at most": "≤"}


def headline(entry: Judgement | Judged) -> str:
    """'ACCEPTANCE, PASS', 'EXPLORE, FAIL', 'INVALID', or the class alone of a result that no limit is for."""
    if entry.verdict in ("invalid", "none"):
        return "INVALID" if entry.verdict == "invalid" else entry.class_
    return f"{entry.class_}, {entry.verdict.upper()}"


def render(judgement: Judgement) -> str:
    """The text, ending in a newline. It names no machine and no folder but those in the results."""
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: Judgement) -> Iterator[str]:
    yield headline(judgement)
    for reason in judgement.reasons:
        yield from wrap(reason, "  ")
    for judged in judgement.results:
        if judged.verdict != "none":
            yield from _result(judged)
    for title, chosen in (("no result of", True), ("not chosen", False)):
        if absent := [finding for finding in judgement.missing if finding.chosen == chosen]:
            yield ""
            yield from _list(title, [f"[{finding.table}] {finding.metric} {_limit(finding)}" for finding in absent])
    if judgement.unreadable:
        yield ""
        yield from _list("unreadable", [f"{entry.file}: {entry.reason}" for entry in judgement.unreadable])
    yield ""
    if others := [judged for judged in judgement.results if judged.verdict == "none"]:
        yield from _list(
            "not judged", [f"{_judged_name(judged)} ({judged.class_}): no limit is for it" for judged in others]
        )
    version = f", version {judgement.limits.version}" if judgement.limits.version else ""
    yield from _list("limits", [f"{judgement.limits.name}{version}"])
    yield from _list("sha256", [judgement.limits.sha256])
    yield from _list("asked of all", ["; ".join(requirement_lines(judgement.limits.settings))])


def _result(judged: Judged) -> Iterator[str]:
    yield ""
    name, head = _judged_name(judged), headline(judged)
    yield f"  {name}{head:>{WIDTH - 2 - len(name)}}" if len(name) + len(head) < WIDTH - 2 else f"  {name}  {head}"
    for reason in judged.reasons:
        yield from wrap(reason.text, f"    {reason.rule}: ", 6)
    heads = ["", "metric", "limit", "found", _covering(judged)]
    rows = [
        [
            _outcome(finding),
            finding.metric,
            _limit(finding),
            _format_value(finding, finding.found),
            short_interval(Metric(finding.median, finding.unit, finding.interval)),
        ]
        for finding in judged.findings
    ]
    if rows:
        yield from table_lines(heads, rows, words=heads)


def _outcome(finding: Finding) -> str:
    return UNDECIDED if finding.undecided else NOTHING if finding.ok is None else "ok" if finding.ok else "MISSED"


def _covering(judged: Judged) -> str:
    """'94 % interval', or the least of several."""
    known = [finding.coverage for finding in judged.findings if finding.coverage is not None]
    return f"{format_percent(min(known))} interval" if known else "interval"


def _limit(finding: Finding) -> str:
    side = finding.side.replace("_", " ")
    return f"{SIGNS[side]} {finding.limit.removeprefix(side).strip()}"


def _format_value(finding: Finding, value: float | None) -> str:
    """A value in the metric's unit; in all digits where it would read as the limit itself that it misses."""
    text = number(Metric(value, finding.unit, None))
    if finding.ok is False and value is not None and text == number(Metric(finding.bound, finding.unit, None)):
        percent = 100 * (value / finding.bound - 1) if finding.bound else 0.0
        return f"{text} ({percent:+.2g} %) "
    return f"{text} "


def _judged_name(judged: Judged) -> str:
    return f"{judged.workload} · {judged.reader} · {judged.scale}"


def _list(label: str, entries: Sequence[str]) -> Iterator[str]:
    for position, entry in enumerate(entries):
        yield from wrap(entry, f"  {'' if position else label:<{LABEL}}")


def requirement_lines(settings: Settings) -> Iterator[str]:
    """What the limits ask of every result, in words."""
    yield f"at least {plural(settings.trials, 'trial')}"
    if settings.min_seconds:
        yield f"{format_seconds(settings.min_seconds)} a trial"
    if settings.min_steps > 1:
        yield f"{plural(settings.min_steps, 'step')} a trial"
    if settings.cache:
        yield f"cache {settings.cache}"
    if settings.dataset_to_memory is not None:
        yield f"dataset {settings.dataset_to_memory:g} times the memory of all hosts, or a cache that was seen cold"
    if settings.node_bandwidth is not None:
        yield f"at most {format_bytes(settings.node_bandwidth)}/s into a node"
    if settings.allow_marks:
        yield f"allowed marks {', '.join(settings.allow_marks)}"
