"""Results as a LaTeX table: a row for each, with intervals, and below it what they cover and the marks."""

from collections.abc import Sequence

from dlio_bench.reports.comparing.comparable import by_group, groups
from dlio_bench.reports.document.types import Metric, Result
from dlio_bench.reports.export.measures import MEASURES, OVER_FIRST, measures
from dlio_bench.reports.run import sentences, tables
from dlio_bench.reports.view.formatting import format_times, number, short_interval
from dlio_bench.wrapping import printable

COLUMNS = ("elapsed_seconds", OVER_FIRST.name, "delivered_bandwidth", "stall_share", "au")
SPECIAL = {letter: rf"\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$",
    "…": r"\dots{}", "→": r"$\rightarrow$", "≥": r"$\geq$", "≤": r"$\leq$", "µ": r"\textmu{}",
    "·": r"\textperiodcentered{}",
}  # fmt: skip


def render(results: Sequence[Result]) -> str:
    """A table over both columns, which needs booktabs. Text is escaped; intervals stand in brackets."""
    results = by_group(results)
    named = [name for group in groups(results).values() for name in tables.labels(group)]
    known = measures(results)
    shown = [name for name in COLUMNS if any(entry[name].value is not None for entry in known)]
    several = len({result.workload.name for result in results}) > 1
    rows = []
    for result, name, metrics in zip(results, named, known, strict=True):
        head = [f"{result.workload.name} {name}" if several else name]
        head += [f"{result.plan.nodes}×{result.plan.ranks_per_node}"]
        rows.append([*head, *(_cell(metric, metrics[metric]) for metric in shown)])
    heads = ["reader", "nodes×ranks", *(MEASURES[name].title for name in shown)]
    lines = [
        r"\begin{table*}", r"\centering", rf"\caption{{{escape(caption(results))}}}", r"\small",
        rf"\begin{{tabular}}{{ll{'r' * len(shown)}}}", r"\toprule", _row(heads), r"\midrule", *map(_row, rows),
        r"\bottomrule", r"\end{tabular}", r"\end{table*}",
    ]  # fmt: skip
    return "% \\usepackage{booktabs}\n" + "\n".join(lines) + "\n"


def caption(results: Sequence[Result]) -> str:
    """What the results are, how sure their numbers are, and what made them easier or less real."""
    titles = " + ".join(dict.fromkeys(result.workload.title for result in results))
    said = f"{titles}, {sentences.describe_certainty(*results)}"
    if any(metrics[OVER_FIRST.name].ci for metrics in measures(results)):
        said += "; × first: time over that of the first reader with its 95 % bootstrap interval"
    return f"{said}. {worth(results)}"


def worth(results: Sequence[Result]) -> str:
    """The marks of all results, and which are INVALID, as sentences."""
    marks = list(dict.fromkeys(mark for result in results for mark in result.marks))
    invalid = [
        label for label, result in zip(tables.labels(results), results, strict=True) if result.class_ == "INVALID"
    ]
    said = [f"Marks: {', '.join(marks)}."] if marks else []
    return " ".join([*said, *([f"INVALID: {'; '.join(invalid)}."] if invalid else [])])


def escape(text: str) -> str:
    """A text that LaTeX prints letter by letter."""
    return "".join(SPECIAL.get(letter, letter) for letter in printable(text))


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def _cell(name: str, metric: Metric) -> str:
    if name == OVER_FIRST.name and metric.value is not None:
        said = format_times(metric.value, *(metric.ci or ()))
        return said[0] if metric.ci is None else f"{said[0]} [{said[1]}, {said[2]}]"
    return (
        number(metric) if metric.ci is None or metric.value is None else f"{number(metric)} [{short_interval(metric)}]"
    )
