"""Class, verdict and exit status: of a result by itself, and of results against limits."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from dlio_bench.reports.document.marks import ALTERED, TINY, capping
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.types import Check, Class, Result
from dlio_bench.reports.judging.admission import CONTENT_CHECK, TOO_FEW, WAS_ALTERED
from dlio_bench.reports.judging.judgement import Finding, Judged, Judgement, LimitsFile, Reason, Unreadable, Verdict
from dlio_bench.reports.judging.limits import UNFAVOURABLE, Limit, Limits
from dlio_bench.reports.numbers.intervals import coverage
from dlio_bench.reports.numbers.metrics import SHARES
from dlio_bench.reports.view.formatting import join_words, plural
from dlio_bench.wrapping import printable

NO_LIMITS: Literal["none"] = "none"  # the verdict of a result by itself
HEADLINES = ("INVALID", "FAIL", "EXPLORE", "ACCEPTANCE", "PASS")  # gravest first
CLASSES: tuple[Class, ...] = ("INVALID", "EXPLORE", "ACCEPTANCE")  # gravest first
STATUS_GRAVEST_FIRST = (4, 3, 5, 1, 6, 0)
DIGITS = 10  # of numbers in a judgement: the last ones may differ between processors

PASS, LIMIT_MISSED, INVALID, NOTHING_MEASURED, CONTENT_FAILED, UNDECIDED = 0, 1, 3, 4, 5, 6


# ---- a result by itself


def classify(checks: Iterable[Check]) -> Class:
    """INVALID when any check failed, else EXPLORE: ACCEPTANCE is given only against limits."""
    return "INVALID" if any(not check.ok for check in checks) else "EXPLORE"


def failed_checks(result: Result) -> list[Check]:
    """The checks that did not hold, in their order."""
    return [check for check in result.checks if not check.ok]


def headline(result: Result) -> str:
    """The one word a result opens with: INVALID, or its verdict where there is one, or its class."""
    if result.class_ == "INVALID" or result.verdict == NO_LIMITS:
        return result.class_
    return result.verdict.upper()


def gravest_headline(results: Sequence[Result]) -> str:
    """The word for several results together."""
    return min((headline(result) for result in results), key=HEADLINES.index)


def reason(result: Result) -> str:
    """One sentence: why the result has the class and verdict it has."""
    broken = failed_checks(result)
    if ALTERED in result.marks:
        return f"its digest does not match: {WAS_ALTERED}"
    if broken:
        names = ", ".join(check.name for check in broken)
        return f"{len(broken)} of {len(result.checks)} checks failed ({names}): measured, but not to be used"
    if TINY in result.marks:
        return "all checks passed; TINY shrinks the samples, so this shows that it runs, not how fast"
    return "all checks passed; no limits were given, so there is no verdict"


def exit_status(results: Sequence[Result]) -> int:
    """The gravest status of all results, by 4 > 3 > 5 > 1 > 6 > 0; 4 when there is no result at all."""
    return gravest([_status(result) for result in results] or [NOTHING_MEASURED])


def gravest(statuses: Iterable[int]) -> int:
    """The gravest exit status, by 4 > 3 > 5 > 1 > 6 > 0."""
    return min(statuses, key=STATUS_GRAVEST_FIRST.index)


def _status(result: Result) -> int:
    broken = failed_checks(result)
    if any(check.name != CONTENT_CHECK for check in broken):
        return INVALID
    if broken:
        return CONTENT_FAILED
    return LIMIT_MISSED if result.verdict == "fail" else PASS


def required_status(judgement: Judgement, *, acceptance: bool) -> int:
    """The exit status of a judgement; at least 1 where the class ACCEPTANCE is required and it has another."""
    short = acceptance and judgement.class_ != "ACCEPTANCE"
    return gravest([judgement.status, LIMIT_MISSED if short else PASS])


# ---- results against limits


def judge(
    measured: Iterable[Measured], limits: Limits, unreadable: Sequence[Unreadable] = (), *, partial: bool = False
) -> Judgement:
    """Judge results, each against every limit that covers it. The order of the arguments does not matter.

    unreadable: files without a result, which make the judgement INVALID. partial: limits of which there is no result do
    not count (a run measures a part of what a contract names); else they make it INVALID.
    """
    once = {(result.digest, result.altered): result for result in measured}
    results = sorted((_judge_result(result, limits) for result in once.values()), key=_order)
    covered = {(finding.table, finding.metric, finding.side) for judged in results for finding in judged.findings}
    missing = [
        _missing(limit, chosen=not partial)
        for limit in limits.limits
        if (limit.table, limit.metric, limit.side) not in covered
    ]
    missing.sort(key=lambda finding: (*_place(finding), finding.metric, finding.side))
    files = sorted(unreadable, key=lambda entry: (entry.file, entry.reason))
    counted = [judged for judged in results if judged.verdict != "none"]
    flawed = any(finding.chosen for finding in missing) or bool(files) or not counted
    status = gravest([judged.status for judged in counted] + [INVALID] * flawed)
    verdicts: dict[int, Verdict] = {PASS: "pass", LIMIT_MISSED: "fail", UNDECIDED: "undecided"}
    classes: list[Class] = [judged.class_ for judged in counted]
    return Judgement(
        verdict=verdicts.get(status, "invalid"),
        class_="INVALID" if flawed else min(classes, key=CLASSES.index),
        status=status,
        reasons=list(_reasons(results, missing, files)),
        limits=LimitsFile(name=limits.name, version=limits.version, sha256=limits.sha256, settings=limits.settings),
        results=results,
        missing=missing,
        unreadable=files,
    )


def _reasons(results: Sequence[Judged], missing: Sequence[Finding], unreadable: Sequence[Unreadable]) -> Iterator[str]:
    """Why the judgement is what it is, gravest first."""
    counted = [judged for judged in results if judged.verdict != "none"]
    findings = [finding for judged in counted for finding in judged.findings]
    findings = [finding for finding in findings if finding.undecided or finding.ok is not None]
    if unreadable:
        files = join_words([one.file for one in unreadable])
        yield f"{plural(len(unreadable), 'file')} without a readable result: {files}"
    if invalid := [judged for judged in counted if judged.verdict == "invalid"]:
        rules = dict.fromkeys(reason.rule for judged in invalid for reason in judged.reasons)
        yield f"{len(invalid)} of {plural(len(counted), 'result')} may not be used: {', '.join(rules)}"
    if absent := [finding for finding in missing if finding.chosen]:
        yield f"{plural(len(absent), 'limit')} without a result: all that the limits name must be measured"
    elif not counted:
        yield "no limit is for what was measured"
    missed, undecided = ([one for one in findings if one.ok is ok] for ok in (False, None))
    if missed:
        yield f"{len(missed)} of {plural(len(findings), 'limit')} missed"
    if undecided:
        yield f"{len(undecided)} of {plural(len(findings), 'limit')} undecided: more trials may decide (--trials)"
    if findings and not missed and not undecided:
        yield f"{len(findings)} of {plural(len(findings), 'limit')} held"
    explored = [judged for judged in counted if judged.class_ == "EXPLORE"]
    if capped := list(dict.fromkeys(mark for judged in explored for mark in judged.capped if mark != TINY)):
        yield f"EXPLORE at best with {join_words(capped)}, which allow_marks does not name"
    if any(TINY in judged.capped for judged in explored):
        yield f"EXPLORE at best with {TINY}, which allow_marks may not name: shrunken samples can accept no system"
    places = [_place(judged) for judged in counted]
    for judged in {_place(judged): judged for judged in counted if places.count(_place(judged)) > 1}.values():
        yield f"{_entry_name(judged)} has {places.count(_place(judged))} results: each must hold every limit"


def _judge_result(subject: Measured, limits: Limits) -> Judged:
    known = {*subject.quantities, *subject.derived}
    covering = [
        limit
        for limit in limits.limits
        if limit.metric in known and limit.covers(subject.workload, subject.names, subject.scale)
    ]
    findings = [_finding(limit, subject) for limit in covering]
    findings.sort(key=lambda finding: (finding.metric, finding.side, finding.table))
    reasons = subject.reasons(limits.settings) + [
        Reason("metrics", f"{finding.metric} has no {'interval' if finding.median is not None else 'value'} in it")
        for finding in findings
        if finding.found is None and (finding.median is None or len(subject.seconds) >= limits.settings.trials)
    ]
    reasons = [Reason(printable(reason.rule), printable(reason.text)) for reason in reasons]
    too_few = [reason.rule for reason in reasons] == [TOO_FEW]
    if too_few:
        findings = [replace(finding, ok=None, undecided=True, reason=reasons[0].text) for finding in findings]
    elif reasons:
        findings = [
            replace(finding, ok=None, undecided=False, reason="its result may not be used") for finding in findings
        ]
    capped = capping(subject.marks, limits.settings.allow_marks)
    verdict: Verdict = "pass" if findings else "none"
    status = PASS
    if reasons and not too_few:
        status = CONTENT_FAILED if all(reason.rule == CONTENT_CHECK for reason in reasons) else INVALID
        # of an altered file nobody knows what limits are for it
        verdict = "invalid" if findings or subject.altered else "none"
    elif any(finding.ok is False for finding in findings):
        status, verdict = LIMIT_MISSED, "fail"
    elif any(finding.undecided for finding in findings):
        status, verdict = UNDECIDED, "undecided"
    return Judged(
        workload=printable(subject.workload),
        reader=printable(subject.name),
        scale=subject.scale,
        digest=subject.digest,
        created=printable(subject.created),
        hosts=sorted({printable(host) for host in subject.rank_hosts}),
        trials=len(subject.seconds),
        seconds=_round(sum(subject.seconds)),
        marks=[printable(mark) for mark in subject.marks],
        capped=[printable(mark) for mark in capped],
        class_="EXPLORE" if too_few or (capped and not reasons) else "INVALID" if reasons else "ACCEPTANCE",
        verdict=verdict,
        status=status,
        reasons=reasons,
        findings=findings,
    )


def _finding(limit: Limit, subject: Measured) -> Finding:
    metric = {**subject.metrics, **subject.derived}[limit.metric]
    interval = None if metric.ci is None else (_round(metric.ci[0]), _round(metric.ci[1]))
    median = None if metric.value is None else _round(metric.value)
    found = median
    if limit.statistic != "median":
        found = None if interval is None else interval[limit.statistic == "ci_high"]
    holds = [None if end is None else _is_met(limit, end) for end in (found, *(interval or ()))]
    undecided = limit.statistic == UNFAVOURABLE[limit.side] and len({*holds}) > 1
    return replace(
        _missing(limit, chosen=True),
        reader=printable(subject.name),
        scale=subject.scale,
        found=found,
        median=median,
        interval=interval,
        coverage=None if interval is None else coverage(len(subject.seconds), mean=limit.metric in SHARES),
        ok=None if undecided else holds[0],
        undecided=undecided,
        reason="the limit lies within the interval" if undecided else None,
    )


def _is_met(limit: Limit, value: float) -> bool:
    bound = _round(limit.bound)
    return value >= bound if limit.side == "at_least" else value <= bound


def _missing(limit: Limit, *, chosen: bool) -> Finding:
    """The finding of a limit without a result."""
    return Finding(
        workload=limit.workload,
        reader=limit.reader,
        scale=limit.scale,
        table=limit.table,
        metric=limit.metric,
        unit=limit.unit,
        limit=f"{limit.side.replace('_', ' ')} {limit.text}",
        side=limit.side,
        bound=_round(limit.bound),
        statistic=limit.statistic,
        ok=None,
        reason="there is no result of it" if chosen else "not chosen in this run",
        chosen=chosen,
    )


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _order(judged: Judged) -> tuple[object, ...]:
    return (*_place(judged), judged.digest, judged.marks)


def _place(entry: Judged | Finding) -> tuple[str, int, str, str]:
    """Sorts by workload, then nodes x ranks, then reader."""
    nodes, _, ranks = entry.scale.partition("x")
    return entry.workload, int(nodes) * 10**7 + int(ranks) if ranks else -1, entry.scale, entry.reader


def _entry_name(entry: Judged | Finding) -> str:
    return f"{entry.workload} · {entry.reader} · {entry.scale}"
