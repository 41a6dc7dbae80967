"""Results as text for a terminal, at most 80 columns: verdict first, reason next, numbers third, advice last."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlio_bench.reports import judge, predictions, tables, transfers, words
from dlio_bench.reports.advice import advice
from dlio_bench.reports.comparison import Comparison, comparisons, refusals
from dlio_bench.reports.words import number
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrapped

Result = Mapping[str, Any]

HEAD = 11  # columns of "ACCEPTANCE "
LABEL = 19  # columns of "  step p50/p95/p99 "
VALUE = 10
NAME = 18
MOST_ADVICE = 6


def render(results: Sequence[Result]) -> str:
    """The text of one or several results of one run, ending in a newline; no line is longer than 80 columns.

    Several results share one table of readers x nodes. Where results may not be compared they get a block each
    instead, and the reason.
    """
    lines = _single(results[0]) if len(results) == 1 else _several(results)
    return "\n".join(lines) + "\n"


def _single(result: Result) -> Iterator[str]:
    title = f"{result['workload']['name']} · {words.reader(result)} · {words.scale(result)} · {_size(result)}"
    yield from wrapped(title, f"{judge.headline(result):<{HEAD}}")
    yield from _marks([result])
    yield from _block(result)
    yield from _transfers([result])
    yield from _predictions([result])
    yield from _notes([result])
    yield from _list("advice", advice(result))


def _several(results: Sequence[Result]) -> Iterator[str]:
    results = sorted(results, key=lambda result: int(result["plan"]["nodes"]))
    labels, refused = tables.labels(results), refusals(results)
    yield from wrapped(_title(results), f"{judge.gravest_headline(results):<{HEAD}}")
    yield from _marks(results)
    if refused:
        yield from (line for why in refused for line in wrapped(why, " " * HEAD))
        for result in results:
            yield ""
            yield from wrapped(f"{words.reader(result)} · {words.scale(result)}", f"{judge.headline(result):<{HEAD}}")
            yield from _block(result)
    else:
        yield from wrapped(judge.reason(results[0]), " " * HEAD)
        yield ""
        yield from _side_by_side(results, labels)
    yield from _transfers(results)
    yield from _predictions(results)
    yield from _notes(results)
    said = words.shared(labels, [advice(result) for result in results])
    more = [f"and {len(said) - MOST_ADVICE} more in the report"] if len(said) > MOST_ADVICE else []
    yield from _list("advice", said[:MOST_ADVICE] + more)


def _side_by_side(results: Sequence[Result], labels: Sequence[str]) -> Iterator[str]:
    compared = comparisons(results)
    yield from _table(results, compared)
    yield ""
    yield from _shares(results, labels)
    yield ""
    for comparison in compared:
        yield from _list(f"at {words.plural(comparison.nodes, 'node')}", comparison.sentences)
    bounds = [f"{result['bound']['by']}: {'; '.join(result['bound']['evidence'][:2])}" for result in results]
    yield from _list("bound by", [f"{label}: {bound}" for label, bound in zip(labels, bounds, strict=True)])
    yield from _list(
        "delivers", words.shared(labels, [[said] if (said := words.delivers(result)) else [] for result in results])
    )
    ceilings = [[said] if (said := words.ceiling(result)) else [] for result in results]
    trained = [[said] if (said := words.training(result)) else [] for result in results]
    yield from _list("training", words.shared(labels, trained))
    inferred = [[said] if (said := words.inference(result)) else [] for result in results]
    yield from _list("inference", words.shared(labels, inferred))
    sharing = [[said] if (said := words.sharing(result)) else [] for result in results]
    yield from _list("shares", words.shared(labels, sharing))
    passes = [[said] if (said := words.validation(result)) else [] for result in results]
    yield from _list("validation", words.shared(labels, passes))
    yield from _list("of the ceiling", words.shared(labels, ceilings))
    yield from _list("checked", words.shared(labels, [[_held(result)] for result in results]))


def _title(results: Sequence[Result]) -> str:
    workloads = " + ".join(_unique(result["workload"]["name"] for result in results))
    readers = ", ".join(_unique(result["policy"]["alias"] or result["policy"]["name"] for result in results))
    nodes = _unique(str(result["plan"]["nodes"]) for result in results)
    scale = words.scale(results[0]) if len(nodes) == 1 else f"{', '.join(nodes)} nodes"
    return f"{workloads} · {readers} · {scale} · {_size(results[0])}"


def _size(result: Result) -> str:
    count = words.plural(len(words.trials(result)), "trial")
    return f"{count} of {format_bytes(result['metrics']['requested_bytes']['value'])}"


def _marks(results: Sequence[Result]) -> Iterator[str]:
    if marks := _unique(mark for result in results for mark in result["marks"]):
        yield from wrapped("  ".join(f"[{mark}]" for mark in marks), " " * HEAD)


def _block(result: Result) -> Iterator[str]:
    """Reason, numbers, bound and checks of one result."""
    yield from wrapped(judge.reason(result), " " * HEAD)
    yield ""
    for check in judge.failed(result):
        yield from _entry("FAILED", f"{check['name']}: expected {check['expected']}; found {check['found']}")
    yield from _numbers(result)
    yield from _entry("bound by", f"{result['bound']['by']}: {'; '.join(result['bound']['evidence'])}")
    yield from _entry("checked", _held(result))


def _numbers(result: Result) -> Iterator[str]:
    """The metrics, one a line; how sure they are stands beside the first."""
    metrics, plan = result["metrics"], result["plan"]
    certainty = words.certainty(result)
    steps = f"{words.plural(plan['epochs'], 'epoch')} of {words.plural(plan['steps_per_epoch'], 'step')}"
    batch = f"batch {plan['batch']} a rank"
    if plan["published_batch"] not in (None, plan["batch"]):
        batch += f" (published: {plan['published_batch']})"
    yield from _metric("elapsed", metrics["elapsed_seconds"], certainty.split(",")[0], certainty)
    yield from _metric("epoch", metrics["epoch_seconds"], f"{steps}, {batch}")
    if metrics["first_epoch_seconds"]["value"] is not None:
        yield from _metric("first epoch", metrics["first_epoch_seconds"])
        yield from _metric("later epochs", metrics["later_epochs_seconds"])
    yield from _metric("samples/s", metrics["samples_per_second"])
    yield from _metric(
        "delivered", metrics["delivered_bandwidth"], f"from the file system {number(metrics['pfs_bandwidth'])}"
    )
    if ceiling := words.ceiling(result):
        yield from _entry("of the ceiling", ceiling)
    storage = words.storage([result])
    device = f"what the {storage} delivered is not known"
    if metrics["device_bytes"]["value"] is not None:
        device = f"the {storage} delivered {number(metrics['device_bytes'])}"
    yield from _entry("requested", f"{number(metrics['requested_bytes'])} in a trial; {device}")
    own = f"a rank's own {number(metrics['own_stall_share'])}, at most {number(metrics['own_stall_share_worst_rank'])}"
    yield from _metric("stall", metrics["stall_share"], _beside(words.steady(metrics, "stall_share"), own))
    if metrics["au"]["value"] is not None:
        rule = "compute / wall time, first steps left out"
        yield from _metric("AU", metrics["au"], _beside(words.steady(metrics, "au"), rule))
    percentiles = " / ".join(number(metrics[f"step_p{percent}"]) for percent in (50, 95, 99))
    yield from _entry("step p50/p95/p99", percentiles)
    if metrics["over_bound"]["value"] is not None:
        yield from _metric("over the bound", metrics["over_bound"], f"no-I/O bound {number(metrics['no_io_seconds'])}")
    yield from _entry("step time", words.step_time(result))
    if delivers := words.delivers(result):
        yield from _entry("delivers", delivers)
    if training := words.training(result):
        yield from _entry("training", training)
    if inference := words.inference(result):
        yield from _entry("inference", inference)
    if sharing := words.sharing(result):
        yield from _entry("shares", sharing)
    if validation := words.validation(result):
        yield from _entry("validation", validation)
    names = words.shares([result])
    shares = ", ".join(f"{words.phase(name)} {number(metrics[name])}" for name in names)
    harness = words.harness([result])
    yield from _entry("time goes (mean)", shares if harness is None else f"{shares}; {harness}")
    yield from _entry("meanwhile", words.meanwhile(result))


def _held(result: Result) -> str:
    held = [f"{check['name']}: {check['found']}" for check in result["checks"] if check["ok"]]
    return "; ".join(held) or "nothing held"


def _transfers(results: Sequence[Result]) -> Iterator[str]:
    """Bytes by epoch and source, where a cache, a tier or the emulation had a part in them."""
    emulated = _marked(results, words.EMULATED_PFS)
    found = transfers.rows(results)
    if len(found) == len(results) and not emulated and not any(row.ram + row.local + row.remote for _, _, row in found):
        return
    storage, spoken = words.storage(results).split()[-1], None
    yield ""
    heads = f"{'requested':>10}{storage:>8}{'caches':>8}{'RAM tier':>9}{'local tier':>11}{'remote':>8}"
    yield f"  {'bytes by epoch':<{NAME}}{'epoch':>6}{heads}"
    for label, epochs, row in found:
        name = label if len(results) > 1 and label != spoken else ""
        parts = f"{words.size(row.requested):>10}{words.size(row.storage):>8}{words.size(row.cached):>8}"
        copies = f"{_some(row.ram):>9}{_some(row.local):>11}{_some(row.remote):>8}"
        yield from _row(name, f"{epochs:>6}{parts}{copies}")
        spoken = label
    if misses := sum(row.misses for _, _, row in found):
        yield from _entry("misses", f"{misses:.0f} samples that other ranks were to send came from the file system")
    if emulated:
        pfs = next(p for result in results if (p := result["environment"].get("emulated_pfs")))
        yield from _entry("emulated PFS", pfs["says"])


def _predictions(results: Sequence[Result]) -> Iterator[str]:
    """What was predicted before the run, beside what was measured."""
    if not (found := predictions.lines(results)):
        return
    spoken = None
    yield ""
    yield f"  {'time of an epoch':<{NAME}}{'epoch':>6}{'predicted':>11}{'measured':>11}{'difference':>12}"
    for line in found:
        name = line.label if len(results) > 1 and line.label != spoken else ""
        predicted = words.NOTHING if line.predicted is None else words.format_time(line.predicted)
        columns = f"{line.epochs:>6}{predicted:>11}{words.format_time(line.measured):>11}{line.difference:>12}"
        yield from _row(name, columns)
        if line.reason is not None:
            yield from wrapped(f"not predicted: {line.reason}", " " * 4)
        spoken = line.label
    yield from _list("predictions", predictions.notes(results))


def _some(count: float) -> str:
    return words.size(count) if count else words.NOTHING


def _marked(results: Sequence[Result], mark: str) -> bool:
    return any(mark in result["marks"] for result in results)


def _notes(results: Sequence[Result]) -> Iterator[str]:
    yield from _list("notes", words.shared(tables.labels(results), [result["plan"]["notes"] for result in results]))


def _table(results: Sequence[Result], compared: Sequence[Comparison]) -> Iterator[str]:
    """Readers x nodes; the last column is the elapsed time over that of the first reader at the same node count."""
    rows = {group.nodes: iter(group.rows) for group in compared}
    heads = f"{'elapsed':>9}{'epoch':>9}{'delivered':>11}{'stall':>8}{'p99':>9}{'× first':>8}"
    yield f"  {'reader':<{NAME}}{'nodes':>6}{heads}"
    for result in results:
        metrics, nodes = result["metrics"], result["plan"]["nodes"]
        row = next(rows.get(nodes, iter(())), None)  # a comparison's rows are in the order of the results
        yield from _row(
            result["policy"]["alias"] or result["policy"]["name"],
            f"{nodes:>6}"
            f"{number(metrics['elapsed_seconds']):>9}{number(metrics['epoch_seconds']):>9}"
            f"{number(metrics['delivered_bandwidth']):>11}{number(metrics['stall_share']):>8}"
            f"{number(metrics['step_p99']):>9}{words.NOTHING if row is None else f'{row.ratio:.2f}':>8}",
        )
    yield f"  {words.certainty(results[0])}"


def _shares(results: Sequence[Result], labels: Sequence[str]) -> Iterator[str]:
    names = words.shares(results)
    least = {5: 10, 6: 9}.get(len(names), 7)  # more columns make the others narrower
    short = {"checkpoint": "saved", "validation": "valid."} if len(names) > 6 else {}
    titles = {name: short.get(title := words.phase(name), title) for name in names}
    widths = {name: max(least, len(title) + 1) for name, title in titles.items()}
    heads = "".join(f"{titles[name]:>{width}}" for name, width in widths.items())
    yield f"  {'time goes (mean)':<{NAME}}{heads}"
    for label, result in zip(labels, results, strict=True):
        shares = (f"{number(result['metrics'][name]):>{width}}" for name, width in widths.items())
        yield from _row(label, "".join(shares))
    if own := words.harness(results):
        yield from _row("", f"  {own}")


def _row(name: str, columns: str) -> Iterator[str]:
    """A line of a table; a name that is too long for its column stands on a line of its own before it."""
    if len(name) >= NAME:
        yield from wrapped(name, "  ")
        name = ""
    yield f"  {name:<{NAME}}{columns}"


def _unique(found: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(entry) for entry in found))


def _metric(label: str, metric: Mapping[str, Any], remark: str = "", without_ci: str | None = None) -> Iterator[str]:
    """A metric's line: value, then its interval and a remark, or `without_ci` where there is no interval."""
    if metric["ci"] is None:
        beside = remark if without_ci is None else without_ci
    else:
        beside = _beside(f"95 % CI {words.interval(metric)}", remark)
    yield from _entry(label, f"{number(metric):<{VALUE}}{beside}".rstrip(), VALUE)


def _beside(*remarks: str) -> str:
    return ", ".join(remark for remark in remarks if remark)


def _entry(label: str, content: str, indent: int = 0) -> Iterator[str]:
    head = f"  {label:<{LABEL - 2}}"
    yield from wrapped(content, head, len(head) + indent)


def _list(label: str, entries: Sequence[str]) -> Iterator[str]:
    for position, entry in enumerate(entries):
        yield from _entry("" if position else label, entry)
