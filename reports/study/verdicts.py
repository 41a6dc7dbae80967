"""Whether a published effect is in our results: figures of a study's claims, and the verdicts. Pure functions.

A claim compares one figure, `metric` of an arm, or its ratio to that of another arm. Ours is the median over the
trials, with the interval of `reports.numbers.intervals`, and with the range of the trials where these are fewer than
five. The effect is there if the whole interval lies where the claim's `effect` says, and not if none of it does. The
band reaches from the least to the greatest of the published figures, each widened by `TOLERANCE`. An interval in it is
`reproduced` if it meets the published figures themselves, and else `within X %` of them. An interval that lies on both
sides of an end leaves the claim undecided, and so does one trial. Of counts, and of what networks learnt, a ratio is
that of trials with the same seed, if both arms have as many.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from dlio_bench.reports.judging import judge
from dlio_bench.reports.numbers import intervals
from dlio_bench.reports.numbers.meetings import Floats
from dlio_bench.reports.study.rows import EvidenceRow, is_exact, matching
from dlio_bench.reports.study.types import (
    FAILED,
    IN_PART,
    KINDS,
    MEASURED,
    NOT_SEEN,
    REPRODUCED,
    SEEN,
    TOLERANCE,
    UNDECIDED,
    UNTESTABLE,
    VERDICTS,
    WITHIN,
    Answer,
    Claim,
    ClaimKind,
    Compared,
    Document,
    Outcome,
    Point,
    Study,
    Value,
    Verdict,
)
from dlio_bench.reports.view.formatting import plural

GRAVEST = (NOT_SEEN, UNDECIDED, SEEN, WITHIN, REPRODUCED)
GROWTHS = ("growth", "least growth")
DIRECTION = "direction"
Ends = tuple[float, float, float]  # a figure, and the ends of its interval


class NoEvidenceError(Exception):
    """Why a claim has no figure here."""


def evaluate(
    name: str,
    study: Study,
    arms: Mapping[str, Sequence[EvidenceRow]],
    lacking: str = "",
    *,
    failure: str = "",
    status: int = judge.PASS,
) -> Answer:
    """The answer of a study whose arms have these rows.

    lacking: why nothing was started. failure: why what was started left no results, or not all. status: the gravest of
    its commands.
    """
    used = [row for rows in arms.values() for row in rows]
    reason = study.untestable or ("" if used else failure or lacking)
    arms = {**tables_of(study), **arms}
    ordered = sorted(study.claim, key=lambda claim: [*KINDS].index(claim.kind))  # measured ones first
    claims = [compare(claim, arms, "" if claim.arm in study.table else reason) for claim in ordered]
    tested = [claim for claim in claims if claim.verdict != UNTESTABLE]
    gravest: Verdict = UNTESTABLE
    if tested:
        gravest = min((claim.verdict for claim in tested), key=GRAVEST.index)
    deciding = [claim for claim in claims if claim.verdict == gravest]
    why = (
        reason
        or " ".join(dict.fromkeys(f"{claim.name}: {claim.why}" for claim in deciding))
        or "The file has no claim."
    )
    why += f" {failure}" if used and failure else ""
    ran = any(claim.arm not in study.table for claim, told in zip(ordered, claims, strict=True) if told in tested)
    outcome: Outcome = FAILED if failure and not ran else gravest
    partly = 0 < len(tested) < len(claims)
    if partly and outcome == REPRODUCED:
        outcome = IN_PART
    verdict = format_verdict(outcome, max((claim.off or 0.0 for claim in claims), default=0.0))
    return Answer(
        study=name,
        title=study.title,
        shows=study.shows,
        source=study.source,
        differs=study.differs,
        outcome=outcome,
        verdict=f"{verdict} ({len(tested)} of {plural(len(claims), 'claim')} tested)" if partly else verdict,
        why=why,
        failure=failure,
        claims=claims,
        marks=list(dict.fromkeys(mark for row in used for mark in row.marks)),
        files=list(dict.fromkeys(row.file for row in used if row.file)),
        status=status,
    )


def compare(claim: Claim, arms: Mapping[str, Sequence[EvidenceRow]], lacking: str = "") -> Compared:
    """A claim with our figure and its verdict. lacking: why there is none."""
    band = band_of(claim)
    told = Compared(
        name=claim.name,
        kind=claim.kind,
        what=describe_figure(claim),
        published=list(claim.published),
        published_as=claim.published_as,
        source=claim.source,
        grown=reference(claim)[0] if claim.take in GROWTHS else None,
        band=None if claim.published_as == DIRECTION else (_end(band[0]), _end(band[1])),
        verdict=UNTESTABLE,
        why=lacking,
    )
    if lacking:
        return told
    try:
        points = figures(claim, arms)
        value, low, high = compared_figure(claim, points)
    except NoEvidenceError as error:
        return _with_changes(told, why=str(error))
    verdict, why, off = _decide(claim, band, (value, low, high), single=_is_single(claim, arms))
    return _with_changes(told, points=points, value=value, low=low, high=high, off=off, verdict=verdict, why=why)


def _decide(claim: Claim, band: tuple[float, float], ours: Ends, *, single: bool) -> tuple[Verdict, str, float | None]:
    """The verdict of our figure, why, and how far off it is if that is all. single: whether it is of one trial."""
    _, low, high = ours
    told = f"Ours is {format_interval(*ours)}"
    if single:
        return UNDECIDED, f"{told}, of one trial, which decides nothing (--trials).", None
    above = -math.inf if claim.effect.above is None else claim.effect.above
    below = math.inf if claim.effect.below is None else claim.effect.below
    if not (above < low and high < below):
        ends = " and ".join(
            text
            for end, text in ((claim.effect.above, f"above {above:g}"), (claim.effect.below, f"below {below:g}"))
            if end is not None
        )
        return (NOT_SEEN if high <= above or low >= below else UNDECIDED), f"{told}, and the effect is {ends}.", None
    if claim.published_as == DIRECTION:
        why = f"{told}. No figure was published for the same span, so that the direction alone is compared."
        return SEEN, why, None
    return _judge_size(claim, band, ours, told)


def _judge_size(claim: Claim, band: tuple[float, float], ours: Ends, told: str) -> tuple[Verdict, str, float | None]:
    """The verdict of a figure that shows the effect, by its size."""
    value, low, high = ours
    if not (band[0] <= low and high <= band[1]):
        if low <= band[1] and high >= band[0]:
            return (
                UNDECIDED,
                f"{told}: the effect, but both in and out of what was published, {_allowed_range(claim)}.",
                None,
            )
        side = "below" if value < band[0] else "above"
        return SEEN, f"{told}, {side} what was published: {_allowed_range(claim)}.", None
    least, most = reference(claim)
    if claim.published_as != "value" or (low <= most and high >= least):
        return REPRODUCED, f"{told}, published {published_range(claim)}.", None
    off = max((least - low) / abs(least), (high - most) / abs(most))
    return WITHIN, f"{told}, {format_verdict(WITHIN, off)} of what was published: {published_range(claim)}.", off


def format_verdict(verdict: Outcome, off: float | None) -> str:
    """The verdict as it is told: how far ours is off is rounded up to two digits, 'within 0.11 %'."""
    if verdict != WITHIN or not off:
        return verdict
    unit = 10.0 ** (math.floor(math.log10(100 * off)) - 1)
    return f"within {math.ceil(round(100 * off / unit, 6)) * unit:.2g} %"


def _is_single(claim: Claim, arms: Mapping[str, Sequence[EvidenceRow]]) -> bool:
    """Whether a time of a single trial is among what is compared."""
    names = [name for name in (claim.metric, claim.per) if name is not None]
    rows = [row for arm in (claim.arm, claim.over) for row in arms.get(arm or "", ()) if row.chance]
    return not all(map(is_exact, names)) and any(len(row.figures.get(claim.metric, ())) == 1 for row in rows)


def _allowed_range(claim: Claim) -> str:
    """The published figures, and how far ours may be from them; a bound is not widened."""
    return published_range(claim) + (f", give or take {100 * TOLERANCE:g} %" if claim.published_as == "value" else "")


def _end(value: float) -> float | None:
    return None if math.isinf(value) else value


def _with_changes(claim: Compared, **changed: object) -> Compared:
    values = {name: getattr(claim, name) for name in Compared.__struct_fields__}
    return Compared(**(values | changed))


def band_of(claim: Claim) -> tuple[float, float]:
    """The published figures, widened by `TOLERANCE`; of a bound, all beyond it. Ours counts there, unless the direction
    alone is compared.
    """
    low, high = reference(claim)
    values = (low, high)
    low, high = low - TOLERANCE * abs(low), high + TOLERANCE * abs(high)
    if claim.published_as == "at most":
        return -math.inf, max(values)
    return (min(values), math.inf) if claim.published_as == "at least" else (low, high)


def reference(claim: Claim) -> tuple[float, float]:
    """The least and the greatest of the published figures, taken as ours are: of several a growth is one figure."""
    values = [entry.value for entry in claim.published]
    if claim.take in GROWTHS and len(values) > 1:
        steps = [after / before for before, after in pairwise(values)]
        values = [values[-1] / values[0]] if claim.take == "growth" else [min(steps)]
    return min(values), max(values)


def figures(claim: Claim, arms: Mapping[str, Sequence[EvidenceRow]]) -> list[Point]:
    """Our figure at each value of the attribute `along`, in its order. NoEvidenceError where there is none."""
    of = _by_place(claim, arms, claim.arm)
    over = None if claim.over is None else _by_place(claim, arms, claim.over)
    places = [place for place in of if over is None or place in over]
    if not places:
        raise NoEvidenceError(f"The arms '{claim.arm}' and '{claim.over}' have no {claim.along} in common.")
    points = []
    for place in sorted(places, key=lambda key: (isinstance(key, str), key)):
        numerator = _values(claim, claim.arm, of[place])
        at = f"{claim.along} {place}" if place != "" else ""
        if over is None:
            value, low, high = _interval(numerator)
            points.append(Point(at=at, value=value, low=low, high=high))
        else:
            below = _values(claim, claim.over or "", over[place])
            value, low, high = _ratio(claim, numerator, below)
            medians = {"of": float(np.median(numerator)), "over": float(np.median(below))}
            points.append(Point(at=at, value=value, low=low, high=high, **medians))
    return points


def compared_figure(claim: Claim, points: Sequence[Point]) -> tuple[float, float, float]:
    """The figure that is compared, and its ends. NoEvidenceError where a growth has one point, or begins at 0.

    The least of several figures lies between the least of their lower and the least of their upper ends, so that a
    point whose median is not the least counts, too; the greatest likewise.
    """
    if claim.take in GROWTHS:
        if len(points) < 2:
            raise NoEvidenceError(f"A growth needs results at two values of {claim.along} at least, and there is one.")
        pairs = [(points[0], points[-1])] if claim.take == "growth" else list(pairwise(points))
        if any(before.low <= 0 for before, _ in pairs):
            raise NoEvidenceError("A growth from 0 has no size.")
        grown = [
            (after.value / before.value, after.low / before.high, after.high / before.low) for before, after in pairs
        ]
        return _map_ends(min, grown)
    ends = [(point.value, point.low, point.high) for point in points]
    return {
        "last": lambda: ends[-1],
        "first": lambda: ends[0],
        "least": lambda: _map_ends(min, ends),
        "greatest": lambda: _map_ends(max, ends),
    }[claim.take]()


def _map_ends(choose: Callable[[Sequence[float]], float], ends: Sequence[Ends]) -> Ends:
    values, lows, highs = zip(*ends, strict=True)
    return choose(values), choose(lows), choose(highs)


def _by_place(claim: Claim, arms: Mapping[str, Sequence[EvidenceRow]], arm: str) -> dict[object, EvidenceRow]:
    rows = arms.get(arm, [])
    if not rows:
        raise NoEvidenceError(f"No result is of the arm '{arm}'.")
    by_place: dict[object, EvidenceRow] = {}
    for row in rows:
        place = row.attributes.get(claim.along, "")
        if place in by_place:
            where = f" at {claim.along} {place}" if place != "" else ""
            raise NoEvidenceError(
                f"Two results are of the arm '{arm}'{where}, {by_place[place].file} and {row.file}. Put "
                f"the one that is meant into a folder STUDY/{arm}."
            )
        by_place[place] = row
    return by_place


def _values(claim: Claim, arm: str, row: EvidenceRow) -> Floats:
    """metric [/ per] of a row, [trials]."""
    if row.wrong is not None:
        raise NoEvidenceError(f"The arm '{arm}' is no evidence: {row.wrong}.")
    columns = []
    for name in (claim.metric, claim.per):
        if name is None:
            continue
        if not row.sized and not is_exact(name):
            raise NoEvidenceError(f"Samples were shrunk (--tiny), and {name} of such a run says nothing.")
        if name not in row.figures:
            raise NoEvidenceError(f"A result of the arm '{arm}' has no {name}.")
        columns.append(row.figures[name])
    if len(columns) == 1:
        return columns[0]
    if (columns[1] == 0).any():
        raise NoEvidenceError(f"{claim.per} of the arm '{arm}' is 0.")
    return np.asarray(columns[0] / columns[1], dtype=np.float64)


def _interval(values: Floats) -> tuple[float, float, float]:
    low, high = intervals.interval(values) or (values.min(), values.max())
    return float(np.median(values)), float(low), float(high)


def _ratio(claim: Claim, of: Floats, over: Floats) -> tuple[float, float, float]:
    if (over <= 0).any():
        raise NoEvidenceError(f"{claim.metric} of the arm '{claim.over}' is 0.")
    if is_exact(claim.metric) and len(of) == len(over):  # trial k of both has the same seed, and the same samples
        return _interval(np.asarray(of / over, dtype=np.float64))
    value = float(np.median(of) / np.median(over))
    ends = intervals.ratio_interval(over, of, paired=False)
    low, high = ends or (float(of.min() / over.max()), float(of.max() / over.min()))
    return value, low, high


def describe_figure(claim: Claim) -> str:
    """The figure in words: 'read_seconds / elapsed_seconds of global over that of local, growth along nodes'."""
    metric = claim.metric if claim.per is None else f"{claim.metric} / {claim.per}"
    over = "" if claim.over is None else f" over that of {claim.over}"
    taken_as = "" if claim.take == "last" else f", {claim.take} along {claim.along}"
    return f"{metric} of {claim.arm}{over}{taken_as}"


def published_range(claim: Claim) -> str:
    """The published figures in words: '2.44 to 2.97', 'at most 1.05'."""
    values = [entry.value for entry in claim.published]
    if claim.take in GROWTHS and len(values) > 1:
        return f"{reference(claim)[0]:.3g} (of {values[0]:g} to {values[-1]:g})"
    text = f"{min(values):g}" if len(set(values)) == 1 else f"{min(values):g} to {max(values):g}"
    return text if claim.published_as == "value" else f"{claim.published_as} {text}"


def format_interval(value: float, low: float, high: float) -> str:
    """'2.31 (2.2 to 2.4)', '31612'."""
    if low == high:
        return number(value, 4)
    return f"{number(value, 3)} ({number(low, 3)} to {number(high, 3)})"


def number(value: float, digits: int) -> str:
    """So many digits, and all of those before the point: '2.31', '31612'."""
    return f"{value:.0f}" if 10**digits - 0.5 <= abs(value) < 10**9 else f"{value:.{digits}g}"


def status_of(document: Document) -> int:
    """The exit status, the gravest (4 > 3 > 5 > 1 > 6 > 0) of all: those of commands, 1 for an effect that is not
    seen, 6 for one that is undecided, 5 for a damaged file.
    """
    statuses = [answer.status for answer in document.studies]
    told: dict[Outcome, int] = {NOT_SEEN: judge.LIMIT_MISSED, UNDECIDED: judge.UNDECIDED}
    statuses += [told.get(answer.outcome, judge.PASS) for answer in document.studies]
    statuses += [judge.CONTENT_FAILED for skipped in document.skipped if skipped.damaged]
    return judge.gravest([judge.PASS, *statuses])


def by_kind(answers: Sequence[Answer]) -> dict[ClaimKind, dict[Verdict, int]]:
    """How many claims of each kind have each verdict, measured ones first."""
    claims = [claim for answer in answers for claim in answer.claims]
    counts: dict[ClaimKind, dict[Verdict, int]] = {}
    for kind in KINDS:
        verdicts = [claim.verdict for claim in claims if claim.kind == kind]
        if verdicts:
            counts[kind] = {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}
    return counts


def in_order(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """The answers of studies that were tried, those with measured claims first, and those of the others."""
    tried = [answer for answer in answers if answer.outcome != UNTESTABLE]
    return (
        sorted(tried, key=lambda answer: not any(claim.kind == MEASURED for claim in answer.claims)),
        [answer for answer in answers if answer.outcome == UNTESTABLE],
    )


def arms_of(study: Study, rows: Mapping[str, Sequence[EvidenceRow]]) -> dict[str, list[EvidenceRow]]:
    """The rows of each arm. rows: of each run, by its name."""
    arms: dict[str, list[EvidenceRow]] = {}
    for name, wanted in study.arm.items():
        asked = {key: value for key, value in wanted.items() if key != "run"}
        arms[name] = matching(rows.get(run_of(study, wanted), []), asked)
    return arms


def tables_of(study: Study) -> dict[str, list[EvidenceRow]]:
    """The row of each printed table: sums of its columns."""
    return {
        name: [EvidenceRow({}, {column: np.array([sum(values)]) for column, values in columns.items()}, chance=False)]
        for name, columns in study.table.items()
    }


def run_of(study: Study, wanted: Mapping[str, Value]) -> str:
    """The name of the run whose results an arm is among: the first one if the arm names none."""
    return str(wanted.get("run", study.run[0].name if study.run else ""))
