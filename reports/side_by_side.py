"""Readers x nodes as one table for a terminal."""

from collections.abc import Iterator, Sequence
from itertools import chain

from dlio_bench.reports import sentences
from dlio_bench.reports.comparison import by_nodes, compare
from dlio_bench.reports.formatting import format_times, number, plural
from dlio_bench.reports.lines import clipped, fit
from dlio_bench.reports.tables import labels
from dlio_bench.reports.types import Result
from dlio_bench.wrapping import WIDTH, wrapped

READER, MARK = "reader", "mark"
WIDEST_MARK = 12


def table(results: Sequence[Result], most: int) -> Iterator[str]:
    """A head, at most `most` rows in rising node count, and a line on how sure they are and what is left out.

    '× first' is the elapsed time over that of the first reader at the same node count, '95 %' the interval of that.
    A mark that not all results have stands in their row.
    """
    rows = _rows(results)
    kept = {id(result) for result in _most_telling(results)[: max(1, most)]}
    shown = [row for result, row in rows if id(result) in kept]
    heads = [head for head in shown[0] if any(row[head] for row in shown)]
    widths = {head: max(len(head), *(len(row[head]) for row in shown)) + 2 for head in heads}
    widths[READER] -= max(0, sum(widths.values()) - WIDTH)
    for row in ({head: head for head in heads}, *shown):
        yield "".join(_cell(head, row[head], widths[head]) for head in heads).rstrip()
    hidden = len(rows) - len(shown)
    more = f"{plural(hidden, 'more row')}: --verbose; " if hidden else ""
    yield from clipped(wrapped(more + sentences.certainty(results[0]), "  "), 1)


def _cell(head: str, text: str, width: int) -> str:
    return f"  {fit(text, width - 2):<{width - 2}}" if head in (READER, MARK) else f"{text:>{width}}"


def _rows(results: Sequence[Result]) -> list[tuple[Result, dict[str, str]]]:
    """Each result with its cells by the heads of their columns."""
    shared = set.intersection(*(set(result.marks) for result in results))
    rows = []
    for nodes, group in by_nodes(results).items():
        compared = compare(group).rows or (None,) * len(group)
        for result, name, row in zip(group, labels(group), compared, strict=True):
            invalid = ["INVALID"] if result.class_ == "INVALID" else []
            marks = ", ".join([*invalid, *(mark for mark in result.marks if mark not in shared)])
            cells = {
                READER: name,
                "nodes": str(nodes),
                "elapsed": number(result.metrics["elapsed_seconds"]),
                "× first": "" if row is None else format_times(row.ratio)[0],
                "95 %": "" if row is None or row.interval is None else "-".join(format_times(*row.interval)),
                "stall": number(result.metrics["stall_share"]),
                "file system": number(result.metrics["bytes_requested"]),
                MARK: fit(marks, WIDEST_MARK),
            }
            rows.append((result, cells))
    return rows


def _most_telling(results: Sequence[Result]) -> list[Result]:
    """The results in the order in which a table does without them last: the fastest, the first and the slowest of each
    node count, the largest count first; then the others.
    """
    groups = list(by_nodes(results).values())[::-1]
    ranked = [sorted(group, key=lambda result: result.value("elapsed_seconds")) for group in groups]
    fastest, slowest = [group[0] for group in ranked], [group[-1] for group in ranked]
    telling = [*fastest, *(group[0] for group in groups), *slowest, *chain(*ranked)]
    return list({id(result): result for result in telling}.values())
