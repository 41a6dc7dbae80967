"""Studies as one self-contained HTML page: verdicts first, then each claim's figure beside the published ones.

Its figures are SVG in the page, a few lines each, so that the page of all studies stays small.
"""

import math
import shlex
from pathlib import Path
from typing import NamedTuple

from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.study import types
from dlio_bench.reports.study.text import claim_counts, our_figure, published_figures, skipped_files
from dlio_bench.reports.study.types import KINDS, VERDICTS, Answer, Compared, Document
from dlio_bench.reports.study.verdicts import format_verdict, in_order, number, status_of
from dlio_bench.reports.view.page import render
from dlio_bench.reports.view.sections import Head

LEFT, RIGHT, LINE = 3, 94, 34  # of a figure: ends of its axis in percent of its width; pixels of a row
BADGES = {
    types.REPRODUCED: "good", types.IN_PART: "some", types.WITHIN: "some", types.SEEN: "some",
    types.UNDECIDED: "none", types.UNTESTABLE: "none", types.NOT_SEEN: "bad", types.FAILED: "bad",
}  # fmt: skip


class Mark(NamedTuple):
    """A row of a figure: its text, and in percent the figure and the ends of its interval. ours: and not published."""

    text: str
    x: float
    low: float
    high: float
    ours: bool


class Figure(NamedTuple):
    """A claim, drawn: rows, and the band in which ours counts, if it can; ticks (percent, text)."""

    marks: list[Mark]
    band: tuple[float, float] | None
    ticks: list[tuple[float, str]]
    height: int


def write(document: Document, path: Path) -> None:
    """Write the page to `path`, whole or not at all. EnvironmentFailure."""
    write_whole(path, html(document).encode())


def html(document: Document) -> str:
    """The page's HTML. Every text of the document is escaped; it has no script."""
    tried, others = in_order(document.studies)
    of = f"Results of {document.against}" if document.against else f"Size {document.size}"
    host = [f"{document.host['cpu']}, {document.host['cores']} cores."] if document.host else []
    return render(
        "reproduce.html.j2",
        Head(
            title=f"Published figures · {len(document.studies)} studies",
            overline=f"reproduce · version {document.version}",
            heading="Published figures, and ours beside them",
            subjects=[*claim_counts(document), f"{of}. Exit status {status_of(document)}.", *host],
        ),
        {},
        document=document,
        badges=BADGES,
        kinds=KINDS,
        verdicts=VERDICTS,
        said_verdict=format_verdict,
        answers=[(answer, _claims(answer)) for answer in tried],
        others=others,
        skipped=skipped_files(document),
        command=shlex.join(document.command),
        line=LINE,
        left=LEFT,
        right=RIGHT,
    )


def _claims(answer: Answer) -> list[tuple[Compared, str, str, Figure | None]]:
    return [(claim, our_figure(claim), published_figures(claim), figure(claim)) for claim in answer.claims]


def figure(claim: Compared) -> Figure | None:
    """The figure of a claim, on an axis from 0 or the least value; None where it has no figure of ours."""
    if claim.value is None or claim.low is None or claim.high is None:
        return None
    compared = ("ours, compared", number(claim.value, 4), claim.value, claim.low, claim.high, True)
    if claim.grown is not None:  # what grows may have another unit than the published figures
        rows = [("published", f"{claim.grown:.4g}", claim.grown, claim.grown, claim.grown, False), compared]
    else:
        rows = [
            (entry.at or "published", f"{entry.value:g}", entry.value, entry.value, entry.value, False)
            for entry in claim.published
        ]
        rows += [
            (
                f"ours, {point.at}" if point.at else "ours",
                number(point.value, 4),
                point.value,
                point.low,
                point.high,
                True,
            )
            for point in claim.points
        ]
        rows += [compared] if len(claim.points) > 1 else []
    ends = [value for row in rows for value in row[2:5]] + [end for end in claim.band or () if end is not None]
    least, most = min(0.0, *ends), max(ends) or 1.0
    scale = (RIGHT - LEFT) / ((most - least) or 1.0)

    def position(value: float) -> float:
        return round(LEFT + (min(max(value, least), most) - least) * scale, 1)

    band = None
    if claim.band is not None:
        low, high = (end if end is not None else limit for end, limit in zip(claim.band, (least, most), strict=True))
        band = position(low), position(high)
    marks = [
        Mark(f"{name}: {told}", position(x), position(left), position(right), mine)
        for name, told, x, left, right, mine in rows
    ]
    return Figure(marks, band, _ticks(least, most, position(least), scale), LINE * len(rows) + 26)


def _ticks(least: float, most: float, start: float, scale: float) -> list[tuple[float, str]]:
    """Four to eight round numbers of an axis, with their places."""
    step = 10 ** math.floor(math.log10((most - least) or 1.0))
    for part in (1.0, 0.5, 0.2):
        if (most - least) / (step * part) >= 4:
            step *= part
            break
    first, last = math.ceil(least / step), math.floor(most / step)
    return [
        (round(start + (number * step - least) * scale, 1), f"{number * step:g}") for number in range(first, last + 1)
    ]
