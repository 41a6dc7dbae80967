"""Results and their judgement as Markdown, for the summary of a CI job: verdict, reasons, limits, numbers."""

import re
from collections.abc import Iterator, Sequence

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.judging.judgement import Judgement
from dlio_bench.reports.judging.page import page_groups
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import sentences, tables, text
from dlio_bench.reports.view.formatting import interval, number
from dlio_bench.wrapping import printable

SHOWN = ("elapsed_seconds", "delivered_bandwidth", "stall_share", "au")  # metrics of the table
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~&])")


def render(results: Sequence[Result], judgement: Judgement | None = None) -> str:
    """The document, ending in a newline. judgement: of these results; without one each has its own class."""
    results = sorted(results, key=_place)
    return "\n".join([*_answer_lines(results, judgement), *_numbers(results), *_text(results)]) + "\n"


def _place(result: Result) -> tuple[object, ...]:
    """By workload and scale, then as they were measured: the same order from files in any."""
    plan = result.plan
    return result.workload.name, plan.nodes, plan.ranks_per_node, result.created, result.digest


def _answer_lines(results: Sequence[Result], judgement: Judgement | None) -> Iterator[str]:
    titles = " + ".join(dict.fromkeys(result.workload.title for result in results)) or "checkpoints"
    if judgement is None:
        yield f"## {judge.gravest_headline(results)}: {_escape(titles)}"
        yield ""
        labels = tables.labels(results)
        yield from (f"- {_escape(why)}" for why in sentences.sentences_of(labels, results, judge.reason))
        for label, result in zip(labels, results, strict=True):
            for check in judge.failed_checks(result):
                told = f"{check.name}: expected {check.expected}; found {check.found}"
                yield f"- {_escape(f'{label}: {told}' if len(results) > 1 else told)}"
        return
    shown = page_groups(judgement)
    yield f"## {shown.headline}: {_escape(titles)}"
    yield ""
    yield from (f"- {_escape(why)}" for why in shown.reasons)
    for entry in judgement.results:
        for reason in entry.reasons:
            yield f"- {_escape(f'{entry.workload} {entry.reader} {entry.scale}: {reason.rule}: {reason.text}')}"
    yield ""
    yield from _table(
        ("", "result", "metric", "limit", "found", "interval"),
        [(limit.outcome, limit.of, limit.metric, limit.limit, limit.found, limit.interval) for limit in shown.limits],
    )
    yield f"\n{_escape(shown.file)}, sha256:{shown.sha256}"


def _numbers(results: Sequence[Result]) -> Iterator[str]:
    if not results:
        return
    yield ""
    rows = []
    for label, result in zip(tables.labels(results), results, strict=True):
        cells = []
        for name in SHOWN:
            metric = result.metrics[name]
            between = f" ({interval(metric)})" if metric.ci is not None else ""
            cells.append(f"{number(metric)}{between}")
        rows.append((label, sentences.scale(result), judge.headline(result), *cells, ", ".join(result.marks) or "-"))
    yield from _table(("result", "scale", "class", *(METRICS[name].title for name in SHOWN), "marks"), rows)


def _text(results: Sequence[Result]) -> Iterator[str]:
    if results:
        yield "\n<details><summary>As on the terminal</summary>\n\n````text"
        yield text.render(results).replace("````", "'''").rstrip("\n")
        yield "````\n\n</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(map(_escape, row))} |" for row in rows)


def _escape(words: str) -> str:
    """A text of a result, none of whose characters is markup."""
    return _MARKUP.sub(r"\\\1", printable(words))
