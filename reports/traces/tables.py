"""Tables of texts for terminal and page, and the shape of what `dlio-bench trace` prints."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from dlio_bench.wrapping import printable, wrapped

WIDTH = 80
INDENT, GAP = "  ", "  "
LONGEST = 26  # letters of a row's name
MOST_PROBLEMS = 20  # that are named
PUBLISHED = "published, nodes:"

Row = tuple[str, Sequence[str]]  # its name and its cells


class Table(Struct, frozen=True):
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


def table_lines(table: Table) -> Iterator[str]:
    """Title and rows, at most WIDTH columns: columns that find no room stand below the others."""
    yield from wrapped(printable(table.title), INDENT)
    ours, published = (
        [(shorten(printable(name), LONGEST), cells) for name, cells in rows] for rows in (table.rows, table.published)
    )
    first = max(len(name) for name, _ in [*ours, *published, *([(PUBLISHED, ())] if published else [])])
    columns = zip(table.heads, *(cells for _, cells in [*ours, *published]), strict=True)
    widths = [max(map(len, column)) for column in columns]
    for chosen in _fitting(widths, WIDTH - len(INDENT) - first):
        for row in (("", table.heads), *ours, *([(PUBLISHED, [])] if published else []), *published):
            name, cells = row
            shown = (f"{GAP}{cells[at]:>{widths[at]}}" for at in chosen if cells)
            yield f"{INDENT}{name:<{first}}{''.join(shown)}".rstrip()


def _fitting(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Positions of columns in parts that fit a line, in their order."""
    part: list[int] = []
    used = 0
    for at, width in enumerate(widths):
        if part and used + len(GAP) + width > room:
            yield part
            part, used = [], 0
        part.append(at)
        used += len(GAP) + width
    yield part


def table_row(cells: Sequence[object], widths: Sequence[int]) -> str:
    """A line of cells, each to the right of its width, or, where that is negative, to the left."""
    pairs = zip(cells, widths[: len(cells)], strict=True)
    shown = (f"{cell!s:>{width}}" if width >= 0 else f"{cell!s:<{-width}}" for cell, width in pairs)
    return f"{INDENT}{' '.join(shown)}".rstrip()


def shorten(text: str, width: int) -> str:
    """A text of at most so many columns; one that was longer ends with '…'."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def problem_lines(problems: Sequence[str]) -> list[str]:
    """The first problems, below an empty line; none without problems."""
    lines = [""] if problems else []
    for problem in problems[:MOST_PROBLEMS]:
        lines += wrapped(printable(problem), "  problem  ", whole_words=True)
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"  problem  and {len(problems) - MOST_PROBLEMS} more")
    return lines


def as_text(lines: Iterable[str]) -> str:
    """Lines with their ends."""
    return "".join(f"{line}\n" for line in lines)
