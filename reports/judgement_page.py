"""What the page shows of a judgement: each limit beside what was found."""

from msgspec import Struct

from dlio_bench.reports.formatting import NOTHING, interval, number
from dlio_bench.reports.judgement import Finding, Judgement
from dlio_bench.reports.judgement_text import UNDECIDED, asked, headline
from dlio_bench.reports.metrics import METRICS
from dlio_bench.reports.types import Metric


class Limit(Struct, frozen=True):
    """One limit of one result, in words. outcome: 'holds', 'MISSED', 'undecided' or 'not judged', which
    `reason` explains."""

    outcome: str
    workload: str
    reader: str
    scale: str
    metric: str
    limit: str
    statistic: str
    found: str
    distance: str
    interval: str
    reason: str

    @property
    def of(self) -> str:
        """What it is of: 'cdb prefetch 8x4'."""
        return f"{self.workload} {self.reader} {self.scale}"


class Judged(Struct, frozen=True):
    """A judgement in words. headline: 'EXPLORE, FAIL'; verdict: its last word, for its colour."""

    headline: str
    verdict: str
    reasons: tuple[str, ...]
    limits: tuple[Limit, ...]
    file: str
    sha256: str
    asked: str


def judged(judgement: Judgement) -> Judged:
    """What the page shows of it; limits that were missed come first, those that do not count are left out."""
    findings = sorted(
        (finding for finding in judgement.findings if finding.chosen), key=lambda finding: finding.ok is not False
    )
    limits = judgement.limits
    return Judged(
        headline(judgement),
        judgement.verdict,
        tuple(judgement.reasons),
        tuple(map(_limit, findings)),
        f"{limits.name}{f', version {limits.version}' if limits.version else ''}",
        limits.sha256,
        "; ".join(asked(limits.settings)),
    )


def _limit(finding: Finding) -> Limit:
    known = finding.found is not None and finding.bound
    return Limit(
        UNDECIDED if finding.undecided else "not judged" if finding.ok is None else "holds" if finding.ok else "MISSED",
        finding.workload,
        finding.reader,
        finding.scale,
        METRICS[finding.metric].title if finding.metric in METRICS else finding.metric,
        finding.limit,
        finding.statistic,
        number(Metric(finding.found, finding.unit, None)),
        f"{100 * ((finding.found or 0.0) / finding.bound - 1):+.2g} %" if known else NOTHING,
        interval(Metric(finding.median, finding.unit, finding.interval)),
        finding.reason or "",
    )
