"""Tables of texts for terminal and page, and the shape of what `dlio-bench trace` prints."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from dlio_bench.reports.view.table import INDENT, table_lines
from dlio_bench.wrapping import printable, wrap

LONGEST = 26  # letters of a row's name
MOST_PROBLEMS = 20  # that are named
PUBLISHED = "published, nodes:"

Row = tuple[str, Sequence[str]]  # its name and its cells


class TextTable(Struct, frozen=True):
    """A table of texts. rows: (name, cells); published: rows of the study, whose source `notes` name.

    instead_of: the name of a table of ours that has the same published rows beside it, where there is one.
    """

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Row]
    published: Sequence[Row] = ()
    notes: Sequence[str] = ()
    instead_of: str = ""


def study_lines(table: TextTable) -> Iterator[str]:
    """Title and rows, those of the study below ours, at most 80 columns."""
    yield from wrap(printable(table.title), INDENT)
    ours, published = (
        [(shorten(printable(name), LONGEST), *cells) for name, cells in rows] for rows in (table.rows, table.published)
    )
    yield from table_lines(["", *table.heads], [*ours, *([(PUBLISHED,)] if published else []), *published])


def shorten(text: str, width: int) -> str:
    """A text of at most so many columns; one that was longer ends with '…'."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def problem_lines(problems: Sequence[str]) -> list[str]:
    """The first problems, below an empty line; none without problems."""
    lines = [""] if problems else []
    for problem in problems[:MOST_PROBLEMS]:
        lines += wrap(printable(problem), "  problem  ", whole_words=True)
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"  problem  and {len(problems) - MOST_PROBLEMS} more")
    return lines


def as_text(lines: Iterable[str]) -> str:
    """Lines with their ends."""
    return "".join(f"{line}\n" for line in lines)
