"""What results, predictions and coupled workflows say, as rows of one table: what each is, and its figures by name.

A claim of a study is arithmetic on such rows, whatever document they come from. Pure functions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from dlio_bench.counters import COUNTERS, SECONDS
from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.coupling.document import APART, REFERENCES, SIDES, WORKFLOW
from dlio_bench.reports.document.marks import TINY
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers import statistics
from dlio_bench.reports.numbers.meetings import Floats, Steps
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.simulation.control_tree import ControlTree
from dlio_bench.reports.simulation.document import NODES
from dlio_bench.reports.simulation.types import Simulation
from dlio_bench.reports.study.types import Value
from dlio_bench.reports.traces import span_pattern
from dlio_bench.reports.traces.access_pattern import BINS, metadata_share, opens_per_read
from dlio_bench.reports.traces.timeline import Timeline

FIRST, LATER = "@first", "@later"  # behind a metric: of the first epoch, and a mean epoch behind it
SCORE = "score_"  # begins the name of a score of the last validation pass
ATTRIBUTES: dict[str, tuple[str, ...]] = {  # what a row says that it is, by the command that made it
    "run": (
        "workload", "variant", "reader", "order", "placement", "delivery", "nodes", "ranks_per_node", "ranks", "batch",
        "epochs", "compute", "network", "exchange", "models", "files", "samples", "cache", "shard", "decode", "stream",
        "lag", "leaders",
    ),
    "simulate": (
        "scenario", "policy", "system", "clients", NODES, "staging", "ram", "disk", "epochs", "delta",
        "ranks", "radix", "shape", "way", "leaders",
    ),
    "couple": ("simulation", "case", "side", "consumers", "producers", "size"),
    "generate": (),
}  # fmt: skip
ACCESSES = ("often", "expected_often")  # of `simulate --accesses`
# Of the spans of a run (--trace spans), as `trace` tells them. written_share: of all bytes of dataset, node and
# checkpoints, of `couple` those of its emulated file system; small_share: of reads, up to 1 MiB.
COUNTED = ("small_share", "consecutive_share", "opens_per_read", "written_share", "bytes_variation")
PATTERN = (*COUNTED, "metadata_share", "seconds_variation")
SMALL = BINS.index("1M-4M")  # the first bin that is not
MESSAGES = ("root_in", "root_out", "most_in", "most_out", "messages", "depth")  # of `simulate --control-tree`
SUMS = ("all_reduce_seconds", "kept", "kept_lagged")  # of its --all-reduce
FIGURES_OF = {
    "simulate": ("seconds", "stall_seconds", "over_bound", "times_bound", *ACCESSES, *MESSAGES, *SUMS),
    "couple": ("elapsed_seconds", "written_share"),
    "generate": (),
}


class EvidenceRow(Struct, frozen=True):
    """One result. figures: float64 [trials] by name; wrong: why it is no evidence; sized: whether its times count;
    chance: whether a repetition may give others."""

    attributes: Mapping[str, Value]
    figures: Mapping[str, Floats]
    file: str = ""
    wrong: str | None = None
    sized: bool = True
    marks: Sequence[str] = ()
    chance: bool = True


def is_known(command: str, metric: str) -> bool:
    """Whether a command's documents have a figure of this name."""
    if command != "run":
        return metric in FIGURES_OF[command] or (command == "simulate" and metric.startswith("bytes_"))
    name = metric.removesuffix(FIRST).removesuffix(LATER)
    if name != metric:
        return name in COUNTERS or name == "seconds"
    return metric in METRICS or metric.startswith(SCORE) or metric in ("final_loss", *PATTERN)


def is_exact(metric: str) -> bool:
    """Whether a figure is no time: a count of bytes or samples, or what a network has learnt. It then is right on
    shrunken samples too.
    """
    if metric.startswith(SCORE) or metric in ("final_loss", *COUNTED):
        return True
    name = metric.removesuffix(FIRST).removesuffix(LATER)
    return metric.startswith("bytes_") or (name in COUNTERS and COUNTERS[name].unit != SECONDS)


def of_result(result: Result, steps: Steps, file: str, spans: Timeline | None = None) -> EvidenceRow:
    """The row of a run's result, and of its spans where it recorded some."""
    plan, policy, data = result.plan, result.policy, result.dataset
    compute = result.compute
    reader = (policy.alias or policy.name).partition("+")[0]  # without axes that were replaced, which rows tell anyway
    attributes: dict[str, Value | None] = {
        "workload": result.workload.name, "variant": data.variant, "reader": reader,
        "order": policy.order, "placement": policy.placement, "delivery": policy.delivery, "nodes": plan.nodes,
        "ranks_per_node": plan.ranks_per_node, "ranks": plan.ranks, "batch": plan.batch, "epochs": plan.epochs,
        "compute": compute.mode, "network": compute.model, "exchange": compute.exchange,
        "models": max(1, len(plan.models)), "files": data.files, "samples": data.samples, "cache": plan.cache,
        "shard": plan.shard, "decode": policy.decode is not None,
        "stream": plan.streams.mode if plan.streams is not None else None,
        "lag": compute.lag, "leaders": (compute.leaders or 1) if compute.hierarchical else 0,
    }  # fmt: skip
    failed = next((check for check in result.checks if not check.ok), None)
    wrong = None
    if result.class_ == "INVALID":
        told = f": {failed.name}: expected {failed.expected}, found {failed.found}" if failed is not None else ""
        wrong = f"its result is INVALID{told}"
    known = {name: values for name, values in statistics.per_trial(result, steps).items() if values is not None}
    return EvidenceRow(
        {name: value for name, value in attributes.items() if value is not None},
        known | _by_epoch(result) | _learning_figures(result) | ({} if spans is None else _pattern(result, spans)),
        file,
        wrong,
        TINY not in result.marks,
        tuple(result.marks),
    )


def _by_epoch(result: Result) -> dict[str, Floats]:
    """Counters of the first epoch and of a mean later one, in training alone; seconds of a rank."""
    trials = result.measured_trials
    figures: dict[str, Floats] = {}
    for name in ("seconds", *COUNTERS):
        share = result.plan.ranks if name != "seconds" and COUNTERS[name].unit == SECONDS else 1
        each = [[getattr(epoch, name) for epoch in trial.epochs] for trial in trials]
        if any(value is None for epochs in each for value in epochs):
            continue
        figures[f"{name}{FIRST}"] = np.array([epochs[0] / share for epochs in each], dtype=np.float64)
        if len(each[0]) > 1:
            later = [sum(epochs[1:]) / (len(epochs) - 1) / share for epochs in each]
            figures[f"{name}{LATER}"] = np.array(later, dtype=np.float64)
    return figures


def _learning_figures(result: Result) -> dict[str, Floats]:
    """The scores of the last validation pass and the last loss, of trials that trained."""
    trained = [trial.training for trial in result.measured_trials]
    known = [training for training in trained if training is not None]
    if not known or len(known) < len(trained):
        return {}
    figures = {"final_loss": np.array([training.final_loss for training in known])}
    if all(training.scores for training in known):
        for name in known[0].scores[-1]:
            figures[f"{SCORE}{name}"] = np.array([training.scores[-1][name] for training in known])
    return figures


def _pattern(result: Result, spans: Timeline) -> dict[str, Floats]:
    """How the files were accessed, by trial; without what is not known of one of them."""
    trials = []
    for trial in result.measured_trials:
        of, node = span_pattern.patterns_of(spans, trial.trial)
        saved = int(spans.bytes[spans.are_of("checkpoint write") & (spans.trial == trial.trial)].sum())
        written = saved + (0 if node is None else node.writes.bytes)
        moved = written + of.reads.bytes + (0 if node is None else node.reads.bytes)
        trials.append(
            {
                "small_share": _share(sum(of.reads.sizes[:SMALL]), of.reads.placed),
                "consecutive_share": _share(of.reads.consecutive, of.reads.placed),
                "opens_per_read": opens_per_read(of),
                "written_share": _share(written, moved),
                "bytes_variation": of.bytes_variation,
                "metadata_share": metadata_share(of),
                "seconds_variation": of.seconds_variation,
            }
        )
    columns = {name: [trial[name] for trial in trials] for name in PATTERN}
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items() if None not in column}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def of_simulation(document: Simulation, file: str) -> Iterator[EvidenceRow]:
    """A row for each policy at each place, where it applies. How often a node reads a sample is the same in all."""
    case = document.case
    fixed: dict[str, Any] = {
        "scenario": case.title.partition(":")[0], "system": document.system.name, "clients": document.pfs_clients,
        "epochs": case.epochs,
    }  # fmt: skip
    nodes = {} if case.nodes is None else {NODES: case.nodes}
    counts: dict[str, Floats] = {}
    if (accesses := document.accesses) is not None:
        fixed["delta"] = accesses.delta
        counts = {name: np.array([float(getattr(accesses, name))]) for name in ACCESSES}
    for row in document.rows:
        wrong = f"{row.policy} does not apply: {row.reason}" if row.seconds is None else None
        figures = counts | {f"bytes_{name}": np.array([float(size)]) for name, size in row.bytes.items()}
        for name in ("seconds", "stall_seconds", "over_bound"):
            if (value := getattr(row, name)) is not None:
                figures[name] = np.array([float(value)])
        if row.over_bound is not None:
            figures["times_bound"] = np.array([1 + row.over_bound])
        attributes = fixed | nodes | document.system.tiers | row.grid_cell | {"policy": row.policy}
        yield EvidenceRow(attributes, figures, file, wrong, chance=False)


def of_control_tree(document: ControlTree, file: str) -> Iterator[EvidenceRow]:
    """A row for each tree, a flat one or one of a radix, and for each way to add up."""
    for tree in document.trees:
        yield EvidenceRow(
            {"ranks": document.ranks, "radix": tree.radix, "shape": "tree" if tree.radix else "flat"},
            {name: np.array([float(getattr(tree, name))]) for name in MESSAGES},
            file,
            chance=False,
        )
    for way in () if document.sums is None else document.sums.ways:
        values = zip(SUMS, (way.seconds, way.kept, way.kept_lagged), strict=True)
        figures = {name: np.array([value]) for name, value in values if value is not None}
        attributes: dict[str, Value] = {"ranks": document.ranks, "way": way.way, "leaders": way.leaders}
        yield EvidenceRow(attributes, figures, file, chance=False)


def of_couple(document: couple.Document, file: str) -> Iterator[EvidenceRow]:
    """A row for each way and reference, and each side in it; the case 'alone' is the slower side alone."""
    fixed: dict[str, Value] = {
        "simulation": document.simulation, "consumers": document.consumers, "producers": document.producers,
        "size": document.settings.size,
    }  # fmt: skip
    sized = TINY not in document.marks
    for case in ("alone", *REFERENCES, *([APART] if couple.has_apart(document) else []), *document.ways):
        for side in SIDES:
            if case in REFERENCES[:2] and side != WORKFLOW:
                continue
            times = (
                couple.seconds_alone(document, side) if case == "alone" else couple.side_seconds(document, case, side)
            )
            yield EvidenceRow(
                fixed | {"case": case, "side": side},
                {"elapsed_seconds": times} | (_traffic(document, case) if side == WORKFLOW else {}),
                file,
                sized=sized,
                marks=tuple(document.marks),
            )


def _traffic(document: couple.Document, case: str) -> dict[str, Floats]:
    """What part of the bytes that the emulated file system carried was written; nothing where it was not there."""
    carried = [trial.traffic for trial in document.trials if trial.case == case and not trial.warmup]
    shares = [of and _share(of.written_bytes, of.written_bytes + of.read_bytes) for of in carried]
    return {"written_share": np.array(shares, dtype=np.float64)} if shares and None not in shares else {}


def matching(rows: Sequence[EvidenceRow], wanted: Mapping[str, Value]) -> list[EvidenceRow]:
    """The rows that are as an arm says. A number is what its digits say, and names count as they are written."""
    return [row for row in rows if all(row.attributes.get(name) == value for name, value in wanted.items())]
