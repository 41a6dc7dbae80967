"""Class, verdict and exit status of results. Limits are not judged yet, so a sound result is EXPLORE, verdict none."""

from collections.abc import Iterable, Sequence
from typing import Literal

from dlio_bench.reports.types import Check, Class, Result

NO_LIMITS: Literal["none"] = "none"  # the verdict until limits are judged
HEADLINES = ("INVALID", "FAIL", "EXPLORE", "ACCEPTANCE", "PASS")  # gravest first
STATUS_GRAVEST_FIRST = (4, 3, 5, 1, 0)
CONTENT_CHECK = "content"

PASS, LIMIT_MISSED, INVALID, NOTHING_MEASURED, CONTENT_FAILED = 0, 1, 3, 4, 5


def classify(checks: Iterable[Check], marks: Iterable[str]) -> Class:
    """INVALID when any check failed, else EXPLORE: ACCEPTANCE is given only against limits."""
    return "INVALID" if any(not check.ok for check in checks) else cap("EXPLORE", marks)


def cap(judged: Class, marks: Iterable[str]) -> Class:
    """The class once marks are heeded: TINY shrinks the samples, so it is never better than EXPLORE."""
    return "EXPLORE" if judged == "ACCEPTANCE" and "TINY" in marks else judged


def failed(result: Result) -> list[Check]:
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
    broken = failed(result)
    if broken:
        names = ", ".join(check.name for check in broken)
        return f"{len(broken)} of {len(result.checks)} checks failed ({names}): measured, but not to be used"
    if "TINY" in result.marks:
        return "every check held; TINY shrinks the samples, so this shows that it runs, not how fast"
    return "every check held; no limits were given, so there is no verdict"


def exit_status(results: Sequence[Result]) -> int:
    """The gravest status of all results, by 4 > 3 > 5 > 1 > 0; 4 when there is no result at all."""
    statuses = {_status(result) for result in results} or {NOTHING_MEASURED}
    return min(statuses, key=STATUS_GRAVEST_FIRST.index)


def _status(result: Result) -> int:
    broken = failed(result)
    if any(check.name != CONTENT_CHECK for check in broken):
        return INVALID
    if broken:
        return CONTENT_FAILED
    return LIMIT_MISSED if result.verdict == "fail" else PASS
