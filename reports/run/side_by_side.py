"""Readers x nodes as one table for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from string import ascii_lowercase

from dlio_bench.reports.comparing.comparable import groups
from dlio_bench.reports.comparing.comparison import rows_of
from dlio_bench.reports.document.marks import gravest_first
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import sentences
from dlio_bench.reports.run.tables import labels
from dlio_bench.reports.view.formatting import format_times, number, plural
from dlio_bench.reports.view.lines import clip_lines, fit
from dlio_bench.wrapping import WIDTH, wrap

READER, CERTAIN, MARK = "reader", "95 %", "mark"
INVALID = "INVALID"
WIDEST_MARK = 13  # VIRTUAL NODES
MORE = "+"  # marks that have no letter


def table(results: Sequence[Result], most: int) -> Iterator[str]:
    """A head, at most `most` rows in rising node count, and a line on how sure they are and what is left out.

    '× first' is the elapsed time over that of the first reader at the same node count, '95 %' the interval of that.
    A mark that not all results have stands in their row, by a letter where names would not fit; a line below tells the
    letters. Of several workloads each heads its rows.
    """
    told, legend = _marks(results)
    rows, several = _rows(results, told), _workloads(results) > 1
    kept = {id(result) for result in _most_telling(results)[: max(1, most)]}
    shown = [(result, row) for result, row in rows if id(result) in kept]
    heads = [head for head in shown[0][1] if any(row[head] for _, row in shown)]
    widths = {head: max(len(head), *(len(row[head]) for _, row in shown)) + 2 for head in heads}
    widths[READER] -= max(0, sum(widths.values()) - WIDTH)
    yield _line({head: head for head in heads}, widths)
    spoken = None
    for result, row in shown:
        if several and result.workload.name != spoken:
            spoken = result.workload.name
            yield fit(f"  {spoken}:", WIDTH)
        yield _line(row, widths)
    yield from legend
    hidden = len(rows) - len(shown)
    more = f"{plural(hidden, 'more row')}: --verbose; " if hidden else ""
    said = sentences.describe_certainty(*results)
    if CERTAIN in heads:
        said = f"{said.partition(',')[0]}, {CERTAIN} bootstrap interval"
    yield from clip_lines(wrap(more + said, "  "), 1)


def lines_beside(results: Sequence[Result]) -> int:
    """How many lines `table` has at most that are no rows."""
    workloads = _workloads(results)
    return 2 + len(_marks(results)[1]) + (workloads if workloads > 1 else 0)


def _workloads(results: Sequence[Result]) -> int:
    return len({result.workload.name for result in results})


def _line(row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    return "".join(_cell(head, row[head], width) for head, width in widths.items()).rstrip()


def _cell(head: str, text: str, width: int) -> str:
    return f"  {fit(text, width - 2):<{width - 2}}" if head in (READER, MARK) else f"{text:>{width}}"


def _rows(results: Sequence[Result], told: Mapping[int, str]) -> list[tuple[Result, dict[str, str]]]:
    """Each result with its cells by the heads of their columns. told: its marks, by its `id`."""
    rows, compared = [], rows_of(results)
    for (_, nodes), group in groups(results).items():
        for result, name in zip(group, labels(group), strict=True):
            row = compared.get(id(result))
            cells = {
                READER: name,
                "nodes": str(nodes),
                "elapsed": number(result.metrics["elapsed_seconds"]),
                "× first": "" if row is None else format_times(row.ratio)[0],
                CERTAIN: "" if row is None or row.interval is None else "-".join(format_times(*row.interval)),
                "stall": number(result.metrics["stall_share"]),
                "file system": number(result.metrics["bytes_requested"]),
                MARK: told[id(result)],
            }
            rows.append((result, cells))
    return rows


def _marks(results: Sequence[Result]) -> tuple[dict[int, str], list[str]]:
    """The cell of each result for the marks that not all have, by its `id`, and the line that tells their letters."""
    shared = set.intersection(*(set(result.marks) for result in results))
    marks = {
        id(result): [INVALID] * (result.class_ == INVALID)
        + gravest_first(mark for mark in result.marks if mark not in shared)
        for result in results
    }
    whole = {key: ", ".join(names) for key, names in marks.items()}
    if all(len(cell) <= WIDEST_MARK for cell in whole.values()):
        return whole, []
    named = gravest_first(mark for names in marks.values() for mark in names if mark != INVALID)
    letters = dict(zip(named, ascii_lowercase, strict=False))
    while letters and len(_legend(letters, complete=len(letters) == len(named))) > WIDTH:
        letters.popitem()
    return {key: _cell_of(names, letters) for key, names in marks.items()}, [
        _legend(letters, complete=len(letters) == len(named))
    ]


def _legend(letters: Mapping[str, str], *, complete: bool) -> str:
    """'  a CACHE NOT ATTESTED  b VIRTUAL NODES  + others: --verbose'."""
    told = [f"{letter} {mark}" for mark, letter in letters.items()]
    return "".join(f"  {each}" for each in [*told, *([] if complete else [f"{MORE} others: --verbose"])])


def _cell_of(marks: Sequence[str], letters: Mapping[str, str]) -> str:
    """'INVALID ab+': the letters of the marks, as many as there is room for, and a + for others."""
    invalid = [INVALID] if INVALID in marks else []
    known = [letters.get(mark, MORE) for mark in marks if mark != INVALID]
    shown, room = "".join(dict.fromkeys(known)), WIDEST_MARK - sum(len(word) + 1 for word in invalid)
    shown = shown if len(shown) <= room else shown[: room - 1].rstrip(MORE) + MORE
    return " ".join([*invalid, shown] if shown else invalid)


def _most_telling(results: Sequence[Result]) -> list[Result]:
    """The results in the order in which a table does without them last: the fastest, the first and the slowest of each
    node count, the largest count first; then the others.
    """
    grouped = list(groups(results).values())[::-1]
    ranked = [sorted(group, key=lambda result: result.value("elapsed_seconds")) for group in grouped]
    fastest, slowest = [group[0] for group in ranked], [group[-1] for group in ranked]
    telling = [*fastest, *(group[0] for group in grouped), *slowest, *chain(*ranked)]
    return list({id(result): result for result in telling}.values())
