"""Results as text for a terminal: the answer first, all of it on one screen of 24 lines of 80 columns."""

from collections.abc import Iterator, Sequence

from dlio_bench.reports.comparing.comparable import by_group, comparable, refusals
from dlio_bench.reports.comparing.comparison import answer, axis_sentences
from dlio_bench.reports.document.marks import ALTERED
from dlio_bench.reports.document.types import Check, Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.numbers import models
from dlio_bench.reports.run import detail, generated, predictions, sentences, tables
from dlio_bench.reports.run.advice import shared_advice
from dlio_bench.reports.run.side_by_side import lines_beside, table
from dlio_bench.reports.view.formatting import format_share, number, plural
from dlio_bench.reports.view.lines import body_lines, clip_lines, entry, listing, marks, metric, title, unique
from dlio_bench.wrapping import printable, wrap

LINES = 20  # of the screen; the command adds where the files are, and the shell its prompt
NUMBERS = 5  # of one result
LEAST_ROWS = 4  # of a table, where sentences take the rest of the screen
MOST_ADVICE = 3  # lines
MOST_MODELS = 4  # lines
MOST_FAILURES = 2  # lines, where there are sentences too


def render(results: Sequence[Result], *, verbose: bool = False) -> str:
    """The text of one or several results, ending in a newline; no line is longer than 80 columns.

    At most 20 lines: of one result its verdict, reason and numbers, of several a table, and which reader is fastest, by
    how much and why. verbose: everything that is known. Control characters from files are shown harmlessly.
    """
    warning = list(_warning(results))
    if verbose:
        lines = [*warning, *detail.lines(results)]
    else:
        screen = _single_result(results[0]) if len(results) == 1 else _several_results(results, LINES - len(warning))
        lines = clip_lines([*warning, *screen], LINES)
    return "".join(f"{printable(line)}\n" for line in lines)


def _warning(results: Sequence[Result]) -> Iterator[str]:
    text = "altered after it was written (its digest does not match): do not trust its numbers"
    said = sentences.merge_sentences(
        tables.labels(results), [text if ALTERED in result.marks else None for result in results]
    )
    yield from clip_lines(listing("WARNING", said), 2)


def _head(results: Sequence[Result]) -> Iterator[str]:
    reasons = (refusals(results) if len(results) > 1 else []) or [judge.reason(results[0])]
    yield from clip_lines(title(results), 2)
    yield from clip_lines(marks(results), 2)
    yield from clip_lines((line for why in reasons for line in body_lines(why)), 2)
    yield ""


def _single_result(result: Result) -> Iterator[str]:
    yield from _head([result])
    yield from _numbers(result)
    if judge.failed_checks(result):
        yield from clip_lines(_failures([result]), 5)
    else:
        yield from clip_lines(entry("bound by", f"{result.bound.by}: {result.bound.evidence[0]}"), 2)
        for label, sentence in (
            ("models", models.models_together(result)),
            ("training", sentences.training(result)),
            ("checkpoints", sentences.checkpoint_load(result)),
            ("made", generated.sentence(result)),
            ("inference", sentences.inference(result)),
            ("of the ceiling", sentences.ceiling(result)),
        ):
            yield from clip_lines(listing(label, [sentence] if sentence else []), 2)
        yield from detail.of_models(result)
        yield from _prediction_lines([result])
        names = ", ".join(check.name for check in result.checks)
        yield from clip_lines(entry("checked", f"{plural(len(result.checks), 'check')} held: {names}"), 1)
    yield from _advice([result])


def _several_results(results: Sequence[Result], most: int) -> Iterator[str]:
    results = by_group(results)
    head, last = list(_head(results)), [*_models(results), *_prediction_lines(results), *_advice(results)]
    room = most - len(head) - len(last) - lines_beside(results) - 1  # lines for rows and sentences
    failed = clip_lines(_failures(results), MOST_FAILURES if comparable(results) else max(1, room - LEAST_ROWS))
    said = [*_sentences(results, room - len(failed)), *failed]
    yield from head
    yield from table(results, room - len(said))
    yield ""
    yield from said
    yield from last


def _numbers(result: Result) -> Iterator[str]:
    """Of the metrics that matter most the first five that the result has, a line each."""
    metrics = result.metrics
    certainty, sure = sentences.describe_certainty(result), sentences.has_interval(result)
    beside = {
        "elapsed_seconds": certainty.partition(",")[0] if sure else certainty,
        "delivered_bandwidth": "" if sure else f"{sentences.source(result)} {number(metrics['pfs_bandwidth'])}",
        "stall_share": sentences.steady(metrics, "stall_share"),
        "au": sentences.steady(metrics, "au"),
        "over_bound": sentences.no_io_bound(result),
        "samples_per_second": "",
        "step_p99": "",
    }
    for name in [name for name in beside if metrics[name].value is not None][:NUMBERS]:
        yield from clip_lines(metric(result, name, beside[name]), 1)


def _sentences(results: Sequence[Result], room: int) -> list[str]:
    """The answer, as much of it as leaves room for the table: at best with the part of each axis, for all node counts.

    Next best it gives the reason for the largest node count alone, then no other node count.
    """
    full, brief = answer(results), answer(results, why=False)
    if not full:
        return []
    others = f"{plural(len(full) - 1, 'more node count')}: --verbose"
    for rows in (len(results), LEAST_ROWS):
        for said in (full + axis_sentences(results), full, brief[:-1] + full[-1:], [*full[-1:], others]):
            lines = [line for sentence in said for line in wrap(sentence, "  ")]
            if len(lines) <= room - min(rows, len(results)):
                return lines
    return clip_lines(wrap(full[-1], "  "), max(1, room - LEAST_ROWS))


def _failures(results: Sequence[Result]) -> Iterator[str]:
    """The checks that failed, those of one name once."""
    failed = [{check.name: _describe_check(check) for check in judge.failed_checks(result)} for result in results]
    said = [
        sentence
        for name in unique(name for checks in failed for name in checks)
        for sentence in sentences.merge_sentences(tables.labels(results), [checks.get(name) for checks in failed])
    ]
    yield from listing("FAILED", said)


def _describe_check(check: Check) -> str:
    return f"{check.name}: expected {check.expected}; found {check.found}"


def _prediction_lines(results: Sequence[Result]) -> Iterator[str]:
    """How far predictions are from what was measured, at most; nothing where none was made."""
    lines = predictions.lines(results)
    off = sorted(line.predicted / line.measured - 1 for line in lines if line.predicted is not None and line.measured)
    if off:
        least, most = (f"{'+' if share >= 0 else '-'}{format_share(abs(share))}" for share in (off[0], off[-1]))
        span = least if least == most else f"{least} to {most}"
        yield from clip_lines(entry("predicted", f"{span} off the measured time of an epoch"), 1)


def _models(results: Sequence[Result]) -> list[str]:
    """How fast several models are, and how often each reader's run read the dataset; nothing of one model."""
    return clip_lines(
        listing("models", sentences.sentences_of(tables.labels(results), results, models.brief)), MOST_MODELS
    )


def _advice(results: Sequence[Result]) -> list[str]:
    return clip_lines(listing("advice", shared_advice(tables.labels(results), results)), MOST_ADVICE)
