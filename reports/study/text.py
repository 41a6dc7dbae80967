"""Studies as text: their list, the plan of their commands, and the verdicts with figures beside published ones."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from dlio_bench.reports.study.types import FAILED, UNTESTABLE, Answer, Compared, Document, Study
from dlio_bench.reports.study.verdicts import DIRECTION, format_interval, format_verdict, in_order, number, status_of
from dlio_bench.reports.view.formatting import NOTHING, plural
from dlio_bench.wrapping import printable, wrap


def listing(studies: Mapping[str, Study]) -> str:
    """Each study with what it shows, its source, and the time and space it takes at each size."""
    return (
        "\n".join(map(printable, (line for name, study in studies.items() for line in _list_study(name, study)))) + "\n"
    )


def _list_study(name: str, study: Study) -> Iterator[str]:
    yield name
    yield from wrap(study.shows, "  shows     ")
    yield from wrap(study.source, "  source    ")
    sizes = [f"{size}: about {entry.time} on two cores, {entry.space}" for size, entry in study.size.items()]
    yield from wrap("; ".join(sizes) or f"{UNTESTABLE}: {study.untestable}", "  takes     ")
    if study.needs:
        yield from wrap(", ".join(study.needs), "  needs     ")


def plan(document: Mapping[str, Any]) -> str:
    """The commands of every study, and why a study has none."""
    lines: list[str] = []
    for name, entry in document["studies"].items():
        takes = "" if entry["lacking"] else f": about {entry['time']} on two cores, {entry['space']}"
        lines.append(f"{name}{takes}")
        if entry["lacking"]:
            lines += wrap(f"{UNTESTABLE}: {entry['lacking']}", "  ")
        lines += [f"  {shlex.join(words)}" for words in entry["commands"]]
    return "\n".join(map(printable, lines)) + "\n"


def claim_counts(document: Document) -> list[str]:
    """'measured, 4 claims: 3 reproduced, 1 not seen' for each kind of claim."""
    return [
        f"{kind}, {plural(sum(verdicts.values()), 'claim')}: "
        + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        for kind, verdicts in document.kinds.items()
    ]


def our_figure(claim: Compared) -> str:
    """Our figure with its interval, and what it is the ratio of where that was published, too."""
    if claim.value is None or claim.low is None or claim.high is None:
        return NOTHING
    point = claim.points[-1] if len(claim.points) == 1 else None
    told = any(entry.of is not None for entry in claim.published) and point is not None
    return format_interval(claim.value, claim.low, claim.high) + (
        _sides(point.of, point.over) if told and point else ""
    )


def _sides(of: float | None, over: float | None) -> str:
    return "" if of is None or over is None else f" = {number(of, 3)} / {number(over, 3)}"


def published_figures(claim: Compared) -> str:
    """The published figures, each with where it was measured."""
    kind = {"value": "", DIRECTION: "direction alone: "}.get(claim.published_as, f"{claim.published_as} ")
    kind += "" if claim.grown is None else f"{claim.grown:.3g}, of "
    return kind + ", ".join(
        f"{entry.value:g}{_sides(entry.of, entry.over)}{f' ({entry.at})' if entry.at else ''}"
        for entry in claim.published
    )


def render(document: Document) -> str:
    """The text, no line longer than 80 columns."""
    return "\n".join(map(printable, _lines(document))) + "\n"


def _lines(document: Document) -> Iterator[str]:
    of = f"results in {document.against}" if document.against else f"size {document.size}"
    count = len(document.studies)
    yield from wrap(f"{count} {'study' if count == 1 else 'studies'}, {of}.", "reproduce: ", 2)
    for line in claim_counts(document):
        yield from wrap(line, "  ", 4)
    tried, others = in_order(document.studies)
    for answer in tried:
        yield ""
        yield from wrap(f"{headline(answer)}  {answer.study}: {answer.title}", "", 2)
        yield from _answer_lines(answer)
    if others:
        yield ""
        yield UNTESTABLE.upper()
    for answer in others:
        yield from wrap(answer.why, f"  {answer.study}: ", 4)
    if document.skipped:
        yield ""
        yield from wrap(skipped_files(document), "  skipped  ", 4)
    for entry in document.skipped:
        yield from wrap(entry.why, f"    {entry.file}: ", 6)
    yield ""
    yield f"  status   {status_of(document)}"


def headline(answer: Answer) -> str:
    """The verdict as a heading: 'REPRODUCED IN PART (1 of 4 claims tested)'."""
    verdict, bracket, tested = answer.verdict.partition(" (")
    return verdict.upper() + bracket + tested


def skipped_files(document: Document) -> str:
    """How many files were not compared: '3 files not compared, 1 of them damaged'."""
    damaged = sum(entry.damaged for entry in document.skipped)
    return f"{plural(len(document.skipped), 'file')} not compared, {damaged} of them damaged"


def _answer_lines(answer: Answer) -> Iterator[str]:
    if answer.failure:
        yield from wrap(answer.failure, "  failed   ")
    if answer.outcome == FAILED:
        return
    for claim in answer.claims:
        kind = "" if claim.kind is None else f", {claim.kind}"
        yield from wrap(claim.name, f"  {format_verdict(claim.verdict, claim.off)}{kind}: ", 4)
        if claim.verdict == UNTESTABLE:
            yield from wrap(claim.why, "    why        ")
        else:
            yield from wrap(f"{our_figure(claim)}  [{claim.what}]", "    ours       ")
        yield from wrap(published_figures(claim), "    published  ")
    if answer.differs:
        yield from wrap(answer.differs, "  differs  ")
