"""What comes out when results are judged against limits, as types: the same from the same files on every machine."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from dlio_bench.errors import DataError
from dlio_bench.reports.document.typed import Amount, Some, convert, load_json, require_schema, to_json
from dlio_bench.reports.document.types import Class
from dlio_bench.reports.judging.limits import Settings, Side, Statistic

SCHEMA = "dlio-bench/judgement/1"
NAME = "judgement.json"
Verdict = Literal["pass", "fail", "undecided", "invalid", "none"]


class Reason(Struct, frozen=True):
    """Why a result may not be used. rule: the check that failed, or what the limits ask for, such as trials."""

    rule: str
    text: str


class Finding(Struct, frozen=True, kw_only=True):
    """One limit and one result. Shares as 0.1, times in seconds, sizes in bytes.

    table: of the limit in its file; limit: in words, 'at least 10.8 GB/s'; found: the statistic that was compared;
    interval: of the metric, which holds its true value in the share `coverage` of repetitions. ok: None where nothing
    was judged, or, if `undecided`, where the trials do not tell; `reason` explains it.
    chosen: False for a limit of which a run measured nothing, and which does not count.
    """

    workload: str
    reader: str
    scale: str
    table: str
    metric: str
    unit: str
    limit: str
    side: Side
    bound: float
    statistic: Statistic
    found: float | None = None
    median: float | None = None
    interval: tuple[float, float] | None = None
    coverage: float | None = None
    ok: bool | None
    undecided: bool = False
    reason: str | None = None
    chosen: bool = True


class Judged(Struct, frozen=True, kw_only=True):
    """One result. verdict: none where no limit is for it, and then it does not count; status: of it alone.

    verdict undecided: a limit lies within an interval, or trials are too few. capped: the marks that hold its class at
    EXPLORE; seconds: of all its timed trials.
    """

    workload: str
    reader: str
    scale: str
    digest: str
    created: str
    hosts: list[str]
    trials: Some
    seconds: Amount
    marks: list[str]
    capped: list[str]
    class_: Class = field(name="class")
    verdict: Verdict
    status: int
    reasons: list[Reason]
    findings: list[Finding]


class Unreadable(Struct, frozen=True):
    """A file that holds no result. file: relative to what the user named."""

    file: str
    reason: str


class LimitsFile(Struct, frozen=True, kw_only=True):
    """The limits that were applied."""

    name: str
    version: str
    sha256: str
    settings: Settings


class Judgement(Struct, frozen=True, kw_only=True):
    """Results against limits; every list is sorted. missing: limits without a result.

    class: the worst of the results that count; reasons: of the verdict as a whole, in sentences.
    """

    schema: Literal["dlio-bench/judgement/1"] = "dlio-bench/judgement/1"
    kind: Literal["judgement"] = "judgement"
    verdict: Verdict
    class_: Class = field(name="class")
    status: int
    reasons: list[str]
    limits: LimitsFile
    results: list[Judged]
    missing: list[Finding]
    unreadable: list[Unreadable]

    @property
    def findings(self) -> list[Finding]:
        """All limits: those of the results, then those without a result."""
        return [finding for judged in self.results for finding in judged.findings] + self.missing


def of_folder(folder: Path, digests: Collection[str]) -> Judgement | None:
    """The judgement that a folder holds of results with these digests; None where it holds none of them all.

    DataError for a file that is no judgement.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    fix = f"Give --limits, or remove '{path}'"
    document = load_json(path, fix)
    require_schema(document, [SCHEMA], str(path), fix)
    try:
        judgement = convert(document, Judgement)
    except ValueError as error:
        raise DataError(f"'{path}' is no judgement ({error}). {fix}.") from None
    return judgement if {*digests} <= {judged.digest for judged in judgement.results} else None


def as_json(judgement: Judgement) -> str:
    """The judgement as JSON that ends in a newline."""
    return json.dumps(to_json(judgement), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
