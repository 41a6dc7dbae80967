"""Where the time of several results went, for a terminal: the answer, then the tables; at most 80 columns."""

from collections.abc import Iterable, Iterator, Sequence

from dlio_bench.reports.study_tables import Table
from dlio_bench.reports.traced import Scaling
from dlio_bench.reports.traced_answers import answers, missing
from dlio_bench.reports.traced_tables import tables
from dlio_bench.wrapping import printable, wrapped

WIDTH = 80
LONGEST = 26  # letters of a row's name
PUBLISHED = "published, nodes:"
INDENT, GAP = "  ", "  "


def answer(scalings: Sequence[Scaling]) -> str:
    """What `trace` says first: marks of all, then by workload and reader its other marks and the answer."""
    marks = [list(dict.fromkeys(mark for case in scaling.cases for mark in case.result.marks)) for scaling in scalings]
    of_all = [mark for mark in marks[0] if all(mark in of_scaling for of_scaling in marks)] if len(marks) > 1 else []
    lines = _words(f"[{mark}]" for mark in of_all) if of_all else []
    for scaling, of_scaling in zip(scalings, marks, strict=True):
        others = (f"[{mark}]" for mark in of_scaling if mark not in of_all)
        lines += _words((scaling.workload, scaling.reader, *others))
        for sentence in answers(scaling):
            lines += wrapped(f"{printable(sentence)}.", INDENT)
    return "\n".join(lines) + "\n"


def _words(words: Iterable[str]) -> list[str]:
    return wrapped(printable(" · ".join(words)))


def render(scalings: Sequence[Scaling]) -> str:
    """The tables. Published values alone are left out where there is a single result without spans of reading.

    A note that stands below an earlier table already is not repeated.
    """
    lines: list[str] = []
    notes: set[str] = set()
    for scaling, of_scaling in tables(scalings):
        if len(scalings) > 1:
            lines += ["", printable(f"{scaling.workload} · {scaling.reader}")]
        for sentence in missing(scaling):
            lines += wrapped(printable(sentence), f"{INDENT}note  ", whole_words=True)
        with_published = len(scaling.cases) > 1 or any(case.readers for case in scaling.cases)
        for table in of_scaling:
            if table.rows or with_published:
                lines += ["", *_table(table)]
                for note in table.notes:
                    lines += [] if note in notes else wrapped(printable(note), f"{INDENT}  ")
                notes |= {*table.notes}
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(table: Table) -> Iterator[str]:
    yield from wrapped(printable(table.title), INDENT)
    rows = [(_cut(printable(name)), cells) for name, cells in table.rows]
    published = [(_cut(printable(name)), cells) for name, cells in table.published]
    first = max(len(name) for name, _ in [*rows, *published, *([(PUBLISHED, ())] if published else [])])
    columns = [[head, *(cells[at] for _, cells in [*rows, *published])] for at, head in enumerate(table.heads)]
    widths = [max(map(len, column)) for column in columns]
    for chosen in _fitting(widths, WIDTH - len(INDENT) - first):
        yield _line("", first, [table.heads[at] for at in chosen], [widths[at] for at in chosen])
        for name, cells in rows:
            yield _line(name, first, [cells[at] for at in chosen], [widths[at] for at in chosen])
        if published:
            yield f"{INDENT}{PUBLISHED}"
        for name, cells in published:
            yield _line(name, first, [cells[at] for at in chosen], [widths[at] for at in chosen])


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


def _line(name: str, first: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    row = "".join(f"{GAP}{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{INDENT}{name:<{first}}{row}".rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
