"""Tables of texts for a terminal: every column as wide as its widest cell, numbers to the right."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from dlio_bench.wrapping import WIDTH, printable, wrap

INDENT = "  "
LEAST_NAME = 18  # columns that names keep in a table that is too wide


def table_lines(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, words: Collection[str] = ()
) -> Iterator[str]:
    """A line of heads, then one of each row, at most WIDTH columns.

    Columns are two blanks apart; of a table that is too wide one. If that is not enough, a long name stands on a line
    of its own above its row, and columns that find no room even so stand below the others.

    Args:
        heads: Of all columns.
        rows: Cells of each row, the first one its name. One cell alone is a sentence between the rows.
        words: Heads of the columns that read from the left, as that of the names does.
    """
    cells = [[printable(str(cell)) for cell in row] for row in (heads, *rows)]
    columns = [*zip(*(row for row in cells if len(row) > 1), strict=True)]
    longest, *widths = (max(map(len, column)) for column in columns)
    room = WIDTH - len(INDENT) - sum(widths)
    gap = "  " if longest <= room - 2 * len(widths) else " "
    names = min(longest, max(room - len(gap) * len(widths), LEAST_NAME, len(heads[0])))
    for chosen in _fitting([len(gap) + width for width in widths], WIDTH - len(INDENT) - names):
        for name, *others in cells:
            if not others or len(name) > names:
                yield from wrap(name, INDENT)
            if others:
                shown = (f"{others[at]:{'<' if heads[at + 1] in words else '>'}{widths[at]}}" for at in chosen)
                begin = "" if len(name) > names else name
                yield f"{INDENT}{gap.join((f'{begin:<{names}}', *shown))}".rstrip()


def _fitting(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Positions of columns in parts that fit into a line, in their order."""
    part: list[int] = []
    for at, width in enumerate(widths):
        if part and sum(widths[each] for each in part) + width > room:
            yield part
            part = []
        part.append(at)
    yield part
