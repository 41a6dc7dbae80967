"""Tables of texts for a terminal: every column as wide as its widest cell, numbers to the right."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from dlio_bench.wrapping import WIDTH, printable, wrapped

INDENT = "  "
LEAST_NAME = 18  # columns that names keep in a table that is too wide


def table_lines(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[str] = (),
    least: int = 0,
    indent: str = INDENT,
) -> Iterator[str]:
    """A line of heads, then one of each row, at most WIDTH columns.

    Columns are two blanks apart; of a table that is too wide one. If that is not enough, a long name stands on a line
    of its own above its row, and columns that find no room even so stand below the others.

    Args:
        heads: Of all columns.
        rows: Cells of each row, the first one its name. A row of a name alone is a heading of those below it.
        words: Heads of the columns that read from the left, as that of the names does.
        least: Columns that names take at least, so that tables of one result stand in line.
        indent: What each line begins with.
    """
    cells = [[printable(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*(row for row in cells if len(row) > 1), strict=True)]
    longest = max(least, *(len(row[0]) for row in cells))
    room = WIDTH - len(indent) - sum(widths[1:])
    gap = "  " if longest <= room - 2 * len(widths[1:]) else " "
    names = min(longest, max(room - len(gap) * len(widths[1:]), LEAST_NAME, len(heads[0])))
    for chosen in _fitting([len(gap) + width for width in widths[1:]], WIDTH - len(indent) - names):
        for name, *others in cells:
            if len(name) > names:
                yield from wrapped(name, indent)
            shown = [
                f"{others[at]:{'<' if heads[at + 1] in words else '>'}{widths[at + 1]}}" for at in chosen if others
            ]
            if shown or len(name) <= names:
                begin = "" if len(name) > names else name
                yield f"{indent}{gap.join((f'{begin:<{names}}', *shown))}".rstrip()


def _fitting(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Positions of columns in parts that fit into a line, in their order."""
    part: list[int] = []
    for at, width in enumerate(widths):
        if part and sum(widths[each] for each in part) + width > room:
            yield part
            part = []
        part.append(at)
    yield part
