"""What the page shows of a judgement: each limit beside what was found."""

from msgspec import Struct

from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.judging.judgement import Finding, Judgement
from dlio_bench.reports.judging.judgement import Judged as Result
from dlio_bench.reports.judging.limits import JUDGED
from dlio_bench.reports.judging.text import UNDECIDED, headline, requirement_lines
from dlio_bench.reports.view.formatting import interval, number, plural

MISSED = "MISSED"
GRAVEST = {"invalid": 0, "fail": 1, "undecided": 2}
STATISTICS = {"median": "median", "ci_low": "lower end", "ci_high": "upper end"}

MEANS = {  # what a headline says of the system
    "ACCEPTANCE, PASS": "Every limit holds, by results that count for an acceptance.",
    "EXPLORE, PASS": "Every limit holds, but not by results that count for an acceptance.",
    "ACCEPTANCE, FAIL": "At least one limit is missed.",
    "EXPLORE, FAIL": "At least one limit is missed, by results that count for no acceptance.",
    "ACCEPTANCE, UNDECIDED": "At least one limit lies within the interval of what was found: more trials decide it.",
    "EXPLORE, UNDECIDED": "At least one limit lies within the interval of what was found: more trials decide it.",
    "INVALID": "Nothing is decided: results may not be used, or are missing.",
}


class Limit(Struct, frozen=True):
    """One limit of one result, in words. outcome: 'holds', 'MISSED', 'undecided' or 'not judged', which
    `reason` explains."""

    outcome: str
    of: str
    metric: str
    limit: str
    statistic: str
    found: str
    interval: str
    reason: str


class Group(Struct, frozen=True):
    """A result, 'cdb, prefetch, 8 nodes x 4 ranks', or a limit without one. headline: its class and verdict."""

    of: str
    digest: str
    headline: str
    reasons: tuple[str, ...]
    limits: tuple[Limit, ...]


class Judged(Struct, frozen=True):
    """A judgement in words. headline: 'EXPLORE, FAIL'; means: what that says of the system; groups: gravest first."""

    headline: str
    means: str
    reasons: tuple[str, ...]
    groups: tuple[Group, ...]
    file: str
    sha256: str
    asked: str
    meanings: str

    @property
    def limits(self) -> list[Limit]:
        """All limits; those that were missed come first."""
        found = [limit for group in self.groups for limit in group.limits]
        return sorted(found, key=lambda limit: limit.outcome != MISSED)


def page_groups(judgement: Judgement) -> Judged:
    """What the page shows of it; limits that do not count are left out."""
    groups = [
        Group(
            _group_name(entry),
            entry.digest,
            headline(entry),
            tuple(f"{reason.rule}: {reason.text}" for reason in entry.reasons),
            tuple(map(_limit, sorted(entry.findings, key=lambda finding: finding.ok is not False))),
        )
        for entry in judgement.results
        if entry.verdict != "none"
    ]
    groups += [
        Group(_group_name(finding), "", "INVALID", (f"{finding.reason}",), (_limit(finding),))
        for finding in judgement.missing
        if finding.chosen
    ]
    groups += [Group(entry.file, "", "INVALID", (entry.reason,), ()) for entry in judgement.unreadable]
    limits = judgement.limits
    return Judged(
        headline(judgement),
        MEANS.get(headline(judgement), ""),
        tuple(judgement.reasons),
        tuple(sorted(groups, key=lambda group: GRAVEST.get(colour_class(group.headline), len(GRAVEST)))),
        f"{limits.name}{f', version {limits.version}' if limits.version else ''}",
        limits.sha256,
        "; ".join(requirement_lines(limits.settings)),
        "; ".join(dict.fromkeys(map(_metric_meaning, judgement.findings))),
    )


def colour_class(words: str) -> str:
    """The class of colour of a headline: its verdict; of EXPLORE, which passes nothing, its class."""
    return "explore" if words == "EXPLORE, PASS" else words.rpartition(" ")[2].lower()


def _group_name(entry: Finding | Result) -> str:
    nodes, _, ranks = entry.scale.partition("x")
    scale = f"{plural(int(nodes), 'node')} x {plural(int(ranks), 'rank')}" if ranks else "any scale"
    return f"{entry.workload}, {'any reader' if entry.reader == '*' else entry.reader}, {scale}"


def _metric_meaning(finding: Finding) -> str:
    """'AU = compute / wall time', with the metric's title once."""
    known = JUDGED.get(finding.metric)
    if known is None:
        return finding.metric
    return known.meaning if known.meaning.startswith(known.title) else f"{known.title}: {known.meaning}"


def _limit(finding: Finding) -> Limit:
    return Limit(
        UNDECIDED if finding.undecided else "not judged" if finding.ok is None else "holds" if finding.ok else MISSED,
        f"{finding.workload} {finding.reader} {finding.scale}",
        JUDGED[finding.metric].title if finding.metric in JUDGED else finding.metric,
        finding.limit,
        STATISTICS[finding.statistic],
        number(Metric(finding.found, finding.unit, None)),
        interval(Metric(finding.median, finding.unit, finding.interval)),
        finding.reason or "",
    )
