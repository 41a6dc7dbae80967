"""The checks of a result as other tools are told of them."""

from dlio_bench.reports.document.marks import ALTERED
from dlio_bench.reports.document.types import Check, Result


def checks(result: Result) -> list[Check]:
    """The result's own, and a failed one where its files were altered after they were written."""
    altered = [Check("files as written", False, "the digests in result.json", "others")]
    return [*result.checks, *(altered if ALTERED in result.marks else [])]


def failures(result: Result) -> int:
    """How many of them did not hold."""
    return sum(not check.ok for check in checks(result))
