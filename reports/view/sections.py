"""What a kind of result says, in sections: its text and its page are two ways to show the same ones."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.view.table import table_lines
from dlio_bench.wrapping import printable, wrap

Figure = dict[str, Any]  # as `drawing` has it
BRIEF, DETAILS, PAGE = "brief", "details", "page"  # the text, all of the text, and the page
TEXTS = (BRIEF, DETAILS)
ALL = (BRIEF, DETAILS, PAGE)
FULL = (DETAILS, PAGE)
NAME = "report.html"
LABEL = 11  # columns of a note's label


class Head(Struct, frozen=True, kw_only=True):
    """The head of a page. title: of its window; overline: which command; badge: a word behind the heading, in a tone;
    aside: small, below the subjects.
    """

    title: str
    overline: str
    heading: str
    subjects: Sequence[str] = ()
    aside: str = ""
    badge: str = ""
    tone: str = ""
    marks: Sequence[str] = ()


class Part(Struct, frozen=True, kw_only=True):
    """Something that a section shows, and where."""

    kind: ClassVar[str]
    on: Sequence[str] = ALL


class Note(Part, frozen=True):
    """A sentence. label: before it, on the page as a heading of it; there aside is in small letters, refusal framed."""

    kind = "note"
    text: str
    label: str = ""
    aside: bool = False
    refusal: bool = False


class Table(Part, frozen=True):
    """heads: of all columns; rows: their cells, the first `names` of them names; note: below it. words: cells are
    sentences; dense: in small letters, lines kept.
    """

    kind = "table"
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: bool = False
    names: int = 1
    dense: bool = False


class Drawing(Part, frozen=True):
    """A figure of the page. label: what it shows, for a reader who does not see it. title: above it; across: it has a
    row of panels to itself; least_width: px, below which it scrolls.
    """

    kind = "drawing"
    name: str
    figure: Figure
    label: str
    caption: str
    title: str = ""
    across: bool = False
    least_width: int = 0


class Panels(Part, frozen=True):
    """Figures of the page beside each other, or below each other if not `two`."""

    kind = "panels"
    drawings: Sequence[Drawing]
    two: bool


class Scale(Part, frozen=True):
    """A colour scale of the page. gradient: CSS; ticks: (place in per cent, number); hatched: what hatching means."""

    kind = "scale"
    gradient: str
    ticks: Sequence[tuple[str, str]]
    hatched: str


class Section(Struct, frozen=True):
    """name: its anchor on the page; title: its heading there."""

    name: str
    title: str
    parts: Sequence[Part]


class View(Struct, frozen=True, kw_only=True):
    """A result. lead: what its text begins with; answers: the first sentences; brief: those of the text, if it has
    others; sections: those with a title are numbered; command: how it was made; made: when and where.
    """

    head: Head
    lead: str = ""
    answers: Sequence[str] = ()
    brief: str = ""
    sections: Sequence[Section]
    command: str = ""
    made: str = ""

    def text(self, *, verbose: bool = False) -> str:
        """Lines of at most 80 columns; verbose: everything that is known, not one screen with the answer."""
        return "".join(f"{printable(line)}\n" for line in self._lines(DETAILS if verbose else BRIEF))

    def page(self) -> str:
        """The HTML. Every text of the result is escaped; the figures' data are JSON in a script element."""
        from dlio_bench.reports.view.page import render

        drawn: Mapping[str, Figure] = {
            drawing.name: drawing.figure
            for section in self.sections
            for part in section.parts
            for drawing in (part.drawings if isinstance(part, Panels) else [part] if isinstance(part, Drawing) else [])
        }
        return render("sections.html.j2", self.head, drawn, view=self)

    def write(self, path: Path) -> None:
        """Write the page to `path`, whole or not at all. EnvironmentFailure."""
        write_whole(path, self.page().encode())

    def _lines(self, place: str) -> Iterator[str]:
        yield from wrap(f"{self.brief or self.answers[0]}.", self.lead, 2) if self.answers else wrap(self.lead)
        for subject in self.head.subjects:
            yield from wrap(subject, "  ")
        if marks := [mark for mark in self.head.marks if mark not in self.lead]:
            yield from wrap("  ".join(f"[{mark}]" for mark in marks), "  ")
        for section in self.sections:
            behind_table = True
            for part in (part for part in section.parts if place in part.on):
                if behind_table:
                    yield ""
                behind_table = isinstance(part, Table)
                yield from _part_lines(part)


def _part_lines(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        yield from table_lines(part.heads, part.rows)
        if PAGE not in part.on and part.note:
            yield from wrap(part.note, "  ")
    elif isinstance(part, Note):
        yield from wrap(part.text, f"  {part.label:<{LABEL}}" if part.label else "  ")
