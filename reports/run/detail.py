"""Everything that is known of results, as lines for a terminal: what `--verbose` prints."""

from collections.abc import Iterator, Sequence

from dlio_bench.reports.comparing.comparable import by_group, comparable, groups, refusals
from dlio_bench.reports.comparing.comparison import answer, axis_sentences, comparisons, rows_of
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.numbers import models
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import generated, predictions, sentences, tables, transfers
from dlio_bench.reports.run.advice import advice, shared_advice
from dlio_bench.reports.run.machines import machines
from dlio_bench.reports.view.formatting import NOTHING, format_time, number, plural
from dlio_bench.reports.view.lines import HEAD, body_lines, entry, listing, marks, metric, title
from dlio_bench.reports.view.table import INDENT, table_lines
from dlio_bench.wrapping import wrap

CEILING = "of the ceiling"
SENTENCES = {
    "I/O": sentences.io,
    "delivers": sentences.delivers,
    "streams": sentences.streams,
    "models": models.models_together,
    "training": sentences.training,
    "checkpoints": sentences.checkpoint_load,
    "made": generated.sentence,
    "inference": sentences.inference,
    "shares": sentences.sharing,
    "validation": sentences.validation,
    CEILING: sentences.ceiling,
}  # label -> what tells of a result, where there is something to tell


def lines(results: Sequence[Result]) -> Iterator[str]:
    """Everything that is known of one or several results, in lines of at most 80 columns.

    Several results share one table of readers x nodes. Those that may not be compared get a block each instead, and
    the reason.
    """
    yield from _single(results[0]) if len(results) == 1 else _compare_details(results)


def _single(result: Result) -> Iterator[str]:
    yield from title([result])
    yield from marks([result])
    yield from _block(result)
    yield from _transfers([result])
    yield from _predictions([result])
    yield from _machines([result])
    yield from _notes([result])
    yield from listing("advice", advice(result))


def _compare_details(results: Sequence[Result]) -> Iterator[str]:
    results = by_group(results)
    labels, compared = tables.labels(results), {id(result) for result in comparable(results)}
    yield from title(results)
    yield from marks(results)
    for why in refusals(results) or [judge.reason(results[0])]:
        yield from body_lines(why)
    if kept := [position for position, result in enumerate(results) if id(result) in compared]:
        yield ""
        yield from _side_by_side([results[position] for position in kept], [labels[position] for position in kept])
    workloads = {result.workload.name for result in results}
    for result in (result for result in results if id(result) not in compared):
        yield ""
        name = f"{result.workload.name} · " if len(workloads) > 1 else ""
        yield from wrap(
            f"{name}{sentences.reader(result)} · {sentences.scale(result)}", f"{judge.headline(result):<{HEAD}}"
        )
        yield from _block(result)
    yield from _transfers(results)
    yield from _predictions(results)
    yield from _machines(results)
    yield from _notes(results)
    yield from listing("advice", shared_advice(labels, results))


def _side_by_side(results: Sequence[Result], labels: Sequence[str]) -> Iterator[str]:
    compared = comparisons(results)
    yield from _table(results)
    yield ""
    yield from _shares(results, labels)
    yield ""
    yield from listing("answer", answer(results))
    yield from listing("credits", axis_sentences(results))
    for comparison in compared:
        head = comparison.place if "," in comparison.place else f"at {comparison.place}"
        yield from listing(head, comparison.sentences)
    bounds = [f"{result.bound.by}: {'; '.join(result.bound.evidence[:2])}" for result in results]
    yield from listing("bound by", [f"{label}: {bound}" for label, bound in zip(labels, bounds, strict=True)])
    for label, tell in SENTENCES.items():
        yield from listing(label, sentences.sentences_of(labels, results, tell))
    for label, result in zip(labels, results, strict=True):
        if result.models:
            yield ""
            yield f"  {label}"
            yield from of_models(result)
    yield from listing("checked", sentences.shared(labels, [[_passed_checks(result)] for result in results]))


def _block(result: Result) -> Iterator[str]:
    """Reason, numbers, bound and checks of one result."""
    yield from body_lines(judge.reason(result))
    yield ""
    for check in judge.failed_checks(result):
        yield from entry("FAILED", f"{check.name}: expected {check.expected}; found {check.found}")
    yield from _numbers(result)
    yield from entry("bound by", f"{result.bound.by}: {'; '.join(result.bound.evidence)}")
    yield from entry("checked", _passed_checks(result))


def _numbers(result: Result) -> Iterator[str]:
    """The metrics, one a line; how sure they are stands beside the first."""
    metrics, plan = result.metrics, result.plan
    certainty = sentences.describe_certainty(result)
    if sentences.has_interval(result):
        certainty = certainty.partition(",")[0]
    steps = f"{plural(plan.epochs, 'epoch')} of {plural(plan.steps_per_epoch, 'step')}"
    batch = f"batch {plan.batch} a rank"
    if plan.published_batch not in (None, plan.batch):
        batch += f" (published: {plan.published_batch})"
    yield from metric(result, "elapsed_seconds", certainty)
    yield from metric(result, "epoch_seconds", f"{steps}, {batch}")
    if metrics["first_epoch_seconds"].value is not None:
        yield from metric(result, "first_epoch_seconds")
        yield from metric(result, "later_epochs_seconds")
    yield from metric(result, "samples_per_second")
    yield from metric(result, "delivered_bandwidth", f"{sentences.source(result)} {number(metrics['pfs_bandwidth'])}")
    if ceiling := sentences.ceiling(result):
        yield from entry(CEILING, ceiling)
    storage = sentences.storage([result])
    device = f"what the {storage} delivered is not known"
    if metrics["bytes_device"].value is not None:
        device = f"the {storage} delivered {number(metrics['bytes_device'])}"
    yield from entry("requested", f"{number(metrics['bytes_requested'])} in a trial; {device}")
    mean, worst = number(metrics["own_stall_share"]), number(metrics["own_stall_share_worst_rank"])
    own_stall = f"a rank's own {mean}, at most {worst}"
    yield from metric(result, "stall_share", sentences.steady(metrics, "stall_share"), own_stall)
    if metrics["au"].value is not None:
        rule = "compute / wall time, first steps left out"
        yield from metric(result, "au", sentences.steady(metrics, "au"), rule)
    percentiles = " / ".join(number(metrics[f"step_p{percent}"]) for percent in (50, 95, 99))
    yield from entry("step p50/p95/p99", percentiles)
    if metrics["over_bound"].value is not None:
        yield from metric(result, "over_bound", sentences.no_io_bound(result))
    yield from of_models(result)
    yield from entry("step time", sentences.step_time(result))
    for label, tell in SENTENCES.items():
        if label != CEILING and (content := tell(result)):
            yield from entry(label, content)
    names = sentences.shares([result])
    shares = ", ".join(f"{METRICS[name].title} {number(metrics[name])}" for name in names)
    harness = sentences.harness([result])
    yield from entry("time goes (mean)", shares if harness is None else f"{shares}; {harness}")
    yield from entry("meanwhile", sentences.describe_overlap(result))


def of_models(result: Result) -> Iterator[str]:
    """The table of several models; nothing of one."""
    if rows := models.rows(result):
        titles = models.titles(result)
        yield from table_lines(["", *titles], [(name, *cells) for name, cells in rows])


def _passed_checks(result: Result) -> str:
    held = [f"{check.name}: {check.found}" for check in result.checks if check.ok]
    return "; ".join(held) or "nothing held"


def _transfers(results: Sequence[Result]) -> Iterator[str]:
    """Bytes by epoch and source, where a cache, a tier or the emulation had a part in them."""
    emulated = _has_mark(results, sentences.EMULATED_PFS)
    rows = transfers.rows(results)
    if len(rows) == len(results) and not emulated and not any(row.copied for row in rows):
        return
    titles, spoken = [title.removeprefix("emulated ") for title in transfers.titles(results)], None
    yield ""
    shown = []
    for row in rows:
        shown.append([row.label if len(results) > 1 and row.label != spoken else "", row.epochs, *row.cells])
        spoken = row.label
    yield from table_lines(["bytes by epoch", "epoch", *titles], shown)
    if misses := sum(row.misses for row in rows):
        yield from entry("misses", f"{misses:.0f} samples that other ranks were to send came from the file system")
    if emulated:
        yield from listing("emulated PFS", sentences.emulation_sentences(results)[:1])


def _predictions(results: Sequence[Result]) -> Iterator[str]:
    """What was predicted before the run, beside what was measured."""
    if not (lines := predictions.lines(results)):
        return
    rows: list[list[str]] = []
    spoken = None
    for line in lines:
        name = line.label if len(results) > 1 and line.label != spoken else ""
        predicted = NOTHING if line.predicted is None else format_time(line.predicted)
        rows.append([name, line.epochs, predicted, format_time(line.measured), line.difference])
        rows += [] if line.reason is None else [[f"not predicted: {line.reason}"]]
        spoken = line.label
    yield ""
    yield from table_lines(["time of an epoch", "epoch", "predicted", "measured", "difference"], rows)
    yield from listing("predictions", predictions.notes(results))


def _has_mark(results: Sequence[Result], mark: str) -> bool:
    return any(mark in result.marks for result in results)


def _machines(results: Sequence[Result]) -> Iterator[str]:
    told = [list(machines(result.environment)) for result in results]
    yield from listing("ran on", sentences.shared(tables.labels(results), told))


def _notes(results: Sequence[Result]) -> Iterator[str]:
    yield from listing("notes", sentences.shared(tables.labels(results), [result.plan.notes for result in results]))


def _table(results: Sequence[Result]) -> Iterator[str]:
    """Readers x nodes; the last column is the elapsed time over that of the first reader at the same node count."""
    rows = rows_of(results)
    names = [name for group in groups(results).values() for name in tables.labels(group)]
    if len({result.workload.name for result in results}) > 1:
        names = [f"{result.workload.name} {name}" for result, name in zip(results, names, strict=True)]
    shown = ("elapsed_seconds", "epoch_seconds", "delivered_bandwidth", "stall_share", "step_p99")
    table = []
    for result, name in zip(results, names, strict=True):
        row = rows.get(id(result))
        ratio = NOTHING if row is None else f"{row.ratio:.2f}"
        table.append([name, result.plan.nodes, *(number(result.metrics[metric]) for metric in shown), ratio])
    yield from table_lines(["reader", "nodes", "elapsed", "epoch", "delivered", "stall", "p99", "× first"], table)
    yield from wrap(sentences.describe_certainty(*results), "  ")


def _shares(results: Sequence[Result], labels: Sequence[str]) -> Iterator[str]:
    names = sentences.shares(results)
    heads = [METRICS[name].title for name in names]
    rows = [
        [label, *(number(result.metrics[name]) for name in names)]
        for label, result in zip(labels, results, strict=True)
    ]
    yield from table_lines(["time goes (mean)", *heads], rows)
    if harness := sentences.harness(results):
        yield from wrap(harness, INDENT)
