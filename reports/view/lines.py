"""Lines of text for a terminal: the head of results, entries with a label, cells that fit their column."""

from collections.abc import Iterable, Iterator, Sequence

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import sentences
from dlio_bench.reports.view.formatting import interval, number, plural
from dlio_bench.wrapping import WIDTH, wrap

HEAD = 11  # columns of "ACCEPTANCE "
LABEL = 19  # columns of "  step p50/p95/p99 "
VALUE = 10
CUT = "…"


def title(results: Sequence[Result]) -> Iterator[str]:
    """'EXPLORE    cdb · naive, prefetch · 4 nodes × 1 rank · 3 trials of 2.26 GB'; the size where all read the same."""
    workloads = " + ".join(unique(result.workload.name for result in results))
    if len(results) == 1:
        readers, word = sentences.reader(results[0]), judge.headline(results[0])
    else:
        names = unique(result.policy.alias or result.policy.name for result in results)
        readers, word = ", ".join(names), judge.gravest_headline(results)
        if len(readers) > WIDTH:
            readers = plural(len(names), "reader")
    sizes = unique(number(result.metrics["bytes_requested"]) for result in results)
    trials = sentences.trials(results) + (f" of {sizes[0]}" if len(sizes) == 1 else "")
    yield from wrap(f"{workloads} · {readers} · {sentences.scales(results)} · {trials}", f"{word:<{HEAD}}")


def marks(results: Sequence[Result]) -> Iterator[str]:
    """The marks of all results, each once."""
    if names := unique(mark for result in results for mark in result.marks):
        yield from body_lines("  ".join(f"[{name}]" for name in names))


def body_lines(text: str) -> Iterator[str]:
    """Text below the title."""
    yield from wrap(text, " " * HEAD)


def entry(label: str, content: str, indent: int = 0) -> Iterator[str]:
    """A label and what it says."""
    head = f"  {label:<{LABEL - 3}} "
    yield from wrap(content, head, len(head) + indent)


def listing(label: str, entries: Iterable[str]) -> Iterator[str]:
    """Entries below each other; the label stands before the first."""
    for position, content in enumerate(entries):
        yield from entry("" if position else label, content)


def metric(result: Result, name: str, *remarks: str) -> Iterator[str]:
    """A metric's line: value, its interval where it has one, remarks."""
    value = result.metrics[name]
    sure = "" if value.ci is None else f"{sentences.coverage(result, name)} CI {interval(value)}"
    beside = ", ".join(remark for remark in (sure, *remarks) if remark)
    yield from entry(METRICS[name].title, f"{number(value):<{VALUE}}{beside}".rstrip(), VALUE)


def clip_lines(lines: Iterable[str], most: int) -> list[str]:
    """The first `most` lines; the last one says with a … that there were more."""
    kept = list(lines)
    return kept if len(kept) <= most else [*kept[: most - 1], f"{kept[most - 1][: WIDTH - 2].rstrip()} {CUT}"]


def fit(text: str, width: int) -> str:
    """Text in at most `width` columns; what is too long loses its middle, so that names stay apart."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}{CUT}{text[len(text) - tail :]}"


def unique(words: Iterable[str]) -> list[str]:
    """Each word once, in order."""
    return list(dict.fromkeys(words))
